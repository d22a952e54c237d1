//! The events that wait, in order per plugin, within bounds. Pure; the outbox's actor calls it and
//! carries out the writes it asks for.
//!
//! When too many wait, repeated reports are dropped before outcomes ([`super::gap::worth`]), of the
//! plugin that has the most of them, the oldest first: so a noisy plugin costs the quiet ones
//! nothing. The control plane learns of the gap: the first event that is dropped becomes a
//! *marker*, in its place in the queue, and the others of the plugin are counted in it. The
//! marker's record is written in the same commit that deletes theirs.
//!
//! The server may have received an event that was sent. A marker that was sent is never changed
//! again (another one is begun), and an event that was sent goes only when nothing else is left to
//! drop.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use super::gap::{Gap, Priority, TEXT_MAX, worth};
use crate::keys::number_key;
use crate::model::event::{NewEvent, PluginEventKind, StoredEvent};
use crate::ports::{Ids, Table, Write};

/// How many events are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Most events that wait for the control plane.
    pub events: usize,
    /// Most bytes of events that wait for the control plane.
    pub bytes: usize,
    /// Settled events that are kept for people on this machine.
    pub history: usize,
}

/// How much waits for the control plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Events.
    pub events: usize,
    /// Bytes of them.
    pub bytes: usize,
    /// When the oldest of them happened.
    pub oldest: Option<SystemTime>,
}

/// An event that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The event.
    pub recorded: StoredEvent,
    /// The events it stands for, itself among them, if it is a marker.
    pub gap: Option<Gap>,
    /// Whether the server may have received it. Of markers, only this is saved.
    pub sent: bool,
}

/// All events that wait.
pub(super) struct Backlog {
    ids: Arc<dyn Ids>,
    queues: BTreeMap<Arc<str>, Queue>,
    /// Plugins by how much they have of each lane, the one with the most first.
    loudest: BTreeSet<(Lane, Reverse<usize>, Arc<str>)>,
    len: usize,
    bytes: usize,
}

/// The events of one plugin.
#[derive(Default)]
struct Queue {
    events: BTreeMap<u64, Waiting>,
    lanes: BTreeMap<Lane, BTreeSet<u64>>,
}

/// In which order events are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    Chatter,
    Outcome,
    /// Markers that were never sent.
    Gap,
    /// Whatever was sent.
    Sent,
}

// === impl Waiting ===

impl Waiting {
    /// An event that was not sent yet.
    #[must_use]
    pub(crate) const fn new(recorded: StoredEvent) -> Self {
        Self { recorded, gap: None, sent: false }
    }

    /// The event as it is sent.
    #[must_use]
    pub fn told(&self) -> StoredEvent {
        let Some(gap) = &self.gap else { return self.recorded.clone() };
        let NewEvent { kind, plugin, revision, at, .. } = &self.recorded.event;
        let event = NewEvent::new(*kind, plugin, revision, *at, &gap.to_string());
        StoredEvent { event, ..self.recorded.clone() }
    }

    /// What it counts as, in bytes.
    fn size(&self) -> usize {
        let event = &self.recorded.event;
        let details = if self.gap.is_some() { TEXT_MAX } else { event.details.len() };
        128 + details + event.plugin.len() + event.revision.len()
    }

    fn lane(&self) -> Lane {
        match (self.sent, self.gap, worth(self.recorded.event.kind)) {
            (true, _, _) => Lane::Sent,
            (false, Some(_), _) => Lane::Gap,
            (false, None, Priority::Chatter) => Lane::Chatter,
            (false, None, Priority::Outcome) => Lane::Outcome,
        }
    }

    /// The events that are lost when this one is dropped.
    fn loss(&self) -> Gap {
        self.gap.unwrap_or_else(|| Gap::of(self.recorded.event.at))
    }

    fn put(&self) -> Write {
        let key = number_key(self.recorded.seq);
        Write::Put { table: Table::Outbox, key, value: self.encode() }
    }
}

// === impl Backlog ===

impl Backlog {
    /// An empty backlog whose markers get their ids from `ids`.
    pub(super) fn new(ids: Arc<dyn Ids>) -> Self {
        let (queues, loudest) = (BTreeMap::new(), BTreeSet::new());
        Self { ids, queues, loudest, len: 0, bytes: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// How much waits. Looks at one event of each plugin.
    pub(super) fn weight(&self) -> Weight {
        let first = |queue: &Queue| Some(queue.events.first_key_value()?.1.recorded.event.at);
        let oldest = self.queues.values().filter_map(first).min();
        Weight { events: self.len, bytes: self.bytes, oldest }
    }

    /// Appends an event.
    pub(super) fn push(&mut self, waiting: Waiting) {
        let plugin = waiting.recorded.event.plugin.clone();
        let (seq, lane, size) = (waiting.recorded.seq, waiting.lane(), waiting.size());
        let queue = self.queues.entry(plugin.clone()).or_default();
        if let Some(same) = queue.events.insert(seq, waiting) {
            // It must not be counted twice.
            self.len -= 1;
            self.bytes = self.bytes.saturating_sub(same.size());
            self.change_lane(&plugin, same.lane(), |numbers| numbers.remove(&seq));
        }
        self.len += 1;
        self.bytes += size;
        self.change_lane(&plugin, lane, |numbers| numbers.insert(seq));
    }

    /// The plugins with events, and the number of the first event of each.
    pub(super) fn firsts(&self) -> impl Iterator<Item = (&Arc<str>, u64)> {
        let first = |queue: &Queue| queue.events.first_key_value().map(|(seq, _)| *seq);
        self.queues.iter().filter_map(move |(plugin, queue)| Some((plugin, first(queue)?)))
    }

    /// Whether this event is the plugin's first.
    pub(super) fn is_first(&self, recorded: &StoredEvent) -> bool {
        let queue = self.queues.get(&recorded.event.plugin);
        queue.and_then(|queue| queue.events.keys().next()) == Some(&recorded.seq)
    }

    /// An event is about to be sent: from now on it stays as it is. Returns it as it is to be sent,
    /// and for a marker the record that has to be durable before that.
    pub(super) fn begin_sending(
        &mut self,
        plugin: &Arc<str>,
        seq: u64,
    ) -> Option<(StoredEvent, Option<Write>)> {
        let mut waiting = self.take(plugin, seq)?;
        waiting.sent = true;
        let told = waiting.told();
        let write = waiting.gap.map(|_| waiting.put());
        self.push(waiting);
        Some((told, write))
    }

    /// An event is done with.
    pub(super) fn take(&mut self, plugin: &Arc<str>, seq: u64) -> Option<Waiting> {
        let queue = self.queues.get_mut(plugin)?;
        let waiting = queue.events.remove(&seq)?;
        self.len -= 1;
        self.bytes = self.bytes.saturating_sub(waiting.size());
        self.change_lane(plugin, waiting.lane(), |numbers| numbers.remove(&seq));
        if self.queues.get(plugin).is_some_and(|queue| queue.events.is_empty()) {
            self.queues.remove(plugin);
        }
        Some(waiting)
    }

    /// Everything, oldest first per plugin.
    pub(super) fn take_all(&mut self) -> Vec<Waiting> {
        let empty = Self::new(self.ids.clone());
        let Self { queues, .. } = std::mem::replace(self, empty);
        queues.into_values().flat_map(|queue| queue.events.into_values()).collect()
    }

    /// Keeps the backlog within its bounds and gives what has to be written for it, in one commit.
    /// What is under way is spared: it may be acknowledged any moment.
    pub(super) fn drop_overflow(
        &mut self,
        bounds: &Bounds,
        in_flight: &BTreeSet<Arc<str>>,
    ) -> Vec<Write> {
        let mut deleted = BTreeSet::new();
        let mut markers: BTreeMap<u64, Arc<str>> = BTreeMap::new();
        while self.len > bounds.events || self.bytes > bounds.bytes {
            let Some((lane, plugin, seq)) = self.victim(in_flight) else { break };
            let Some(victim) = self.take(&plugin, seq) else { break };
            let loss = victim.loss();
            let marker = self.marker(&plugin).map(|marker| (plugin.clone(), marker));
            // Without one of its own, a marker that has to go is counted in another plugin's.
            let marker =
                marker.or_else(|| (lane == Lane::Gap).then(|| self.any_marker()).flatten());
            let (of, seq_of_marker) = match marker {
                Some((of, marker_seq)) => {
                    let sum = |gap: Gap| {
                        if of == plugin { gap.and(loss) } else { gap.and_elsewhere(loss) }
                    };
                    self.count_in(&of, marker_seq, sum);
                    markers.remove(&seq);
                    deleted.insert(seq);
                    (of, marker_seq)
                }
                None => {
                    let id = self.ids.message_id();
                    self.push(begun(victim, loss, id.into()));
                    (plugin, seq)
                }
            };
            markers.insert(seq_of_marker, of);
        }
        let key = |seq: u64| Write::Delete { table: Table::Outbox, key: number_key(seq) };
        let put = |(seq, plugin): (&u64, &Arc<str>)| {
            Some(self.queues.get(plugin)?.events.get(seq)?.put())
        };
        deleted.iter().map(|seq| key(*seq)).chain(markers.iter().filter_map(put)).collect()
    }

    /// What is to be dropped next.
    fn victim(&self, in_flight: &BTreeSet<Arc<str>>) -> Option<(Lane, Arc<str>, u64)> {
        let all_gaps = |lane: Lane| self.loudest.iter().filter(move |(of, _, _)| *of == lane);
        let may_go = |(lane, Reverse(count), plugin): &&(Lane, Reverse<usize>, Arc<str>)| match lane
        {
            Lane::Chatter | Lane::Outcome => true,
            // The last marker has nowhere to be counted.
            Lane::Gap => *count > 1 || all_gaps(Lane::Gap).nth(1).is_some(),
            Lane::Sent => !in_flight.contains(plugin),
        };
        let (lane, _, plugin) = self.loudest.iter().find(may_go)?;
        let seq = self.queues.get(plugin)?.lanes.get(lane)?.first()?;
        Some((*lane, plugin.clone(), *seq))
    }

    /// The marker of a plugin that counts what is dropped now.
    fn marker(&self, plugin: &Arc<str>) -> Option<u64> {
        self.queues.get(plugin)?.lanes.get(&Lane::Gap)?.last().copied()
    }

    fn any_marker(&self) -> Option<(Arc<str>, u64)> {
        let (_, _, plugin) = self.loudest.iter().find(|(lane, _, _)| *lane == Lane::Gap)?;
        Some((plugin.clone(), self.marker(plugin)?))
    }

    fn count_in(&mut self, plugin: &Arc<str>, seq: u64, sum: impl FnOnce(Gap) -> Gap) {
        let queue = self.queues.get_mut(plugin);
        let marker = queue.and_then(|queue| queue.events.get_mut(&seq));
        if let Some(Waiting { gap: Some(gap), .. }) = marker {
            *gap = sum(*gap);
        }
    }

    /// Changes a lane of a plugin, and what is known of how much it has in it.
    fn change_lane(
        &mut self,
        plugin: &Arc<str>,
        lane: Lane,
        change: impl FnOnce(&mut BTreeSet<u64>) -> bool,
    ) {
        let Some(queue) = self.queues.get_mut(plugin) else { return };
        let numbers = queue.lanes.entry(lane).or_default();
        let before = numbers.len();
        change(numbers);
        let after = numbers.len();
        if before > 0 {
            self.loudest.remove(&(lane, Reverse(before), plugin.clone()));
        }
        if after > 0 {
            self.loudest.insert((lane, Reverse(after), plugin.clone()));
        }
    }
}

/// The marker that replaces an event. It has a new id, because the server may have received the old
/// one; and a kind that every server knows, because it stands for events of other kinds as well.
fn begun(victim: Waiting, loss: Gap, id: Arc<str>) -> Waiting {
    let StoredEvent { seq, event: NewEvent { kind, plugin, revision, at, .. }, .. } =
        victim.recorded;
    // A process ran that had this health.
    let kind = if kind.is_public() { kind } else { PluginEventKind::Started };
    let event = NewEvent { kind, plugin, revision, at, details: Arc::from("") };
    Waiting { recorded: StoredEvent { seq, id, event }, gap: Some(loss), sent: false }
}

#[cfg(test)]
mod tests;
