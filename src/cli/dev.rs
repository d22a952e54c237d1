//! `dev`: everything on this machine, without root and without a network.

use super::context::Context;
use super::failure::Failure;
use crate::config::LogConfig;
use crate::dev::DevArgs;

pub(super) fn run(args: DevArgs, context: Context<'_, '_>) -> Result<(), Failure> {
    // The terminal shows the steps; of the log, it shows warnings and errors only.
    let level =
        context.environment.variable("GUEST_AGENT_LOG").unwrap_or_else(|| "warn".to_owned());
    (context.services.start_logging)(&LogConfig { level, ..LogConfig::default() });
    (context.services.dev)(args).map_err(|error| Failure::of(&*error))
}
