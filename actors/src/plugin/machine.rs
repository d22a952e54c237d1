//! The states of one plugin as a pure function.
//!
//! [`transition`] takes a state and an event and returns the next state and the effects. It is
//! synchronous and total; it reads no clock, does no I/O and knows no actor. The shell around it
//! (`plugin.rs`) makes the next state durable, then carries the effects out, and returns their
//! results as events.
//!
//! A plugin has two regions that move side by side: `phase` is about the revision that runs or is
//! meant to run now; `next` is about a revision that is being prepared while that one runs. What an
//! order does in each phase is in `orders.rs`; the arrows themselves are in
//! `transition_builder.rs`, the vocabulary in `event.rs`; this file has one function per phase.

use std::sync::Arc;

use crate::model::act::Hold;
use crate::model::event::PluginEventKind;
use crate::model::exit::ExitCause;
use crate::model::facts::FactSet;
use crate::model::id::{Attempt, Generation, Process};
use crate::model::spec::PluginSpec;
use crate::plugin::event::{ApplyFailure, Boot, Effect, Event, Found, HealthVerdict, Transition};
use crate::plugin::live::Live;
use crate::plugin::state::{Change, Next, Phase, Resume, Shutdown, State, Target, Then, Wait};
use crate::plugin::transition_builder::TransitionBuilder;
use crate::ports::{StopManner, Stopped};

/// The first state of a plugin that the agent did not know before.
pub fn begin(generation: Generation, spec: Arc<PluginSpec>) -> Transition {
    begin_under(None, generation, spec)
}

/// The same on a machine where all plugins may be held: its order waits where they are.
pub fn begin_under(
    hold: Option<Hold>,
    generation: Generation,
    spec: Arc<PluginSpec>,
) -> Transition {
    first(generation, spec, None, hold)
}

/// The first state of a plugin that came with the machine. Nobody ordered it, so every order is
/// newer.
pub fn begin_local(spec: Arc<PluginSpec>) -> Transition {
    begin_local_under(None, spec)
}

/// The same on a machine where all plugins may be held: it waits like an order where they are.
pub fn begin_local_under(hold: Option<Hold>, spec: Arc<PluginSpec>) -> Transition {
    first(Generation(0), spec.clone(), Some(spec), hold)
}

fn first(
    generation: Generation,
    spec: Arc<PluginSpec>,
    local: Option<Arc<PluginSpec>>,
    hold: Option<Hold>,
) -> Transition {
    // Nothing is started yet, so no fact about the machine is needed.
    let facts = FactSet::default();
    let state = State { local, ..State::of(generation, spec.clone(), Phase::Gone) };
    let mut draft = TransitionBuilder::of(state, &facts);
    match hold {
        Some(hold) => draft.begin_held(hold, spec),
        None => {
            draft.announce(PluginEventKind::InstallRequested, "");
            draft.install();
        }
    }
    draft.finish()
}

/// The transition for `event` in `state`, on a machine without known facts: rules that need one
/// cannot be decided.
pub fn transition(state: &State, event: Event) -> Transition {
    transition_on(&FactSet::default(), state, event)
}

/// The transition for `event` in `state`, on a machine with these facts.
pub fn transition_on(facts: &FactSet, state: &State, event: Event) -> Transition {
    let mut draft = TransitionBuilder::of(state.clone(), facts);
    if let Event::LocalChanged(local) = event {
        draft.local_changed(local);
        return draft.finish();
    }
    // A hold ends in any phase.
    if event == Event::DeadlinePassed(Wait::Hold) {
        draft.end_hold();
        return draft.finish();
    }
    if let Event::Recovered(Found { boot: Boot::New, .. }) = &event {
        draft.rebooted();
    }
    if let Next::Preparing { spec, attempt } = &state.next {
        match &event {
            Event::Installed { attempt: answered, result } if answered == attempt => {
                draft.prepared(spec, result.clone());
                return draft.finish();
            }
            Event::DeadlinePassed(Wait::Install) => {
                draft.effect(Effect::CancelInstall { attempt: *attempt });
                draft.prepared(spec, Err("the installation took too long".into()));
                return draft.finish();
            }
            Event::Recovered(_) => draft.prepare(spec.clone()),
            // Every other event is about the current revision.
            Event::Ordered { .. }
            | Event::Installed { .. }
            | Event::Spawned { .. }
            | Event::Launched { .. }
            | Event::Applied { .. }
            | Event::Limited { .. }
            | Event::Stopped { .. }
            | Event::Removed { .. }
            | Event::Exited { .. }
            | Event::HealthReported { .. }
            | Event::LocalChanged(_)
            | Event::ShutdownTaken { .. }
            | Event::Triggered(_)
            | Event::FactsChanged
            | Event::DeadlinePassed(_) => {}
        }
    }
    draft.sweep_leftovers(&event);
    match state.phase.clone() {
        Phase::Installing { attempt } => draft.installing(attempt, event),
        Phase::Held | Phase::InstallFailed { .. } | Phase::Crashed { .. } => draft.resting(event),
        Phase::Starting { attempt, tries, process } => {
            draft.starting(attempt, tries, process, event);
        }
        Phase::Pausing { tries, .. } => draft.pausing(tries, event),
        Phase::Running { process, endpoint, change } => {
            draft.running(&Live { process, endpoint, change }, event);
        }
        Phase::Executing { process, slices_left } => draft.executing(process, slices_left, event),
        Phase::Idle => draft.idle(event),
        Phase::Disabled { reason } => draft.disabled(reason, event),
        Phase::BackingOff { .. } => draft.backing_off(event),
        Phase::Stopping { attempt, target, then } => draft.stopping(attempt, target, then, event),
        Phase::Stopped { then } => draft.stopped(then, event),
        Phase::Removing { attempt, failures } => draft.removing(attempt, failures, event),
        Phase::Gone => draft.gone(event),
    }
    draft.finish()
}

// === impl TransitionBuilder: one function per phase ===

impl TransitionBuilder<'_> {
    /// After a restart of the agent no process may run that the state does not know. There may be
    /// one in any phase: an agent that could not write its last state is followed by one that knows
    /// less, and a search can fail.
    fn sweep_leftovers(&mut self, event: &Event) {
        let Event::Recovered(found) = event else { return };
        let accounted_for = match &self.state.phase {
            Phase::Running { .. }
            | Phase::Executing { .. }
            | Phase::Starting { .. }
            | Phase::BackingOff { .. } => found.process.is_some(),
            Phase::Stopping { .. } => true,
            Phase::Installing { .. }
            | Phase::InstallFailed { .. }
            | Phase::Pausing { .. }
            | Phase::Stopped { .. }
            | Phase::Idle
            | Phase::Disabled { .. }
            | Phase::Crashed { .. }
            | Phase::Held
            | Phase::Removing { .. }
            | Phase::Gone => false,
        };
        if !accounted_for {
            self.effect(Effect::Sweep);
        }
    }

    /// Installing ──Installed──► Starting │ InstallFailed
    fn installing(&mut self, attempt: Attempt, event: Event) {
        match event {
            Event::Ordered { generation, order } => self.ordered(generation, order),
            Event::Installed { attempt: answered, result } if answered == attempt => match result {
                Ok(()) => self.launch(1),
                Err(reason) => self.install_failed(reason),
            },
            Event::DeadlinePassed(Wait::Install) => {
                self.effect(Effect::CancelInstall { attempt });
                self.install_failed("the installation took too long".into());
            }
            Event::Recovered(_) => self.install(),
            // Stale answers, and facts about processes that this phase does not have.
            Event::Installed { .. }
            | Event::Spawned { .. }
            | Event::Launched { .. }
            | Event::Applied { .. }
            | Event::Limited { .. }
            | Event::Stopped { .. }
            | Event::Removed { .. }
            | Event::Exited { .. }
            | Event::HealthReported { .. }
            | Event::LocalChanged(_)
            | Event::ShutdownTaken { .. }
            | Event::Triggered(_)
            | Event::FactsChanged
            | Event::DeadlinePassed(_) => {}
        }
    }

    /// Held, InstallFailed and Crashed: only an order or the end of a hold leads out.
    fn resting(&mut self, event: Event) {
        match event {
            Event::Ordered { generation, order } => self.ordered(generation, order),
            Event::Installed { .. }
            | Event::Spawned { .. }
            | Event::Launched { .. }
            | Event::Applied { .. }
            | Event::Limited { .. }
            | Event::Stopped { .. }
            | Event::Removed { .. }
            | Event::Exited { .. }
            | Event::HealthReported { .. }
            | Event::LocalChanged(_)
            | Event::ShutdownTaken { .. }
            | Event::Triggered(_)
            | Event::FactsChanged
            | Event::DeadlinePassed(_)
            | Event::Recovered(_) => {}
        }
    }

    /// Starting ──Launched──► Running │ Pausing │ BackingOff │ Crashed │ (last good) Starting
    fn starting(&mut self, attempt: Attempt, tries: u32, process: Option<Process>, event: Event) {
        match event {
            Event::Ordered { generation, order } => self.ordered(generation, order),
            Event::Spawned { attempt: answered, process } if answered == attempt => {
                self.state.phase = Phase::Starting { attempt, tries, process: Some(process) };
            }
            Event::Launched { attempt: answered, result } if answered == attempt => match result {
                Ok((process, endpoint)) => self.run(process, endpoint),
                Err(reason) => self.launch_failed(tries, reason),
            },
            Event::DeadlinePassed(Wait::Start) => {
                // The adapter did not keep its own deadline, so its answer is not waited for.
                self.effect(Effect::CancelLaunch { attempt });
                let then = self.start_failed("the launch took too long".into());
                self.stop(Target { process, endpoint: None }, then, StopManner::AtOnce);
            }
            Event::Triggered(firing) => self.coalesce(firing),
            Event::FactsChanged => self.weigh(),
            Event::Recovered(found) if self.is_one_shot() => {
                self.start_of_run_recovered(process, found);
            }
            Event::Recovered(found) => match found.process.or(process) {
                // Whether it received Start is unknown, so it is started again.
                Some(process) => {
                    let target = Target { process: Some(process), endpoint: None };
                    self.stop(target, Then::Start, StopManner::AtOnce);
                }
                None => self.launch(tries),
            },
            Event::Installed { .. }
            | Event::Spawned { .. }
            | Event::Launched { .. }
            | Event::Applied { .. }
            | Event::Limited { .. }
            | Event::Stopped { .. }
            | Event::Removed { .. }
            | Event::Exited { .. }
            | Event::HealthReported { .. }
            | Event::LocalChanged(_)
            | Event::ShutdownTaken { .. }
            | Event::DeadlinePassed(_) => {}
        }
    }

    /// Pausing ──the pause is over──► Starting
    fn pausing(&mut self, tries: u32, event: Event) {
        match event {
            Event::Ordered { generation, order } => self.ordered(generation, order),
            Event::FactsChanged => self.weigh(),
            Event::DeadlinePassed(Wait::Retry) => self.launch(tries + 1),
            // The pause begins anew: its timer is armed again.
            Event::Recovered(_)
            | Event::Installed { .. }
            | Event::Spawned { .. }
            | Event::Launched { .. }
            | Event::Applied { .. }
            | Event::Limited { .. }
            | Event::Stopped { .. }
            | Event::Removed { .. }
            | Event::Exited { .. }
            | Event::HealthReported { .. }
            | Event::LocalChanged(_)
            | Event::ShutdownTaken { .. }
            | Event::Triggered(_)
            | Event::DeadlinePassed(_) => {}
        }
    }

    /// Running ──Exited──► BackingOff │ (last good) Starting;  ──hung──► Stopping
    fn running(&mut self, live: &Live, event: Event) {
        match event {
            Event::Ordered { generation, order } => self.ordered(generation, order),
            Event::FactsChanged => self.weigh(),
            Event::Exited { process, cause } if process == live.process => {
                self.exited(live, cause);
            }
            Event::HealthReported { process, verdict } if process == live.process => {
                self.judged(live, verdict);
            }
            Event::Applied { attempt, result } => self.applied(live, attempt, result),
            Event::Limited { attempt, result } if self.state.limiting == Some(attempt) => {
                self.process_limited(Some(live), result);
            }
            Event::Limited { attempt, result } => self.limited(live, attempt, result),
            Event::DeadlinePassed(Wait::Limits) => {
                if let Change::Limiting { attempt, .. } = live.change {
                    self.limited(live, attempt, Err("setting its limits took too long".into()));
                }
            }
            Event::DeadlinePassed(Wait::LimitOverride) => {
                self.process_limited(Some(live), Err("setting its limits took too long".into()));
            }
            Event::DeadlinePassed(Wait::Apply) => {
                if let Change::Applying { attempt, .. } = live.change {
                    let failure = ApplyFailure::Failed("the plugin did not answer Apply".into());
                    self.applied(live, attempt, Err(failure));
                }
            }
            Event::DeadlinePassed(Wait::Probation) => self.probation_passed(),
            Event::ShutdownTaken { process } if process == live.process => {
                self.state.shutdown = Shutdown::Taken;
            }
            // The machine did not shut down.
            Event::DeadlinePassed(Wait::Shutdown) => self.state.shutdown = Shutdown::NotTaken,
            Event::DeadlinePassed(Wait::Calm) => {
                self.state.restarts = self.state.restarts.forgiven();
            }
            Event::Recovered(found) => self.running_recovered(live, found),
            Event::Installed { .. }
            | Event::Spawned { .. }
            | Event::Launched { .. }
            | Event::Stopped { .. }
            | Event::Removed { .. }
            | Event::Exited { .. }
            | Event::HealthReported { .. }
            | Event::LocalChanged(_)
            | Event::ShutdownTaken { .. }
            | Event::Triggered(_)
            | Event::DeadlinePassed(_) => {}
        }
    }

    /// The agent restarted while the plugin ran.
    fn running_recovered(&mut self, live: &Live, found: Found) {
        match (found.process, found.boot) {
            (Some(process), _) if process == live.process => {
                let endpoint = Some(live.endpoint.clone());
                self.effect(Effect::Watch { process: process.clone(), endpoint });
                self.change_again(live);
                if matches!(self.state.phase, Phase::Running { .. }) {
                    self.limit_if_due(&process);
                }
            }
            // It is not the process that was started last: it may not be set up correctly.
            (Some(process), _) => {
                self.keep_config_of(&live.change);
                let target = Target { process: Some(process), endpoint: None };
                self.stop(target, Then::Start, StopManner::AtOnce);
            }
            (None, Boot::Same) => self.exited(live, ExitCause::Unknown),
            (None, Boot::New) => {
                self.keep_config_of(&live.change);
                self.launch(1);
            }
        }
    }

    /// Executing ──Exited──► Idle;  ──too long──► Stopping
    fn executing(&mut self, process: Process, slices_left: u32, event: Event) {
        match event {
            Event::Ordered { generation, order } => self.ordered(generation, order),
            Event::Exited { process: exited, cause } if exited == process => self.run_ended(cause),
            Event::Triggered(firing) => self.coalesce(firing),
            Event::Limited { attempt, result } if self.state.limiting == Some(attempt) => {
                self.process_limited(None, result);
            }
            Event::DeadlinePassed(Wait::Execution) => self.run_takes_long(process, slices_left),
            Event::Recovered(found) => self.run_recovered(process, &found),
            Event::HealthReported {
                process: of,
                verdict: HealthVerdict::OverMemory { reason, peak },
            } if of == process => {
                let reason = self.over_memory(&reason, peak);
                self.stop_run(process, Then::Fail { reason });
            }
            // A run is not cut short by rules, and gives no health.
            Event::FactsChanged
            | Event::Installed { .. }
            | Event::Spawned { .. }
            | Event::Launched { .. }
            | Event::Applied { .. }
            | Event::Limited { .. }
            | Event::Stopped { .. }
            | Event::Removed { .. }
            | Event::Exited { .. }
            | Event::HealthReported { .. }
            | Event::LocalChanged(_)
            | Event::ShutdownTaken { .. }
            | Event::DeadlinePassed(_) => {}
        }
    }

    /// Idle ──Triggered──► Starting;  ──the rules say no──► Disabled
    fn idle(&mut self, event: Event) {
        match event {
            Event::Ordered { generation, order } => self.ordered(generation, order),
            Event::Triggered(firing) => self.triggered(firing),
            Event::FactsChanged => self.weigh(),
            Event::Recovered(found) => {
                if found.process.is_some() {
                    // A process that the last run left behind.
                    self.effect(Effect::Sweep);
                }
            }
            Event::Installed { .. }
            | Event::Spawned { .. }
            | Event::Launched { .. }
            | Event::Applied { .. }
            | Event::Limited { .. }
            | Event::Stopped { .. }
            | Event::Removed { .. }
            | Event::Exited { .. }
            | Event::HealthReported { .. }
            | Event::LocalChanged(_)
            | Event::ShutdownTaken { .. }
            | Event::DeadlinePassed(_) => {}
        }
    }

    /// Disabled ──the rules say yes──► Starting │ Idle
    fn disabled(&mut self, reason: Arc<str>, event: Event) {
        match event {
            Event::Ordered { generation, order } => self.ordered(generation, order),
            Event::FactsChanged => self.weigh(),
            Event::Recovered(found) => {
                if found.process.is_some() {
                    let target = Target { process: found.process, endpoint: None };
                    self.stop(target, Then::Disable { reason }, StopManner::AtOnce);
                }
            }
            Event::Triggered(_)
            | Event::Installed { .. }
            | Event::Spawned { .. }
            | Event::Launched { .. }
            | Event::Applied { .. }
            | Event::Limited { .. }
            | Event::Stopped { .. }
            | Event::Removed { .. }
            | Event::Exited { .. }
            | Event::HealthReported { .. }
            | Event::LocalChanged(_)
            | Event::ShutdownTaken { .. }
            | Event::DeadlinePassed(_) => {}
        }
    }

    /// BackingOff ──the pause is over──► Starting
    fn backing_off(&mut self, event: Event) {
        match event {
            Event::Ordered { generation, order } => self.ordered(generation, order),
            Event::FactsChanged => self.weigh(),
            Event::DeadlinePassed(Wait::Retry | Wait::Shutdown) => self.launch(1),
            Event::Recovered(found) => match (found.process, found.boot) {
                // A process of it still runs that should not.
                (Some(process), _) => {
                    let target = Target { process: Some(process), endpoint: None };
                    self.stop(target, Then::Start, StopManner::AtOnce);
                }
                (None, Boot::New) => self.launch(1),
                (None, Boot::Same) => {}
            },
            Event::Installed { .. }
            | Event::Spawned { .. }
            | Event::Launched { .. }
            | Event::Applied { .. }
            | Event::Limited { .. }
            | Event::Stopped { .. }
            | Event::Removed { .. }
            | Event::Exited { .. }
            | Event::HealthReported { .. }
            | Event::LocalChanged(_)
            | Event::ShutdownTaken { .. }
            | Event::Triggered(_)
            | Event::DeadlinePassed(_) => {}
        }
    }

    /// Stopping ──Stopped──► Stopped │ BackingOff │ Removing │ (last good) Starting
    fn stopping(&mut self, attempt: Attempt, target: Target, then: Then, event: Event) {
        match event {
            Event::Ordered { generation, order } => self.ordered(generation, order),
            Event::Stopped { attempt: answered, result } if answered == attempt => match result {
                Ok(stopped) => self.after_stop(then, &seen(stopped, &target)),
                // The deadline tries again; for a removal an event says so, because its sender
                // waits for it.
                Err(reason) => {
                    if then == Then::Remove {
                        self.removal_failed(reason);
                    }
                }
            },
            Event::DeadlinePassed(Wait::Stop) => self.stop(target, then, StopManner::AtOnce),
            Event::Recovered(found) => {
                let process = found.process.or(target.process);
                let manner = self.politely();
                self.stop(Target { process, endpoint: target.endpoint }, then, manner);
            }
            Event::Installed { .. }
            | Event::Spawned { .. }
            | Event::Launched { .. }
            | Event::Applied { .. }
            | Event::Limited { .. }
            | Event::Stopped { .. }
            | Event::Removed { .. }
            | Event::Exited { .. }
            | Event::HealthReported { .. }
            | Event::LocalChanged(_)
            | Event::ShutdownTaken { .. }
            | Event::Triggered(_)
            | Event::FactsChanged
            | Event::DeadlinePassed(_) => {}
        }
    }

    /// Stopped ──one beat──► Starting
    fn stopped(&mut self, then: Resume, event: Event) {
        match event {
            Event::Ordered { generation, order } => self.ordered(generation, order),
            Event::FactsChanged => self.weigh(),
            Event::DeadlinePassed(Wait::Resume) => match then {
                Resume::Start => self.launch(1),
                Resume::Swap => self.swap(),
            },
            // The beat begins anew: its timer is armed again.
            Event::Recovered(_)
            | Event::Installed { .. }
            | Event::Spawned { .. }
            | Event::Launched { .. }
            | Event::Applied { .. }
            | Event::Limited { .. }
            | Event::Stopped { .. }
            | Event::Removed { .. }
            | Event::Exited { .. }
            | Event::HealthReported { .. }
            | Event::LocalChanged(_)
            | Event::ShutdownTaken { .. }
            | Event::Triggered(_)
            | Event::DeadlinePassed(_) => {}
        }
    }

    /// Removing ──Removed──► Gone │ (ordered anew) Installing
    fn removing(&mut self, attempt: Attempt, failures: u32, event: Event) {
        match event {
            Event::Ordered { generation, order } => self.ordered(generation, order),
            Event::Removed { attempt: answered, result } if answered == attempt => match result {
                Ok(()) => self.removed(),
                Err(reason) => {
                    self.removal_failed(reason);
                    self.state.phase = Phase::Removing { attempt, failures: failures + 1 };
                }
            },
            Event::DeadlinePassed(Wait::Remove) | Event::Recovered(_) => self.remove(failures),
            Event::Installed { .. }
            | Event::Spawned { .. }
            | Event::Launched { .. }
            | Event::Applied { .. }
            | Event::Limited { .. }
            | Event::Stopped { .. }
            | Event::Removed { .. }
            | Event::Exited { .. }
            | Event::HealthReported { .. }
            | Event::LocalChanged(_)
            | Event::ShutdownTaken { .. }
            | Event::Triggered(_)
            | Event::FactsChanged
            | Event::DeadlinePassed(_) => {}
        }
    }

    /// Gone: the manager is about to forget it. An order that just missed it begins a new life.
    fn gone(&mut self, event: Event) {
        match event {
            Event::Ordered { generation, order } => self.ordered(generation, order),
            Event::Recovered(_) => self.effect(Effect::Retire),
            Event::Installed { .. }
            | Event::Spawned { .. }
            | Event::Launched { .. }
            | Event::Applied { .. }
            | Event::Limited { .. }
            | Event::Stopped { .. }
            | Event::Removed { .. }
            | Event::Exited { .. }
            | Event::HealthReported { .. }
            | Event::LocalChanged(_)
            | Event::ShutdownTaken { .. }
            | Event::Triggered(_)
            | Event::FactsChanged
            | Event::DeadlinePassed(_) => {}
        }
    }
}

/// The end of a stop as events report it. A process that lived when its stop began and is gone when
/// the stop looks for it did end: under an earlier stop whose answer was lost, with the agent or
/// because a later stop took its place. Its exit cause is unknown.
fn seen(stopped: Stopped, target: &Target) -> Stopped {
    match (stopped, &target.process) {
        (Stopped::NothingRan, Some(_)) => Stopped::Ended(ExitCause::Unknown),
        (stopped, _) => stopped,
    }
}
