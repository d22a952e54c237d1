//! The machine: its ids, facts for rules, the time, and message ids.

use std::sync::Arc;

use async_trait::async_trait;

use crate::model::facts::FactSet;
use crate::model::id::BootId;

/// The ids and the operating system of the machine.
#[async_trait]
pub trait Machine: Send + Sync {
    /// The current boot.
    fn boot_id(&self) -> BootId;

    /// The instance: changes when a disk is cloned into another VM.
    fn instance_id(&self) -> String;

    /// The host name as it is now.
    fn host_name(&self) -> String;

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
    /// The newest facts, and whether they changed. The machine's own facts are known from the
    /// start; a scope from another source is unavailable, with the reason, until that has answered.
    /// The sender lives as long as the port.
    fn watch(&self) -> tokio::sync::watch::Receiver<Arc<FactSet>>;
}

/// Wall-clock time.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> std::time::SystemTime;
}

/// Ids of messages, different from any that this or another agent ever gave or will give.
pub trait Ids: Send + Sync {
    /// A new id.
    fn message_id(&self) -> String;
}

/// Random ids: version 4 UUIDs.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomIds;

impl Ids for RandomIds {
    fn message_id(&self) -> String {
        uuid::Uuid::new_v4().to_string()
    }
}
