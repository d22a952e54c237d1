//! Counts of things that change by themselves when time passes.

use std::collections::BTreeMap;

use crate::time::Seconds;

/// What something is from the beginning, and what it becomes when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline<K> {
    first: K,
    /// Later ones, earliest first.
    then: Vec<(Seconds, K)>,
}

/// How many of each kind there are: those that hold now, and under each later moment how many go
/// from what to what.
///
/// What is added and taken away is a [`Timeline`], so a thing that nobody touches is counted rightly at
/// any time. Moments that passed are merged into what holds now, so only those that are ahead take room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally<K: Ord> {
    at: Seconds,
    now: BTreeMap<K, u64>,
    later: BTreeMap<Seconds, BTreeMap<(K, K), u64>>,
}

// === impl Timeline ===

impl<K: Clone> Timeline<K> {
    /// Something that stays what it is.
    #[must_use]
    pub fn new(first: K) -> Self {
        Self { first, then: Vec::new() }
    }

    /// The same, which becomes something else at a moment, for good; `None` is never. What it would have
    /// become later is dropped.
    #[must_use]
    pub fn then(mut self, at: Option<Seconds>, next: K) -> Self {
        if let Some(at) = at {
            self.then.retain(|(earlier, _)| *earlier < at);
            self.then.push((at, next));
        }
        self
    }

    /// What it is at a time.
    #[must_use]
    pub fn at(&self, now: Seconds) -> &K {
        let due = self.then.iter().rev().find(|(at, _)| *at <= now);
        due.map_or(&self.first, |(_, then)| then)
    }

    /// The same moments with other values.
    #[must_use]
    pub fn map<L>(&self, mut change: impl FnMut(&K) -> L) -> Timeline<L> {
        let first = change(&self.first);
        Timeline { first, then: self.then.iter().map(|(at, then)| (*at, change(then))).collect() }
    }

    /// What changes after a time: when, from what, to what.
    fn after(&self, now: Seconds) -> impl Iterator<Item = (Seconds, &K, &K)> {
        let froms = std::iter::once(&self.first).chain(self.then.iter().map(|(_, then)| then));
        let changes = self.then.iter().zip(froms).map(|((at, to), from)| (*at, from, to));
        changes.filter(move |(at, _, _)| *at > now)
    }
}

// === impl Tally ===

impl<K: Ord> Default for Tally<K> {
    fn default() -> Self {
        Self::at_time(Seconds::default())
    }
}

impl<K: Ord> Tally<K> {
    /// Counts of nothing, at a time.
    #[must_use]
    pub fn at_time(at: Seconds) -> Self {
        Self { at, now: BTreeMap::new(), later: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Tally<K> {
    /// Counts as they were kept.
    #[must_use]
    pub fn of_parts(
        at: Seconds,
        now: impl IntoIterator<Item = (K, u64)>,
        later: impl IntoIterator<Item = (Seconds, K, K, u64)>,
    ) -> Self {
        let mut tally = Self::at_time(at);
        for (kind, count) in now {
            raise(&mut tally.now, kind, count);
        }
        for (when, from, to, count) in later {
            raise(tally.later.entry(when).or_default(), (from, to), count);
        }
        tally
    }

    /// The time up to which it was brought.
    #[must_use]
    pub fn time(&self) -> Seconds {
        self.at
    }

    /// What holds at that time.
    pub fn now(&self) -> impl Iterator<Item = (&K, u64)> {
        self.now.iter().map(|(kind, count)| (kind, *count))
    }

    /// What changes later: when, from what, to what, how many.
    pub fn later(&self) -> impl Iterator<Item = (Seconds, &K, &K, u64)> {
        self.later.iter().flat_map(|(at, moves)| {
            moves.iter().map(move |((from, to), count)| (*at, from, to, *count))
        })
    }

    /// One more.
    pub fn add(&mut self, timeline: &Timeline<K>) {
        raise(&mut self.now, timeline.at(self.at).clone(), 1);
        for (at, from, to) in timeline.after(self.at) {
            raise(self.later.entry(at).or_default(), (from.clone(), to.clone()), 1);
        }
    }

    /// One less. It has to have been added.
    pub fn remove(&mut self, timeline: &Timeline<K>) {
        lower(&mut self.now, timeline.at(self.at), 1);
        for (at, from, to) in timeline.after(self.at) {
            if let Some(moves) = self.later.get_mut(&at) {
                lower(moves, &(from.clone(), to.clone()), 1);
                if moves.is_empty() {
                    self.later.remove(&at);
                }
            }
        }
    }

    /// Merges what is due at a time into what holds. Time that goes back changes nothing.
    pub fn advance(&mut self, now: Seconds) {
        self.at = self.at.max(now);
        while let Some(first) = self.later.first_entry()
            && *first.key() <= now
        {
            for ((from, to), count) in first.remove() {
                lower(&mut self.now, &from, count);
                raise(&mut self.now, to, count);
            }
        }
    }

    /// What holds at a time that is not before [`Tally::time`].
    #[must_use]
    pub fn at(&self, now: Seconds) -> BTreeMap<K, u64> {
        let mut tally = self.clone();
        tally.advance(now);
        tally.now
    }
}

fn raise<K: Ord>(counts: &mut BTreeMap<K, u64>, kind: K, by: u64) {
    let count = counts.entry(kind).or_default();
    *count = count.saturating_add(by);
}

fn lower<K: Ord>(counts: &mut BTreeMap<K, u64>, kind: &K, by: u64) {
    if let Some(count) = counts.get_mut(kind) {
        *count = count.saturating_sub(by);
        if *count == 0 {
            counts.remove(kind);
        }
    }
}
