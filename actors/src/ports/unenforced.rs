//! Limits and restrictions of a plugin's process that this machine cannot enforce.
//!
//! A limit or a restriction that a machine cannot enforce does not keep a plugin from running;
//! every view of the plugin lists it. Each part of a launch adds its own entries to the list.

use std::fmt;
use std::sync::Arc;

use crate::text::shortened;

/// Most entries that are kept of one launch.
pub const UNENFORCED_MAX: usize = 16;

/// Longest part of an entry, in bytes.
const PART_MAX: usize = 300;

/// One thing that is not enforced.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shortfall {
    /// The limit or restriction: `memory limit of 64 MiB`.
    pub what: Arc<str>,
    /// Why not.
    pub why: Arc<str>,
    /// The fix.
    pub fix: Arc<str>,
    /// The part of the order that it belongs to.
    pub kind: ShortfallKind,
}

/// The part of an order that an unenforced limit or restriction belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShortfallKind {
    /// The start of a process: it stays so until the process ends.
    Launch,
    /// The limits, which may change while the process runs.
    Limit,
}

/// All unenforced parts of one launch: at most [`UNENFORCED_MAX`] entries, all different.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unenforced(Vec<Shortfall>);

// === impl Shortfall ===

impl Shortfall {
    /// Names what is not enforced, the reason and the fix, each as a part of a sentence.
    #[must_use]
    pub fn new(what: &str, why: &str, fix: &str) -> Self {
        let part = |text: &str| shortened(text, PART_MAX).into();
        let kind = ShortfallKind::Launch;
        Self { what: part(what), why: part(why), fix: part(fix), kind }
    }

    /// The same for a limit.
    #[must_use]
    pub fn of_limit(what: &str, why: &str, fix: &str) -> Self {
        Self { kind: ShortfallKind::Limit, ..Self::new(what, why, fix) }
    }
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not enforced: {}; {}", self.what, self.why, self.fix)
    }
}

// === impl Unenforced ===

impl Unenforced {
    /// Adds an entry. A duplicate, or one too many, is left out.
    pub fn push(&mut self, shortfall: Shortfall) {
        if self.0.len() < UNENFORCED_MAX && !self.0.contains(&shortfall) {
            self.0.push(shortfall);
        }
    }

    /// The limits were set again: these entries replace those about limits.
    #[must_use]
    pub fn with_limits(self, limits: Self) -> Self {
        let of_launch = self.0.into_iter().filter(|entry| entry.kind == ShortfallKind::Launch);
        of_launch.chain(limits.0).collect()
    }

    /// The entries, in the order in which they were added.
    pub fn iter(&self) -> std::slice::Iter<'_, Shortfall> {
        self.0.iter()
    }

    /// Whether everything is enforced.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Extend<Shortfall> for Unenforced {
    fn extend<T: IntoIterator<Item = Shortfall>>(&mut self, entries: T) {
        entries.into_iter().for_each(|entry| self.push(entry));
    }
}

impl FromIterator<Shortfall> for Unenforced {
    fn from_iter<T: IntoIterator<Item = Shortfall>>(entries: T) -> Self {
        let mut all = Self::default();
        all.extend(entries);
        all
    }
}

impl IntoIterator for Unenforced {
    type Item = Shortfall;
    type IntoIter = std::vec::IntoIter<Shortfall>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Unenforced {
    type Item = &'a Shortfall;
    type IntoIter = std::slice::Iter<'a, Shortfall>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_bounded_and_has_nothing_twice() {
        let entry = |number: usize| Shortfall::new(&format!("limit {number}"), "why", "fix");
        let all: Unenforced = (0..100).flat_map(|number| [entry(number), entry(number)]).collect();
        assert_eq!(all.iter().count(), UNENFORCED_MAX);
        assert_eq!(all.iter().nth(1), Some(&entry(1)));
    }

    #[test]
    fn other_limits_say_nothing_of_what_else_a_launch_lacks() {
        let launch = Shortfall::new("seccomp", "why", "fix");
        let limit = |what| Shortfall::of_limit(what, "why", "fix");
        let before: Unenforced = [limit("old"), launch.clone()].into_iter().collect();
        let after = before.with_limits([limit("new")].into_iter().collect());
        assert_eq!(after, [launch, limit("new")].into_iter().collect());
    }

    #[test]
    fn an_entry_reads_as_a_sentence_and_is_short() {
        let entry = Shortfall::new("memory limit of 64 MiB", "there is no controller", "boot anew");
        assert_eq!(
            entry.to_string(),
            "memory limit of 64 MiB is not enforced: there is no controller; boot anew"
        );
        let long = "é".repeat(1000);
        assert!(Shortfall::new(&long, &long, &long).to_string().len() < 4 * PART_MAX);
    }
}
