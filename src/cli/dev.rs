//! `dev`: everything on this machine, without root and without a network.

use std::path::PathBuf;

use guest_agent_actors::manager::plan::PLUGINS_MAX;

use super::{Context, Failure};
use crate::config::LogConfig;

/// What the whole-in-one is started with.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent dev
  guest-agent dev --once
  guest-agent dev --plugins 3 --dir /tmp/guest-agent")]
pub struct DevArgs {
    /// Walk through a plugin's whole life, print each step, and end
    #[arg(long)]
    pub once: bool,
    /// How many sample plugins to install
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = plugins)]
    pub plugins: usize,
    /// Where to keep everything; without it a temporary directory is used and removed
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// Reads how many; the agent takes no more in one message.
fn plugins(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count <= PLUGINS_MAX);
    count.ok_or_else(|| format!("write a number up to {PLUGINS_MAX}"))
}

pub(super) fn run(args: DevArgs, context: Context<'_, '_>) -> Result<(), Failure> {
    // The steps are what is to be seen; the log shows through only where something is amiss.
    let level =
        context.environment.variable("GUEST_AGENT_LOG").unwrap_or_else(|| "warn".to_owned());
    context.services.start_logging(&LogConfig { level, ..LogConfig::default() });
    context.services.dev(args).map_err(|error| Failure::of(&*error))
}
