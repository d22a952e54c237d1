//! `run`: the service.

use super::{Context, Failure};
use crate::config::{self, Config, Environment, Sources, log_filter};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent run
  guest-agent run --config ./guest-agent.toml --set control_plane.enabled=false
  guest-agent run --stop-plugins")]
pub(super) struct Flags {
    /// Stop all plugins when the agent stops; without it they keep running
    #[arg(long)]
    stop_plugins: bool,
}

/// What the service is started with.
#[derive(Clone, Debug, PartialEq)]
pub struct RunArgs {
    /// The checked configuration.
    pub config: Config,
    /// Where it came from.
    pub sources: Sources,
    /// Whether plugins stop together with the agent.
    pub stop_plugins: bool,
}

pub(super) fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    if context.global.socket.is_some() {
        return Err(Failure::usage("--socket names the socket of an agent that runs already")
            .hint("say where the service makes its sockets with --set agent.runtime_dir=DIR"));
    }
    let config = configured(context.environment, &context.sources())?;
    context.services.start_logging(&config.log);
    let args = RunArgs { config, sources: context.sources(), stop_plugins: flags.stop_plugins };
    context.services.run(args).map_err(|error| Failure::of(&*error))
}

/// The configuration of the service, as it stands now: what all layers say, and the level that
/// `GUEST_AGENT_LOG` asks for. Read at the start and again whenever the service is told to.
///
/// # Errors
/// Says what is wrong with it.
pub fn configured(environment: &dyn Environment, sources: &Sources) -> Result<Config, Failure> {
    let mut config = config::load(environment, sources)?.config;
    if let Some(level) = environment.variable("GUEST_AGENT_LOG") {
        if let Err(wrong) = log_filter::check(&level) {
            return Err(Failure::usage(format_args!("GUEST_AGENT_LOG: {wrong}")));
        }
        config.log.level = level;
    }
    Ok(config)
}
