//! What an agent reported last. Key: the agent's id, in the bucket of reports. The gateway writes it
//! when it differs from the one before.

use prost::Message;
use prost_types::Timestamp;

use super::Versioned;

/// The last report of an agent.
#[derive(Clone, PartialEq, Message)]
pub struct ReportRecord {
    /// Version of the schema.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Architecture in Go style.
    #[prost(string, tag = "2")]
    pub architecture: String,
    /// The operating system, as os-release calls it for people.
    #[prost(string, tag = "3")]
    pub os: String,
    /// Release of the kernel.
    #[prost(string, tag = "4")]
    pub kernel: String,
    /// The host name.
    #[prost(string, tag = "5")]
    pub hostname: String,
    /// Version of the agent.
    #[prost(string, tag = "6")]
    pub agent_version: String,
    /// What the agent can do, such as `generations`.
    #[prost(string, repeated, tag = "7")]
    pub capabilities: Vec<String>,
    /// Id of the boot of the machine.
    #[prost(string, tag = "8")]
    pub boot_id: String,
    /// The plugins that the agent has, by name.
    #[prost(message, repeated, tag = "9")]
    pub plugins: Vec<ReportedPlugin>,
    /// When the report came.
    #[prost(message, optional, tag = "10")]
    pub at: Option<Timestamp>,
}

/// A plugin that an agent has.
#[derive(Clone, PartialEq, Message)]
pub struct ReportedPlugin {
    /// Name of the plugin.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The revision that is there; empty while there is no whole one.
    #[prost(string, tag = "2")]
    pub revision: String,
    /// The revision that is being installed or waits to be; empty where there is no such.
    #[prost(string, tag = "3")]
    pub pending_revision: String,
    /// SHA-256 of the body of the order by which the revision came; empty where the agent does not
    /// say so.
    #[prost(bytes = "vec", tag = "4")]
    pub digest: Vec<u8>,
    /// The highest generation that the agent keeps for the plugin.
    #[prost(uint64, tag = "5")]
    pub generation: u64,
    /// The plugin came with the machine.
    #[prost(bool, tag = "6")]
    pub is_local: bool,
    /// A person on the machine stopped it.
    #[prost(bool, tag = "7")]
    pub stopped_by_owner: bool,
    /// A person on the machine holds it.
    #[prost(message, optional, tag = "8")]
    pub hold: Option<ReportedHold>,
    /// Its state in words.
    #[prost(string, tag = "9")]
    pub status: String,
}

/// A hold that a person set on the machine.
#[derive(Clone, PartialEq, Message)]
pub struct ReportedHold {
    /// Who set it.
    #[prost(string, tag = "1")]
    pub by: String,
    /// Why.
    #[prost(string, tag = "2")]
    pub reason: String,
    /// When it ends by itself.
    #[prost(message, optional, tag = "3")]
    pub until: Option<Timestamp>,
}

// === impl ReportRecord ===

impl Versioned for ReportRecord {
    const VERSION: u32 = 1;

    fn version(&self) -> u32 {
        self.version
    }
}
