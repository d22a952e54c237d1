//! How long orders take at most, by the deadlines of the machine, and when a trial ends. Pure.
//!
//! An upper bound: each step that an order may need is counted with the longest that it may take,
//! a return to the revision before included. An outcome comes earlier than this, or the agent itself
//! is not able to say when.

use std::time::{Duration, SystemTime};

use crate::model::act::{Act, HeldOrder};
use crate::model::spec::PluginSpec;
use crate::model::view::{Outlook, PluginView, Reported};
use crate::plugin::durations::{self as takes, APPLY_WAIT, LIMITS_WAIT, REMOVE_WAIT};
use crate::plugin::event::Order;
use crate::plugin::restart::RestartPolicy;
use crate::plugin::state::{
    Change, Next, PROBATION_SLICES, Pause, Phase, Policy, SHUTDOWN_WAIT, State,
};

/// How long this order takes at most for a plugin that looks like this, or that the agent does not
/// know yet.
#[must_use]
pub fn at_most(order: &Order, now: Option<&PluginView>, policy: &Policy) -> Duration {
    let restart = &policy.restart;
    let Some(view) = now else {
        return match order {
            Order::Install(spec) => sum([takes::install(spec), takes::start(spec, restart)]),
            Order::Remove | Order::Apply(_) | Order::Restart | Order::Asked(_) => REMOVE_WAIT,
        };
    };
    let spec = &view.spec;
    let afresh = sum([takes::stop(spec), takes::start(spec, restart)]);
    let steps = match order {
        Order::Install(new) if new.is_revision_of(spec) && is_installed(view) => {
            sum([LIMITS_WAIT, APPLY_WAIT, takes::stop(spec), takes::start(new, restart)])
        }
        Order::Install(new) => {
            sum([takes::install(new), takes::stop(spec), take_over(new, spec, policy)])
        }
        Order::Remove => sum([takes::stop(spec), REMOVE_WAIT]),
        Order::Apply(_) => sum([APPLY_WAIT, afresh]),
        Order::Asked(Act::Stop(_)) => takes::stop(spec),
        Order::Restart | Order::Asked(Act::Start) if !is_installed(view) => {
            sum([takes::install(spec), afresh])
        }
        Order::Restart | Order::Asked(Act::Start) => afresh,
        Order::Asked(Act::Rollback(_)) => view.outlook.way_back,
        // The order that waits is counted with the work under way.
        Order::Asked(Act::Hold(_) | Act::Release | Act::Dismiss { .. }) => Duration::ZERO,
        Order::Asked(Act::Limit(_)) => sum([LIMITS_WAIT, afresh]),
    };
    sum([view.outlook.under_way, steps])
}

/// The future of a state by its deadlines. `slice_ends` is when the part of the
/// probation window ends that runs now.
#[must_use]
pub(super) fn outlook(state: &State, policy: &Policy, slice_ends: Option<SystemTime>) -> Outlook {
    let trial_ends = state.trial.as_ref().zip(slice_ends).and_then(|(trial, slice_ends)| {
        let slice = policy.probation / PROBATION_SLICES;
        slice_ends.checked_add(slice.saturating_mul(trial.slices_left.saturating_sub(1)))
    });
    let way_back = state
        .way_back()
        .map(|former| sum([takes::stop(&state.spec), takes::start(former, &policy.restart)]));
    let way_back = way_back.unwrap_or_default();
    let returns = state.trial.as_ref().map(|trial| {
        let window = policy.probation / PROBATION_SLICES;
        sum([window.saturating_mul(trial.slices_left), way_back])
    });
    let returns = returns.unwrap_or_default();
    let under_way = sum([
        of_phase(state, &policy.restart),
        of_next(state, policy),
        of_held(state, policy),
        returns,
    ]);
    Outlook { trial_ends, under_way, way_back }
}

/// Whether the files of its revision are on disk.
const fn is_installed(view: &PluginView) -> bool {
    match view.state {
        Reported::Installing | Reported::InstallFailed | Reported::Crashed => false,
        Reported::Starting
        | Reported::Running
        | Reported::Stopping
        | Reported::Stopped
        | Reported::ExecutionCompleted
        | Reported::ExecutionFailed => true,
    }
}

fn of_phase(state: &State, restart: &RestartPolicy) -> Duration {
    let spec = &state.spec;
    match &state.phase {
        Phase::Installing { .. } => sum([takes::install(spec), takes::start(spec, restart)]),
        Phase::Starting { .. } | Phase::Pausing { .. } | Phase::Stopped { .. } => {
            takes::start(spec, restart)
        }
        Phase::BackingOff { pause: Pause::AfterCrash, .. } => {
            sum([restart.max, takes::start(spec, restart)])
        }
        Phase::BackingOff { pause: Pause::AfterShutdown, .. } => {
            sum([SHUTDOWN_WAIT, takes::start(spec, restart)])
        }
        Phase::Running { change, .. } => match change {
            Change::None => Duration::ZERO,
            Change::Applying { newer: None, .. } => APPLY_WAIT,
            // One call after the other, with limits between them.
            Change::Applying { newer: Some(_), .. } => sum([APPLY_WAIT, LIMITS_WAIT, APPLY_WAIT]),
            Change::Limiting { .. } => LIMITS_WAIT,
        },
        Phase::Executing { .. } => spec.execution.timeout(),
        Phase::Stopping { .. } => sum([takes::stop(spec), takes::start(spec, restart)]),
        Phase::Removing { .. } => REMOVE_WAIT,
        Phase::InstallFailed { .. }
        | Phase::Crashed { .. }
        | Phase::Idle
        | Phase::Disabled { .. }
        | Phase::Held
        | Phase::Gone => Duration::ZERO,
    }
}

fn of_next(state: &State, policy: &Policy) -> Duration {
    match &state.next {
        Next::Nothing | Next::Failed { .. } => Duration::ZERO,
        Next::Preparing { spec, .. } | Next::AfterRemoval { spec } => sum([
            takes::install(spec),
            takes::stop(&state.spec),
            take_over(spec, &state.spec, policy),
        ]),
        Next::Ready { spec } => take_over(spec, &state.spec, policy),
    }
}

/// The start of a revision, its trial, and the return to the one before.
fn take_over(new: &PluginSpec, old: &PluginSpec, policy: &Policy) -> Duration {
    sum([
        takes::start(new, &policy.restart),
        policy.probation,
        takes::stop(new),
        takes::start(old, &policy.restart),
    ])
}

fn of_held(state: &State, policy: &Policy) -> Duration {
    let restart = &policy.restart;
    let afresh = || sum([takes::stop(&state.spec), takes::start(&state.spec, restart)]);
    match &state.person.held_order {
        None => Duration::ZERO,
        Some(HeldOrder::Install(spec)) => sum([
            takes::install(spec),
            takes::stop(&state.spec),
            take_over(spec, &state.spec, policy),
        ]),
        Some(HeldOrder::Remove { .. }) => sum([takes::stop(&state.spec), REMOVE_WAIT]),
        Some(HeldOrder::Apply { .. }) => sum([APPLY_WAIT, afresh()]),
    }
}

fn sum<const N: usize>(steps: [Duration; N]) -> Duration {
    steps.into_iter().fold(Duration::ZERO, Duration::saturating_add)
}

#[cfg(test)]
mod tests;
