//! When the agents of a gateway that drains come back, and how fast its streams end. Pure, but for the
//! chance.

use std::time::Duration;

use rand::Rng;
use tokio::time::Instant;
use tonic::Status;
use tonic::metadata::{MetadataMap, MetadataValue};

/// The trailer that says when to come back, in whole seconds.
const RETRY_AFTER: &str = "guest-agent-retry-after";
/// Longest time that agents take from it, in seconds.
const LONGEST: u64 = 3600;
/// When agents come back where another gateway takes them.
const WITH_OTHERS: Duration = Duration::from_secs(1);
/// When they come back where none does: a restart takes about as long.
const ALONE: Duration = Duration::from_secs(5);
/// How much later they come at most, by chance.
const SPREAD: Duration = Duration::from_secs(5);

/// Seconds are rounded.
const HALF: Duration = Duration::from_millis(500);
/// Longest time that a drain may take: nothing waits for longer for a gateway to stop.
const LONGEST_DRAIN: Duration = Duration::from_secs(24 * 3600);

/// How a gateway drains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drain {
    /// Streams that it ends within a second; more where they would not all end before the deadline.
    pub per_second: u32,
    /// How long all of it may take; a day at most.
    pub deadline: Duration,
    /// When agents come back at the earliest; without it, at once where other gateways are and after
    /// the drain where none is.
    pub retry_after: Option<Duration>,
    /// Whether other gateways take the agents.
    pub others: Others,
}

/// Whether other gateways are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// At least one.
    Present,
    /// None that is known of.
    Absent,
}

/// What streams end with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Comeback {
    pub(crate) drain: Drain,
    pub(crate) ends_at: Instant,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            per_second: 200,
            deadline: Duration::from_secs(60),
            retry_after: None,
            others: Others::Absent,
        }
    }
}

// === impl Drain ===

impl Drain {
    /// How long it takes to end so many streams.
    pub(crate) fn duration(&self, streams: usize) -> Duration {
        let streams = u32::try_from(streams).unwrap_or(u32::MAX);
        let paced = f64::from(streams) / f64::from(self.per_second.max(1));
        Duration::try_from_secs_f64(paced).unwrap_or(LONGEST_DRAIN).min(self.deadline())
    }

    /// How long all of it may take.
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline.min(LONGEST_DRAIN)
    }

    /// When an agent comes back, in seconds, where the drain takes `left` from now on. `chance` is
    /// from 0 to 1.
    fn seconds(&self, left: Duration, chance: f64) -> u64 {
        let earliest = match (self.retry_after, self.others) {
            (Some(asked), _) => asked,
            (None, Others::Present) => WITH_OTHERS,
            // The one that follows listens only after this one has ended.
            (None, Others::Absent) => ALONE.saturating_add(left),
        };
        let earliest = earliest.min(Duration::from_secs(LONGEST));
        // All that were ended together would come together.
        let spread = SPREAD.max(earliest / 2).mul_f64(chance.clamp(0.0, 1.0));
        (earliest + spread + HALF).as_secs().clamp(1, LONGEST)
    }
}

// === impl Comeback ===

impl Comeback {
    /// The status of a stream that ends now.
    pub(crate) fn status(&self) -> Status {
        let left = self.ends_at.saturating_duration_since(Instant::now());
        let seconds = self.drain.seconds(left, rand::rng().random());
        let mut trailers = MetadataMap::new();
        trailers.insert(RETRY_AFTER, MetadataValue::from(seconds));
        let text = "the gateway is being stopped: connect to another one, or later to this one";
        Status::with_metadata(tonic::Code::Unavailable, text, trailers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(others: Others) -> Drain {
        Drain { others, ..Drain::default() }
    }

    #[test]
    fn streams_end_at_the_rate_and_faster_only_for_the_deadline() {
        let drain = drain(Others::Present);
        assert_eq!(drain.duration(0), Duration::ZERO);
        assert_eq!(drain.duration(200), Duration::from_secs(1));
        assert_eq!(drain.duration(2000), Duration::from_secs(10));
        assert_eq!(drain.duration(1_000_000), Duration::from_secs(60));
        let none = Drain { per_second: 0, ..drain };
        assert_eq!(none.duration(7), Duration::from_secs(7), "a rate of zero is one per second");
        let endless = Drain { deadline: Duration::MAX, ..drain };
        assert_eq!(endless.duration(usize::MAX), LONGEST_DRAIN);
    }

    #[test]
    fn agents_come_back_soon_where_others_are_and_after_the_drain_where_none_is() {
        let left = Duration::from_secs(30);
        let seconds = |drain: Drain, chance| drain.seconds(left, chance);
        assert_eq!(seconds(drain(Others::Present), 0.0), 1);
        assert_eq!(seconds(drain(Others::Present), 1.0), 6);
        assert_eq!(seconds(drain(Others::Absent), 0.0), 35);
        assert_eq!(seconds(drain(Others::Absent), 1.0), 53);
        let asked = |seconds| Drain {
            retry_after: Some(Duration::from_secs(seconds)),
            ..drain(Others::Absent)
        };
        assert_eq!(seconds(asked(100), 0.0), 100);
        assert_eq!(seconds(asked(100), 1.0), 150);
        assert_eq!(seconds(asked(100_000), 1.0), LONGEST, "agents take no more");
        assert_eq!(seconds(asked(u64::MAX), 1.0), LONGEST);
        assert_eq!(seconds(asked(0), 0.0), 1, "and no less");
    }
}
