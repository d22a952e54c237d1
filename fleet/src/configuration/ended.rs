//! Rollouts that have ended. A change keeps the one whose place another takes, and the controller deletes those
//! that are beyond their bounds.

use std::collections::BTreeMap;

use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::{AssignmentRollout, View};
use guest_fleet_ledger::records::rollout::{
    ENDED, ENDED_AGE, ENDED_ALL, ENDED_EACH, RolloutRecord, of_ended_key, rollout_key,
};
use guest_fleet_ledger::records::{self, RecordError};
use guest_fleet_ledger::{Bucket, Ledger, ReadError, Record, Write, bounds};

use super::Configuration;

/// A rollout with its assignment.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Name of its assignment.
    pub assignment: String,
    /// The rollout.
    pub found: AssignmentRollout,
}

/// All rollouts that have ended, the newest first: those whose place another one took, and the newest of each
/// assignment where it has ended.
///
/// # Errors
/// The ledger cannot be read.
pub async fn all(ledger: &dyn Ledger, view: &View) -> Result<Vec<Found>, ReadError> {
    let newest = view.rollouts.iter().filter(|(_, found)| !found.rollout.state.is_live());
    let newest = newest
        .map(|(assignment, found)| Found { assignment: assignment.clone(), found: found.clone() });
    let mut all: Vec<Found> = newest.collect();
    let found = scan(ledger, |record| match read(record) {
        Ok(ended) => Some(ended),
        Err(error) => {
            // History only: nothing is decided by it.
            tracing::warn!(%error, "a rollout that has ended cannot be read");
            None
        }
    });
    all.extend(found.await?.into_values().flatten());
    all.sort_by(|one, other| {
        let order =
            |it: &Found| (it.found.rollout.start().max(it.found.account.first()), it.found.number);
        (order(other), &one.assignment).cmp(&(order(one), &other.assignment))
    });
    Ok(all)
}

fn read(record: &Record) -> Result<Found, RecordError> {
    let found = records::decode::<RolloutRecord>(&record.key, &record.value)?;
    let assignment = of_ended_key(&record.key).map(|(assignment, _)| assignment.to_owned());
    Ok(Found { assignment: assignment.unwrap_or_default(), found: found.rollout(&record.key)? })
}

/// What is kept of the records of rollouts that have ended, by key.
async fn scan<T>(
    ledger: &dyn Ledger,
    keep: impl Fn(&Record) -> T,
) -> Result<BTreeMap<String, T>, ReadError> {
    let (mut all, mut next) = (BTreeMap::new(), None);
    loop {
        let page = ledger.scan(Bucket::Configuration, ENDED, next.as_deref(), bounds::PAGE).await?;
        // A page may show a record again.
        all.extend(page.records.iter().map(|record| (record.key.clone(), keep(record))));
        next = page.next;
        if next.is_none() {
            return Ok(all);
        }
    }
}

/// Deletions of what is beyond the bounds, and of the newest rollouts of assignments that were deleted a year
/// ago; as many as fit into a batch with one more write.
///
/// # Errors
/// The ledger cannot be read.
pub(crate) async fn outdated(
    ledger: &dyn Ledger,
    configuration: &Configuration,
    now: Seconds,
) -> Result<Vec<Write>, ReadError> {
    let revisions = scan(ledger, |record| record.revision).await?;
    let gone = beyond(revisions.keys().map(String::as_str), now);
    let gone = gone.into_iter().map(|key| (key.to_owned(), revisions[key]));
    let view = configuration.view();
    let left = view.rollouts.iter().filter(|(assignment, found)| {
        let last = found.rollout.start().max(found.account.last());
        !view.assignments.contains_key(*assignment) && now.since(last) > ENDED_AGE.as_secs()
    });
    let left = left.map(|(assignment, _)| rollout_key(assignment));
    let left = left.map(|key| (key.clone(), configuration.revision(&key)));
    let deletion = |(key, expected)| Write { key, expected, value: None };
    Ok(gone.chain(left).take(bounds::BATCH - 1).map(deletion).collect())
}

/// Which of the keys are beyond the bounds.
fn beyond<'a>(keys: impl Iterator<Item = &'a str>, now: Seconds) -> Vec<&'a str> {
    let of_key = |key: &'a str| of_ended_key(key).map(|(assignment, at)| (at, assignment, key));
    let mut found: Vec<(Seconds, &str, &str)> = keys.filter_map(of_key).collect();
    found.sort_unstable_by(|one, other| other.cmp(one));
    let mut of_assignment: BTreeMap<&str, usize> = BTreeMap::new();
    let mut kept = 0;
    found.retain(|(at, assignment, _)| {
        let count = of_assignment.entry(assignment).or_default();
        *count += 1;
        let is_kept =
            *count <= ENDED_EACH && kept < ENDED_ALL && now.since(*at) <= ENDED_AGE.as_secs();
        kept += usize::from(is_kept);
        !is_kept
    });
    found.into_iter().map(|(_, _, key)| key).collect()
}

#[cfg(test)]
mod tests {
    use guest_fleet_ledger::records::rollout::ended_key;

    use super::*;

    fn beyond_of(keys: &[String], now: u64) -> Vec<String> {
        let gone = beyond(keys.iter().map(String::as_str), Seconds(now));
        gone.into_iter().map(str::to_owned).collect()
    }

    fn key(assignment: &str, at: u64) -> String {
        ended_key(assignment, 1, Seconds(at))
    }

    #[test]
    fn the_newest_of_each_assignment_stay_for_a_year() {
        let mut keys: Vec<String> = (0..205).map(|at| key("web", 1_000 + at)).collect();
        keys.push(key("db", 1));
        keys.push("audit/00001".to_owned());
        let oldest: Vec<String> = (0..5).rev().map(|at| key("web", 1_000 + at)).collect();
        assert_eq!(beyond_of(&keys, 2_000), oldest);
        assert_eq!(beyond_of(&keys, 1 + ENDED_AGE.as_secs()), oldest);
        assert_eq!(beyond_of(&keys, 2 + ENDED_AGE.as_secs()).last(), Some(&key("db", 1)));
        assert_eq!(beyond_of(&keys, u64::MAX).len(), 206, "and nothing that is no such rollout");
    }

    #[test]
    fn the_newest_of_all_assignments_stay() {
        let of = |at: usize| key(&format!("a-{}", at % 100), 1_000 + at as u64);
        let keys: Vec<String> = (0..ENDED_ALL + 3).map(of).collect();
        assert_eq!(beyond_of(&keys, 20_000), [of(2), of(1), of(0)]);
    }
}
