//! The files of plugins: installing and removing them.

use std::sync::Arc;

use async_trait::async_trait;

use super::Cause;
use super::arrival::Arrival;
use crate::model::id::{PluginName, RevisionId, Sha256Digest};
use crate::model::spec::PluginSpec;

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

    /// Writes the record that stands beside an installed revision, or, without a record, deletes
    /// those beside all revisions of the plugin. It is for an agent that has lost its store, readable
    /// by the agent's own user alone, and need not survive a power loss. Does nothing when the
    /// revision is not there.
    async fn keep_record(
        &self,
        name: &PluginName,
        revision: &RevisionId,
        record: Option<Vec<u8>>,
    ) -> Result<(), Cause>;

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
    /// How the archive came over the network; told when the installation ends.
    pub arrival: Arrival,
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
