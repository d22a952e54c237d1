//! `restart`: stops a plugin and starts it again.

use guest_agent_actors::model::id::PluginName;
use guest_agent_proto::local::{RestartRequest, RestartResponse};

use super::act::{Accepted, confirm};
use super::client;
use super::context::Context;
use super::failure::Failure;
use super::follow::Goal;
use super::waiting::ByDefault;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent restart metrics
  guest-agent restart metrics --no-wait")]
pub(super) struct Flags {
    /// Name of the plugin
    name: PluginName,
    /// Do not ask before the plugin is stopped
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    waiting: ByDefault,
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let mut client = context.connect().await?;
    let name = flags.name.as_str().to_owned();
    if !flags.yes {
        confirm(&mut client, &name, "It is stopped and started again.", context.console).await?;
    }
    let request = RestartRequest { name: name.clone() };
    let answer = client.restart(client::traced(request, context.environment)).await;
    let RestartResponse { generation, at_most } = match answer {
        Ok(answer) => answer.into_inner(),
        Err(error) => return Err(client::about(&mut client, &name, error).await),
    };
    let goal = Goal::Working;
    let order = Accepted { name, generation, at_most, goal, said: "restart accepted" };
    order.report(&mut client, flags.waiting.timeout(), context).await
}
