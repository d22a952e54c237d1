//! What the command line starts but does not contain.

use std::path::Path;

use guest_agent_actors::ports::Cause;

use crate::agent::RunArgs;
use crate::config::{Config, LogConfig};
use crate::dev::{DevArgs, SamplePluginArgs};
use crate::install::pack::{Compression, Packed};
use crate::process::logs::keeper::KeeperArgs;

/// The verbs that are not clients of a running agent. `main.rs` implements this with the real
/// thing, tests with records of what they were asked. Nothing here is called on an event loop: each
/// makes its own.
pub trait Services {
    /// Sends what is traced to standard error, and panics to the trace.
    fn start_logging(&self, log: &LogConfig);

    /// Checks what the service would not start with, beyond what reading the configuration checks.
    ///
    /// # Errors
    /// Says what it would not start with.
    fn check(&self, config: &Config) -> Result<(), Cause>;

    /// Runs the service until it is told to stop.
    ///
    /// # Errors
    /// Says why it could not start, or why it ended.
    fn run(&self, args: RunArgs) -> Result<(), Cause>;

    /// Runs everything on this machine.
    ///
    /// # Errors
    /// Says which step failed.
    fn dev(&self, args: DevArgs) -> Result<(), Cause>;

    /// Behaves as a plugin until it is told to stop.
    ///
    /// # Errors
    /// Says why it ended.
    fn sample_plugin(&self, args: SamplePluginArgs) -> Result<(), Cause>;

    /// Keeps the logs of plugins short while there is no agent.
    ///
    /// # Errors
    /// Says why it cannot.
    fn keep_logs(&self, args: KeeperArgs) -> Result<(), Cause>;

    /// Writes a reproducible archive of `dir` to `out`.
    ///
    /// # Errors
    /// Says what could not be read or written.
    fn pack(&self, dir: &Path, out: &Path, compression: Compression) -> Result<Packed, Cause>;
}
