//! The order journal of an agent as bytes. Key: the agent's id, in the bucket of journals.

use std::collections::BTreeMap;

use guest_fleet_core::journal::{Entry, Order, OrderState};
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::Target;
use prost::Message;

use super::{RecordError, Versioned, revision, target};

/// Longest reason that is kept of a failure, in bytes.
const REASON_BYTES: usize = 1024;

/// What an agent was ordered, and by which session.
#[derive(Clone, PartialEq, Message)]
pub struct JournalRecord {
    /// Version of the schema.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Id of the session that may write here. A session that finds another one's ends.
    #[prost(string, tag = "2")]
    pub session: String,
    /// When that session fenced the one before, in seconds since the Unix epoch; 0 where there was
    /// none.
    #[prost(uint64, tag = "3")]
    pub fenced: u64,
    /// By plugin.
    #[prost(btree_map = "string, message", tag = "4")]
    pub plugins: BTreeMap<String, EntryRecord>,
    /// Plugins whose events have a place of their own in the log, and the day of the last one, in
    /// days since the Unix epoch.
    #[prost(btree_map = "string, uint64", tag = "5")]
    pub told: BTreeMap<String, u64>,
}

/// What an agent was ordered for one plugin.
#[derive(Clone, PartialEq, Message)]
pub struct EntryRecord {
    /// The highest generation that was given or reported.
    #[prost(uint64, tag = "1")]
    pub generation: u64,
    /// The newest order.
    #[prost(message, optional, tag = "2")]
    pub order: Option<OrderRecord>,
}

/// An order.
#[derive(Clone, PartialEq, Message)]
pub struct OrderRecord {
    /// Its generation.
    #[prost(uint64, tag = "1")]
    pub generation: u64,
    /// The revision; empty for a removal.
    #[prost(string, tag = "2")]
    pub revision: String,
    /// SHA-256 of its body as it is sent.
    #[prost(bytes = "vec", tag = "3")]
    pub digest: Vec<u8>,
    /// Name of the assignment it came from.
    #[prost(string, tag = "4")]
    pub assignment: String,
    /// The assignment's attempt.
    #[prost(uint32, tag = "5")]
    pub attempt: u32,
    /// How often it was given again under a new message id.
    #[prost(uint32, tag = "6")]
    pub repeats: u32,
    /// When it was made, in seconds since the Unix epoch.
    #[prost(uint64, tag = "7")]
    pub made: u64,
    /// When it came into its state, in seconds since the Unix epoch.
    #[prost(uint64, tag = "8")]
    pub since: u64,
    /// Number of its state, see `STATES`.
    #[prost(uint32, tag = "9")]
    pub state: u32,
    /// Why it failed or was taken back.
    #[prost(string, tag = "10")]
    pub reason: String,
    /// Id of the message that carries it.
    #[prost(string, tag = "11")]
    pub message_id: String,
    /// The body as it is sent, but with references for secrets, while the agent has not acknowledged
    /// it.
    #[prost(bytes = "vec", tag = "12")]
    pub body: Vec<u8>,
}

const SENT: u32 = 1;
const ACKNOWLEDGED: u32 = 2;
const BEGUN: u32 = 3;
const DONE: u32 = 4;
const ADOPTED: u32 = 5;
const FAILED: u32 = 6;
const TAKEN_BACK: u32 = 7;

// === impl JournalRecord ===

impl Versioned for JournalRecord {
    const VERSION: u32 = 1;

    fn version(&self) -> u32 {
        self.version
    }
}

// === impl EntryRecord ===

impl EntryRecord {
    /// The entry.
    ///
    /// # Errors
    /// A state does not exist, or a digest has another length.
    pub fn entry(&self, key: &str) -> Result<Entry, RecordError> {
        let order = self.order.as_ref().map(|order| order.order(key)).transpose()?;
        Ok(Entry { generation: self.generation, order })
    }

    /// Takes over what became of the entry. The body is kept only while it may be sent again.
    pub fn set(&mut self, entry: &Entry) {
        self.generation = entry.generation;
        let Some(order) = &entry.order else {
            self.order = None;
            return;
        };
        let record = self.order.get_or_insert_default();
        record.set(order);
    }
}

// === impl OrderRecord ===

impl OrderRecord {
    /// What it asks for.
    #[must_use]
    pub fn target(&self) -> Target {
        target(&self.revision)
    }

    fn order(&self, key: &str) -> Result<Order, RecordError> {
        let damaged = |problem: &str| RecordError::Damaged {
            key: key.to_owned(),
            problem: problem.to_owned(),
        };
        let reason = || self.reason.clone();
        Ok(Order {
            generation: self.generation,
            target: self.target(),
            digest: self
                .digest
                .as_slice()
                .try_into()
                .map_err(|_| damaged("the digest of an order has not 32 bytes"))?,
            assignment: self.assignment.clone(),
            attempt: self.attempt,
            repeats: self.repeats,
            made: Seconds(self.made),
            since: Seconds(self.since),
            state: match self.state {
                SENT => OrderState::Sent,
                ACKNOWLEDGED => OrderState::Acknowledged,
                BEGUN => OrderState::Begun,
                DONE => OrderState::Done { adopted: false },
                ADOPTED => OrderState::Done { adopted: true },
                FAILED => OrderState::Failed { reason: reason() },
                TAKEN_BACK => OrderState::TakenBack { reason: reason() },
                _ => return Err(damaged("an order has a state that does not exist")),
            },
        })
    }

    fn set(&mut self, order: &Order) {
        let (state, reason) = match &order.state {
            OrderState::Sent => (SENT, ""),
            OrderState::Acknowledged => (ACKNOWLEDGED, ""),
            OrderState::Begun => (BEGUN, ""),
            OrderState::Done { adopted: false } => (DONE, ""),
            OrderState::Done { adopted: true } => (ADOPTED, ""),
            OrderState::Failed { reason } => (FAILED, reason.as_str()),
            OrderState::TakenBack { reason } => (TAKEN_BACK, reason.as_str()),
        };
        self.generation = order.generation;
        self.revision = revision(&order.target);
        self.digest = order.digest.to_vec();
        self.assignment.clone_from(&order.assignment);
        self.attempt = order.attempt;
        self.repeats = order.repeats;
        self.made = order.made.0;
        self.since = order.since.0;
        self.state = state;
        self.reason = reason[..reason.floor_char_boundary(REASON_BYTES)].to_owned();
        if order.state != OrderState::Sent {
            self.body.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut_where_a_character_begins() {
        let reason = format!("x{}", "ä".repeat(REASON_BYTES));
        let order = Order {
            generation: 1,
            target: Target::Absent,
            digest: [0; 32],
            assignment: String::new(),
            attempt: 0,
            repeats: 0,
            made: Seconds(1),
            since: Seconds(1),
            state: OrderState::Failed { reason },
        };
        let mut record = OrderRecord::default();
        record.set(&order);
        assert_eq!(record.reason.len(), REASON_BYTES - 1);
    }
}
