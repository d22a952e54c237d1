//! `remove`: ends a plugin and deletes it with its data.

use std::time::Duration;

use guest_agent_actors::model::id::PluginName;

use super::act::confirm;
use super::context::Context;
use super::failure::Failure;
use super::submit::order_and_report;
use super::waiting::{Timeout, Until};
use crate::api::local::remove_order;
use crate::config::parse_duration;
use crate::display::is_only_refused;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent remove metrics --wait")]
pub(super) struct Flags {
    /// Name of the plugin
    name: PluginName,
    /// Do not ask before the plugin is removed
    #[arg(long, short)]
    yes: bool,
    /// Wait until it is removed
    #[arg(long)]
    wait: bool,
    /// How long to wait [default: as long as the order may take]
    #[arg(long, requires = "wait", value_parser = parse_duration)]
    timeout: Option<Duration>,
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let mut client = context.connect().await?;
    let name = flags.name.as_str();
    let known = super::client::status(&mut client).await?.plugins;
    // The agent takes an order for a plugin it does not have and reports the failure as an event,
    // as the control plane expects; a person should see the failure at once.
    if !known.iter().any(|plugin| plugin.name == name) {
        let names = known.iter().map(|plugin| plugin.name.as_str());
        return Err(super::client::unknown_plugin(name, names));
    }
    if let Some(folder) = known.iter().find(|it| it.name == name && is_only_refused(it)) {
        let why = "no plugin has this name, only a folder whose manifest is refused";
        let path = &folder.install_path;
        return Err(Failure::failed(format_args!("{name} cannot be removed"))
            .cause(why)
            .hint(format_args!("delete {path}, then `systemctl reload guest-agent`")));
    }
    if !flags.yes {
        let consequence = "It is stopped, and its files and its data are deleted.";
        confirm(&mut client, name, consequence, context.console).await?;
    }
    let timeout = flags.wait.then_some(Timeout::new(flags.timeout));
    let waiting = (timeout, Until::default());
    let spoken = (context.console, context.environment);
    order_and_report(&mut client, vec![remove_order(name)], waiting, context.global.json(), spoken)
        .await
}
