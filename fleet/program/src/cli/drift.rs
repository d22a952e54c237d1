//! Drift, and assignments whose orders stopped by themselves, in words.

use guest_fleet_core::desired::Decision;
use guest_fleet_core::drift::{Drift, Lack, OwnersChange, OwnersKind, Repairs};
use guest_fleet_core::journal::Entry;
use guest_fleet_core::repair::{Pace, Stop};
use guest_fleet_core::view::{Target, View};
use guest_fleet_server::configuration::words;
use schemars::JsonSchema;
use serde::Serialize;

use super::context::Context;
use super::document::Time;
use super::failure::Failure;
use super::text::one_line;

/// An assignment of which agents are not ordered again, or not ordered anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StopJson {
    /// Name of the assignment.
    pub assignment: String,
    /// Why.
    pub cause: StopCause,
    /// What a person can do about it.
    pub next: String,
    /// Why, for people.
    pub sentence: String,
}

/// Why agents of an assignment are not ordered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    /// Many agents drifted at once; other orders are given.
    ManyDrifted,
    /// The ledger went back; no order is given.
    LedgerWentBack,
    /// The record of repairs cannot be read; no order is given.
    Unreadable,
}

/// How an agent lacks what a done order brought.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct DriftJson {
    /// Who changed the plugin on the machine, and why; null where nobody did.
    pub by: Option<String>,
    /// How that came.
    pub cause: DriftCause,
    /// When the agent is ordered again, at the earliest; null where it is not, unless a person has that done.
    #[schemars(with = "Option<Time>")]
    pub due: Option<String>,
    /// How often it was ordered again.
    pub repairs: u32,
    /// Since when.
    #[schemars(with = "Time")]
    pub since: String,
}

/// How it came that an agent lacks something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriftCause {
    /// The agent knows of older orders only.
    WentBack,
    /// The agent has something else.
    Differs,
    /// A person on the machine removed the plugin.
    RemovedByOwner,
    /// A person on the machine installed a revision.
    InstalledByOwner,
    /// A person on the machine took it back to the revision before.
    RolledBackByOwner,
    /// A person on the machine gave it another configuration.
    ConfiguredByOwner,
    /// A person on the machine stopped it.
    StoppedByOwner,
}

/// The assignments that stopped, by name.
pub(crate) fn stops(view: &View) -> Vec<StopJson> {
    let repairs = view.repairs.iter().filter(|(name, _)| view.assignments.contains_key(*name));
    let stopped = repairs.filter_map(|(name, repair)| Some((name, repair.stop.as_ref()?)));
    stopped.map(|(assignment, stop)| StopJson::of(assignment, stop)).collect()
}

/// Says them below what was said before, with a gap.
pub(crate) fn say_below(stops: &[StopJson], context: &mut Context<'_>) -> Result<(), Failure> {
    if !stops.is_empty() {
        context.say(format_args!(""))?;
    }
    for StopJson { assignment, next, sentence, .. } in stops {
        let line = one_line(&format!("assignment {assignment} {sentence}"));
        context.say(format_args!("{line}\n  {next}"))?;
    }
    Ok(())
}

/// The sentence about a drifted agent and a plugin, and the next thing that a person can do.
pub(super) fn sentence(
    (view, decision): (&View, &Decision),
    (agent, plugin): (&str, &str),
    (drift, repairs): (&Drift, Repairs),
    is_mended: bool,
) -> (String, Option<String>) {
    let since = words::time(drift.since);
    let assignment = &decision.assignment;
    let lack = match &drift.lack {
        Lack::ByOwner(change) if is_mended => format!("it was {}", owners(change)),
        Lack::ByOwner(change) => {
            let next = match change.kind {
                OwnersKind::Stopped => {
                    "to have it run again, on the machine: `guest-agent start`".to_owned()
                }
                OwnersKind::RolledBack => {
                    "to let the revision in again, on the machine: `guest-agent release`".to_owned()
                }
                OwnersKind::Removed | OwnersKind::Installed | OwnersKind::Configured => {
                    format!("to have it as was ordered: `guest-fleet retry {assignment}`")
                }
            };
            let change = owners(change);
            let sentence = format!("changed on the machine, since {since}: {plugin} was {change}");
            return (sentence, Some(next));
        }
        Lack::WentBack => {
            "its machine went back to an earlier state, or it lost its records".to_owned()
        }
        Lack::Differs => "it has something else".to_owned(),
    };
    let lacks = match &decision.target {
        Target::Revision(revision) => format!("lacks {plugin} {revision}"),
        Target::Absent => format!("has {plugin}, which was removed"),
    };
    let stop = view.repairs.get(assignment).and_then(|repair| repair.stop.as_ref());
    let (then, next) = match (stop, Pace::default().due_at(drift.since, repairs)) {
        _ if !decision.permission.is_go() => (words::permission(&decision.permission), None),
        (Some(stop), _) => {
            let StopJson { sentence, next, .. } = StopJson::of(assignment, stop);
            (format!("the assignment {assignment} is {sentence}"), Some(next))
        }
        (None, Some(due)) => {
            (format!("{agent} is ordered again from {} on", words::time(due)), None)
        }
        (None, None) => (
            format!("{agent} was ordered again {} times, and is not by itself", repairs.count),
            Some(format!("when the cause is gone: `guest-fleet retry {assignment}`")),
        ),
    };
    (format!("drifted since {since}: {agent} {lacks}: {lack}; {then}"), next)
}

/// `removed by root`.
fn owners(OwnersChange { kind, by }: &OwnersChange) -> String {
    let what = match kind {
        OwnersKind::Removed => "removed",
        OwnersKind::Installed => "installed anew",
        OwnersKind::RolledBack => "rolled back",
        OwnersKind::Configured => "configured",
        OwnersKind::Stopped => "stopped",
    };
    if by.is_empty() { format!("{what} there") } else { format!("{what} by {by}") }
}

// === impl StopJson ===

impl StopJson {
    fn of(assignment: &str, stop: &Stop) -> Self {
        let resume = format!("`guest-fleet resume {assignment} --reason TEXT`");
        let (cause, next) = match stop {
            Stop::Many { .. } => (
                StopCause::ManyDrifted,
                format!(
                    "when the cause is gone, to have them ordered again a few at a time: {resume}"
                ),
            ),
            Stop::Unreadable => (
                StopCause::Unreadable,
                format!("to have its orders go on, and its repairs begin anew: {resume}"),
            ),
            Stop::LedgerWentBack { .. } => (
                StopCause::LedgerWentBack,
                format!("compare with `guest-fleet diff`, apply what is missing, then: {resume}"),
            ),
        };
        let assignment = assignment.to_owned();
        Self { assignment, cause, next, sentence: words::stopped(stop) }
    }
}

// === impl DriftJson ===

impl DriftJson {
    /// The drift of the newest order of a plugin; `None` where the agent has what was ordered. `repairs` says
    /// whether the fleet orders it again by itself.
    pub(crate) fn of(entry: &Entry, repairs: bool) -> Option<Self> {
        let drift = entry.order.as_ref()?.drift.as_ref()?;
        let change = match &drift.lack {
            Lack::ByOwner(change) => Some(change),
            Lack::WentBack | Lack::Differs => None,
        };
        let cause = match &drift.lack {
            Lack::WentBack => DriftCause::WentBack,
            Lack::Differs => DriftCause::Differs,
            Lack::ByOwner(change) => match change.kind {
                OwnersKind::Removed => DriftCause::RemovedByOwner,
                OwnersKind::Installed => DriftCause::InstalledByOwner,
                OwnersKind::RolledBack => DriftCause::RolledBackByOwner,
                OwnersKind::Configured => DriftCause::ConfiguredByOwner,
                OwnersKind::Stopped => DriftCause::StoppedByOwner,
            },
        };
        let due = Pace::default().due_at(drift.since, entry.repairs);
        Some(Self {
            by: change.map(|change| change.by.clone()).filter(|by| !by.is_empty()),
            cause,
            due: due.filter(|_| repairs).map(words::time),
            repairs: entry.repairs.count,
            since: words::time(drift.since),
        })
    }
}
