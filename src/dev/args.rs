//! The arguments of `dev` and of the sample plugin.

use std::ffi::OsString;
use std::path::PathBuf;

use guest_agent_actors::manager::plan::PLUGINS_MAX;

/// The arguments of `dev`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent dev
  guest-agent dev --once
  guest-agent dev --plugins 3 --dir /tmp/guest-agent
  guest-agent dev --plugin . --watch")]
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

/// Reads the number of plugins; the agent accepts no more in one message.
fn plugins(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count <= PLUGINS_MAX);
    count.ok_or_else(|| format!("write a number up to {PLUGINS_MAX}"))
}

/// The arguments of a plugin, as the agent gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplePluginArgs {
    /// Everything after the verb, unparsed.
    pub args: Vec<OsString>,
}
