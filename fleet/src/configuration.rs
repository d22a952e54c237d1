//! The configuration in the ledger as the view that decisions are made on, and changes of it with
//! their audit entries.
//!
//! A record that cannot be read never makes a change happen: an assignment or a release that is
//! damaged orders nothing, in place of a hold, a window or a rollout that is damaged everything is
//! held, and an assignment whose repairs are damaged pauses.

pub mod audit;
pub mod change;
pub mod ended;
pub mod words;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use guest_fleet_core::repair::Repair;
use guest_fleet_core::rollout::Strategy;
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::view::{Hold, Plugins, View};
use guest_fleet_ledger::records::configuration::{
    ASSIGNMENT, AssignmentRecord, DEFAULTS, DefaultsRecord, HOLD, HoldRecord, POLICY, PolicyRecord,
    RELEASE, ReleaseRecord, WINDOW, WindowRecord,
};
use guest_fleet_ledger::records::repair::{REPAIR, RepairRecord};
use guest_fleet_ledger::records::rollout::{ROLLOUT, RolloutRecord};
use guest_fleet_ledger::records::secret::{SECRET, SecretRecord};
use guest_fleet_ledger::records::{self, RecordError};
use guest_fleet_ledger::{Bucket, Change, Follower, Ledger, ReadError, Revision, Update};

/// The declared records, kept up to date from the changes of their bucket.
#[derive(Clone, Debug)]
pub struct Configuration {
    follower: Follower,
    view: View,
    revisions: BTreeMap<String, Revision>,
    problems: BTreeMap<String, RecordError>,
    /// Something was read that no caller knows of yet.
    is_changed: bool,
    /// Holds that a person set by the command line, not by declarations.
    by_hand: BTreeSet<String>,
    /// The records of secrets, by name.
    secrets: BTreeMap<String, SecretRecord>,
}

// === impl Configuration ===

impl Configuration {
    /// Reads the whole configuration.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn load(ledger: &dyn Ledger) -> Result<Self, ReadError> {
        let mut configuration = Self::default();
        configuration.catch_up(ledger, Revision::ABSENT).await?;
        Ok(configuration)
    }

    /// Reads what changed, at least up to a revision; returns whether a decision may depend on anything
    /// that changed since the last success. A call that is cancelled counts as one that failed.
    ///
    /// # Errors
    /// The ledger cannot be read. The changes from before the error are contained.
    pub async fn catch_up(
        &mut self,
        ledger: &dyn Ledger,
        at_least: Revision,
    ) -> Result<bool, ReadError> {
        loop {
            let update = self.follower.next(ledger, at_least).await?;
            let more = update.more;
            self.is_changed |= self.take(update);
            if !more {
                return Ok(std::mem::take(&mut self.is_changed));
            }
        }
    }

    /// What operators declared.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The revision up to which everything is contained.
    #[must_use]
    pub fn through(&self) -> Revision {
        self.follower.through()
    }

    /// The revision of a record; [`Revision::ABSENT`] where there is no record.
    #[must_use]
    pub fn revision(&self, key: &str) -> Revision {
        self.revisions.get(key).copied().unwrap_or(Revision::ABSENT)
    }

    /// Records that cannot be read, by key.
    pub fn problems(&self) -> impl Iterator<Item = (&str, &RecordError)> {
        self.problems.iter().map(|(key, error)| (key.as_str(), error))
    }

    /// Why a record cannot be read.
    #[must_use]
    pub fn problem(&self, key: &str) -> Option<&RecordError> {
        self.problems.get(key)
    }

    /// The holds that there are, without those that stand in place of records that cannot be read.
    pub fn holds(&self) -> impl Iterator<Item = (&str, &Hold)> {
        let all = self.view.holds.iter().map(|(name, hold)| (name.as_str(), hold));
        all.filter(|(name, _)| !name.starts_with(UNREADABLE))
    }

    /// Whether a person set the hold by the command line, so that declarations do not remove it.
    #[must_use]
    pub fn is_by_hand(&self, hold: &str) -> bool {
        self.by_hand.contains(hold)
    }

    /// The record of a secret that gateways ordered.
    #[must_use]
    pub fn secret(&self, name: &str) -> Option<&SecretRecord> {
        self.secrets.get(name)
    }

    /// The names of all secrets that have a record.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.secrets.keys().map(String::as_str)
    }

    fn take(&mut self, update: Update) -> bool {
        let mut changed = update.is_reset;
        if update.is_reset {
            *self = Self { follower: self.follower, ..Self::default() };
        }
        for change in update.changes {
            changed |= self.change(&change);
        }
        changed
    }

    /// Takes over one change; whether a decision may depend on it.
    pub(crate) fn change(&mut self, change: &Change) -> bool {
        let key = change.key.as_str();
        let kinds = [RELEASE, ASSIGNMENT, HOLD, WINDOW, ROLLOUT, DEFAULTS, POLICY, SECRET, REPAIR];
        let Some(kind) = kinds.into_iter().find(|kind| key.starts_with(kind)) else { return false };
        let name = &key[kind.len()..];
        // Most records are read once, when nothing of them is known yet.
        if self.revisions.contains_key(key) {
            self.forget(kind, name, key);
        }
        let Some(value) = &change.value else {
            self.revisions.remove(key);
            return true;
        };
        self.revisions.insert(key.to_owned(), change.revision);
        if let Err(error) = self.read(kind, name, key, value) {
            tracing::error!(key, %error, "a record of the configuration cannot be read");
            if [HOLD, WINDOW, ROLLOUT].contains(&kind) {
                self.view.holds.insert(unreadable(key), held_by_damage(&error));
            }
            if kind == REPAIR {
                self.view.repairs.insert(name.to_owned(), Repair::unreadable());
            }
            self.problems.insert(key.to_owned(), error);
        }
        true
    }

    fn forget(&mut self, kind: &str, name: &str, key: &str) {
        self.problems.remove(key);
        match kind {
            RELEASE => self
                .view
                .releases
                .retain(|name, _| records::configuration::release_key(name) != key),
            ASSIGNMENT => drop(self.view.assignments.remove(name)),
            HOLD => {
                self.view.holds.remove(name);
                self.by_hand.remove(name);
            }
            ROLLOUT => drop(self.view.rollouts.remove(name)),
            DEFAULTS => self.view.defaults = Strategy::default(),
            POLICY => drop(self.view.policies.remove(name)),
            SECRET => drop(self.secrets.remove(name)),
            REPAIR => drop(self.view.repairs.remove(name)),
            _ => drop(self.view.windows.remove(name)),
        }
        self.view.holds.remove(&unreadable(key));
    }

    fn read(
        &mut self,
        kind: &str,
        name: &str,
        key: &str,
        value: &Bytes,
    ) -> Result<(), RecordError> {
        match kind {
            RELEASE => {
                let (name, release) = records::decode::<ReleaseRecord>(key, value)?.release();
                self.view.releases.insert(name, release);
            }
            ASSIGNMENT => {
                let record = records::decode::<AssignmentRecord>(key, value)?;
                self.view.assignments.insert(name.to_owned(), record.assignment(key)?);
            }
            HOLD => {
                let record = records::decode::<HoldRecord>(key, value)?;
                if record.by_hand {
                    self.by_hand.insert(name.to_owned());
                }
                self.view.holds.insert(name.to_owned(), record.hold(key)?);
            }
            ROLLOUT => {
                let record = records::decode::<RolloutRecord>(key, value)?;
                self.view.rollouts.insert(name.to_owned(), record.rollout(key)?);
            }
            POLICY => {
                let record = records::decode::<PolicyRecord>(key, value)?;
                self.view.policies.insert(name.to_owned(), record.policy(key)?);
            }
            SECRET => {
                let record = records::decode::<SecretRecord>(key, value)?;
                self.secrets.insert(name.to_owned(), record);
            }
            REPAIR => {
                let record = records::decode::<RepairRecord>(key, value)?;
                self.view.repairs.insert(name.to_owned(), record.repair(key)?);
            }
            DEFAULTS => {
                let record = records::decode::<DefaultsRecord>(key, value)?;
                self.view.defaults = record.defaults(key)?;
            }
            _ => {
                let record = records::decode::<WindowRecord>(key, value)?;
                self.view.windows.insert(name.to_owned(), record.window(key)?);
            }
        }
        Ok(())
    }
}

/// The prefix of the names of such holds.
const UNREADABLE: &str = "unreadable:";

impl Default for Configuration {
    fn default() -> Self {
        Self {
            follower: Follower::new(Bucket::Configuration),
            view: View::default(),
            revisions: BTreeMap::new(),
            problems: BTreeMap::new(),
            is_changed: false,
            by_hand: BTreeSet::new(),
            secrets: BTreeMap::new(),
        }
    }
}

/// The name of the hold in place of a record. No declared name has a slash in it.
fn unreadable(key: &str) -> String {
    format!("{UNREADABLE}{key}")
}

fn held_by_damage(error: &RecordError) -> Hold {
    Hold {
        selector: Selector::all(),
        own_labels: OwnLabels::Ignored,
        plugins: Plugins::All,
        reason: error.to_string(),
        by: "the control plane".to_owned(),
        until: None,
    }
}
