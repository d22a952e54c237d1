//! States, waits and events of a plugin in words, for `explain`.

use super::event::{ApplyFailure, Boot, Event, HealthVerdict, Order};
use super::state::{Change, Next, Pause, Phase, Resume, State, Then, Wait};
use crate::model::act::{Act, HeldOrder};
use crate::model::runs::Firing;

/// What a plugin is doing, with its revision: `running r2, on trial after r1`.
#[must_use]
pub fn state(state: &State) -> String {
    let phase = match &state.phase {
        Phase::Installing { .. } => "installing",
        Phase::InstallFailed { .. } => "not installed",
        Phase::Starting { .. } => "starting",
        Phase::Pausing { .. } => "pausing before another start",
        Phase::Running { change: Change::None, .. } => "running",
        Phase::Running { change: Change::Applying { .. }, .. } => "taking a configuration",
        Phase::Running { change: Change::Limiting { .. }, .. } => "being given other limits",
        Phase::Executing { .. } => "executing",
        Phase::Idle => "waiting for a trigger",
        Phase::Disabled { .. } if state.person.stopped.is_some() => "stopped by a person",
        Phase::Disabled { .. } => "disabled by its rules",
        Phase::BackingOff { pause: Pause::AfterCrash, .. } => "pausing after a crash",
        Phase::BackingOff { pause: Pause::AfterShutdown, .. } => "ended with the machine",
        Phase::Stopping { then, .. } => match then {
            Then::Start => "stopping, to start again",
            Then::Swap => "stopping, for the next revision",
            Then::Return { .. } => "stopping, to return to the revision before",
            Then::BackOff { .. } => "stopping, to start again after a pause",
            Then::Rest { .. } => "stopping for good",
            Then::Remove => "stopping, to be removed",
            Then::Fail { .. } => "stopping a run",
            Then::Disable { .. } if state.person.stopped.is_some() => "stopping, to stay stopped",
            Then::Disable { .. } => "stopping because of its rules",
        },
        Phase::Stopped { then: Resume::Start } => "stopped, about to start",
        Phase::Stopped { then: Resume::Swap } => "stopped, about to start the next revision",
        Phase::Crashed { .. } => "could not be started",
        Phase::Removing { .. } => "being removed",
        Phase::Held => "held before its installation",
        Phase::Gone => "gone",
    };
    let trial = match &state.trial {
        Some(trial) => format!(", on trial after {}", trial.last_good.revision),
        None => String::new(),
    };
    let next = match &state.next {
        Next::Nothing | Next::Failed { .. } => String::new(),
        Next::Preparing { spec, .. } => format!(", fetching {}", spec.revision),
        Next::Ready { spec } => format!(", with {} ready", spec.revision),
        Next::AfterRemoval { spec } => format!(", then {}", spec.revision),
    };
    let held = match (&state.person.hold, &state.person.held_order) {
        (None, _) => String::new(),
        (Some(_), None) => ", held".to_owned(),
        (Some(_), Some(HeldOrder::Install(spec))) => {
            format!(", held with an order for {}", spec.revision)
        }
        (Some(_), Some(HeldOrder::Remove { .. })) => ", held with a REMOVE".to_owned(),
        (Some(_), Some(HeldOrder::Apply { .. })) => ", held with an APPLY".to_owned(),
    };
    format!("{phase} {}{trial}{next}{held}", state.spec.revision)
}

/// A wait, in words.
#[must_use]
pub const fn wait(wait: Wait) -> &'static str {
    match wait {
        Wait::Install => "the installation",
        Wait::Start => "the start",
        Wait::Retry => "the pause before the next start",
        Wait::Apply => "the plugin to take its configuration",
        Wait::Limits | Wait::LimitOverride => "its limits to be set",
        Wait::Probation => "the next part of the probation window",
        Wait::Calm => "time without a crash, after which crashes are forgiven",
        Wait::Stop => "the stop",
        Wait::Resume => "the next start",
        Wait::Remove => "the deletion of its files",
        Wait::Execution => "the next part of the time limit of a run",
        Wait::Shutdown => "the machine to shut down",
        Wait::Hold => "the end of the hold",
    }
}

/// An event, in words. Never contains a configuration.
#[must_use]
pub fn event(event: &Event) -> String {
    match event {
        Event::Ordered { generation, order } => {
            let order = match order {
                Order::Install(spec) => format!("install {}", spec.revision),
                Order::Remove => "remove".to_owned(),
                Order::Apply(_) => "apply".to_owned(),
                Order::Restart => "restart".to_owned(),
                Order::Asked(Act::Stop(by)) => format!("stop, by {by}"),
                Order::Asked(Act::Start) => "start".to_owned(),
                Order::Asked(Act::Rollback(by)) => format!("rollback, by {by}"),
                Order::Asked(Act::Hold(hold)) => format!("hold, by {}", hold.by),
                Order::Asked(Act::Release) => "release".to_owned(),
                Order::Asked(Act::Dismiss { by, revision }) => {
                    format!("dismiss the failure of {revision}, by {by}")
                }
                Order::Asked(Act::Limit(Some(new))) => format!("limit, by {}", new.by),
                Order::Asked(Act::Limit(None)) => "limit as ordered".to_owned(),
            };
            format!("order {}: {order}", generation.0)
        }
        Event::Installed { result: Ok(()), .. } => "the files are in place".to_owned(),
        Event::Installed { result: Err(reason), .. } => {
            format!("the installation failed: {reason}")
        }
        Event::Spawned { process, .. } => format!("process {} was started", process.pid),
        Event::Launched { result: Ok((process, _)), .. } => {
            format!("process {} is up", process.pid)
        }
        Event::Launched { result: Err(reason), .. } => format!("the start failed: {reason}"),
        Event::Applied { result: Ok(()), .. } => "it took the configuration".to_owned(),
        Event::Applied { result: Err(ApplyFailure::Unimplemented), .. } => {
            "it takes a configuration only at its start".to_owned()
        }
        Event::Applied { result: Err(ApplyFailure::Failed(reason)), .. } => {
            format!("it refused the configuration: {reason}")
        }
        Event::Limited { result: Ok(()), .. } => "its limits were set".to_owned(),
        Event::Limited { result: Err(reason), .. } => {
            format!("its limits can only be set by a start: {reason}")
        }
        Event::Stopped { result: Ok(_), .. } => "it was stopped".to_owned(),
        Event::Stopped { result: Err(reason), .. } => format!("it could not be stopped: {reason}"),
        Event::Removed { result: Ok(()), .. } => "its files were deleted".to_owned(),
        Event::Removed { result: Err(reason), .. } => {
            format!("its files could not be deleted: {reason}")
        }
        Event::Exited { process, cause } => format!("process {} {cause}", process.pid),
        Event::HealthReported { verdict, .. } => match verdict {
            HealthVerdict::Healthy => "it is healthy".to_owned(),
            HealthVerdict::Unhealthy(reason)
            | HealthVerdict::Hung(reason)
            | HealthVerdict::OverMemory { reason, .. } => reason.to_string(),
        },
        Event::Triggered(firing) => match firing {
            Firing::Startup(_) => "trigger: startup".to_owned(),
            Firing::FirstBoot(_) => "trigger: firstboot".to_owned(),
            Firing::Interval(beat) => format!("trigger: beat {beat} of its interval"),
        },
        Event::LocalChanged(Some(spec)) => {
            format!("its manifest on the machine says revision {}", spec.revision)
        }
        Event::LocalChanged(None) => "its manifest on the machine was removed".to_owned(),
        Event::ShutdownTaken { process } => {
            format!("process {} took the shutdown event of the machine", process.pid)
        }
        Event::FactsChanged => "the facts about the machine changed".to_owned(),
        Event::DeadlinePassed(over) => format!("the wait is over for {}", wait(*over)),
        Event::Recovered(found) => match found.boot {
            Boot::Same => "the agent restarted".to_owned(),
            Boot::New => "the machine or the agent restarted".to_owned(),
        },
    }
}
