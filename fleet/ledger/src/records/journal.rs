//! The order journal of an agent as bytes. Key: the agent's id, in the bucket of journals.

use guest_fleet_core::drift::Repairs;
use guest_fleet_core::journal::{Entry, Order, OrderState};
use guest_fleet_core::presence::Session;
use guest_fleet_core::target::{Ordered, Target};
use guest_fleet_core::time::Seconds;

use super::repair::DriftPart;
use super::{RecordError, revision, target};

pub use super::generated::{EntryRecord, JournalRecord, OrderRecord};

/// Longest reason that is kept of a failure, in bytes.
const REASON_BYTES: usize = 1024;

const SENT: u32 = 1;
const ACKNOWLEDGED: u32 = 2;
const BEGUN: u32 = 3;
const DONE: u32 = 4;
const ADOPTED: u32 = 5;
const FAILED: u32 = 6;
const TAKEN_BACK: u32 = 7;

// === impl JournalRecord ===

versioned!(JournalRecord: 1);

impl JournalRecord {
    /// The last session of the agent; `None` where a program wrote the record that recorded none.
    #[must_use]
    pub fn session(&self) -> Option<Session> {
        (!self.gateway.is_empty()).then(|| Session {
            gateway: self.gateway.clone(),
            begun: Seconds(self.begun),
            ended: (self.ended != 0).then_some(Seconds(self.ended)),
        })
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
        let repairs = Repairs { count: self.repairs, last: Seconds(self.repaired) };
        Ok(Entry { generation: self.generation, order, repairs })
    }

    /// Takes over a later state of the entry. The body is kept only while it may be sent again.
    pub fn set(&mut self, entry: &Entry) {
        self.generation = entry.generation;
        (self.repairs, self.repaired) = (entry.repairs.count, entry.repairs.last.0);
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
    /// Its target.
    #[must_use]
    pub fn target(&self) -> Target {
        target(&self.revision)
    }

    /// The order as decisions look at it.
    #[must_use]
    pub fn ordered(&self) -> Ordered {
        Ordered {
            target: self.target(),
            assignment: self.assignment.clone(),
            rollout: self.rollout.clone(),
            replaced: self.replaced.as_deref().map(target),
        }
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
            declared: (!self.declared.is_empty())
                .then(|| self.declared.as_slice().try_into())
                .transpose()
                .map_err(|_| damaged("the declared digest of an order has not 32 bytes"))?,
            assignment: self.assignment.clone(),
            attempt: self.attempt,
            rollout: self.rollout.clone(),
            replaced: self.replaced.as_deref().map(target),
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
            drift: self.drift.as_ref().map(|drift| drift.drift(key)).transpose()?,
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
        self.declared = order.declared.map(|it| it.to_vec()).unwrap_or_default();
        self.assignment.clone_from(&order.assignment);
        self.attempt = order.attempt;
        self.rollout.clone_from(&order.rollout);
        self.replaced = order.replaced.as_ref().map(revision);
        self.repeats = order.repeats;
        self.made = order.made.0;
        self.since = order.since.0;
        self.state = state;
        self.reason = reason[..reason.floor_char_boundary(REASON_BYTES)].to_owned();
        self.drift = order.drift.as_ref().map(DriftPart::of);
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
            declared: None,
            assignment: String::new(),
            attempt: 0,
            rollout: String::new(),
            replaced: None,
            repeats: 0,
            made: Seconds(1),
            since: Seconds(1),
            state: OrderState::Failed { reason },
            drift: None,
        };
        let mut record = OrderRecord::default();
        record.set(&order);
        assert_eq!(record.reason.len(), REASON_BYTES - 1);
    }
}
