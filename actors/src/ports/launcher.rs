//! The processes of plugins: starting, finding, limiting and stopping them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{Cause, Unenforced};
use crate::model::exit::ExitCause;
use crate::model::id::{Endpoint, PluginName, Process};
use crate::model::runs::Trigger;
use crate::model::spec::{Limits, PluginSpec};

/// Starts, finds and ends processes of plugins.
///
/// It knows every process it spawned by the plugin's name, also one whose launch was dropped half
/// way, and `stop` ends whatever there is.
#[async_trait]
pub trait Launcher: Send + Sync {
    /// Ends what is left of the plugin, spawns the revision, waits for it to listen, and calls
    /// Start: one attempt within the spec's start timeout. The launcher passes the process to
    /// `spawned` as soon as it exists. A one-shot plugin learns from its environment which trigger
    /// it runs for.
    ///
    /// On error no process of the launch is left alive. A plugin that exits before it answered
    /// Start fails at once, with its exit cause and last output in the error.
    async fn launch(
        &self,
        spec: Arc<PluginSpec>,
        trigger: Option<Trigger>,
        spawned: tokio::sync::oneshot::Sender<Process>,
    ) -> Result<Launched, LaunchError>;

    /// Ends every process of the plugin: the one given, the ones this launcher knows, and their
    /// descendants; reaps the children of the agent. Answers when they are dead. Succeeds when no
    /// process is left.
    async fn stop(&self, order: StopOrder) -> Result<Stopped, StopError>;

    /// Sets the limits of a running plugin from now on, without a restart; may be done twice. What
    /// this machine cannot enforce is in the answer, as it is with a launch.
    async fn limit(
        &self,
        name: &PluginName,
        process: &Process,
        limits: Limits,
    ) -> Result<Unenforced, LimitError>;

    /// Resolves when a running process has exited, with its cause as far as the kernel reports it.
    /// Works for processes of an earlier agent process too.
    async fn exited(&self, name: &PluginName, process: &Process) -> ExitCause;

    /// Resolves when a running process has exited, as [`Self::exited`] does, but without waiting
    /// for the cause.
    async fn ended(&self, name: &PluginName, process: &Process) {
        let _cause = self.exited(name, process).await;
    }

    /// Looks for a living process of the plugin: first the recorded one, else one that was spawned
    /// but never recorded. Never mistakes another program for it.
    ///
    /// # Errors
    /// When it could not look, so that there may be one.
    async fn find(
        &self,
        name: &PluginName,
        recorded: Option<&Process>,
    ) -> Result<Option<Process>, FindError>;

    /// The last lines a plugin wrote, for crash events. Bounded; empty when it wrote nothing.
    async fn last_output(&self, name: &PluginName) -> String;
}

/// A plugin whose Start succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Its process.
    pub process: Process,
    /// Where it answers.
    pub endpoint: Endpoint,
    /// What was to hold of it and does not, because this machine cannot enforce it.
    pub unenforced: Unenforced,
}

/// Why limits cannot be set while a plugin runs. A start sets them.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// The process was started by an agent without control groups, or it could not enter its group.
    #[error("its process is not in its control group")]
    Outside,
    /// The plugin uses more memory than the new limit, and the kernel could not free enough of it.
    #[error("more than {limit} bytes of memory are in use")]
    InUse {
        /// The limit that was to be set.
        limit: u64,
    },
    /// The kernel did not finish the change in time.
    #[error("setting the limits took too long")]
    TimedOut,
}

/// How a plugin is to be stopped.
#[derive(Clone, Debug)]
pub struct StopOrder {
    /// The plugin.
    pub name: PluginName,
    /// The process and where it answers, where they are known.
    pub process: Option<Process>,
    /// The endpoint of the Stop call; without it the process gets signals only.
    pub endpoint: Option<Endpoint>,
    /// Whether the plugin is to wipe what it left on the machine.
    pub cleanup: Cleanup,
    /// How politely.
    pub manner: StopManner,
}

/// Whether Stop tells a plugin to wipe its traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cleanup {
    /// It will run again.
    Keep,
    /// It is being removed.
    Wipe,
}

/// How politely a plugin is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StopManner {
    /// Stop call with this deadline, then SIGTERM, then SIGKILL.
    Politely {
        /// How long the plugin may take before it gets signals.
        timeout: Duration,
    },
    /// SIGKILL.
    AtOnce,
}

/// What a stop found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// There was a process, and this is how it ended.
    Ended(ExitCause),
    /// Nothing was running.
    NothingRan,
}

/// Why a launch failed.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The kernel could not start the process.
    #[error("failed to execute {program}")]
    Spawn {
        /// Path of the entry point.
        program: String,
        /// Why.
        #[source]
        cause: Cause,
    },
    /// The process ended before it answered the Start call.
    #[error("the plugin ended before it was started: {cause}{}", Quoted(output))]
    Exited {
        /// How it ended.
        cause: ExitCause,
        /// The last lines it wrote.
        output: String,
    },
    /// The process runs, but does not accept connections on its endpoint.
    #[error("the plugin did not listen on {endpoint} within {}s{}", waited.as_secs_f32(), Quoted(output))]
    NotListening {
        /// Where it should have listened.
        endpoint: String,
        /// How long the launcher waited for it.
        waited: Duration,
        /// The last lines it wrote.
        output: String,
    },
    /// The plugin answered the Start call with an error.
    #[error("the plugin refused to start: {code}: {message}{}", Quoted(output))]
    Refused {
        /// Name of the gRPC code.
        code: String,
        /// What the plugin said.
        message: String,
        /// The last lines it wrote.
        output: String,
    },
    /// The Start call was not answered in time.
    #[error("the plugin did not answer Start within {}s{}", waited.as_secs_f32(), Quoted(output))]
    NoAnswer {
        /// How long the launcher waited for it.
        waited: Duration,
        /// The last lines it wrote.
        output: String,
    },
}

/// The words before the last lines that a plugin wrote, in every text that quotes them. The lines
/// come last: a reader who may not see them gets only the part of the text before these words.
pub const LAST_OUTPUT: &str = "its last output:";

/// The part of a text before the words [`LAST_OUTPUT`]: all of a text that quotes no output.
#[must_use]
pub fn before_output(text: &str) -> &str {
    text.split_once(LAST_OUTPUT).map_or(text, |(before, _)| before)
}

/// The same without the separator before these words: a reason as a text of its own.
#[must_use]
pub fn without_output(text: &str) -> &str {
    before_output(text).trim_end_matches("; ")
}

struct Quoted<'a>(&'a str);

impl std::fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; {LAST_OUTPUT}\n{}", self.0) }
    }
}

/// Why a plugin could not be stopped.
#[derive(Debug, thiserror::Error)]
#[error("process {pid} still lives {}s after SIGKILL", waited.as_secs_f32())]
pub struct StopError {
    /// The process that remains.
    pub pid: u32,
    /// How long the launcher waited for its end.
    pub waited: Duration,
}

/// Why it is unknown whether a plugin has a running process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the search for its processes failed; a process that hangs in the kernel, or a busy machine, \
     can be the cause"
)]
pub struct FindError;
