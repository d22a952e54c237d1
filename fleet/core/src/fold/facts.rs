//! What a row keeps of an agent's records: bounded, whatever the records have.

use std::collections::BTreeMap;

use super::tally::Timeline;
use super::word::{AWAY_AFTER, archived_after};
use crate::drift::{Drift, Repairs};
use crate::health::{Crashes, Fault};
use crate::labels::Labels;
use crate::presence::{Links, Presence, Session};
use crate::target::{Ordered, Target};
use crate::time::{Seconds, rounded};

/// Most plugins that a row keeps of each of: orders, reports, events, what is wanted. Those with the
/// first names stay; of reports, those of plugins that are there before others.
pub const PLUGINS: usize = 200;

/// Most labels that a row keeps of those that an operator, a token or the agent gave. Those with the
/// first keys stay.
pub const LABELS: usize = 64;

/// Longest text that a row keeps, in bytes; a longer one is cut.
pub const TEXT_BYTES: usize = 256;

/// When an agent was seen is kept in such steps, in seconds, so that a stream that merely goes on
/// changes its row once in five minutes.
pub const SEEN_STEP: u64 = 300;

/// Where an agent is counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// It is as present as this.
    Is(Presence),
    /// Its last session is at this gateway, and connected while that beats.
    At(String),
}

/// When a session began is kept in such steps, in seconds, so that streams that follow each other at once change a row
/// once in a minute.
pub const BEGUN_STEP: u64 = 60;

/// The record of an agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentFacts {
    /// Its labels.
    pub labels: Labels,
    /// Why it gets no orders; `None` where it does.
    pub quarantine: Option<String>,
    /// When it was archived; `None` where nobody did.
    pub archived: Option<Seconds>,
    /// It was enrolled for a short life.
    pub is_ephemeral: bool,
    /// When it was enrolled, or was seen first.
    pub since: Option<Seconds>,
    /// When it was seen last, at most [`SEEN_STEP`] earlier than that.
    pub seen: Option<Seconds>,
    /// When it was revoked.
    pub revoked: Option<Seconds>,
}

/// The newest order of a plugin.
#[derive(Clone, Debug, PartialEq)]
pub struct OrderFacts {
    /// Its target, its assignment and its rollout, and the target before it.
    pub ordered: Ordered,
    /// The assignment's attempt.
    pub attempt: u32,
    /// What became of it.
    pub step: Step,
    /// When it was given.
    pub made: Seconds,
    /// When it came into that state.
    pub since: Seconds,
    /// Why it failed or was taken back; empty otherwise.
    pub reason: String,
    /// Its generation.
    pub generation: u64,
    /// The agent lacks what the order brought; `None` where it has that.
    pub drift: Option<Drift>,
    /// The repairs of the same so far.
    pub repairs: Repairs,
}

/// What became of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// It is recorded and may be on its way.
    Sent,
    /// The agent has it.
    Acknowledged,
    /// The agent began with it.
    Begun,
    /// It was done.
    Done,
    /// It was so before anything was ordered.
    Adopted,
    /// The agent could not do it.
    Failed,
    /// It was done, and the agent went back.
    TakenBack,
}

/// The last report of an agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportFacts {
    /// Architecture in Go style.
    pub architecture: String,
    /// The operating system.
    pub os: String,
    /// The host name.
    pub hostname: String,
    /// Version of the agent.
    pub version: String,
    /// What it has, by name.
    pub plugins: BTreeMap<String, ReportedFacts>,
    /// How many more it reported than are kept.
    pub left_out: u64,
    /// Its reports tell the faults of plugins.
    pub tells_faults: bool,
}

/// A plugin that an agent reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedFacts {
    /// The revision that is there; `None` while there is no whole one.
    pub revision: Option<String>,
    /// The revision that is being installed or waits to be.
    pub pending: Option<String>,
    /// A person on the machine holds it.
    pub is_held: bool,
    /// It came with the machine.
    pub is_local: bool,
    /// The highest generation that the agent keeps.
    pub generation: u64,
    /// Its fault.
    pub fault: Option<Fault>,
}

/// The last event of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastEvent {
    /// Its place in the log.
    pub position: u64,
    /// Its number among those of the plugin.
    pub number: u64,
    /// Its type, as the protocol numbers them.
    pub kind: i32,
    /// When a gateway took it.
    pub at: Seconds,
    /// Events before it that the log lost before they were read.
    pub missed: u64,
    /// The crashes up to it.
    pub crashes: Crashes,
}

/// A crash, by its event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crash {
    /// When a gateway took the event.
    pub at: Seconds,
    /// When it happened, by the clock of the machine.
    pub happened: Seconds,
    /// How many crashes the event stands for; at least 1.
    pub count: u32,
    /// The revision that crashed.
    pub revision: String,
    /// Why.
    pub reason: String,
}

/// A text with at most [`TEXT_BYTES`].
#[must_use]
pub fn bounded(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES)].to_owned()
}

/// At most [`LABELS`] labels of one giver; those with longer keys or values are left out, because a cut
/// one would select something else.
#[must_use]
pub fn bounded_labels(labels: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let fits = |text: &str| text.len() <= TEXT_BYTES;
    let fitting = labels.iter().filter(|(key, value)| fits(key) && fits(value));
    fitting.take(LABELS).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// An agent without a stream since then.
fn gone(since: Seconds, offline_after: u64) -> Timeline<Place> {
    let offline = Some(rounded(since, offline_after));
    Timeline::new(Place::Is(Presence::Disconnected)).then(offline, Place::Is(Presence::Offline))
}

// === impl Place ===

impl Place {
    /// How present the agents are that are counted there.
    #[must_use]
    pub fn presence(&self, links: &Links, now: Seconds) -> Presence {
        match self {
            Self::Is(presence) => *presence,
            Self::At(gateway) => {
                let session = Session { gateway: gateway.clone(), ..Session::default() };
                links.presence(links.of(Some(&session), None, now), now)
            }
        }
    }
}

// === impl OrderFacts ===

impl OrderFacts {
    /// An order that came into a state when it was given.
    #[must_use]
    pub fn new(ordered: Ordered, step: Step, at: Seconds) -> Self {
        Self {
            ordered,
            attempt: 0,
            step,
            made: at,
            since: at,
            reason: String::new(),
            generation: 0,
            drift: None,
            repairs: Repairs::default(),
        }
    }

    /// Its target.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.ordered.target
    }

    /// Whether it is for the revision that crashed. An agent that does not say which one did is believed to have it.
    #[must_use]
    pub fn is_for(&self, crashed: &str) -> bool {
        crashed.is_empty() || self.target().revision() == Some(crashed)
    }

    /// Whether a crash of a revision at a time may come of it.
    #[must_use]
    pub fn led_to(&self, at: Seconds, crashed: &str) -> bool {
        at >= self.made && self.is_for(crashed)
    }
}

// === impl ReportedFacts ===

impl ReportedFacts {
    /// The target that is there.
    #[must_use]
    pub fn target(&self) -> Target {
        Target::there(self.revision.as_deref(), self.is_local)
    }
}

// === impl AgentFacts ===

impl AgentFacts {
    /// With the time at which it was seen, in steps.
    #[must_use]
    pub fn seen_at(self, seen: Option<Seconds>) -> Self {
        Self { seen: seen.map(|seen| Seconds(seen.0 - seen.0 % SEEN_STEP)), ..self }
    }

    /// When it counts as archived, if it is not seen before; `None` for never.
    #[must_use]
    pub fn archived_after(&self) -> Option<Seconds> {
        archived_after(self.archived, self.seen.or(self.since), self.is_ephemeral)
    }

    /// When it counts as out of reach, if it is not seen before; `None` where it was never seen.
    #[must_use]
    pub fn away_after(&self) -> Option<Seconds> {
        self.seen.map(|seen| rounded(seen, AWAY_AFTER))
    }

    /// How present the agent is at a time, whose stream alone makes it `linked`.
    #[must_use]
    pub fn presence(&self, linked: Presence, now: Seconds) -> Presence {
        *self.before_link(Timeline::new(linked), |presence| presence).at(now)
    }

    /// Where the agent is counted, by its last session.
    pub(super) fn place(&self, session: Option<&Session>, offline_after: u64) -> Timeline<Place> {
        let linked = match (session, self.seen) {
            (None, None) => Timeline::new(Place::Is(Presence::NeverSeen)),
            (Some(Session { gateway, ended: None, .. }), _) => {
                Timeline::new(Place::At(gateway.clone()))
            }
            (Some(Session { begun, ended: Some(at), .. }), _) => {
                gone(*(at.max(begun)), offline_after)
            }
            (None, Some(seen)) => gone(seen, offline_after),
        };
        self.before_link(linked, Place::Is)
    }

    /// Its archive says more than its quarantine, and that more than its stream.
    fn before_link<T: Clone>(&self, linked: Timeline<T>, of: fn(Presence) -> T) -> Timeline<T> {
        let place = match &self.quarantine {
            Some(_) => Timeline::new(of(Presence::Quarantined)),
            None => linked,
        };
        place.then(self.archived_after(), of(Presence::Archived))
    }
}
