//! `run`: the service; with the name of a one-shot plugin, a run of that plugin.

use guest_agent_actors::model::id::PluginName;

use super::context::Context;
use super::failure::Failure;
use super::waiting::OnRequest;
use crate::agent::{RunArgs, configured};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent run
  guest-agent run --config ./guest-agent.toml --set control_plane.enabled=false
  guest-agent run --stop-plugins
  guest-agent run nightly-report --wait")]
pub(super) struct Flags {
    /// Run this one-shot plugin now, instead of the service
    #[arg(id = "name", value_name = "NAME", conflicts_with = "stop_plugins")]
    pub(super) plugin: Option<PluginName>,
    #[command(flatten)]
    pub(super) waiting: OnRequest,
    /// Stop all plugins when the agent stops; without it they keep running
    #[arg(long)]
    stop_plugins: bool,
}

/// Runs the service.
pub(super) fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    if context.global.socket.is_some() {
        return Err(Failure::usage("--socket names the socket of an agent that runs already")
            .hint("say where the service makes its sockets with --set agent.runtime_dir=DIR"));
    }
    let config = configured(context.environment, &context.sources())?;
    (context.services.start_logging)(&config.log);
    let args = RunArgs { config, sources: context.sources(), stop_plugins: flags.stop_plugins };
    (context.services.run)(args).map_err(|error| Failure::of(&*error))
}
