//! Where an agent stands with a plugin, in words that do not lie: derived from the declarations, the
//! order journal and the time; nobody has to clear a flag.

use super::by_name::InDocuments;
use super::text::ago;
use super::{drift, health};
use guest_fleet_core::desired::{Decision, Permission};
use guest_fleet_core::fold::{Word, probation_until, silent_after};
use guest_fleet_core::health::Fault;
use guest_fleet_core::journal::{Entry, Order, OrderState};
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::{Target, View};
use guest_fleet_server::configuration::words;
use guest_fleet_server::fold::patience::patience;

/// Where an agent stands with a plugin, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// For programs.
    pub state: Word,
    /// For people.
    pub sentence: String,
    /// What a person can do about it; `None` where nothing is to be done.
    pub next: Option<String>,
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
        return Standing { state: Word::Archived, sentence, next: Some(next) };
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
            let state = if is_mended { Word::Drifted } else { Word::ChangedByOwner };
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
        state: Word::WaitsForWave,
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
    Standing { state: Word::NotAssigned, sentence, next }
}

/// Where an agent stands with a plugin that was done and does not do its work since.
fn faulty(plugin: &str, order: &Order, fault: &Fault, now: Seconds) -> Standing {
    let (what, done) = (target(plugin, &order.target), ago(now.since(order.since)));
    let sentence = format!("{}; {what} was done {done} ago", health::sentence(fault, now));
    let next = Some(format!("see why, on the machine: `guest-agent logs {plugin}`"));
    Standing { state: Word::of_fault(fault.cause), sentence, next }
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
            state: Word::Silent,
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
        OrderState::Sent => (Word::Ordered, None),
        OrderState::Acknowledged => (Word::Acknowledged, None),
        OrderState::Begun => (Word::Installing, None),
        OrderState::Done { adopted: false }
            if order.target != Target::Absent && now < probation_until(order.since) =>
        {
            (Word::OnProbation, None)
        }
        OrderState::Done { .. } => (Word::Done, None),
        OrderState::Failed { .. } => (Word::Failed, retry()),
        OrderState::TakenBack { .. } => (Word::TakenBack, retry()),
    };
    let sentence = format!("{what} since {since}: {}", order.state);
    Standing { state, sentence, next }
}

/// Where an agent stands that is kept back.
pub(super) fn kept_back(decision: &Decision) -> Standing {
    let (state, next) = match &decision.permission {
        Permission::Go => (Word::Waits, None),
        Permission::Conflict { .. } => (
            Word::Conflict,
            Some("give one of them a higher `priority`, or select other agents".to_owned()),
        ),
        Permission::Quarantined(_) => (
            Word::Quarantined,
            Some("give one of the machines an identity of its own: enrol it anew".to_owned()),
        ),
        Permission::NoRelease => {
            (Word::NoRelease, Some("declare it as a `[[release]]`".to_owned()))
        }
        Permission::NoArchive { architecture } => (
            Word::NoArchive,
            (!architecture.is_empty())
                .then(|| format!("declare a new revision with an archive for {architecture}")),
        ),
        Permission::WaitsForWave { rollout } => return waits_for_wave(rollout),
        Permission::Joins { .. } => (
            Word::WaitsForWave,
            Some("it begins within seconds: `guest-fleet rollout list`".to_owned()),
        ),
        Permission::Paused { assignment } => (
            Word::Paused,
            Some(format!(
                "see why: `guest-fleet status`; then: `guest-fleet resume {assignment} --reason TEXT`"
            )),
        ),
        Permission::Stopped { rollout, .. } => {
            (Word::WaitsForWave, Some(format!("see why: `guest-fleet rollout show {rollout}`")))
        }
        Permission::Held { hold, .. } => {
            (Word::Held, Some(format!("to let it go on: `guest-fleet release {hold}`")))
        }
        Permission::HeldByOwner(_) => (
            Word::HeldByOwner,
            Some("to let it go on, on the machine: `guest-agent release`".to_owned()),
        ),
        Permission::OutsideWindow { window, next } => (
            Word::OutsideWindow,
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

/// Where an agent stands, for people.
pub(crate) fn text(word: Word) -> &'static str {
    match word {
        Word::NotAssigned => "not assigned",
        Word::Archived => "archived",
        Word::Quarantined => "quarantined",
        Word::Conflict => "in conflict",
        Word::NoRelease => "without a release",
        Word::NoArchive => "without an archive",
        Word::Held => "held",
        Word::HeldByOwner => "held by owner",
        Word::OutsideWindow => "outside its window",
        Word::WaitsForWave => "waits for its wave",
        Word::Waits => "waits",
        Word::Ordered => "ordered",
        Word::Acknowledged => "acknowledged",
        Word::Installing => "installing",
        Word::OnProbation => "on probation",
        Word::Done => "done",
        Word::Failed => "failed",
        Word::TakenBack => "taken back",
        Word::Silent => "silent",
        Word::Drifted => "drifted",
        Word::ChangedByOwner => "changed by owner",
        Word::Paused => "paused",
        Word::CrashLoop => "in a crash loop",
        Word::OutOfMemory => "out of memory",
        Word::Unhealthy => "unhealthy",
        Word::Failing => "failing",
    }
}

// === impl Word ===

impl InDocuments for Word {
    const SCHEMA: &'static str = "State";
    const ABOUT: &'static str = "Where an agent stands with a plugin.";
}
