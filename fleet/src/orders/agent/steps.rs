//! What a write of a journal changed about its orders. Pure.

use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use guest_fleet_core::journal::{Order, OrderState};
use guest_fleet_ledger::records::journal::{EntryRecord, JournalRecord};

use crate::telemetry::figures::OrderStep;
use crate::telemetry::traces::{Ended, Outcome, trace_id};

/// An order that came into a state.
pub(super) struct Change<'a> {
    pub(super) step: OrderStep,
    /// The order as it is now; that of before where it was superseded.
    pub(super) order: Order,
    pub(super) plugin: &'a str,
    /// Id of the message that carries it.
    pub(super) message_id: String,
}

// === impl Change ===

impl Change<'_> {
    /// Writes it into the log, with the trace under which the agent tells what it does.
    pub(super) fn log(&self, agent: &str) {
        let (revision, reason) = (self.revision(), self.reason());
        tracing::info!(
            agent,
            plugin = self.plugin,
            revision,
            order = self.order.generation,
            assignment = self.order.assignment,
            message_id = self.message_id,
            trace_id = HEXLOWER.encode(&trace_id(&self.message_id)),
            state = self.step.name(),
            reason,
            "order"
        );
    }

    /// The order as one that ended now, if it did. Of what an agent had already there was no order.
    pub(super) fn ended<'s>(&'s self, resource: &'s str, now: SystemTime) -> Option<Ended<'s>> {
        let outcome = match self.step {
            OrderStep::Done => Outcome::Ok,
            OrderStep::Failed => Outcome::Failed(self.reason()),
            OrderStep::TakenBack => Outcome::TakenBack(self.reason()),
            OrderStep::Superseded => Outcome::Superseded,
            OrderStep::Given | OrderStep::Acknowledged | OrderStep::Begun | OrderStep::Adopted => {
                return None;
            }
        };
        // A record that was damaged may hold any number.
        let made = Duration::from_secs(self.order.made.0);
        Some(Ended {
            resource,
            plugin: self.plugin,
            revision: self.revision(),
            generation: self.order.generation,
            assignment: &self.order.assignment,
            message_id: &self.message_id,
            outcome,
            made: SystemTime::UNIX_EPOCH.checked_add(made).unwrap_or(now),
            ended: now,
        })
    }

    fn revision(&self) -> &str {
        self.order.target.revision().unwrap_or_default()
    }

    fn reason(&self) -> &str {
        match &self.order.state {
            OrderState::Failed { reason } | OrderState::TakenBack { reason } => reason.as_str(),
            _ => "",
        }
    }

    /// How long the order took, if it is settled.
    pub(super) fn took(&self) -> Option<Duration> {
        let is_settled =
            matches!(self.step, OrderStep::Done | OrderStep::Failed | OrderStep::TakenBack);
        is_settled
            .then(|| Duration::from_secs(self.order.since.0.saturating_sub(self.order.made.0)))
    }
}

/// The orders that differ between two states of a journal.
pub(super) fn between<'a>(
    agent: &str,
    before: &JournalRecord,
    after: &'a JournalRecord,
) -> Vec<Change<'a>> {
    let mut changes = Vec::new();
    for (plugin, entry) in &after.plugins {
        let former = before.plugins.get(plugin);
        if former == Some(entry) {
            continue;
        }
        let read = |entry: &EntryRecord| entry.entry(agent).ok().and_then(|entry| entry.order);
        let Some(order) = read(entry) else { continue };
        let id = |entry: &EntryRecord| entry.order.as_ref().map(|order| order.message_id.clone());
        let (former_id, message_id) = (former.and_then(id), id(entry).unwrap_or_default());
        let is_same = former_id.as_ref() == Some(&message_id);
        match former.and_then(read) {
            Some(former) if is_same && former.state == order.state => {}
            Some(_) if is_same => {
                changes.push(Change { step: step(&order), order, plugin, message_id });
            }
            former => {
                let superseded = former.filter(|former| {
                    former.generation != order.generation && !former.state.is_settled()
                });
                changes.extend(superseded.map(|order| Change {
                    step: OrderStep::Superseded,
                    order,
                    plugin,
                    message_id: former_id.unwrap_or_default(),
                }));
                changes.push(Change { step: step(&order), order, plugin, message_id });
            }
        }
    }
    changes
}

fn step(order: &Order) -> OrderStep {
    match order.state {
        OrderState::Sent => OrderStep::Given,
        OrderState::Acknowledged => OrderStep::Acknowledged,
        OrderState::Begun => OrderStep::Begun,
        OrderState::Done { adopted: false } => OrderStep::Done,
        OrderState::Done { adopted: true } => OrderStep::Adopted,
        OrderState::Failed { .. } => OrderStep::Failed,
        OrderState::TakenBack { .. } => OrderStep::TakenBack,
    }
}

#[cfg(test)]
mod tests {
    use guest_fleet_core::journal::Entry;
    use guest_fleet_core::time::Seconds;

    use guest_fleet_core::target::Target;

    use super::*;
    use crate::orders::tests::order;

    fn journal(generation: u64, message: &str, state: OrderState) -> JournalRecord {
        let order = Order {
            generation,
            made: Seconds(100),
            ..order(Target::Absent, "a", state, Seconds(107))
        };
        let mut entry = EntryRecord::default();
        entry.set(&Entry { generation, order: Some(order), ..Entry::default() });
        entry.order.as_mut().expect("an order").message_id = message.to_owned();
        let plugins = [("web".to_owned(), entry)].into();
        JournalRecord { plugins, ..JournalRecord::default() }
    }

    #[track_caller]
    fn check(before: &JournalRecord, after: &JournalRecord, expected: &[(OrderStep, Option<u64>)]) {
        let found: Vec<_> = between("agent", before, after)
            .iter()
            .inspect(|change| assert_eq!(change.plugin, "web"))
            .map(|change| (change.step, change.took().map(|took| took.as_secs())))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn the_trace_is_the_one_that_the_agent_makes() {
        // printf 'guest-agent\0trace\0message\0%s' m1 | sha256sum | cut -c1-32
        assert_eq!(HEXLOWER.encode(&trace_id("m1")), "d8bd8b0c70cec1cb77cb808989db36f2");
    }

    #[test]
    fn each_state_is_counted_once() {
        let (none, sent) = (JournalRecord::default(), journal(1, "m1", OrderState::Sent));
        let acknowledged = journal(1, "m1", OrderState::Acknowledged);
        let done = journal(1, "m1", OrderState::Done { adopted: false });
        check(&none, &sent, &[(OrderStep::Given, None)]);
        check(&sent, &sent, &[]);
        check(&sent, &acknowledged, &[(OrderStep::Acknowledged, None)]);
        check(&acknowledged, &done, &[(OrderStep::Done, Some(7))]);
        let adopted = journal(1, "m1", OrderState::Done { adopted: true });
        check(&none, &adopted, &[(OrderStep::Adopted, None)]);
    }

    #[test]
    fn an_order_that_waited_is_superseded_by_a_newer_one_and_not_by_a_repetition() {
        let acknowledged = journal(1, "m1", OrderState::Acknowledged);
        let newer = journal(2, "m2", OrderState::Sent);
        let expected = [(OrderStep::Superseded, None), (OrderStep::Given, None)];
        check(&acknowledged, &newer, &expected);
        let repeated = journal(1, "m2", OrderState::Sent);
        check(&acknowledged, &repeated, &[(OrderStep::Given, None)]);
        let failed = journal(1, "m1", OrderState::Failed { reason: "r".to_owned() });
        check(&failed, &newer, &[(OrderStep::Given, None)]);
    }
}
