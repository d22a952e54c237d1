//! Looks for drift: two, some time apart, find that an agent lacks what a done order brought.

use std::collections::BTreeMap;
use std::time::Duration;

use guest_fleet_core::drift::Lack;
use guest_fleet_core::journal::{Observed, Order};
use tokio::time::Instant;

use super::journal::Journal;
use crate::simulated::removed::{self, Guard};

/// The message that says what the agent has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A report.
    Report,
    /// A list, the answer to the last request.
    List,
    /// A list that was not asked for, or earlier.
    OtherList,
}

/// What the first looks found, by plugin. It is of one stream: the next one looks anew.
#[derive(Debug, Default)]
pub(super) struct Looks {
    first: BTreeMap<String, First>,
    /// Orders that the agent had before the stream began and that were not settled then, by their generation. Of
    /// later ones a report may be from before the agent had them.
    earlier: BTreeMap<String, u64>,
}

/// A first look that found something lacking.
#[derive(Clone, Copy, Debug)]
struct First {
    /// The generation of the order that brought it.
    generation: u64,
    at: Instant,
}

// === impl Looks ===

impl Looks {
    /// Of a stream that begins, on what the journal has.
    pub(super) fn new(journal: &Journal) -> Self {
        let order = |name: &str| journal.entry(name).order;
        let under_way = journal.names().filter_map(|name| Some((name, order(name)?)));
        let under_way = under_way
            .filter(|(_, order)| order.state.can_drift() && !order.state.is_settled())
            .map(|(name, order)| (name.to_owned(), order.generation));
        Self { first: BTreeMap::new(), earlier: under_way.collect() }
    }

    /// Takes in what is there of a plugin now; returns the lack where it is certain.
    ///
    /// What a person on the machine changed is certain at once, because the agent says so itself.
    pub(super) fn look(
        &mut self,
        plugin: &str,
        order: Option<&Order>,
        observed: &Observed,
        (now, apart): (Instant, Duration),
    ) -> Option<Lack> {
        let order = order.filter(|order| {
            order.state.is_settled() || self.earlier.get(plugin) == Some(&order.generation)
        });
        let found = order.and_then(|order| Some((order, order.lack(observed)?)));
        let Some((order, lack)) = found else {
            self.first.remove(plugin);
            return None;
        };
        if order.drift.as_ref().is_some_and(|drift| drift.lack == lack) {
            self.first.remove(plugin);
            return None;
        }
        let first = First { generation: order.generation, at: now };
        let known = self.first.get(plugin).filter(|it| it.generation == first.generation);
        let is_second = known.is_some_and(|known| now >= known.at + apart);
        let is_said = matches!(lack, Lack::ByOwner(_));
        if is_second || is_said || removed::is(Guard::SecondLook) {
            self.first.remove(plugin);
            return Some(lack);
        }
        if known.is_none() {
            self.first.insert(plugin.to_owned(), first);
        }
        None
    }

    /// A list contradicts the report of which the first look was.
    pub(super) fn forget(&mut self, plugin: &str) {
        self.first.remove(plugin);
    }

    /// When the second look is due.
    pub(super) fn due(&self, apart: Duration) -> Option<Instant> {
        self.first.values().map(|first| first.at + apart).min()
    }
}
