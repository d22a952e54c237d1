//! The functions that the command line starts but does not contain.

use guest_agent_actors::ports::Cause;

use crate::agent::RunArgs;
use crate::config::{Config, LogConfig};
use crate::dev::{DevArgs, SamplePluginArgs};
use crate::manifest::package;
use crate::process::logs::keeper::KeeperArgs;

/// A function that does the work of a verb with these arguments, or returns the failed step.
pub(super) type Work<'a, A> = Box<dyn Fn(A) -> Result<(), Cause> + 'a>;

/// A function that says what is wrong with a configuration.
pub(super) type Check<'a> = Box<dyn Fn(&Config) -> Result<(), Cause> + 'a>;

/// The functions behind the verbs that are not clients of a running agent. `main.rs` fills this
/// with the real functions, tests with functions that record their arguments. No function is called
/// on an event loop: each makes its own.
pub struct Services<'a> {
    /// Sends log lines to standard error, and panics to the log.
    pub start_logging: Box<dyn Fn(&LogConfig) + 'a>,
    /// Checks everything that would keep the service from starting, beyond the checks of the
    /// configuration reader.
    pub check: Check<'a>,
    /// Runs the service until a signal stops it.
    pub run: Work<'a, RunArgs>,
    /// Runs everything on this machine.
    pub dev: Work<'a, DevArgs>,
    /// Behaves as a plugin until the agent stops it.
    pub sample_plugin: Work<'a, SamplePluginArgs>,
    /// Shortens the logs of plugins while no agent runs.
    pub keep_logs: Work<'a, KeeperArgs>,
    /// Writes a reproducible archive.
    pub pack: Box<package::Packing<'a>>,
}
