//! The traits that adapters implement, their errors, and the bundle the actors are given.
//!
//! Each method is one arrow of the architecture picture. Every future here may be dropped at any
//! await point (an order that supersedes another cancels its work), so an implementation must leave
//! nothing behind that the next call cannot cope with.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::watch;

use crate::model::exit::ExitCause;
use crate::model::facts::FactSet;
use crate::model::id::{BootId, Endpoint, PluginName, Process, RevisionId, Sha256Digest};
use crate::model::spec::{Config, Limits, PluginSpec};

mod admission;
mod counters;
mod local;
mod prober;
mod sweeper;
mod unenforced;

pub use admission::{
    AdmissionCommand, AdmissionHost, Describe, HungUp, ListCalled, ListRefused, QueueRecipients,
    ResolveCalled,
};
pub use counters::{Count, Counters, NoCounters, OrderKind, Outcome};
pub use local::{LocalPlugins, LocalScan, ScanError};
pub use prober::{ProbeError, Prober};
pub use sweeper::{
    Claim, Known, ReferenceSet, References, SWEEP_ITEMS_MAX, SweepFate, SweepItem, SweepManner,
    SweepReport, Sweeper,
};
pub use unenforced::{Shortfall, ShortfallKind, UNENFORCED_MAX, Unenforced};

/// What adapters report as the cause of a failure.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// All ports: the traits through which the actors use files, processes, sockets and clocks.
#[derive(Clone)]
pub struct Ports {
    /// Files of plugins.
    pub installer: Arc<dyn Installer>,
    /// Processes of plugins.
    pub launcher: Arc<dyn Launcher>,
    /// The calls a plugin answers.
    pub rpc: Arc<dyn PluginRpc>,
    /// What processes use.
    pub meter: Arc<dyn Meter>,
    /// What is kept across restarts.
    pub storage: Arc<dyn Storage>,
    /// Clears away what nothing refers to.
    pub sweeper: Arc<dyn Sweeper>,
    /// Runs admission plugins.
    pub admission: Arc<dyn AdmissionHost>,
    /// Plugins that came with the machine.
    pub local: Arc<dyn LocalPlugins>,
    /// Whether a process answers on what plugins offer.
    pub prober: Arc<dyn Prober>,
    /// The connection to the control plane.
    pub link: Arc<dyn ControlLink>,
    /// What the machine says of itself.
    pub machine: Arc<dyn Machine>,
    /// What rules look attributes up in.
    pub facts: Arc<dyn Facts>,
    /// Counts what happens.
    pub counters: Arc<dyn Counters>,
    /// Wall-clock time, for texts and records; never for waiting.
    pub clock: Arc<dyn Clock>,
    /// Ids of messages to the control plane.
    pub ids: Arc<dyn Ids>,
}

// === Installer ===

/// Puts revisions of plugins on disk and takes them away.
#[async_trait]
pub trait Installer: Send + Sync {
    /// Makes the revision's folder complete and durable: downloaded, verified, unpacked and
    /// renamed into place. Answers at once when it is there already. Leaves nothing behind when it
    /// fails or is dropped.
    async fn install(
        &self,
        spec: Arc<PluginSpec>,
        progress: ProgressSender,
    ) -> Result<(), InstallError>;

    /// What the entry point of a local plugin hashes to now. Nobody but its owner says when it
    /// changes.
    async fn content(&self, spec: &PluginSpec) -> Result<Sha256Digest, InstallError>;

    /// Points the plugin's `current` link at an installed revision, atomically.
    async fn activate(&self, name: &PluginName, revision: &RevisionId) -> Result<(), InstallError>;

    /// Deletes one revision's folder. Succeeds when it is not there.
    async fn discard(&self, name: &PluginName, revision: &RevisionId) -> Result<(), RemoveError>;

    /// Deletes everything of a plugin: revisions, link, state and logs. Succeeds when nothing is
    /// there.
    async fn remove(&self, name: &PluginName) -> Result<(), RemoveError>;
}

/// How far a download is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the archive received in this attempt.
    pub received: u64,
    /// Bytes of the whole archive, where the server said.
    pub total: Option<u64>,
    /// Counts download attempts from 1.
    pub attempt: u32,
    /// Why it has not begun yet, where something holds it up.
    pub held_up: Option<&'static str>,
}

/// Where an installer says how far it is. Holds only the newest value, so it never fills up.
pub type ProgressSender = tokio::sync::watch::Sender<Progress>;

/// A part of an installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstallStep {
    /// Asking whether it may be deployed at all.
    Admit,
    /// Checking that it can work at all, and making the staging folder.
    Prepare,
    /// Fetching the archive.
    Download,
    /// Comparing digest and signature.
    Verify,
    /// Reading the archive and writing its members.
    Unpack,
    /// Looking whether this machine can run it.
    Check,
    /// Making the result durable and visible.
    Publish,
    /// Pointing `current` at it.
    Activate,
}

/// Why a revision could not be installed.
#[derive(Debug, thiserror::Error)]
#[error("failed to {step}")]
pub struct InstallError {
    /// The part that failed.
    pub step: InstallStep,
    /// Why.
    #[source]
    pub cause: Cause,
}

impl std::fmt::Display for InstallStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Admit => "get the deployment admitted",
            Self::Prepare => "prepare the installation",
            Self::Download => "download the archive",
            Self::Verify => "verify the archive",
            Self::Unpack => "unpack the archive",
            Self::Check => "check that this machine can run the revision",
            Self::Publish => "publish the revision",
            Self::Activate => "switch to the revision",
        })
    }
}

/// Why files could not be deleted.
#[derive(Debug, thiserror::Error)]
#[error("failed to delete {what}")]
pub struct RemoveError {
    /// What remains.
    pub what: String,
    /// Why.
    #[source]
    pub cause: Cause,
}

// === Launcher ===

/// Starts, finds and ends processes of plugins.
///
/// It knows every process it spawned by the plugin's name, also one whose launch was dropped half
/// way, and `stop` ends whatever there is.
#[async_trait]
pub trait Launcher: Send + Sync {
    /// Ends what is left of the plugin, spawns the revision, waits for it to listen, and calls
    /// Start: one attempt within the spec's start timeout. The launcher passes the process to
    /// `spawned` as soon as it exists.
    ///
    /// On error no process of the launch is left alive. A plugin that exits before it answered
    /// Start fails at once, with its exit cause and last output in the error.
    async fn launch(
        &self,
        spec: Arc<PluginSpec>,
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

/// Whether a plugin is asked to wipe its traces when it stops.
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
    #[error("the plugin did not listen on {endpoint} within {}s", waited.as_secs_f32())]
    NotListening {
        /// Where it should have listened.
        endpoint: String,
        /// How long it was waited for.
        waited: Duration,
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
    #[error("the plugin did not answer Start within {}s", waited.as_secs_f32())]
    NoAnswer {
        /// How long it was waited for.
        waited: Duration,
    },
}

/// The words before the last lines that a plugin wrote, in every text that quotes them. The lines
/// come last: a reader who may not see them gets only the part of the text before these words.
pub const LAST_OUTPUT: &str = "its last output:";

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
    /// How long it was waited for.
    pub waited: Duration,
}

/// Why it is unknown whether a plugin has a running process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the search for its processes failed; a process that hangs in the kernel, or a busy machine, \
     can be the cause"
)]
pub struct FindError;

// === PluginRpc ===

/// The calls a running plugin answers, each with a deadline of its own.
#[async_trait]
pub trait PluginRpc: Send + Sync {
    /// A health check.
    async fn health(&self, endpoint: &Endpoint, timeout: Duration) -> Result<Health, RpcError>;

    /// A question only the plugin understands.
    async fn ask(&self, endpoint: &Endpoint, data: String) -> Result<Health, RpcError>;

    /// Hands over a configuration; `None` clears it.
    async fn apply(&self, endpoint: &Endpoint, config: Option<Config>) -> Result<(), RpcError>;
}

/// What a plugin says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Zero is healthy.
    pub code: i32,
    /// Lines that explain the code, or answer a question.
    pub results: Vec<String>,
}

/// Why a call to a plugin failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// The agent could not connect to the plugin, or the connection broke.
    #[error("the plugin cannot be reached: {0}")]
    Unreachable(String),
    /// The plugin did not answer within the deadline of the call.
    #[error("the plugin did not answer within {}s", .0.as_secs_f32())]
    TimedOut(Duration),
    /// The plugin does not implement the call.
    #[error("the plugin does not implement the call")]
    Unimplemented,
    /// The plugin answered with an error.
    #[error("the plugin answered {code}: {message}")]
    Refused {
        /// Name of the gRPC code.
        code: String,
        /// What it said.
        message: String,
    },
}

// === Meter ===

/// Reads what process trees use.
#[async_trait]
pub trait Meter: Send + Sync {
    /// One sweep over all given plugins. A plugin whose process has ended is missing in the answer.
    async fn sample(&self, plugins: Vec<(PluginName, Process)>) -> BTreeMap<PluginName, Usage>;
}

/// What a plugin's process tree has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// CPU time since the plugin started, all processes of the tree together.
    pub cpu_time: Duration,
    /// Memory now, in bytes: what cannot simply be dropped, shared memory counted once where that
    /// can be told.
    pub memory_bytes: u64,
}

// === Storage ===

/// A family of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// One snapshot per plugin, by name.
    Plugins,
    /// Orders that not every plugin has taken up yet, by number.
    Inbox,
    /// Events the control plane has not acknowledged, by number.
    Outbox,
    /// Events that are settled, kept for people, by number.
    History,
    /// What is known of this machine, by key.
    Facts,
    /// What plugins offer.
    Registry,
}

impl Table {
    /// All tables.
    pub const ALL: [Self; 6] =
        [Self::Plugins, Self::Inbox, Self::Outbox, Self::History, Self::Facts, Self::Registry];
}

/// One change of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Sets a record.
    Put {
        /// The family.
        table: Table,
        /// Its key; numbers are big-endian, so that keys sort by number.
        key: Vec<u8>,
        /// Its bytes.
        value: Vec<u8>,
    },
    /// Removes a record.
    Delete {
        /// The family.
        table: Table,
        /// Its key.
        key: Vec<u8>,
    },
}

/// Whether a commit must be on the disk itself before it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Written with the next commit that must be durable; losing it is harmless.
    Lazy,
    /// On the disk when answered.
    Durable,
}

/// Keeps records across restarts. One writer: the store actor.
#[async_trait]
pub trait Storage: Send + Sync {
    /// All readable records of a table, in key order. Unreadable ones are set aside, not returned.
    async fn load(&self, table: Table) -> Result<Vec<(Vec<u8>, Vec<u8>)>, StorageError>;

    /// Carries out all writes or none.
    async fn commit(&self, writes: Vec<Write>, durability: Durability) -> Result<(), StorageError>;

    /// Moves a record that does not make sense to its reader into quarantine, with the reason.
    async fn set_aside(
        &self,
        table: Table,
        key: Vec<u8>,
        reason: String,
    ) -> Result<(), StorageError>;

    /// What is known to be lost: whatever was set aside and is still kept.
    async fn losses(&self) -> Result<Losses, StorageError>;

    /// Forgets the records in quarantine; answers how many there were.
    async fn clear_quarantine(&self) -> Result<u64, StorageError>;

    /// The health of the store, now and from now on. Ends with the store.
    fn health(&self) -> watch::Receiver<StoreHealth>;
}

/// The health of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreHealth {
    /// Number of records in quarantine.
    pub records: usize,
    /// Number of whole stores that were set aside and are still kept.
    pub stores: usize,
    /// Why the store cannot be read or written at the moment.
    pub trouble: Option<Arc<str>>,
}

/// What a store has lost, as far as it is kept for people to look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Records that were set aside, the oldest first.
    pub records: Vec<QuarantinedRecord>,
    /// Whole stores that were set aside: where each is now, the oldest first.
    pub stores: Vec<String>,
}

/// A record that was set aside, without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantinedRecord {
    /// Grows with every record that is set aside, also after the others were forgotten.
    pub number: u64,
    /// The table it was in.
    pub table: Table,
    /// Its key.
    pub key: Vec<u8>,
    /// Why it was set aside.
    pub reason: String,
    /// When, by the wall clock.
    pub at: SystemTime,
}

/// Why the store failed.
#[derive(Debug, thiserror::Error)]
#[error("failed to {action} the store")]
pub struct StorageError {
    /// What was tried: `read`, `write`, `sync`.
    pub action: &'static str,
    /// Why.
    #[source]
    pub cause: Cause,
}

// === ControlLink ===

/// Sends messages to the control plane. What arrives is pushed to the control-plane actor.
#[async_trait]
pub trait ControlLink: Send + Sync {
    /// Sends one message and waits for its acknowledgement: one attempt, bounded by the
    /// acknowledgement wait of the protocol. The caller decides about another.
    async fn deliver(&self, message: OutboundMessage) -> Result<(), DeliveryError>;

    /// Acknowledges a received message on the stream it came from. A stream that is gone makes
    /// this a no-op: the server sends the message again.
    async fn acknowledge(&self, receipt: Receipt);

    /// Answers a received message with INVALID_ARGUMENT: nothing of it is carried out, and it is
    /// not to be sent again. Otherwise like [`ControlLink::acknowledge`].
    async fn refuse(&self, receipt: Receipt, reason: String);
}

/// A message for the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboundMessage {
    /// Stays the same through every attempt.
    pub id: String,
    /// At least `message_type`.
    pub labels: BTreeMap<String, String>,
    /// Type URL of the body.
    pub type_url: String,
    /// The encoded body.
    pub body: Vec<u8>,
}

/// A message from the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboundMessage {
    /// What to acknowledge it with.
    pub receipt: Receipt,
    /// Its labels, `message_type` among them where the server set it.
    pub labels: BTreeMap<String, String>,
    /// The encoded body; empty when there was none.
    pub body: Vec<u8>,
}

/// Names a received message and the stream it came on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// Counts the streams of this agent process.
    pub stream: u64,
    /// The server's message id. Not unique in practice.
    pub message_id: String,
}

/// Why a message was not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryError {
    /// There is no registered stream, or it ended before the acknowledgement came.
    #[error("the control plane is not connected")]
    NotConnected,
    /// No acknowledgement within the wait.
    #[error("the control plane did not acknowledge in time")]
    TimedOut,
    /// The server has no room now (RESOURCE_EXHAUSTED).
    #[error("the control plane is out of quota: {0}")]
    Exhausted(String),
    /// The server answered with another error.
    #[error("the control plane refused the message: {0}")]
    Refused(String),
}

// === Machine, Facts, Clock and Ids ===

/// What the machine says of itself.
#[async_trait]
pub trait Machine: Send + Sync {
    /// The current boot.
    fn boot_id(&self) -> BootId;

    /// The instance: changes when a disk is cloned into another VM.
    fn instance_id(&self) -> String;

    /// The operating system, for `OSInfo`.
    async fn os(&self) -> OsFacts;
}

/// The operating system, field by field as `OSInfo` reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsFacts {
    /// `linux`.
    pub kind: String,
    /// os-release `ID`.
    pub short_name: String,
    /// os-release `PRETTY_NAME`.
    pub long_name: String,
    /// os-release `VERSION_ID`.
    pub version: String,
    /// uname machine.
    pub architecture: String,
    /// uname release.
    pub kernel_release: String,
    /// uname version.
    pub kernel_version: String,
}

/// What is known of the machine, for the rules of plugins.
pub trait Facts: Send + Sync {
    /// The newest facts, and whether they changed. They are known from the start as far as the
    /// machine itself tells them; a scope that has to be asked for elsewhere is unavailable until
    /// it was, with the reason. The sender lives as long as the port.
    fn watch(&self) -> tokio::sync::watch::Receiver<Arc<FactSet>>;
}

/// Wall-clock time.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> std::time::SystemTime;
}

/// Ids of messages, unlike any that this or another agent ever gave or will give.
pub trait Ids: Send + Sync {
    /// Another one.
    fn message_id(&self) -> String;
}

/// Ids by chance: version 4 UUIDs.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomIds;

impl Ids for RandomIds {
    fn message_id(&self) -> String {
        uuid::Uuid::new_v4().to_string()
    }
}
