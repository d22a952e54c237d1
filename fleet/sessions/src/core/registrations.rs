//! How often one agent may register. Pure: the caller says what time it is.
//!
//! A newer stream of an agent ends the older one. Two processes with the identity of one agent
//! therefore end each other's streams in turn, as fast as they open new ones.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

const MINUTE: Duration = Duration::from_secs(60);

/// The registrations of the last minute, by resource id.
#[derive(Debug)]
pub(super) struct Registrations {
    per_minute: u32,
    agents_max: usize,
    by_resource: HashMap<Arc<str>, Recent>,
    cleared_at: Instant,
}

/// What one agent has left.
#[derive(Debug)]
struct Recent {
    /// So many registrations are left, as of `at`. They come back evenly within a minute.
    left: f64,
    at: Instant,
    is_refused: bool,
}

/// What becomes of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is one of those that the agent may make.
    Allowed,
    /// It is the first of a row that comes too soon.
    RefusedFirst,
    /// So is the one before.
    RefusedAgain,
}

// === impl Registrations ===

impl Registrations {
    /// `per_minute` registrations of one agent at once, or within a minute. The registrations of
    /// `agents_max` agents are counted; those of more are refused.
    pub(super) fn new(per_minute: u32, agents_max: usize, now: Instant) -> Self {
        Self { per_minute, agents_max, by_resource: HashMap::new(), cleared_at: now }
    }

    /// Counts a registration.
    pub(super) fn register(&mut self, resource: &Arc<str>, now: Instant) -> Verdict {
        let allowed = f64::from(self.per_minute);
        if now.duration_since(self.cleared_at) >= MINUTE {
            self.by_resource.retain(|_, recent| now.duration_since(recent.at) < MINUTE);
            self.cleared_at = now;
        }
        if !self.by_resource.contains_key(resource) && self.by_resource.len() >= self.agents_max {
            return Verdict::RefusedAgain;
        }
        let recent = self.by_resource.entry(resource.clone()).or_insert(Recent {
            left: allowed,
            at: now,
            is_refused: false,
        });
        let returned = now.duration_since(recent.at).as_secs_f64() / MINUTE.as_secs_f64() * allowed;
        recent.left = (recent.left + returned).min(allowed);
        recent.at = now;
        if recent.left >= 1.0 {
            recent.left -= 1.0;
            recent.is_refused = false;
            Verdict::Allowed
        } else if std::mem::replace(&mut recent.is_refused, true) {
            Verdict::RefusedAgain
        } else {
            Verdict::RefusedFirst
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENTS: usize = 10;

    fn resource(number: usize) -> Arc<str> {
        number.to_string().into()
    }

    #[test]
    fn an_agent_may_register_so_often_at_once_and_within_each_minute() {
        let start = Instant::now();
        let mut registrations = Registrations::new(6, AGENTS, start);
        let mut register =
            |at: f64| registrations.register(&resource(1), start + Duration::from_secs_f64(at));
        for _ in 0..6 {
            assert_eq!(register(0.0), Verdict::Allowed);
        }
        assert_eq!(register(0.1), Verdict::RefusedFirst);
        assert_eq!(register(9.9), Verdict::RefusedAgain);
        assert_eq!(register(10.1), Verdict::Allowed);
        assert_eq!(register(10.2), Verdict::RefusedFirst);
        for _ in 0..6 {
            assert_eq!(register(71.0), Verdict::Allowed);
        }
        assert_eq!(register(71.0), Verdict::RefusedFirst);
    }

    #[test]
    fn agents_do_not_count_for_each_other() {
        let start = Instant::now();
        let mut registrations = Registrations::new(1, AGENTS, start);
        for number in 0..AGENTS {
            assert_eq!(registrations.register(&resource(number), start), Verdict::Allowed);
        }
        assert_eq!(registrations.register(&resource(0), start), Verdict::RefusedFirst);
    }

    #[test]
    fn what_is_counted_is_bounded_and_forgotten_after_a_minute() {
        let start = Instant::now();
        let mut registrations = Registrations::new(1, AGENTS, start);
        for number in 0..3 * AGENTS {
            registrations.register(&resource(number), start);
        }
        assert_eq!(registrations.by_resource.len(), AGENTS);
        assert_eq!(registrations.register(&resource(99), start), Verdict::RefusedAgain);
        assert_eq!(registrations.register(&resource(99), start + MINUTE), Verdict::Allowed);
        assert_eq!(registrations.by_resource.len(), 1);
    }
}
