//! `status`: what runs, what is pending and why not.
//!
//! `json.rs` is the output for scripts; `table.rs` is the output for people.

use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::local::{ExplainRequest, GetStatusRequest, GetStatusResponse, PluginStatus};

use super::client::{self, Patience, unknown_plugin};
use super::console::Console;
use super::context::{Context, JsonForm};
use super::failure::{Exit, Failure};
use crate::display::values::{self, Named};
use crate::display::{needs_attention, urgency};

pub(super) mod json;
pub(super) mod table;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent status
  guest-agent status metrics
  guest-agent status --problems
  guest-agent status --watch
  guest-agent status --json | jq -r '.plugins[] | select(.verdict == \"failing\") | .name'")]
pub(super) struct Flags {
    /// Only these plugins; one alone is shown in detail
    #[arg(id = "name", value_name = "NAME")]
    names: Vec<String>,
    /// Only plugins that need attention, the most urgent first
    #[arg(long)]
    problems: bool,
    /// Only plugins in this state, such as CRASHED
    #[arg(long, value_name = "STATE", ignore_case = true)]
    state: Option<String>,
    /// Show the configuration of the plugin as well, with secrets masked
    #[arg(long, requires = "name", conflicts_with_all = ["watch", "json"])]
    with_config: bool,
    /// Show it again after every change
    #[arg(long)]
    watch: bool,
    /// Text above the output; `dev` shows its instructions there
    #[arg(long, hide = true, requires = "watch", conflicts_with = "json", value_name = "TEXT")]
    note: Option<String>,
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let Flags { names, problems, state, with_config, watch, note } = flags;
    let state = state.map(|name| parse_state(&name)).transpose()?;
    let view = View { names, problems, state, json: context.global.json };
    let mut client = context.connect().await?;
    let console = context.console;
    if !watch {
        let status = client::status(&mut client).await?;
        view.print(&status, console)?;
        if let ([name], None) = (&*view.names, view.json) {
            let request = ExplainRequest { name: name.clone(), config: with_config };
            let answer = client.explain(request).await?.into_inner();
            let text = table::effective(&answer, console);
            console.text(&text)?;
        }
        return Ok(());
    }
    let mut changes = client.watch_status(GetStatusRequest::default()).await?.into_inner();
    let mut first = true;
    while let Some(status) = client::next(&mut changes, Patience::Forever).await? {
        if let Some(form) = view.json {
            console.object(&json::document(&view.select(&status)?, status.agent.as_ref(), form))?;
            continue;
        }
        if console.width.is_some() {
            // Draws from the top left corner, over the old text.
            console.text("\x1b[H\x1b[J")?;
        } else if !first {
            console.line("")?;
        }
        if let Some(note) = note.as_deref().filter(|_| first || console.width.is_some()) {
            console.line(note)?;
        }
        first = false;
        view.print(&status, console)?;
    }
    Ok(())
}

fn parse_state(name: &str) -> Result<StatusValue, Failure> {
    let upper = name.to_uppercase();
    StatusValue::named(&upper).filter(|state| *state != StatusValue::default()).ok_or_else(|| {
        let known = (1..).map_while(|number| StatusValue::try_from(number).ok());
        let known = known.map(Named::name).collect::<Vec<_>>().join(", ");
        Failure::new(Exit::Usage, format_args!("--state {name} is no state; they are {known}"))
    })
}

/// What of the status is shown, and how.
struct View {
    names: Vec<String>,
    problems: bool,
    state: Option<StatusValue>,
    json: Option<JsonForm>,
}

// === impl View ===

impl View {
    fn print(&self, status: &GetStatusResponse, console: &mut Console<'_>) -> Result<(), Failure> {
        let plugins = self.select(status)?;
        if let Some(form) = self.json {
            console.document(&json::document(&plugins, status.agent.as_ref(), form))?;
        } else if let ([_], [plugin]) = (&*self.names, &*plugins) {
            let text = table::details(plugin, console);
            console.text(&text)?;
        } else if plugins.is_empty() && !status.plugins.is_empty() {
            console.line("no plugin is like this")?;
        } else {
            let text = table::overview(&plugins, status.agent.as_ref(), console);
            console.text(&text)?;
        }
        Ok(())
    }

    /// The plugins that are asked for; naming one that does not exist is an error.
    fn select<'s>(&self, status: &'s GetStatusResponse) -> Result<Vec<&'s PluginStatus>, Failure> {
        let all = status.plugins.as_slice();
        for name in &self.names {
            if !all.iter().any(|plugin| plugin.name == *name) {
                return Err(unknown_plugin(name, all.iter().map(|plugin| plugin.name.as_str())));
            }
        }
        let is_named =
            |plugin: &PluginStatus| self.names.is_empty() || self.names.contains(&plugin.name);
        let mut selected: Vec<_> = all
            .iter()
            .filter(|plugin| is_named(plugin))
            .filter(|plugin| !self.problems || needs_attention(plugin))
            .filter(|plugin| self.state.is_none_or(|state| values::state(plugin) == state))
            .collect();
        if self.problems {
            selected.sort_by_key(|plugin| urgency(plugin));
        }
        Ok(selected)
    }
}
