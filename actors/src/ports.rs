//! The traits that adapters implement, their errors, and the bundle the actors are given.
//!
//! Each method is one arrow of the architecture picture. Every future here may be dropped at any
//! await point (an order that supersedes another cancels its work), so an implementation must leave
//! nothing behind that the next call cannot cope with.

use std::sync::Arc;

mod admission;
mod control_link;
mod counters;
mod installer;
mod launcher;
mod local;
mod machine;
mod meter;
mod plugin_rpc;
mod prober;
mod storage;
mod sweeper;
mod unenforced;

pub use admission::{
    AdmissionCommand, AdmissionHost, Describe, HungUp, ListCalled, ListRefused, QueueRecipients,
    ResolveCalled,
};
pub use control_link::{
    ControlLink, DeliveryError, InboundMessage, OutboundMessage, Receipt, ServerKind,
};
pub use counters::{Count, Counters, NoCounters, OrderKind, Outcome};
pub use installer::{InstallError, InstallStep, Installer, Progress, ProgressSender, RemoveError};
pub use launcher::{
    Cleanup, FindError, LAST_OUTPUT, LaunchError, Launched, Launcher, LimitError, StopError,
    StopManner, StopOrder, Stopped, before_output, without_output,
};
pub use local::{LocalPlugins, LocalScan, ScanError};
pub use machine::{Clock, Facts, Ids, Machine, OsFacts, RandomIds};
pub use meter::{MemoryBasis, MemoryUse, Meter, Usage};
pub use plugin_rpc::{Health, PluginRpc, RpcError};
pub use prober::{ProbeError, Prober};
pub use storage::{
    Durability, Losses, QuarantinedRecord, Storage, StorageError, StoreHealth, Table, Write,
};
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
