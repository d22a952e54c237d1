//! How much one agent may send. Pure: the caller says what time it is.
//!
//! A gateway announces a limit, and agents keep to it themselves, each stream anew. So an agent may have used up
//! the minute of one stream when it opens the next; twice the limit is what a good agent can need,
//! and what is above it is refused.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::settings::RateLimits;

const MINUTE: Duration = Duration::from_secs(60);
/// How many minutes' worth an agent may send at once.
const BURST: f64 = 2.0;

/// What agents have left, by resource id. It outlives their streams: who comes back at once has not
/// more for it.
#[derive(Debug)]
pub(super) struct Allowances {
    limits: RateLimits,
    agents_max: usize,
    by_resource: HashMap<Arc<str>, Allowance>,
    cleared_at: Instant,
}

/// What one agent has left, in minutes' worth.
#[derive(Debug)]
struct Allowance {
    messages: f64,
    bytes: f64,
    at: Instant,
    is_refused: bool,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// It is one of those that the agent may send.
    Yes,
    /// It is the first of a row that is too much.
    NotFirst,
    /// So is the one before.
    NotAgain,
}

// === impl Allowances ===

impl Allowances {
    /// What agents may send. The messages of `agents_max` agents are counted; those of more are
    /// refused.
    pub(super) fn new(limits: RateLimits, agents_max: usize, now: Instant) -> Self {
        Self { limits, agents_max, by_resource: HashMap::new(), cleared_at: now }
    }

    /// Counts a message of so many bytes.
    pub(super) fn take(&mut self, resource: &Arc<str>, bytes: usize, now: Instant) -> Allowed {
        let share = |limit: Option<u64>, units: f64| match limit {
            Some(limit) if limit > 0 => units / limit as f64,
            // As agents read it: a limit of zero limits nothing.
            _ => 0.0,
        };
        let message = share(self.limits.messages_per_minute, 1.0);
        // One that is larger than the whole allowance is allowed by a full one.
        let size = share(self.limits.bytes_per_minute, bytes as f64).min(BURST);
        if message == 0.0 && size == 0.0 {
            return Allowed::Yes;
        }
        self.clear(now);
        if !self.by_resource.contains_key(resource) && self.by_resource.len() >= self.agents_max {
            return Allowed::NotAgain;
        }
        let full = Allowance { messages: BURST, bytes: BURST, at: now, is_refused: false };
        let left = self.by_resource.entry(resource.clone()).or_insert(full);
        let returned = now.saturating_duration_since(left.at).as_secs_f64() / MINUTE.as_secs_f64();
        left.messages = (left.messages + returned).min(BURST);
        left.bytes = (left.bytes + returned).min(BURST);
        left.at = now;
        if left.messages >= message && left.bytes >= size {
            left.messages -= message;
            left.bytes -= size;
            left.is_refused = false;
            Allowed::Yes
        } else if std::mem::replace(&mut left.is_refused, true) {
            Allowed::NotAgain
        } else {
            Allowed::NotFirst
        }
    }

    /// Forgets agents that were quiet for so long that they have all of it again.
    fn clear(&mut self, now: Instant) {
        if now.saturating_duration_since(self.cleared_at) >= MINUTE {
            let quiet = MINUTE.mul_f64(BURST);
            self.by_resource.retain(|_, left| now.saturating_duration_since(left.at) < quiet);
            self.cleared_at = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(messages: Option<u64>, bytes: Option<u64>) -> RateLimits {
        RateLimits { messages_per_minute: messages, bytes_per_minute: bytes }
    }

    fn resource(number: usize) -> Arc<str> {
        number.to_string().into()
    }

    #[test]
    fn two_minutes_worth_of_messages_pass_at_once_and_then_the_limit() {
        let start = Instant::now();
        let mut allowances = Allowances::new(limits(Some(60), None), 10, start);
        let mut take =
            |at: f64| allowances.take(&resource(1), 1 << 20, start + Duration::from_secs_f64(at));
        for _ in 0..120 {
            assert_eq!(take(0.0), Allowed::Yes);
        }
        assert_eq!(take(0.0), Allowed::NotFirst);
        assert_eq!(take(0.5), Allowed::NotAgain);
        assert_eq!(take(1.1), Allowed::Yes);
        assert_eq!(take(1.2), Allowed::NotFirst);
    }

    #[test]
    fn bytes_count_as_well_and_a_large_message_passes_with_a_full_allowance() {
        let start = Instant::now();
        let mut allowances = Allowances::new(limits(None, Some(1000)), 10, start);
        let mut take =
            |bytes, at: u64| allowances.take(&resource(1), bytes, start + Duration::from_secs(at));
        assert_eq!(take(1500, 0), Allowed::Yes);
        assert_eq!(take(600, 0), Allowed::NotFirst);
        assert_eq!(take(600, 30), Allowed::Yes);
        assert_eq!(take(1 << 22, 60), Allowed::NotFirst);
        assert_eq!(take(1 << 22, 300), Allowed::Yes);
    }

    #[test]
    fn without_a_limit_everything_passes_and_nothing_is_kept() {
        let start = Instant::now();
        for limits in [limits(None, None), limits(Some(0), Some(0))] {
            let mut allowances = Allowances::new(limits, 0, start);
            assert_eq!(allowances.take(&resource(1), usize::MAX, start), Allowed::Yes);
            assert!(allowances.by_resource.is_empty());
        }
    }

    #[test]
    fn agents_do_not_count_for_each_other_and_what_is_kept_is_bounded() {
        let start = Instant::now();
        let mut allowances = Allowances::new(limits(Some(1), None), 3, start);
        for number in 0..3 {
            assert_eq!(allowances.take(&resource(number), 1, start), Allowed::Yes);
        }
        assert_eq!(allowances.take(&resource(9), 1, start), Allowed::NotAgain);
        let later = start + MINUTE.mul_f64(BURST);
        assert_eq!(allowances.take(&resource(9), 1, later), Allowed::Yes);
        assert_eq!(allowances.by_resource.len(), 1);
    }
}
