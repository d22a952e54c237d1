//! What is wrong with a plugin, remembered, so that health checks are answered from memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::PluginStatus;

/// The most problems that one answer shows, and the longest reason of one, in bytes.
const MAX_PROBLEMS: usize = 32;
const MAX_REASON: usize = 512;

/// Remembers what is wrong. It is healthy at first. Cheap to clone; clones share what they know.
///
/// ```
/// use std::time::Duration;
/// # use guest_agent_plugin::Health;
///
/// let health = Health::new();
/// let worker = health.expect("worker", Duration::from_secs(60)); // in `start`
/// worker.beat(); // in the worker, after each round
/// health.fail("database", "cannot connect"); // where something fails
/// assert_eq!(health.status().results, ["database: cannot connect"]);
/// health.recover("database"); // and where it works again
/// assert_eq!(health.status().code, 0); // the answer to a health check
/// ```
#[derive(Clone, Debug, Default)]
pub struct Health {
    known: Arc<Mutex<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    problems: BTreeMap<String, String>,
    beats: BTreeMap<String, Beat>,
    /// How many heartbeats were expected so far; each has its number.
    expected: u64,
}

#[derive(Debug)]
struct Beat {
    number: u64,
    within: Duration,
    last: Instant,
}

/// A part of a plugin that has to show that it lives. After a drop its silence is no problem any
/// more.
#[derive(Debug)]
pub struct Heartbeat {
    health: Health,
    part: String,
    number: u64,
}

// === impl Health ===

impl Health {
    /// Nothing is wrong yet.
    pub fn new() -> Health {
        Health::default()
    }

    /// Says that a part does not work, and why; a later reason replaces an earlier one. Reasons
    /// hold no secrets.
    pub fn fail(&self, part: impl Into<String>, reason: impl Into<String>) {
        let mut reason = reason.into();
        reason.truncate(reason.floor_char_boundary(MAX_REASON));
        self.known().problems.insert(part.into(), reason);
    }

    /// Says that a part works.
    pub fn recover(&self, part: &str) {
        self.known().problems.remove(part);
    }

    /// Makes a part unhealthy that does not beat within this time, from now on.
    #[must_use = "a heartbeat that is dropped is expected no more"]
    pub fn expect(&self, part: impl Into<String>, within: Duration) -> Heartbeat {
        let part = part.into();
        let mut known = self.known();
        known.expected += 1;
        let number = known.expected;
        known.beats.insert(part.clone(), Beat { number, within, last: Instant::now() });
        drop(known);
        Heartbeat { health: self.clone(), part, number }
    }

    /// Healthy, or code 1 with a line per problem, sorted.
    pub fn status(&self) -> PluginStatus {
        let known = self.known();
        let mut lines: Vec<String> =
            known.problems.iter().map(|(part, reason)| format!("{part}: {reason}")).collect();
        lines.extend(known.beats.iter().filter_map(|(part, beat)| {
            let silent = beat.last.elapsed();
            let expected = beat.within;
            let is_late = silent > expected;
            is_late
                .then(|| format!("{part}: silent for {silent:.1?}, expected within {expected:?}"))
        }));
        drop(known);
        if lines.is_empty() {
            return PluginStatus::healthy();
        }
        lines.sort();
        let more = lines.len().saturating_sub(MAX_PROBLEMS);
        if more > 0 {
            lines.truncate(MAX_PROBLEMS);
            lines.push(format!("and {more} more"));
        }
        PluginStatus { code: 1, results: lines }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // What is known is whole after every line here, also where a holder panicked.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Heartbeat ===

impl Heartbeat {
    /// Shows that the part lives.
    pub fn beat(&self) {
        let mut known = self.health.known();
        if let Some(beat) = known.beats.get_mut(&self.part).filter(|it| it.number == self.number) {
            beat.last = Instant::now();
        }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        let mut known = self.health.known();
        // A later one of the same part stays.
        if known.beats.get(&self.part).is_some_and(|it| it.number == self.number) {
            known.beats.remove(&self.part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn what_is_wrong_is_remembered_until_it_works_again() {
        let health = Health::new();
        let beat = health.expect("worker", MINUTE);
        assert_eq!(health.status(), PluginStatus::healthy());
        health.fail("database", "no such host");
        health.fail("database", "cannot connect");
        tokio::time::advance(MINUTE + Duration::from_secs(1)).await;
        let lines = ["database: cannot connect", "worker: silent for 61.0s, expected within 60s"];
        assert_eq!(
            health.status(),
            PluginStatus { code: 1, results: lines.map(String::from).into() }
        );
        health.recover("database");
        beat.beat();
        assert_eq!(health.status(), PluginStatus::healthy());
    }

    #[tokio::test(start_paused = true)]
    async fn the_silence_of_a_part_that_ended_is_no_problem() {
        let health = Health::new();
        let first = health.expect("worker", MINUTE);
        let second = health.expect("worker", MINUTE);
        drop(first);
        tokio::time::advance(2 * MINUTE).await;
        assert_eq!(health.status().code, 1, "the later one is still expected");
        drop(second);
        assert_eq!(health.status().code, 0);
    }

    #[tokio::test]
    async fn answers_are_bounded() {
        let health = Health::new();
        for number in 0..100 {
            health.fail(number.to_string(), "ü".repeat(1000));
        }
        let status = health.status();
        assert_eq!(status.results.len(), MAX_PROBLEMS + 1);
        assert_eq!(status.results[MAX_PROBLEMS], "and 68 more");
        assert!(status.results.iter().all(|line| line.len() < MAX_REASON + 16));
    }
}
