//! `restart`: stops a plugin and starts it again.

use std::time::Duration;

use guest_agent_actors::model::id::PluginName;
use guest_agent_proto::local::RestartRequest;

use super::act::{Accepted, confirm};
use super::client;
use super::context::Context;
use super::failure::Failure;
use super::follow::Goal;
use crate::config::parse_duration;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent restart metrics --wait")]
pub(super) struct Flags {
    /// Name of the plugin
    name: PluginName,
    /// Do not ask before the plugin is stopped
    #[arg(long, short)]
    yes: bool,
    /// Wait until it runs again
    #[arg(long)]
    wait: bool,
    /// How long to wait
    #[arg(long, requires = "wait", default_value = "1m", value_parser = parse_duration)]
    timeout: Duration,
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let mut client = context.connect().await?;
    let name = flags.name.as_str().to_owned();
    if !flags.yes {
        confirm(&mut client, &name, "It is stopped and started again.", context.console).await?;
    }
    let request = RestartRequest { name: name.clone() };
    let answer = client.restart(client::traced(request, context.environment)).await;
    let generation = match answer {
        Ok(answer) => answer.into_inner().generation,
        Err(error) => return Err(client::about(&mut client, &name, error).await),
    };
    let order = Accepted { name, generation, goal: Goal::Working, said: "restart accepted" };
    order.report(&mut client, flags.wait.then_some(flags.timeout), context).await
}
