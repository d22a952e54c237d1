//! Which events are dropped first when too many wait, and the event that reports those that were
//! dropped.
//! Pure; `backlog` calls it.

use std::fmt;
use std::time::SystemTime;

use guest_agent_proto::record as rec;
use prost_types::Timestamp;

use crate::model::event::PluginEventKind;

/// How much the loss of an event hurts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// An event that repeats without an order. Dropped first.
    Chatter,
    /// An order or its outcome: sent once, and the control plane waits for it. Dropped last.
    Outcome,
}

/// Dropped events, as one event reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// How many.
    pub events: u64,
    /// How many of them were of other plugins.
    pub elsewhere: u64,
    /// When the earliest of them happened.
    pub from: SystemTime,
    /// When the latest of them happened.
    pub to: SystemTime,
}

/// Whether an event is dropped before others when too many wait.
#[must_use]
pub const fn worth(kind: PluginEventKind) -> Priority {
    match kind.order() {
        Some(_) => Priority::Outcome,
        None => Priority::Chatter,
    }
}

// === impl Gap ===

impl Gap {
    /// One event.
    pub(super) const fn of(at: SystemTime) -> Self {
        Self { events: 1, elsewhere: 0, from: at, to: at }
    }

    /// Both together, of one plugin.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            events: self.events.saturating_add(other.events),
            elsewhere: self.elsewhere.saturating_add(other.elsewhere),
            from: self.from.min(other.from),
            to: self.to.max(other.to),
        }
    }

    /// Both together; the other one is of another plugin.
    pub(super) fn and_elsewhere(self, other: Self) -> Self {
        self.and(Self { elsewhere: other.events, ..other })
    }

    pub(crate) fn record(self, sent: bool) -> rec::Gap {
        rec::Gap {
            events: self.events,
            elsewhere: self.elsewhere,
            from: Some(self.from.into()),
            to: Some(self.to.into()),
            sent,
        }
    }

    /// The gap in a record; one that makes no sense is at least one event, at the time of its own.
    pub(crate) fn of_record(record: &rec::Gap, at: SystemTime) -> Self {
        let time = |stored: Option<Timestamp>| {
            stored.and_then(|stored| SystemTime::try_from(stored).ok()).unwrap_or(at)
        };
        let (from, to) = (time(record.from), time(record.to));
        let events = record.events.max(1);
        let elsewhere = record.elsewhere.min(events);
        Self { events, elsewhere, from: from.min(to), to: to.max(from) }
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, elsewhere, from, to } = *self;
        let (from, to) = (whole_seconds(from), whole_seconds(to));
        match events {
            1 => write!(f, "1 event of {from} was dropped")?,
            _ => write!(f, "{events} events from {from} to {to} were dropped")?,
        }
        f.write_str(" because too many waited for the control plane")?;
        match elsewhere {
            0 => Ok(()),
            _ => write!(f, "; {elsewhere} of them were of other plugins"),
        }
    }
}

fn whole_seconds(at: SystemTime) -> Timestamp {
    let Timestamp { seconds, .. } = at.into();
    Timestamp { seconds, nanos: 0 }
}

/// An upper bound of the length of a gap's text.
pub(super) const TEXT_MAX: usize = 256;

/// A moment for tests: so many seconds after the epoch.
#[cfg(test)]
pub(super) fn second(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire;

    #[test]
    fn what_repeats_by_itself_goes_before_what_was_ordered() {
        // By wire number, so that a new kind of event is not forgotten here.
        let table = [
            (1, Priority::Outcome),    // INSTALL requested
            (2, Priority::Outcome),    // REMOVE requested
            (3, Priority::Outcome),    // INSTALLED
            (4, Priority::Chatter),    // STARTED
            (5, Priority::Outcome),    // REMOVED
            (6, Priority::Chatter),    // STOPPED
            (7, Priority::Chatter),    // CRASHED
            (8, Priority::Outcome),    // INSTALL_FAILED
            (9, Priority::Chatter),    // START_FAILED
            (10, Priority::Outcome),   // REMOVE_FAILED
            (11, Priority::Outcome),   // APPLY requested
            (12, Priority::Outcome),   // APPLIED
            (13, Priority::Outcome),   // APPLY_FAILED
            (14, Priority::Chatter),   // EXECUTION_COMPLETED
            (15, Priority::Chatter),   // EXECUTION_FAILED
            (1001, Priority::Chatter), // UNHEALTHY
            (1002, Priority::Chatter), // HEALTHY
        ];
        for (number, expected) in table {
            let kind = wire::event_kind(number).expect("a number of the table");
            assert_eq!(worth(kind), expected, "{kind:?}");
        }
        assert_eq!(
            table.len(),
            PluginEventKind::ALL.len(),
            "a new kind needs a line in this table"
        );
        assert!(Priority::Chatter < Priority::Outcome);
    }

    #[test]
    fn gaps_add_up_and_span_the_times_of_both() {
        let both = Gap::of(second(20)).and(Gap::of(second(10)));
        assert_eq!(both, Gap { events: 2, elsewhere: 0, from: second(10), to: second(20) });
        let three = both.and_elsewhere(Gap::of(second(30)));
        assert_eq!(three, Gap { events: 3, elsewhere: 1, from: second(10), to: second(30) });
        assert_eq!(Gap::of(second(5)).and_elsewhere(three).elsewhere, 3);
    }

    #[test]
    fn a_gap_reads_as_a_sentence() {
        let because = "because too many waited for the control plane";
        assert_eq!(
            Gap::of(second(10)).to_string(),
            format!("1 event of 1970-01-01T00:00:10Z was dropped {because}")
        );
        let gap = Gap { events: 38, elsewhere: 2, from: second(0), to: second(86400) };
        assert_eq!(
            gap.to_string(),
            format!(
                "38 events from 1970-01-01T00:00:00Z to 1970-01-02T00:00:00Z were dropped \
                 {because}; 2 of them were of other plugins"
            )
        );
    }

    #[test]
    fn the_longest_text_is_within_its_bound() {
        let (from, to) = (second(0), second(253_402_300_799));
        let gap = Gap { events: u64::MAX, elsewhere: u64::MAX, from, to };
        assert!(gap.to_string().len() <= TEXT_MAX);
    }

    #[test]
    fn a_gap_of_a_record_that_makes_no_sense_is_still_a_gap() {
        let record = rec::Gap { elsewhere: 9, ..Default::default() };
        let gap = Gap::of_record(&record, second(3));
        assert_eq!(gap, Gap { events: 1, elsewhere: 1, from: second(3), to: second(3) });
    }
}
