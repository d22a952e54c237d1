//! The durable form of orders and events, and the keys of all records.

use std::time::SystemTime;

use guest_agent_proto::record as rec;
use prost::Message;

use crate::event::{Draft, Recorded};
use crate::id::{Generation, PluginName};
use crate::ports::{Table, Write};
use crate::wire;

const VERSION: u32 = 1;

/// Orders as they wait in the inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxEntry {
    /// Number of the first order.
    pub first: Generation,
    /// What was said.
    pub content: InboxContent,
    /// Where it came from.
    pub origin: Origin,
}

/// What was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InboxContent {
    /// An encoded `ConfigurePluginStates`.
    Configure(Vec<u8>),
    /// A fresh start of a plugin.
    Restart(PluginName),
}

/// Who gave an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The control plane.
    ControlPlane,
    /// Somebody on this machine, who may name local archives.
    Local,
}

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not a record at all.
    #[error("the record cannot be decoded")]
    Decode(#[from] prost::DecodeError),
    /// Written by a later agent in a way this one does not know.
    #[error("the record has version {0}, this agent knows {VERSION}")]
    Version(u32),
    /// Something that every record has is not there, or makes no sense.
    #[error("the record has no usable {0}")]
    Missing(&'static str),
}

/// The key of a numbered record: big-endian, so that keys sort by number.
#[must_use]
pub fn number_key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// The number of a key made by [`number_key`].
#[must_use]
pub fn key_number(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.try_into().ok()?))
}

/// Writes a plugin's snapshot.
#[must_use]
pub fn put_snapshot(name: &PluginName, record: Vec<u8>) -> Write {
    Write::Put { table: Table::Plugins, key: name.as_str().into(), value: record }
}

/// Deletes a plugin's snapshot.
#[must_use]
pub fn delete_snapshot(name: &PluginName) -> Write {
    Write::Delete { table: Table::Plugins, key: name.as_str().into() }
}

// === impl InboxEntry ===

impl InboxEntry {
    /// The record's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        use rec::inbox_record::Orders;
        rec::InboxRecord {
            version: VERSION,
            first_generation: self.first.0,
            orders: Some(match &self.content {
                InboxContent::Configure(bytes) => Orders::Configure(bytes.clone()),
                InboxContent::Restart(name) => Orders::Restart(name.to_string()),
            }),
            local: self.origin == Origin::Local,
        }
        .encode_to_vec()
    }

    /// Reads a record's bytes.
    ///
    /// # Errors
    /// Says what is wrong with the record.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        use rec::inbox_record::Orders;
        let record = rec::InboxRecord::decode(bytes)?;
        if record.version != VERSION {
            return Err(RecordError::Version(record.version));
        }
        let content = match record.orders.ok_or(RecordError::Missing("orders"))? {
            Orders::Configure(bytes) => InboxContent::Configure(bytes),
            Orders::Restart(name) => InboxContent::Restart(
                name.parse().map_err(|_| RecordError::Missing("plugin name"))?,
            ),
        };
        let origin = if record.local { Origin::Local } else { Origin::ControlPlane };
        Ok(Self { first: Generation(record.first_generation), content, origin })
    }
}

// === impl Recorded ===

impl Recorded {
    /// The record's bytes. The number is the record's key.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        rec::EventRecord {
            version: VERSION,
            id: self.id.to_string(),
            at: Some(self.event.at.into()),
            plugin: self.event.plugin.to_string(),
            revision: self.event.revision.to_string(),
            r#type: wire::event_number(self.event.kind),
            details: self.event.details.to_string(),
        }
        .encode_to_vec()
    }

    /// Reads a record's bytes.
    ///
    /// # Errors
    /// Says what is wrong with the record.
    pub fn decode(key: &[u8], bytes: &[u8]) -> Result<Self, RecordError> {
        let seq = key_number(key).ok_or(RecordError::Missing("number"))?;
        let record = rec::EventRecord::decode(bytes)?;
        if record.version != VERSION {
            return Err(RecordError::Version(record.version));
        }
        let kind = wire::event_kind(record.r#type).ok_or(RecordError::Missing("event type"))?;
        let at = record.at.and_then(|at| SystemTime::try_from(at).ok());
        let event = Draft::new(
            kind,
            &record.plugin,
            &record.revision,
            at.ok_or(RecordError::Missing("time"))?,
            &record.details,
        );
        Ok(Self { seq, id: record.id.into(), event })
    }
}
