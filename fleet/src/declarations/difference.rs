//! What files declare beside what the ledger has: the edits that make the one the other.
//!
//! | in the files | in the ledger | what becomes of it |
//! |---|---|---|
//! | there | not there | created |
//! | there | the same | nothing |
//! | there, another | there | replaced; a release is refused, because a revision never changes |
//! | not there | there | nothing, and it is listed; with [`Undeclared::Delete`] it is deleted |
//! | not there | a hold set by hand | nothing, always |
//!
//! `rollouts::declared` adds the rollouts that a change begins, and those that it ends.
//!
//! The attempt of an assignment and who set a hold are the ledger's: they stay.

use guest_fleet_core::rollout::{State, Strategy};
use guest_fleet_core::view::{Assignment, Hold, Release, ReleaseName, Target, View};
use guest_fleet_ledger::records::configuration::{
    ASSIGNMENT, AssignmentRecord, DEFAULTS, DefaultsRecord, HOLD, HoldRecord, POLICY,
    ReleaseRecord, WINDOW, WindowRecord, release_key,
};
use prost::Message;

use super::problem::{Collector, Problems};
use super::set::{Declarations, Declared};
use crate::configuration::change::{Becomes, Edit};
use crate::configuration::{Configuration, words};

/// What becomes of records that no file declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undeclared {
    /// They stay.
    Keep,
    /// They are deleted, but for holds that were set by hand.
    Delete,
}

/// What differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// What is created or replaced.
    pub edits: Vec<Edit>,
    /// What no file declares: deletions, by key.
    pub undeclared: Vec<Edit>,
    /// Names of holds that were set by hand and that no file declares.
    pub kept: Vec<String>,
    /// How many declarations are in the ledger as they are.
    pub unchanged: usize,
}

/// Compares declarations with the ledger. `who` stands in holds that are new or changed.
///
/// # Errors
/// A release is in the ledger with another content, or an assignment names a release that neither
/// the files nor the ledger have.
pub fn difference(
    declared: &Declarations,
    ledger: &Configuration,
    who: &str,
    undeclared: Undeclared,
) -> Result<Difference, Problems> {
    let mut problems = Collector::default();
    let mut found = Difference::default();
    let view = ledger.view();
    for (name, declared) in &declared.releases {
        let key = release_key(name);
        let before = view.releases.get(name);
        if let Some(before) = before
            && *before != declared.value
        {
            problems.add(declared.problem(
                "release",
                changed(before, &declared.value),
                format!(
                    "a release never changes: declare this as a new revision of `{}`",
                    name.plugin
                ),
            ));
            continue;
        }
        let record = ReleaseRecord::of(name, &declared.value).encode_to_vec();
        found.take(ledger, &key, before.map(words::release), before.is_some(), || {
            (words::release(&declared.value), record)
        });
    }
    for (name, declared_assignment) in &declared.assignments {
        if let Err(problem) = has_release(declared, ledger, declared_assignment, undeclared) {
            problems.add(problem);
            continue;
        }
        let before = view.assignments.get(name);
        let after = redeclared(before, &declared_assignment.value);
        let key = format!("{ASSIGNMENT}{name}");
        let is_same = before == Some(&after);
        found.take(ledger, &key, before.map(words::assignment), is_same, || {
            (words::assignment(&after), AssignmentRecord::of(&after).encode_to_vec())
        });
    }
    for (name, declared) in &declared.holds {
        let before = view.holds.get(name);
        let by = |by: &str| Hold { by: by.to_owned(), ..declared.value.clone() };
        let is_same = before.is_some_and(|before| *before == by(&before.by));
        found.take(ledger, &format!("{HOLD}{name}"), before.map(words::hold), is_same, || {
            let after = by(who);
            (words::hold(&after), HoldRecord::of(&after).encode_to_vec())
        });
    }
    for (name, declared) in &declared.windows {
        let before = view.windows.get(name);
        let is_same = before == Some(&declared.value);
        found.take(ledger, &format!("{WINDOW}{name}"), before.map(words::window), is_same, || {
            let after = &declared.value;
            (words::window(after), WindowRecord::of(after).encode_to_vec())
        });
    }
    if let Some(declared) = &declared.defaults {
        let before =
            (view.defaults != Strategy::default()).then(|| words::strategy(&view.defaults));
        let is_same = view.defaults == declared.value && ledger.problem(DEFAULTS).is_none();
        found.take(ledger, DEFAULTS, before, is_same, || {
            let after = &declared.value;
            (words::strategy(after), DefaultsRecord::of(after).encode_to_vec())
        });
    }
    found.undeclared(declared, ledger);
    problems.finish(found)
}

/// What becomes of an assignment that files declare.
fn redeclared(before: Option<&Assignment>, declared: &Assignment) -> Assignment {
    before.map_or_else(|| declared.clone(), |before| before.redeclared(declared))
}

fn deleted(key: String, before: String) -> Edit {
    Edit { key, before: Some(before), after: None, record: Becomes::Deleted }
}

fn changed(before: &Release, after: &Release) -> String {
    let what = match (before.archives == after.archives, before.order == after.order) {
        (false, true) => "other archives",
        (true, false) => "another entry point, arguments, configuration or manifest",
        _ => "other archives and another order",
    };
    format!("the ledger has this release with {what}")
}

fn has_release(
    declared: &Declarations,
    ledger: &Configuration,
    assignment: &Declared<Assignment>,
    undeclared: Undeclared,
) -> Result<(), super::problem::Problem> {
    let Assignment { plugin, target, .. } = &assignment.value;
    let Target::Revision(revision) = target else { return Ok(()) };
    let is_it = |name: &&ReleaseName| name.plugin == *plugin && name.revision == *revision;
    let stays =
        undeclared == Undeclared::Keep && ledger.view().releases.keys().any(|name| is_it(&name));
    if stays || declared.releases.keys().any(|name| is_it(&name)) {
        return Ok(());
    }
    let reason = match undeclared {
        Undeclared::Keep => format!("there is no release {plugin} {revision}"),
        Undeclared::Delete => format!("no file declares the release {plugin} {revision}"),
    };
    let fix = "declare it as a `[[release]]`, or correct the revision";
    Err(assignment.problem("assignment.revision", reason, fix))
}

/// Whether a rollout leads to a release or away from it, so that agents may have to be given it.
fn is_in_a_rollout(view: &View, name: &ReleaseName) -> bool {
    view.rollouts.iter().any(|(assignment, found)| {
        let is_it = |target: &Target| target.revision() == Some(name.revision.as_str());
        found.plugin == name.plugin
            && view.assignments.contains_key(assignment)
            && found.rollout.state != State::Done
            && (found.rollout.from.target().is_some_and(is_it) || is_it(&found.rollout.to))
    })
}

// === impl Difference ===

impl Difference {
    /// Whether the files and the ledger say the same.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.edits.is_empty() && self.undeclared.is_empty()
    }

    fn take(
        &mut self,
        ledger: &Configuration,
        key: &str,
        before: Option<String>,
        is_same: bool,
        after: impl FnOnce() -> (String, Vec<u8>),
    ) {
        if is_same {
            self.unchanged += 1;
            return;
        }
        let (after, record) = after();
        let before = before.or_else(|| ledger.problem(key).map(|_| UNREADABLE.to_owned()));
        self.edits.push(Edit {
            key: key.to_owned(),
            before,
            after: Some(after),
            record: Becomes::Bytes(record.into()),
        });
    }

    fn undeclared(&mut self, declared: &Declarations, ledger: &Configuration) {
        let view = ledger.view();
        let mut gone = |key: String, before: String| self.undeclared.push(deleted(key, before));
        // What takes plugins to machines goes first, what keeps changes away last.
        for (name, assignment) in &view.assignments {
            if !declared.assignments.contains_key(name) {
                gone(format!("{ASSIGNMENT}{name}"), words::assignment(assignment));
            }
        }
        for (name, release) in &view.releases {
            let is_needed = is_in_a_rollout(view, name) || declared.is_wanted_by_hand(view, name);
            if !declared.releases.contains_key(name) && !is_needed {
                gone(release_key(name), words::release(release));
            }
        }
        for (name, window) in &view.windows {
            if !declared.windows.contains_key(name) {
                gone(format!("{WINDOW}{name}"), words::window(window));
            }
        }
        if declared.defaults.is_none() && view.defaults != Strategy::default() {
            gone(DEFAULTS.to_owned(), words::strategy(&view.defaults));
        }
        for (name, hold) in ledger.holds() {
            if declared.holds.contains_key(name) {
                continue;
            }
            if ledger.is_by_hand(name) {
                self.kept.push(name.to_owned());
            } else {
                gone(format!("{HOLD}{name}"), words::hold(hold));
            }
        }
        let declared_keys = declared.keys();
        let is_declared = |key: &str| declared_keys.contains(key) || key.starts_with(POLICY);
        for (key, _) in ledger.problems().filter(|(key, _)| !is_declared(key)) {
            gone(key.to_owned(), UNREADABLE.to_owned());
        }
    }
}

const UNREADABLE: &str = "a record that cannot be read";

// === impl Declarations ===

impl Declarations {
    /// The keys of all records that are declared.
    fn keys(&self) -> std::collections::BTreeSet<String> {
        let named = |prefix: &'static str| move |name: &String| format!("{prefix}{name}");
        self.releases
            .keys()
            .map(release_key)
            .chain(self.assignments.keys().map(named(ASSIGNMENT)))
            .chain(self.holds.keys().map(named(HOLD)))
            .chain(self.windows.keys().map(named(WINDOW)))
            .chain(self.defaults.iter().map(|_| DEFAULTS.to_owned()))
            .collect()
    }

    /// Whether a person took an assignment by hand to a release, which no file has to name then.
    fn is_wanted_by_hand(&self, view: &View, name: &ReleaseName) -> bool {
        self.assignments.iter().any(|(assignment, declared)| {
            let before = view.assignments.get(assignment);
            let Assignment { plugin, target, .. } = redeclared(before, &declared.value);
            plugin == name.plugin && target.revision() == Some(name.revision.as_str())
        })
    }

    /// The view once this is declared over a former one. Holds and windows stay as they were.
    #[must_use]
    pub fn over(&self, before: &View, undeclared: Undeclared) -> View {
        let mut after = before.clone();
        if undeclared == Undeclared::Delete {
            after.assignments.retain(|name, _| self.assignments.contains_key(name));
            after.defaults = Strategy::default();
        }
        let releases = self.releases.iter();
        after.releases.extend(releases.map(|(name, it)| (name.clone(), it.value.clone())));
        for (name, declared) in &self.assignments {
            let assignment = redeclared(before.assignments.get(name), &declared.value);
            after.assignments.insert(name.clone(), assignment);
        }
        if let Some(declared) = &self.defaults {
            after.defaults = declared.value.clone();
        }
        after
    }
}
