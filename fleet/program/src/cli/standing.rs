//! Where an agent stands with a plugin, in words that do not lie: derived from the declarations, the
//! order journal and the time; nobody has to clear a flag.

use guest_fleet_core::desired::{Decision, Permission};
use guest_fleet_core::fold::{Word, probation_until, silent_after};
use guest_fleet_core::health::Fault;
use guest_fleet_core::journal::{Entry, Order, OrderState};
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::{Target, View};
use guest_fleet_server::configuration::words;
use guest_fleet_server::fold::patience::patience;
use schemars::JsonSchema;
use serde::Serialize;

use super::text::ago;
use super::{drift, health};

/// Where an agent stands with a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// No assignment gives the agent the plugin.
    NotAssigned,
    /// It was silent for so long that no count includes it.
    Archived,
    /// Two machines use its identity.
    Quarantined,
    /// Two assignments of one priority want different things.
    Conflict,
    /// The release was never declared.
    NoRelease,
    /// The release has no archive for the agent's architecture.
    NoArchive,
    /// A hold of the fleet keeps the change back.
    Held,
    /// A hold that a person set on the machine keeps the change back.
    HeldByOwner,
    /// Its windows are closed.
    OutsideWindow,
    /// It waits for its turn in a rollout.
    WaitsForWave,
    /// Nothing keeps it back; it will be ordered.
    Waits,
    /// It was ordered.
    Ordered,
    /// The agent has the order.
    Acknowledged,
    /// The agent began with it.
    Installing,
    /// It was installed a moment ago, and the agent may still go back.
    OnProbation,
    /// It is as was ordered.
    Done,
    /// The agent could not do it.
    Failed,
    /// It was done, and the agent went back.
    TakenBack,
    /// It was ordered, and the agent has not said in time what became of it.
    Silent,
    /// It was done, and the agent lacks it since.
    Drifted,
    /// It was done, and a person on the machine changed it since.
    ChangedByOwner,
    /// The ledger went back, and no order of the assignment is given until a person resumes.
    Paused,
    /// It was done, and the plugin crashes again and again since.
    CrashLoop,
    /// It was done, and the plugin is killed again and again since for the memory that it uses.
    OutOfMemory,
    /// It was done, and the plugin says since that it is not well.
    Unhealthy,
    /// It was done, and the plugin does not do its work since.
    Failing,
}

/// Where an agent stands with a plugin, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// For programs.
    pub state: State,
    /// For people.
    pub sentence: String,
    /// What a person can do about it; `None` where nothing is to be done.
    pub next: Option<String>,
}

// === impl State ===

impl State {
    /// The word for people.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::NotAssigned => "not assigned",
            Self::Archived => "archived",
            Self::Quarantined => "quarantined",
            Self::Conflict => "in conflict",
            Self::NoRelease => "without a release",
            Self::NoArchive => "without an archive",
            Self::Held => "held",
            Self::HeldByOwner => "held by owner",
            Self::OutsideWindow => "outside its window",
            Self::WaitsForWave => "waits for its wave",
            Self::Waits => "waits",
            Self::Ordered => "ordered",
            Self::Acknowledged => "acknowledged",
            Self::Installing => "installing",
            Self::OnProbation => "on probation",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::TakenBack => "taken back",
            Self::Silent => "silent",
            Self::Drifted => "drifted",
            Self::ChangedByOwner => "changed by owner",
            Self::Paused => "paused",
            Self::CrashLoop => "in a crash loop",
            Self::OutOfMemory => "out of memory",
            Self::Unhealthy => "unhealthy",
            Self::Failing => "failing",
        }
    }
}

impl From<Word> for State {
    fn from(word: Word) -> Self {
        match word {
            Word::NotAssigned => Self::NotAssigned,
            Word::Archived => Self::Archived,
            Word::Quarantined => Self::Quarantined,
            Word::Conflict => Self::Conflict,
            Word::NoRelease => Self::NoRelease,
            Word::NoArchive => Self::NoArchive,
            Word::Held => Self::Held,
            Word::HeldByOwner => Self::HeldByOwner,
            Word::OutsideWindow => Self::OutsideWindow,
            Word::WaitsForWave => Self::WaitsForWave,
            Word::Waits => Self::Waits,
            Word::Ordered => Self::Ordered,
            Word::Acknowledged => Self::Acknowledged,
            Word::Installing => Self::Installing,
            Word::OnProbation => Self::OnProbation,
            Word::Done => Self::Done,
            Word::Failed => Self::Failed,
            Word::TakenBack => Self::TakenBack,
            Word::Silent => Self::Silent,
            Word::Drifted => Self::Drifted,
            Word::ChangedByOwner => Self::ChangedByOwner,
            Word::Paused => Self::Paused,
            Word::CrashLoop => Self::CrashLoop,
            Word::OutOfMemory => Self::OutOfMemory,
            Word::Unhealthy => Self::Unhealthy,
            Word::Failing => Self::Failing,
        }
    }
}

/// What is known of an agent and a plugin.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Id of the agent.
    pub agent: &'a str,
    /// Name of the plugin.
    pub plugin: &'a str,
    /// When the agent was archived.
    pub archived: Option<Seconds>,
    /// What was decided; `None` where no assignment gives the agent the plugin.
    pub decision: Option<&'a Decision>,
    /// Its journal; `None` where nothing was ordered.
    pub entry: Option<&'a Entry>,
    /// The highest generation of this fleet that the agent reported; 0 where it has none.
    pub generation: u64,
    /// Whether a policy undoes what people on the machine change.
    pub undoes_owners: bool,
    /// The fault for which the revision that was ordered last does not do its work.
    pub fault: Option<&'a Fault>,
}

// === impl Found ===

impl Found<'_> {
    /// Whether the fleet orders a drifted agent again by itself.
    #[must_use]
    pub fn repairs(&self, view: &View) -> bool {
        let drift = self.entry.and_then(|entry| entry.order.as_ref()?.drift.as_ref());
        let decision = self.decision.filter(|decision| decision.permission.is_go());
        decision.is_some_and(|decision| {
            let repair = view.repairs.get(&decision.assignment);
            repair.is_none_or(|repair| repair.stop.is_none())
        }) && drift.is_some_and(|drift| drift.lack.is_mended(self.undoes_owners))
    }
}

/// Says where an agent stands with a plugin.
#[must_use]
pub fn standing(view: &View, found: &Found<'_>, now: Seconds) -> Standing {
    let Found { agent, plugin, archived, decision, entry, generation, .. } = *found;
    let order = entry.and_then(|entry| entry.order.as_ref());
    if let Some(since) = archived {
        let sentence = format!("archived since {}: it was silent for too long", words::time(since));
        let next = "start the machine's agent again, and it returns".to_owned();
        return Standing { state: State::Archived, sentence, next: Some(next) };
    }
    let Some(decision) = decision else { return not_assigned(plugin, order) };
    // The declaration of the order is in its digest, which only a gateway can compare: it knows the archive that
    // the agent takes.
    let current = order.filter(|order| order.asks_for(decision) && generation <= order.generation);
    let turn = decision.turn.as_ref();
    let standing = match (current, turn) {
        (Some(Order { state: OrderState::Done { .. }, .. }), Some(turn)) if turn.waits => {
            waits_for_wave(&turn.rollout)
        }
        (Some(Order { drift: Some(drift), .. }), _) => {
            let repairs = entry.map(|entry| entry.repairs).unwrap_or_default();
            let is_mended = drift.lack.is_mended(found.undoes_owners);
            let (sentence, next) =
                drift::sentence((view, decision), (agent, plugin), (drift, repairs), is_mended);
            let state = if is_mended { State::Drifted } else { State::ChangedByOwner };
            Standing { state, sentence, next }
        }
        (Some(order), _) => match (&order.state, found.fault) {
            (OrderState::Done { .. }, Some(fault)) => faulty(plugin, order, fault, now),
            _ => ordered(view, plugin, decision, order, now),
        },
        (None, _) => kept_back(decision),
    };
    match turn {
        // What is done for good needs no word of how it came about.
        Some(turn) if turn.waits || turn.state != "done" => Standing {
            sentence: format!(
                "{}; the rollout {} to {} is {}",
                standing.sentence,
                turn.rollout,
                target(plugin, &turn.to),
                turn.state
            ),
            ..standing
        },
        Some(_) | None => standing,
    }
}

fn waits_for_wave(rollout: &str) -> Standing {
    Standing {
        state: State::WaitsForWave,
        sentence: words::permission(&Permission::WaitsForWave { rollout: rollout.to_owned() }),
        next: Some(format!("see how far it is: `guest-fleet rollout show {rollout}`")),
    }
}

fn not_assigned(plugin: &str, order: Option<&Order>) -> Standing {
    let sentence = match order {
        None => format!("no assignment gives this agent {plugin}, so nothing is ordered"),
        Some(order) => format!(
            "no assignment gives this agent {plugin} any more, so what was ordered stays: {} ({})",
            target(plugin, &order.target),
            order.state
        ),
    };
    let next = order
        .map(|_| format!("to remove {plugin}, declare an assignment of it with `absent = true`"));
    Standing { state: State::NotAssigned, sentence, next }
}

/// Where an agent stands with a plugin that was done and does not do its work since.
fn faulty(plugin: &str, order: &Order, fault: &Fault, now: Seconds) -> Standing {
    let (what, done) = (target(plugin, &order.target), ago(now.since(order.since)));
    let sentence = format!("{}; {what} was done {done} ago", health::sentence(fault, now));
    let next = Some(format!("see why, on the machine: `guest-agent logs {plugin}`"));
    Standing { state: Word::of_fault(fault.cause).into(), sentence, next }
}

fn ordered(
    view: &View,
    plugin: &str,
    decision: &Decision,
    order: &Order,
    now: Seconds,
) -> Standing {
    let what = target(plugin, &order.target);
    let since = words::time(order.since);
    let is_late = now >= silent_after(order.since, patience(view, plugin, &order.target));
    if !order.state.is_settled() && is_late {
        return Standing {
            state: State::Silent,
            sentence: format!(
                "silent: {what} is {} since {since}, and the agent has not said what became of it",
                order.state
            ),
            next: Some(
                "see on the machine: `guest-agent explain`, and whether it is connected".to_owned(),
            ),
        };
    }
    let retry =
        || Some(format!("when the cause is gone: `guest-fleet retry {}`", decision.assignment));
    let (state, next) = match &order.state {
        OrderState::Sent => (State::Ordered, None),
        OrderState::Acknowledged => (State::Acknowledged, None),
        OrderState::Begun => (State::Installing, None),
        OrderState::Done { adopted: false }
            if order.target != Target::Absent && now < probation_until(order.since) =>
        {
            (State::OnProbation, None)
        }
        OrderState::Done { .. } => (State::Done, None),
        OrderState::Failed { .. } => (State::Failed, retry()),
        OrderState::TakenBack { .. } => (State::TakenBack, retry()),
    };
    let sentence = format!("{what} since {since}: {}", order.state);
    Standing { state, sentence, next }
}

/// Where an agent stands that is kept back.
pub(super) fn kept_back(decision: &Decision) -> Standing {
    let (state, next) = match &decision.permission {
        Permission::Go => (State::Waits, None),
        Permission::Conflict { .. } => (
            State::Conflict,
            Some("give one of them a higher `priority`, or select other agents".to_owned()),
        ),
        Permission::Quarantined(_) => (
            State::Quarantined,
            Some("give one of the machines an identity of its own: enrol it anew".to_owned()),
        ),
        Permission::NoRelease => {
            (State::NoRelease, Some("declare it as a `[[release]]`".to_owned()))
        }
        Permission::NoArchive { architecture } => (
            State::NoArchive,
            (!architecture.is_empty())
                .then(|| format!("declare a new revision with an archive for {architecture}")),
        ),
        Permission::WaitsForWave { rollout } => return waits_for_wave(rollout),
        Permission::Joins { .. } => (
            State::WaitsForWave,
            Some("it begins within seconds: `guest-fleet rollout list`".to_owned()),
        ),
        Permission::Paused { assignment } => (
            State::Paused,
            Some(format!(
                "see why: `guest-fleet status`; then: `guest-fleet resume {assignment} --reason TEXT`"
            )),
        ),
        Permission::Stopped { rollout, .. } => {
            (State::WaitsForWave, Some(format!("see why: `guest-fleet rollout show {rollout}`")))
        }
        Permission::Held { hold, .. } => {
            (State::Held, Some(format!("to let it go on: `guest-fleet release {hold}`")))
        }
        Permission::HeldByOwner(_) => (
            State::HeldByOwner,
            Some("to let it go on, on the machine: `guest-agent release`".to_owned()),
        ),
        Permission::OutsideWindow { window, next } => (
            State::OutsideWindow,
            next.is_none().then(|| format!("correct the days or the zone of the window {window}")),
        ),
    };
    let sentence = match &decision.permission {
        Permission::Conflict { with } => format!(
            "waits: the assignments {} and {with} have the same priority and want different things",
            decision.assignment
        ),
        permission => words::permission(permission),
    };
    Standing { state, sentence, next }
}

/// `monitor 1.2`, or `the removal of monitor`.
fn target(plugin: &str, target: &Target) -> String {
    match target {
        Target::Revision(revision) => format!("{plugin} {revision}"),
        Target::Absent => format!("the removal of {plugin}"),
    }
}
