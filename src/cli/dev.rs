//! `dev`: everything on this machine, without root and without a network; with `--plugin`, a plugin that somebody
//! works on.
//!
//! ```text
//! dev            ─► Services::dev: a control plane, an agent, sample plugins
//! dev --plugin   ─► session: a private agent ─┬─► round: build ─► pack ─► order ─► follow
//!                      ▲    ▲                 └─► feed: status, events, log
//!                 keys ┘    └ sources (--watch)          └─► model ─► view: lines, or a screen
//! ```

use std::path::PathBuf;
use std::time::Duration;

use super::context::Context;
use super::failure::Failure;
use crate::config::{LogConfig, parse_duration};
use crate::dev::DevArgs;

mod build;
mod feed;
mod keys;
mod lines;
mod model;
mod round;
mod session;
mod sources;
mod view;

#[derive(Debug, clap::Args)]
pub(super) struct Flags {
    #[command(flatten)]
    all: DevArgs,
    /// Build, pack and run the plugin in DIR on an agent of its own, with its log, its events and its
    /// state; nothing is left of it at the end
    #[arg(long, value_name = "DIR", conflicts_with_all = ["once", "plugins", "dir"])]
    pub(super) plugin: Option<PathBuf>,
    /// Build and upgrade whenever a file in DIR changes
    #[arg(long, requires = "plugin")]
    watch: bool,
    /// Longest that the build command may take
    #[arg(long, value_name = "TIME", default_value = "10m", requires = "plugin", value_parser = parse_duration)]
    build_timeout: Duration,
}

/// Works on the plugin in a folder.
pub(super) async fn work(
    folder: PathBuf,
    flags: Flags,
    context: Context<'_, '_>,
) -> Result<(), Failure> {
    let trigger = if flags.watch { session::Trigger::Changes } else { session::Trigger::Keys };
    let wish = session::Wish { folder, trigger, build_timeout: flags.build_timeout };
    session::run(wish, context).await
}

/// Everything on this machine, with sample plugins.
pub(super) fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    // The terminal shows the steps; of the log, it shows warnings and errors only.
    let level =
        context.environment.variable("GUEST_AGENT_LOG").unwrap_or_else(|| "warn".to_owned());
    (context.services.start_logging)(&LogConfig { level, ..LogConfig::default() });
    (context.services.dev)(flags.all).map_err(|error| Failure::of(&*error))
}
