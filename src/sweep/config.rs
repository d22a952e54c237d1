//! Where a sweep looks, and which folders of other instances it may delete.

use std::path::PathBuf;
use std::time::Duration;

use crate::process::cgroup::Cgroups;

/// Where to look.
#[derive(Clone, Debug)]
pub struct SweepConfig {
    /// Holds a folder per instance.
    pub state_dir: PathBuf,
    /// The folder of this instance in it.
    pub instance: String,
    /// When folders of other instances may go.
    pub others: OtherInstances,
    /// Where sockets are.
    pub runtime_dir: PathBuf,
    /// Where the local plugins are, which are never touched.
    pub local_plugin_dir: PathBuf,
    /// Where plugins are walled in.
    pub cgroups: Cgroups,
}

/// When folders of other instances may go. It depends on how sure the machine's own id is: an id
/// that was only fallen back on must not cost the real instance its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherInstances {
    /// At once: the id was given to this machine.
    Go,
    /// When the agent has run under this id for so long: the id was found out.
    GoAfter(Duration),
    /// Never: the id is a makeshift.
    Stay,
}
