//! `dismiss`: the failure of a revision is known, and counts no more.

use guest_agent_actors::model::id::PluginName;
use guest_agent_proto::local::{Act, ActRequest, ActResponse};

use super::act::Accepted;
use super::client;
use super::context::Context;
use super::failure::Failure;
use super::follow::Goal;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent dismiss metrics --reason known")]
pub(super) struct Flags {
    /// Name of the plugin
    name: PluginName,
    /// Why, for those who look later
    #[arg(long, default_value = "", value_name = "TEXT")]
    reason: String,
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let Flags { name, reason } = flags;
    let name = name.to_string();
    let mut client = context.connect().await?;
    // The failure of now is dismissed, and not one that comes meanwhile.
    let plugins = client::status(&mut client).await?.plugins;
    let plugin = plugins.into_iter().find(|plugin| plugin.name == name);
    let revision = plugin.and_then(|plugin| plugin.pending).map(|pending| pending.revision);
    let request = ActRequest {
        name: name.clone(),
        act: Act::Dismiss.into(),
        revision: revision.unwrap_or_default(),
        reason,
        ..ActRequest::default()
    };
    let answer = client.act(client::traced(request, context.environment)).await;
    let ActResponse { generation, at_most } = match answer {
        Ok(answer) => answer.into_inner(),
        Err(error) => return Err(client::about(&mut client, &name, error).await),
    };
    let (goal, said) = (Goal::Settled, "dismissal accepted");
    let order = Accepted { name, generation, at_most, goal, said };
    order.report(&mut client, None, context).await
}
