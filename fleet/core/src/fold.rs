//! The fold: what the ledger shows of agents as one row per agent, and counts over all of them.
//!
//! ```text
//!   record of an agent ─┐
//!   its journal ────────┤            ┌─► Row: facts, and what is wanted ─► Standing ─► Word at a time
//!   its report ─────────┼─► Fold ────┤                                       │
//!   its events ─────────┤            └─► Tally: how many stand where ◄────────┘
//!   the declarations ───┘
//! ```
//!
//! A row has facts and nothing that time alone changes. A [`Standing`] is a short list of words with
//! the moments at which each begins, so a [`Word`] follows from it and a time, and nobody has to
//! clear a flag. The [`Tally`] counts the same lists: what holds now, and under each later moment how
//! many go from which word to which. When time passes, whole numbers move, and no row is written. What
//! a hold or a window keeps back is counted under the names of those ([`Gates`]), because
//! one opening of a window changes the word of many agents at once.
//!
//! The counts always equal those that a recount of the rows gives. The same input twice changes
//! nothing, and inputs about different agents can be exchanged.

mod facts;
mod gates;
mod standing;
mod tally;
#[cfg(test)]
mod tests;
mod word;

use std::collections::{BTreeMap, BTreeSet};

use crate::desired;
use crate::drift::may_be_of_fleet;
use crate::fingerprint::{cause, fingerprint};
use crate::health::{Ailment, Cause, Fault, Level, Moment};
use crate::presence::{Link, Links, Presence, Session};
use crate::target::Ordered;
use crate::time::Seconds;
use crate::view::ReleaseName;

pub use facts::{
    AgentFacts, BEGUN_STEP, Crash, LABELS, LastEvent, OrderFacts, PLUGINS, Place, ReportFacts,
    ReportedFacts, SEEN_STEP, Step, TEXT_BYTES, bounded, bounded_labels,
};
pub use gates::{Barrier, Declared, Doors, Gates, Mark, Wanted};
pub use standing::Standing;
pub use tally::{Tally, Timeline};
pub use word::{AWAY_AFTER, PROBATION, Word, archived_after, probation_until, silent_after};

/// What the ledger shows of one agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Its record, if the fleet has one. Only agents with a record are counted and shown: what
    /// else is known waits for the record.
    pub agent: Option<AgentFacts>,
    /// The newest order, by plugin.
    pub orders: BTreeMap<String, OrderFacts>,
    /// Its last session; `None` before the first, and of programs that recorded none.
    pub session: Option<Session>,
    /// Its last report.
    pub report: Option<ReportFacts>,
    /// The last event, by plugin.
    pub events: BTreeMap<String, LastEvent>,
    /// What it should have, by plugin. Follows from the facts and the declarations.
    pub wanted: BTreeMap<String, Wanted>,
}

/// One thing that the ledger shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// The record of an agent; `None` when it is not there.
    Agent(Option<AgentFacts>),
    /// Its newest orders, by plugin, and its last session; none when there is no journal.
    Journal(BTreeMap<String, OrderFacts>, Option<Session>),
    /// Its last report, if it sent one.
    Report(Option<ReportFacts>),
    /// An event of a plugin.
    Event {
        /// Name of the plugin.
        plugin: String,
        /// The event.
        event: LastEvent,
        /// The crash that it tells of, if it does.
        crash: Option<Crash>,
    },
}

/// What an input did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Effect {
    /// Nothing: it was known, or says nothing.
    Nothing,
    /// The row of the agent is another one, or went.
    Row,
}

/// What is counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cell {
    /// Agents, by where they are.
    Agents(Place),
    /// Agents to which an assignment gives a plugin, by where they stand with it.
    Assigned {
        /// Name of the assignment that decides.
        assignment: String,
        /// Name of the plugin.
        plugin: String,
        /// The revision; `None` where the plugin should be absent.
        revision: Option<String>,
        /// Where they stand.
        mark: Mark,
    },
    /// Agents that reported a declared release as what they have.
    Having {
        /// The release.
        release: ReleaseName,
        /// Whether they are archived, and so leave the count.
        archived: bool,
    },
    /// Agents of which a person on the machine holds a plugin.
    HeldByOwner {
        /// Name of the plugin.
        plugin: String,
    },
    /// Agents of which a hold, a fault or a failure does not count any more.
    Over,
    /// Agents on which a plugin is failing, or an order for it failed.
    Faulty {
        /// Name of the plugin.
        plugin: String,
        /// The fingerprint of the fault or the failure.
        fingerprint: String,
    },
}

/// All rows of a shard, and the counts over them.
#[derive(Clone, Debug, Default)]
pub struct Fold {
    rows: BTreeMap<String, Row>,
    counts: Tally<Cell>,
}

// === impl Fold ===

impl Fold {
    /// A fold of rows that were kept; the counts are made anew. The rows have to be those of the same
    /// declarations; see [`Fold::declare`].
    #[must_use]
    pub fn of_rows(rows: BTreeMap<String, Row>, declared: &Declared, now: Seconds) -> Self {
        let counts = count(&rows, declared, now);
        Self { rows, counts }
    }

    /// The rows, by id of the agent.
    #[must_use]
    pub fn rows(&self) -> &BTreeMap<String, Row> {
        &self.rows
    }

    /// The counts.
    #[must_use]
    pub fn counts(&self) -> &Tally<Cell> {
        &self.counts
    }

    /// Takes in what the ledger shows of an agent.
    pub fn apply(&mut self, id: &str, input: Input, declared: &Declared) -> Effect {
        let before = self.rows.get(id);
        let mut row = before.cloned().unwrap_or_default();
        if !row.take(input) {
            return Effect::Nothing;
        }
        row.wanted = row.wanted_by(id, declared);
        self.replace(id, row, declared)
    }

    /// Takes in changed declarations. Returns the ids of agents whose rows changed.
    pub fn declare(&mut self, before: &Declared, declared: &Declared) -> Vec<String> {
        let mut changed = Vec::new();
        let mut rows = std::mem::take(&mut self.rows);
        for (id, row) in &mut rows {
            let wanted = row.wanted_by(id, declared);
            // What is counted of a report depends on the releases that are declared.
            let is_new = wanted != row.wanted;
            if !is_new
                && before
                    .releases_of(row.report.as_ref())
                    .eq(declared.releases_of(row.report.as_ref()))
            {
                continue;
            }
            for timeline in row.timelines(before) {
                self.counts.remove(&timeline);
            }
            row.wanted = wanted;
            for timeline in row.timelines(declared) {
                self.counts.add(&timeline);
            }
            if is_new {
                changed.push(id.clone());
            }
        }
        self.rows = rows;
        changed
    }

    /// Time passed: what is due is counted under its next word. Time that goes back changes nothing.
    pub fn advance(&mut self, now: Seconds) {
        self.counts.advance(now);
    }

    fn replace(&mut self, id: &str, row: Row, declared: &Declared) -> Effect {
        let before = if row.is_empty() {
            self.rows.remove(id)
        } else {
            self.rows.insert(id.to_owned(), row)
        };
        let after = self.rows.get(id);
        if before.as_ref() == after {
            return Effect::Nothing;
        }
        for timeline in before.iter().flat_map(|row| row.timelines(declared)) {
            self.counts.remove(&timeline);
        }
        for timeline in after.iter().flat_map(|row| row.timelines(declared)) {
            self.counts.add(&timeline);
        }
        Effect::Row
    }
}

/// The shard of an agent, below their number: FNV-1a of its id. It never changes.
#[must_use]
pub fn shard_of(id: &str, shards: u32) -> u32 {
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    u32::try_from(hash % u64::from(shards.max(1))).unwrap_or(0)
}

/// The counts over rows, from nothing.
#[must_use]
pub fn count(rows: &BTreeMap<String, Row>, declared: &Declared, now: Seconds) -> Tally<Cell> {
    let mut counts = Tally::at_time(now);
    for timeline in rows.values().flat_map(|row| row.timelines(declared)) {
        counts.add(&timeline);
    }
    counts
}

// === impl Row ===

impl Row {
    /// Whether nothing is known of the agent. Events alone do not keep a row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.agent.is_none()
            && self.orders.is_empty()
            && self.session.is_none()
            && self.report.is_none()
    }

    /// Takes in an input; whether it may say something new. What is wanted of the agent does not follow.
    pub fn take(&mut self, input: Input) -> bool {
        match input {
            Input::Agent(agent) => std::mem::replace(&mut self.agent, agent) != self.agent,
            Input::Journal(orders, session) => {
                let differs = self.orders != orders || self.session != session;
                (self.orders, self.session) = (orders, session);
                differs
            }
            Input::Report(report) => std::mem::replace(&mut self.report, report) != self.report,
            Input::Event { plugin, event, crash } => self.event(plugin, event, crash),
        }
    }

    fn event(&mut self, plugin: String, mut event: LastEvent, crash: Option<Crash>) -> bool {
        match self.events.get(&plugin) {
            Some(known) if known.position >= event.position => return false,
            Some(known) => {
                // A subject whose entries went with their age begins at 1 again.
                let skipped = event.number.saturating_sub(known.number.saturating_add(1));
                event.missed = known.missed.saturating_add(skipped);
                event.crashes.clone_from(&known.crashes);
            }
            None if self.events.len() >= PLUGINS => return false,
            None => {}
        }
        if let Some(Crash { at, happened, count, revision, reason }) = crash {
            event.crashes.add(&revision, (Moment { taken: at, happened }, count), reason);
        }
        self.events.insert(plugin, event);
        true
    }

    /// The agent as decisions see it.
    #[must_use]
    pub fn decided_on(&self, id: &str) -> desired::Agent {
        let agent = self.agent.as_ref();
        let report = self.report.as_ref();
        desired::Agent {
            id: id.to_owned(),
            labels: agent.map(|agent| agent.labels.clone()).unwrap_or_default(),
            architecture: report.map(|report| report.architecture.clone()).unwrap_or_default(),
            quarantine: agent.and_then(|agent| agent.quarantine.clone()),
            held_by_owner: report
                .iter()
                .flat_map(|report| &report.plugins)
                .filter(|(_, plugin)| plugin.is_held)
                .map(|(name, _)| (name.clone(), desired::OwnersHold::default()))
                .collect(),
            ordered: self.ordered(),
        }
    }

    fn ordered(&self) -> BTreeMap<String, Ordered> {
        let reported = self.report.iter().flat_map(|report| &report.plugins);
        let reported = reported
            .filter(|(_, found)| !found.is_local)
            .filter_map(|(name, found)| Some((name.clone(), found.revision.clone()?)));
        let orders = self.orders.iter().map(|(name, order)| {
            let newer = self.reported_since(name, order).map(ReportedFacts::target);
            (name.clone(), order.ordered.clone().outdated(newer))
        });
        desired::ordered(reported, orders)
    }

    /// The report of a plugin, where the agent took an order since that the ledger does not know.
    fn reported_since(&self, plugin: &str, order: &OrderFacts) -> Option<&ReportedFacts> {
        let reported = self.report.as_ref()?.plugins.get(plugin)?;
        let agent = self.agent.as_ref()?;
        let seen = agent.seen.or(agent.since);
        let is_of_fleet = may_be_of_fleet(reported.generation, agent.since, seen);
        // Rows of older programs have no generations.
        let is_newer = order.generation > 0 && reported.generation > order.generation;
        (is_of_fleet && is_newer).then_some(reported)
    }

    fn wanted_by(&self, id: &str, declared: &Declared) -> BTreeMap<String, Wanted> {
        if self.agent.is_none() {
            return BTreeMap::new();
        }
        declared.wanted(&self.decided_on(id))
    }

    /// Where the agent stands with a plugin, whether or not it is archived.
    #[must_use]
    pub fn standing(&self, plugin: &str) -> Standing {
        self.standing_with(plugin, self.ailment(plugin).as_ref())
    }

    /// The same, with the fault of the plugin.
    fn standing_with(&self, plugin: &str, ailment: Option<&Ailment>) -> Standing {
        let order = self.orders.get(plugin);
        let known = order.filter(|order| self.reported_since(plugin, order).is_none());
        let target = known.and_then(|order| order.target().revision());
        let fails = |ailment: &&Ailment| target.is_some_and(|it| self.fails(plugin, it, ailment));
        Standing::of(self.wanted.get(plugin), known, ailment.filter(fails))
    }

    /// The fault for which this revision of a plugin does not do its work. Another revision that is there says
    /// nothing about it.
    #[must_use]
    pub fn failing(&self, plugin: &str, revision: &str) -> Option<Ailment> {
        self.ailment(plugin).filter(|ailment| self.fails(plugin, revision, ailment))
    }

    /// Whether this revision of a plugin does not do its work for the plugin's fault.
    fn fails(&self, plugin: &str, revision: &str, ailment: &Ailment) -> bool {
        let is_failing = ailment.fault.level == Level::Failing;
        is_failing && self.ailing(plugin).is_none_or(|it| it == revision)
    }

    /// The fault of a plugin, as the agent reports it, or as its events show it where its reports tell no faults.
    #[must_use]
    pub fn ailment(&self, plugin: &str) -> Option<Ailment> {
        let told = self.reported(plugin).and_then(|reported| reported.fault.clone());
        let looping = self.crash_loop(plugin);
        match (told, looping) {
            // A list finds a plugin that crashes again and again down at times. It lasts until a list finds it well.
            (Some(Fault { cause: Cause::Down, since, .. }), Some(looping))
                if since.is_none_or(|since| looping.until.is_none_or(|until| since < until)) =>
            {
                Some(Ailment { until: None, ..looping })
            }
            (Some(fault), _) => Some(Ailment { fault, until: None }),
            (None, looping) => looping,
        }
    }

    /// The revision of the plugin that has the fault; `None` where that is not known.
    fn ailing(&self, plugin: &str) -> Option<&str> {
        let reported = self.reported(plugin);
        let crashed = self.events.get(plugin).map(|event| event.crashes.revision.as_str());
        let is_told = reported.is_some_and(|reported| reported.fault.is_some());
        let crashed = crashed.filter(|crashed| !is_told && !crashed.is_empty());
        crashed.or_else(|| reported?.revision.as_deref())
    }

    /// The crash loop that events tell of, where they say more than reports: of a revision that is there or was
    /// ordered last, and since that order.
    fn crash_loop(&self, plugin: &str) -> Option<Ailment> {
        let report = self.report.as_ref();
        let reported = self.reported(plugin);
        let is_told = |report: &ReportFacts| {
            report.tells_faults && (reported.is_some() || report.left_out == 0)
        };
        if report.is_some_and(is_told) {
            return None;
        }
        let crashes = &self.events.get(plugin)?.crashes;
        let order = self.orders.get(plugin);
        let there = reported.and_then(|reported| reported.revision.as_deref());
        let ordered = order.and_then(|order| order.target().revision());
        let is_known = there.is_some() || order.is_some() || report.is_some();
        let is_of = |revision: Option<&str>| revision == Some(crashes.revision.as_str());
        let is_current = crashes.revision.is_empty() || !is_known || is_of(there) || is_of(ordered);
        let of_it = order.filter(|order| order.is_for(&crashes.revision));
        let since = of_it.map_or(Seconds(0), |order| order.made);
        crashes.ailment(since).filter(|_| is_current)
    }

    /// The reason of the last crash since an order, of the revision that was ordered.
    fn crash_of(&self, plugin: &str, order: &OrderFacts) -> Option<&str> {
        let crashes = &self.events.get(plugin)?.crashes;
        let last = crashes.at.last()?.taken;
        order.led_to(last, &crashes.revision).then_some(crashes.reason.as_str())
    }

    fn reported(&self, plugin: &str) -> Option<&ReportedFacts> {
        self.report.as_ref()?.plugins.get(plugin)
    }

    /// The word for a plugin at a time.
    #[must_use]
    pub fn word(&self, plugin: &str, now: Seconds, doors: &Doors<'_>) -> Word {
        let archived = self.agent.as_ref().and_then(AgentFacts::archived_after);
        self.standing(plugin).timeline(archived).at(now).word(now, doors)
    }

    /// Whether counts include the agent: it has a record, and was not silent for too long.
    #[must_use]
    pub fn is_counted(&self, now: Seconds) -> bool {
        let archived = self.agent.as_ref().map(AgentFacts::archived_after);
        archived.is_some_and(|archived| archived.is_none_or(|at| now < at))
    }

    /// Whether the agent may be given something: it is counted, in no quarantine, and was seen within
    /// [`AWAY_AFTER`].
    #[must_use]
    pub fn is_near(&self, now: Seconds) -> bool {
        let away = self.agent.as_ref().filter(|agent| agent.quarantine.is_none());
        let away = away.and_then(AgentFacts::away_after);
        self.is_counted(now) && away.is_some_and(|at| now < at)
    }

    /// Whether the agent has a stream.
    #[must_use]
    pub fn link(&self, links: &Links, now: Seconds) -> Link {
        let seen = self.agent.as_ref().and_then(|agent| agent.seen);
        links.of(self.session.as_ref(), seen, now)
    }

    /// How present the agent is, as it is counted; `None` where it has no record. A row that is read after the
    /// gateways may name one that came since: then its session says more than the gateway.
    #[must_use]
    pub fn presence(&self, links: &Links, now: Seconds) -> Option<Presence> {
        let place = self.agent.as_ref()?.place(self.session.as_ref(), links.offline_after);
        Some(match place.at(now) {
            Place::At(gateway) if !links.gateways.contains_key(gateway) => {
                links.presence(self.link(links, now), now)
            }
            place => place.presence(links, now),
        })
    }

    /// What is counted of it, as it changes with time.
    fn timelines(&self, declared: &Declared) -> Vec<Timeline<Cell>> {
        let Some(agent) = &self.agent else { return Vec::new() };
        let archived = agent.archived_after();
        let place = agent.place(self.session.as_ref(), declared.offline_after);
        let mut all = vec![place.map(|place| Cell::Agents(place.clone()))];
        for release in declared.releases_of(self.report.as_ref()) {
            let having = |archived| Cell::Having { release: release.clone(), archived };
            all.push(Timeline::new(having(false)).then(archived, having(true)));
        }
        let reported = self.report.iter().flat_map(|report| report.plugins.keys());
        let plugins: BTreeSet<&String> =
            self.wanted.keys().chain(self.orders.keys()).chain(reported).collect();
        for plugin in plugins {
            let ailment = self.ailment(plugin);
            let standing = self.standing_with(plugin, ailment.as_ref());
            if let Some(wanted) = self.wanted.get(plugin) {
                all.push(standing.timeline(archived).map(|mark| Cell::Assigned {
                    assignment: wanted.assignment.clone(),
                    plugin: plugin.clone(),
                    revision: wanted.revision().map(str::to_owned),
                    mark: mark.clone(),
                }));
            }
            let reported = self.reported(plugin);
            if reported.is_some_and(|reported| reported.is_held) {
                let held = Cell::HeldByOwner { plugin: plugin.clone() };
                all.push(Timeline::new(held).then(archived, Cell::Over));
            }
            // Events alone tell no fault of a plugin that the agent neither was ordered nor reported.
            let is_known = reported.is_some() || self.orders.contains_key(plugin);
            let fault = self.fault(plugin, &standing, ailment.as_ref()).filter(|_| is_known);
            if let Some((fingerprint, until)) = fault {
                let faulty = Cell::Faulty { plugin: plugin.clone(), fingerprint };
                all.push(Timeline::new(faulty).then(until, Cell::Over).then(archived, Cell::Over));
            }
        }
        all
    }

    /// The fingerprint of the failure of an order or of the fault of a plugin, and when it ends by itself.
    fn fault(
        &self,
        plugin: &str,
        standing: &Standing,
        ailment: Option<&Ailment>,
    ) -> Option<(String, Option<Seconds>)> {
        let failed = |what| {
            let order = self.orders.get(plugin)?;
            let (what, reason) = cause(what, &order.reason, self.crash_of(plugin, order));
            Some((fingerprint(what, reason), None))
        };
        match standing {
            Standing::Failed => failed("failed"),
            Standing::TakenBack => failed("taken back"),
            _ => {
                let Ailment { fault, until } = ailment?;
                (fault.level == Level::Failing).then(|| (fault.fingerprint(), *until))
            }
        }
    }
}
