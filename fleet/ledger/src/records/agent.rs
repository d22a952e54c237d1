//! Who an agent is. Key: the agent's id, in the bucket of agents.

use std::collections::BTreeMap;

use guest_fleet_core::labels::Labels;
use prost::Message;
use prost_types::Timestamp;

use super::Versioned;

/// An agent that was enrolled or that connected.
#[derive(Clone, PartialEq, Message)]
pub struct AgentRecord {
    /// Version of the schema.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Id of the agent; the resource id of its streams.
    #[prost(string, tag = "2")]
    pub id: String,
    /// Labels that an operator gave it.
    #[prost(btree_map = "string, string", tag = "3")]
    pub operator_labels: BTreeMap<String, String>,
    /// Labels of the join token that enrolled it.
    #[prost(btree_map = "string, string", tag = "4")]
    pub token_labels: BTreeMap<String, String>,
    /// Labels that it claims itself.
    #[prost(btree_map = "string, string", tag = "5")]
    pub own_labels: BTreeMap<String, String>,
    /// When it was enrolled, or was seen first.
    #[prost(message, optional, tag = "6")]
    pub since: Option<Timestamp>,
    /// When it was seen last; written at most once in ten minutes.
    #[prost(message, optional, tag = "7")]
    pub seen: Option<Timestamp>,
    /// The certificates that name it.
    #[prost(message, repeated, tag = "8")]
    pub certificates: Vec<Certificate>,
    /// Name of the join token that enrolled it.
    #[prost(string, tag = "9")]
    pub token: String,
    /// Why it gets no orders: two machines use its identity. Empty where that is not so.
    #[prost(string, tag = "10")]
    pub quarantine: String,
    /// When it was archived: it was silent for so long that no count includes it.
    #[prost(message, optional, tag = "11")]
    pub archived: Option<Timestamp>,
    /// It was enrolled for a short life: archived after an hour of silence.
    #[prost(bool, tag = "12")]
    pub is_ephemeral: bool,
    /// The last boots that it reported, the newest last; at most four.
    #[prost(message, repeated, tag = "13")]
    pub boots: Vec<Boot>,
    /// When it was revoked: nothing that it shows admits it, until an operator has it enrolled anew.
    #[prost(message, optional, tag = "14")]
    pub revoked: Option<Timestamp>,
    /// Certificates that are not listed and were issued until then are revoked. It stays when the
    /// agent is enrolled anew.
    #[prost(message, optional, tag = "15")]
    pub revoked_before: Option<Timestamp>,
    /// When an operator took it out of the archive last: its silence counts from then.
    #[prost(message, optional, tag = "16")]
    pub unarchived: Option<Timestamp>,
}

/// A start of the machine, as the agent reported it.
#[derive(Clone, PartialEq, Message)]
pub struct Boot {
    /// The kernel's boot id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// When it was reported last.
    #[prost(message, optional, tag = "2")]
    pub seen: Option<Timestamp>,
}

/// A certificate that was issued to an agent.
#[derive(Clone, PartialEq, Message)]
pub struct Certificate {
    /// Serial number, in lower-case hexadecimal digits.
    #[prost(string, tag = "1")]
    pub serial: String,
    /// SHA-256 of the public key, in lower-case hexadecimal digits.
    #[prost(string, tag = "2")]
    pub key_digest: String,
    /// When it was issued.
    #[prost(message, optional, tag = "3")]
    pub issued: Option<Timestamp>,
    /// When it ends.
    #[prost(message, optional, tag = "4")]
    pub ends: Option<Timestamp>,
    /// When it was revoked.
    #[prost(message, optional, tag = "5")]
    pub revoked: Option<Timestamp>,
}

// === impl AgentRecord ===

impl AgentRecord {
    /// A new record of an agent.
    #[must_use]
    pub fn new(id: &str) -> Self {
        Self { version: Self::VERSION, id: id.to_owned(), ..Self::default() }
    }

    /// Its labels.
    #[must_use]
    pub fn labels(&self) -> Labels {
        Labels {
            operator: self.operator_labels.clone(),
            token: self.token_labels.clone(),
            own: self.own_labels.clone(),
        }
    }
}

impl Versioned for AgentRecord {
    const VERSION: u32 = 1;

    fn version(&self) -> u32 {
        self.version
    }
}
