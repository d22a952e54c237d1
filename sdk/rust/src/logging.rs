//! Lines with a level on standard error, which the agent keeps with the time of each.

use std::io::stderr;

use tracing_subscriber::filter::LevelFilter;

/// Makes `tracing` write to standard error, from this level on: `guest-agent logs NAME` shows the
/// lines with their times. Lines hold no secrets.
///
/// ```no_run
/// # use guest_agent_plugin::LevelFilter;
/// guest_agent_plugin::log_to_stderr(LevelFilter::INFO);
/// // tracing::warn!(left, "the disk is nearly full");
/// ```
///
/// A process whose `tracing` has a subscriber already keeps that one.
pub fn log_to_stderr(level: LevelFilter) {
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(stderr)
        .with_ansi(false)
        // The agent keeps the time of every line.
        .without_time()
        .finish();
    // It fails where there is a subscriber already.
    drop(tracing::subscriber::set_global_default(subscriber));
}
