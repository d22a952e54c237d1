//! Which entries were gone before they could be delivered. Pure.
//!
//! Entries of a subject are numbered without a gap, so one that follows another than its predecessor
//! says that those between are gone. For a subject that was not seen since the start nothing is
//! known of its predecessor: it was delivered by an earlier process, or it is gone. Then the bounds
//! of the log decide whether any can be.

use std::collections::HashMap;

use crate::Entry;

/// Subjects whose last number is known. When there are more, all are forgotten.
const SUBJECTS: usize = 100_000;

/// The last numbers that were seen.
#[derive(Debug, Default)]
pub struct Seen {
    numbers: HashMap<String, u64>,
    /// Those of a page that is being read.
    staged: HashMap<String, u64>,
    /// All were forgotten at some time.
    is_partial: bool,
}

/// Entries that are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The first number that may be missing; `None` where it is not known.
    pub from: Option<u64>,
    /// The number of the next entry that is there.
    pub to: u64,
}

/// What an entry says about those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Nothing is missing.
    Whole,
    /// These are.
    Gone(Gap),
    /// Nothing is known of the subject.
    Unknown,
}

// === impl Gap ===

impl Gap {
    /// How many entries are gone, as far as that is known.
    pub fn lost(self) -> u64 {
        self.from.map_or(1, |from| self.to.saturating_sub(from))
    }
}

// === impl Seen ===

impl Seen {
    /// What is known of the entries before this one.
    pub fn before(&self, entry: &Entry) -> Before {
        let subject = &entry.subject;
        match self.staged.get(subject).or_else(|| self.numbers.get(subject)) {
            Some(last) if entry.number == last + 1 => Before::Whole,
            // It comes again.
            Some(last) if entry.number == *last => Before::Whole,
            Some(last) if entry.number > *last => {
                Before::Gone(Gap { from: Some(last + 1), to: entry.number })
            }
            // All entries of the subject went with their age, and it began anew.
            Some(_) if entry.number == 1 => Before::Whole,
            Some(_) => Before::Gone(Gap { from: None, to: entry.number }),
            None if entry.number <= 1 => Before::Whole,
            None => Before::Unknown,
        }
    }

    /// Whether subjects were forgotten that were seen, because they were too many.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Notes an entry of a page.
    pub fn note(&mut self, entry: &Entry) {
        self.staged.insert(entry.subject.clone(), entry.number);
    }

    /// Forgets a page that was not read to its end.
    pub fn forget_page(&mut self) {
        self.staged.clear();
    }

    /// Remembers a page.
    pub fn keep_page(&mut self) {
        if self.numbers.len() + self.staged.len() > SUBJECTS {
            self.numbers.clear();
            self.is_partial = true;
        }
        self.numbers.extend(self.staged.drain());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(subject: &str, number: u64) -> Entry {
        Entry {
            subject: subject.to_owned(),
            position: number,
            number,
            id: number.to_string(),
            value: bytes::Bytes::new(),
        }
    }

    #[test]
    fn a_number_that_does_not_follow_says_what_is_gone() {
        let mut seen = Seen::default();
        assert_eq!(seen.before(&entry("a", 1)), Before::Whole);
        assert_eq!(seen.before(&entry("a", 5)), Before::Unknown);
        seen.note(&entry("a", 5));
        assert_eq!(seen.before(&entry("a", 6)), Before::Whole);
        assert_eq!(seen.before(&entry("a", 5)), Before::Whole);
        let gap = Gap { from: Some(6), to: 9 };
        assert_eq!((seen.before(&entry("a", 9)), gap.lost()), (Before::Gone(gap), 3));
        assert_eq!(seen.before(&entry("b", 9)), Before::Unknown);
        assert_eq!(seen.before(&entry("a", 1)), Before::Whole, "it began anew");
        let began_anew = Gap { from: None, to: 3 };
        assert_eq!(seen.before(&entry("a", 3)), Before::Gone(began_anew));
    }

    #[test]
    fn subjects_without_number_take_bounded_memory() {
        let mut seen = Seen::default();
        for number in 0..=SUBJECTS {
            seen.note(&entry(&number.to_string(), 1));
            seen.keep_page();
        }
        assert_eq!(seen.numbers.len(), 1);
        assert!(seen.is_partial());
    }

    #[test]
    fn a_page_that_was_not_read_to_its_end_says_the_same_again() {
        let mut seen = Seen::default();
        seen.note(&entry("a", 1));
        seen.keep_page();
        let gap = Before::Gone(Gap { from: Some(2), to: 4 });
        assert_eq!(seen.before(&entry("a", 4)), gap);
        seen.note(&entry("a", 4));
        assert_eq!(seen.before(&entry("a", 5)), Before::Whole);
        seen.forget_page();
        assert_eq!(seen.before(&entry("a", 4)), gap);
    }
}
