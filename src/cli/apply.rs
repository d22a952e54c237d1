//! `apply`: hands a plugin another configuration.

use std::path::PathBuf;
use std::time::Duration;

use guest_agent_actors::model::id::PluginName;
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use serde_json::{Value, json};

use super::client;
use super::context::Context;
use super::failure::Failure;
use super::order;
use super::submit::order_and_report;
use super::waiting::{Timeout, Until};
use crate::config::parse_duration;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent apply metrics --string 'level=debug' --wait
  guest-agent apply metrics --json-file config.json --wait
  guest-agent apply metrics --clear")]
pub(super) struct Flags {
    /// Name of the plugin
    name: PluginName,
    #[command(flatten)]
    config: Source,
    /// Wait until the plugin took it, or was started with it
    #[arg(long)]
    wait: bool,
    /// How long to wait [default: as long as the order may take]
    #[arg(long, requires = "wait", value_parser = parse_duration)]
    timeout: Option<Duration>,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Source {
    /// The configuration, as a text whose meaning only the plugin knows
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    string: Option<String>,
    /// A file with the configuration, as a JSON object
    #[arg(long, value_name = "FILE")]
    json_file: Option<PathBuf>,
    // The former spelling, `--json FILE`: as `--json` is also the flag of every verb for JSON
    // output and takes its value after `=` alone, the file stands by itself.
    #[arg(value_name = "FILE", hide = true)]
    file: Option<PathBuf>,
    /// No configuration at all
    #[arg(long)]
    clear: bool,
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let order = flags.order()?;
    let mut client = context.connect().await?;
    let name = flags.name.as_str();
    let known = client::status(&mut client).await?.plugins;
    // As in `remove`: the agent would report an unknown plugin in an event, but the command fails
    // at once.
    if !known.iter().any(|plugin| plugin.name == name) {
        let names = known.iter().map(|plugin| plugin.name.as_str());
        return Err(client::unknown_plugin(name, names));
    }
    let timeout = flags.wait.then_some(Timeout::new(flags.timeout));
    let waiting = (timeout, Until::default());
    let (json, spoken) = (context.global.json(), (context.console, context.environment));
    order_and_report(&mut client, vec![order], waiting, json, spoken).await
}

// === impl Flags ===

impl Flags {
    fn order(&self) -> Result<ConfigurePlugin, Failure> {
        let mut value =
            json!({ "action": "APPLY", "plugin": { "name": self.name.as_str() }, "manifest": {} });
        if let Some(text) = &self.config.string {
            value["manifest"] = json!({ "stringConfig": text });
        }
        if let Some(path) = self.config.json_file.as_ref().or(self.config.file.as_ref()) {
            let bytes = order::bytes_of(path).map_err(|error| Failure::of(&error))?;
            let config: Value = serde_json::from_slice(&bytes).map_err(|error| {
                let what = format_args!("{} is not JSON", path.display()).to_string();
                Failure::failed(what).because(&error)
            })?;
            if !config.is_object() {
                let what = format_args!("{} is not a JSON object", path.display()).to_string();
                return Err(Failure::failed(what));
            }
            value["manifest"] = json!({ "structConfig": config });
        }
        order::decode(&value)
            .map_err(|error| Failure::usage("the flags do not make an order").because(&error))
    }
}
