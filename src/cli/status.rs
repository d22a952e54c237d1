//! `status`: what runs, what is pending and why not.
//!
//! `json.rs` is the output for scripts; `table.rs` is the output for people.

use guest_agent_proto::local::{GetStatusRequest, GetStatusResponse};

use super::client::{self, Patience, unknown_plugin};
use super::console::Console;
use super::context::Context;
use super::failure::Failure;

pub(super) mod json;
pub(super) mod table;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent status
  guest-agent status metrics
  guest-agent status --watch
  guest-agent status --json | jq -r '.[] | select(.state != \"RUNNING\") | .name'")]
pub(super) struct Flags {
    /// Only this plugin, in detail
    name: Option<String>,
    /// Show it again after every change
    #[arg(long)]
    watch: bool,
    /// Text above the output; `dev` shows its instructions there
    #[arg(long, hide = true, requires = "watch", conflicts_with = "json", value_name = "TEXT")]
    note: Option<String>,
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let mut client = context.connect().await?;
    let view = View { name: flags.name, json: context.global.json };
    let console = context.console;
    if !flags.watch {
        let status = client::status(&mut client).await?;
        return view.print(&status, console);
    }
    let mut changes = client.watch_status(GetStatusRequest::default()).await?.into_inner();
    let mut first = true;
    while let Some(status) = client::next(&mut changes, Patience::Forever).await? {
        if view.json {
            console.object(&json::plugins(view.select(&status)?))?;
            continue;
        }
        if console.width.is_some() {
            // Draws from the top left corner, over the old text.
            console.text("\x1b[H\x1b[J")?;
        } else if !first {
            console.line("")?;
        }
        if let Some(note) = flags.note.as_deref().filter(|_| first || console.width.is_some()) {
            console.line(note)?;
        }
        first = false;
        view.print(&status, console)?;
    }
    Ok(())
}

/// What of the status is shown, and how.
struct View {
    name: Option<String>,
    json: bool,
}

// === impl View ===

impl View {
    fn print(&self, status: &GetStatusResponse, console: &mut Console<'_>) -> Result<(), Failure> {
        let plugins = self.select(status)?;
        if self.json {
            console.document(&json::plugins(plugins))?;
        } else if let (Some(_), [plugin]) = (&self.name, plugins) {
            let text = table::details(plugin, console);
            console.text(&text)?;
        } else {
            let text = table::overview(plugins, status.agent.as_ref(), console);
            console.text(&text)?;
        }
        Ok(())
    }

    fn select<'s>(
        &self,
        status: &'s GetStatusResponse,
    ) -> Result<&'s [guest_agent_proto::local::PluginStatus], Failure> {
        let all = status.plugins.as_slice();
        let Some(name) = &self.name else { return Ok(all) };
        match all.iter().position(|plugin| plugin.name == *name) {
            Some(index) => Ok(&all[index..=index]),
            None => Err(unknown_plugin(name, all.iter().map(|plugin| plugin.name.as_str()))),
        }
    }
}
