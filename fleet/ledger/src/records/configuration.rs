//! What operators declare, in the bucket of the configuration, one record per key:
//!
//! | key | record |
//! |---|---|
//! | `release/<plugin>/<revision>` | [`ReleaseRecord`] |
//! | `assignment/<name>` | [`AssignmentRecord`] |
//! | `hold/<name>` | [`HoldRecord`] |
//! | `window/<name>` | [`WindowRecord`] |
//! | `rollout/<assignment>` | [`RolloutRecord`](super::rollout::RolloutRecord) |
//!
//! Parts of a key that come from outside are escaped, so that no name can reach another's key.

use guest_agent_proto::escape::escaped;
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::{Archive, Assignment, Hold, Plugins, Release, ReleaseName, Window};
use guest_fleet_core::window::Weekly;

use super::{RecordError, Versioned, revision, target};

pub use super::generated::{
    ArchiveRecord, AssignmentRecord, HoldRecord, ReleaseRecord, WindowRecord,
};

/// What the keys of releases begin with.
pub const RELEASE: &str = "release/";
/// What the keys of assignments begin with.
pub const ASSIGNMENT: &str = "assignment/";
/// What the keys of holds begin with.
pub const HOLD: &str = "hold/";
/// What the keys of windows begin with.
pub const WINDOW: &str = "window/";

/// Key of a release.
#[must_use]
pub fn release_key(name: &ReleaseName) -> String {
    format!("{RELEASE}{}/{}", escaped(&name.plugin), escaped(&name.revision))
}

fn damaged(key: &str, problem: impl ToString) -> RecordError {
    RecordError::Damaged { key: key.to_owned(), problem: problem.to_string() }
}

fn own_labels(are_trusted: bool) -> OwnLabels {
    if are_trusted { OwnLabels::Trusted } else { OwnLabels::Ignored }
}

fn selector(key: &str, text: &str) -> Result<Selector, RecordError> {
    Selector::parse(text).map_err(|error| damaged(key, format_args!("its selector: {error}")))
}

fn plugins(names: &[String]) -> Plugins {
    if names.is_empty() { Plugins::All } else { Plugins::Named(names.iter().cloned().collect()) }
}

fn names(plugins: &Plugins) -> Vec<String> {
    match plugins {
        Plugins::All => Vec::new(),
        Plugins::Named(names) => names.iter().cloned().collect(),
    }
}

// === impl ReleaseRecord ===

impl ReleaseRecord {
    /// The record of a release.
    #[must_use]
    pub fn of(name: &ReleaseName, release: &Release) -> Self {
        let archive = |archive: &Archive| ArchiveRecord {
            digest: archive.digest.clone(),
            url: archive.url.clone(),
        };
        Self {
            version: Self::VERSION,
            plugin: name.plugin.clone(),
            revision: name.revision.clone(),
            archives: release
                .archives
                .iter()
                .map(|(architecture, found)| (architecture.clone(), archive(found)))
                .collect(),
            order: release.order.clone(),
        }
    }

    /// The release.
    #[must_use]
    pub fn release(self) -> (ReleaseName, Release) {
        let archives = self.archives.into_iter().map(|(architecture, found)| {
            (architecture, Archive { digest: found.digest, url: found.url })
        });
        (
            ReleaseName { plugin: self.plugin, revision: self.revision },
            Release { archives: archives.collect(), order: self.order },
        )
    }
}

// === impl AssignmentRecord ===

impl AssignmentRecord {
    /// The record of an assignment.
    #[must_use]
    pub fn of(assignment: &Assignment) -> Self {
        Self {
            version: Self::VERSION,
            plugin: assignment.plugin.clone(),
            revision: revision(&assignment.target),
            selector: assignment.selector.to_string(),
            trusts_own_labels: assignment.own_labels == OwnLabels::Trusted,
            priority: assignment.priority,
            attempt: assignment.attempt,
        }
    }

    /// The assignment.
    ///
    /// # Errors
    /// Its selector does not parse.
    pub fn assignment(self, key: &str) -> Result<Assignment, RecordError> {
        Ok(Assignment {
            selector: selector(key, &self.selector)?,
            plugin: self.plugin,
            target: target(&self.revision),
            own_labels: own_labels(self.trusts_own_labels),
            priority: self.priority,
            attempt: self.attempt,
        })
    }
}

// === impl HoldRecord ===

impl HoldRecord {
    /// The record of a hold.
    #[must_use]
    pub fn of(hold: &Hold) -> Self {
        Self {
            version: Self::VERSION,
            selector: hold.selector.to_string(),
            plugins: names(&hold.plugins),
            reason: hold.reason.clone(),
            by: hold.by.clone(),
            until: hold.until.map_or(0, |until| until.0),
            trusts_own_labels: hold.own_labels == OwnLabels::Trusted,
            by_hand: false,
        }
    }

    /// The hold.
    ///
    /// # Errors
    /// Its selector does not parse.
    pub fn hold(self, key: &str) -> Result<Hold, RecordError> {
        Ok(Hold {
            selector: selector(key, &self.selector)?,
            own_labels: own_labels(self.trusts_own_labels),
            plugins: plugins(&self.plugins),
            reason: self.reason,
            by: self.by,
            until: (self.until != 0).then_some(Seconds(self.until)),
        })
    }
}

// === impl WindowRecord ===

impl WindowRecord {
    /// The record of a window.
    #[must_use]
    pub fn of(window: &Window) -> Self {
        let days = window.weekly.days.iter().zip(0..).filter(|(is_one, _)| **is_one);
        Self {
            version: Self::VERSION,
            selector: window.selector.to_string(),
            plugins: names(&window.plugins),
            days: days.map(|(_, day)| day).collect(),
            opens: window.weekly.opens.into(),
            minutes: window.weekly.minutes.into(),
            zone: window.weekly.zone.clone(),
            trusts_own_labels: window.own_labels == OwnLabels::Trusted,
        }
    }

    /// The window.
    ///
    /// # Errors
    /// Its selector does not parse, or its days or times do not exist.
    pub fn window(self, key: &str) -> Result<Window, RecordError> {
        let mut days = [false; 7];
        for day in &self.days {
            let day = usize::try_from(*day).ok().and_then(|day| days.get_mut(day));
            *day.ok_or_else(|| damaged(key, "a week has no such day"))? = true;
        }
        let minute = |minutes: u32| {
            u16::try_from(minutes)
                .ok()
                .filter(|minutes| *minutes <= 24 * 60)
                .ok_or_else(|| damaged(key, "a day has no such minute"))
        };
        Ok(Window {
            selector: selector(key, &self.selector)?,
            own_labels: own_labels(self.trusts_own_labels),
            plugins: plugins(&self.plugins),
            weekly: Weekly {
                days,
                opens: minute(self.opens)?,
                minutes: minute(self.minutes)?,
                zone: self.zone,
            },
        })
    }
}

macro_rules! versioned {
    ($($record:ty),+) => {
        $(impl Versioned for $record {
            const VERSION: u32 = 1;

            fn version(&self) -> u32 {
                self.version
            }
        })+
    };
}

versioned!(ReleaseRecord, AssignmentRecord, HoldRecord, WindowRecord);
