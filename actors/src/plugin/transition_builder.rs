//! The arrows between phases: each method moves a state along one arrow and adds the effects.
//!
//! `machine.rs` chooses the transition for an event, `orders.rs` for an order; both build it here.

use std::sync::Arc;
use std::time::Duration;

use crate::model::act::HeldOrder;
use crate::model::event::PluginEventKind;
use crate::model::exit::{ExitCause, with_remedy, without_figures};
use crate::model::facts::FactSet;
use crate::model::id::{Attempt, Endpoint, Process, RevisionId};
use crate::model::runs::{Due, Runs, Trigger};
use crate::model::spec::PluginSpec;
use crate::plugin::event::{Effect, HealthVerdict, Transition, Whose};
use crate::plugin::live::Live;
use crate::plugin::restart::Restarts;
use crate::plugin::state::{
    Change, FailedAt, Next, Owed, Pause, Phase, Resume, Standing, State, Target, Then, Trial,
};
use crate::ports::{Cleanup, StopManner, Stopped};

mod changes;
mod ends;
mod shutdown;
mod trial;

/// A state in the making, with the effects so far.
pub(super) struct TransitionBuilder<'a> {
    pub(super) state: State,
    pub(super) facts: &'a FactSet,
    /// Whether the order that is being carried out was announced when it had to wait.
    pub(super) is_announced: bool,
    effects: Vec<Effect>,
}

/// A stop of a plugin that hangs is not given longer than this before signals are used.
const HUNG_STOP_TIMEOUT: Duration = Duration::from_secs(5);

// === impl TransitionBuilder ===

impl<'a> TransitionBuilder<'a> {
    pub(super) fn of(state: State, facts: &'a FactSet) -> Self {
        Self { state, facts, is_announced: false, effects: Vec::new() }
    }

    pub(super) fn finish(mut self) -> Transition {
        self.forget_shutdown();
        self.forget_removal_trouble();
        Transition { next: self.state, effects: self.effects }
    }

    pub(super) fn effect(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Whether the plugin is removed with the effects so far.
    pub(super) fn retires(&self) -> bool {
        self.effects.contains(&Effect::Retire)
    }

    pub(super) fn announce(&mut self, kind: PluginEventKind, details: &str) {
        let revision = self.state.spec.revision.clone();
        self.announce_for(revision, kind, details);
    }

    pub(super) fn announce_for(
        &mut self,
        revision: RevisionId,
        kind: PluginEventKind,
        details: &str,
    ) {
        self.tell(revision, kind, details, Whose::Newest);
    }

    pub(super) fn next_attempt(&mut self) -> Attempt {
        self.state.attempt = self.state.attempt.next();
        self.state.attempt
    }

    /// The current revision is put on disk, with nothing running beside it.
    pub(super) fn install(&mut self) {
        let spec = self.state.spec.clone();
        self.use_former(&spec);
        let attempt = self.next_attempt();
        self.run_for(Trigger::Install);
        self.state.owed.install = Due::Yes;
        self.state.phase = Phase::Installing { attempt };
        self.effect(Effect::Install { attempt, spec: self.state.spec.clone() });
    }

    /// Another revision is put on disk while the current one keeps running.
    pub(super) fn prepare(&mut self, spec: Arc<PluginSpec>) {
        self.use_former(&spec);
        let attempt = self.next_attempt();
        self.state.next = Next::Preparing { spec: spec.clone(), attempt };
        self.effect(Effect::Install { attempt, spec });
    }

    /// The current revision is started, unless its rules forbid it.
    pub(super) fn launch(&mut self, tries: u32) {
        if let Some(reason) = self.state.trial.as_ref().and_then(|trial| trial.taken_back.clone()) {
            self.return_to_last_good(reason);
            return;
        }
        if let Some(reason) = self.withheld() {
            self.rest_disabled(reason);
            return;
        }
        self.count_first_run();
        let attempt = self.next_attempt();
        self.state.phase = Phase::Starting { attempt, tries, process: None };
        self.state.limiting = None;
        let limits = self.state.limits();
        let spec = if limits == self.state.spec.limits {
            self.state.spec.clone()
        } else {
            Arc::new(PluginSpec { limits, ..PluginSpec::clone(&self.state.spec) })
        };
        self.effect(Effect::Launch { attempt, spec });
    }

    pub(super) fn politely(&self) -> StopManner {
        StopManner::Politely { timeout: self.state.spec.stop_timeout }
    }

    pub(super) fn stop(&mut self, target: Target, then: Then, manner: StopManner) {
        let attempt = self.next_attempt();
        // A local plugin goes because its manifest was removed; nobody ordered its data to be
        // deleted.
        let wipes = then == Then::Remove && !self.state.spec.is_local();
        let cleanup = if wipes { Cleanup::Wipe } else { Cleanup::Keep };
        self.effect(Effect::Stop { attempt, target: target.clone(), cleanup, manner });
        self.state.phase = Phase::Stopping { attempt, target, then };
    }

    pub(super) fn install_failed(&mut self, reason: Arc<str>) {
        self.state.owed.install = Due::No;
        self.announce(PluginEventKind::InstallFailed, &reason);
        self.fail_owed_apply("the plugin could not be installed");
        self.state.phase = Phase::InstallFailed { reason };
        self.fall_back_on_local();
    }

    /// The revision beside the current one is on disk, or its installation failed.
    pub(super) fn prepared(&mut self, spec: &Arc<PluginSpec>, result: Result<(), Arc<str>>) {
        if let Err(reason) = result {
            self.announce_for(spec.revision.clone(), PluginEventKind::InstallFailed, &reason);
            let revision = spec.revision.clone();
            self.state.next = Next::failed(revision, FailedAt::Install, reason);
            if matches!(self.state.phase, Phase::Crashed { .. }) {
                // The next revision was the only one that could still have taken it.
                self.fail_owed_apply("the plugin could not be installed");
            }
            if !spec.is_local() {
                self.follow_local();
            }
            return;
        }
        let stands =
            !matches!(self.state.phase, Phase::Crashed { .. } | Phase::InstallFailed { .. });
        if stands && self.is_replaced_by(spec) {
            // The files that were replaced in place may be used from now on.
            self.state.next = Next::Nothing;
            self.supersede_install("superseded by other files of the same revision");
            self.reconcile(spec.clone());
            return;
        }
        self.state.next = Next::Ready { spec: spec.clone() };
        match self.state.phase.clone() {
            Phase::Running { process, endpoint, change } => {
                self.keep_config_of(&change);
                self.effect(Effect::Unwatch);
                let target = Target { process: Some(process), endpoint: Some(endpoint) };
                let manner = self.politely();
                self.stop(target, Then::Swap, manner);
            }
            Phase::Starting { attempt, process, .. } => {
                self.effect(Effect::CancelLaunch { attempt });
                self.stop(Target { process, endpoint: None }, Then::Swap, StopManner::AtOnce);
            }
            Phase::Stopping { attempt, target, then } => {
                if then != Then::Remove {
                    self.state.phase = Phase::Stopping { attempt, target, then: Then::Swap };
                }
            }
            Phase::Stopped { .. } => self.state.phase = Phase::Stopped { then: Resume::Swap },
            Phase::Pausing { .. }
            | Phase::BackingOff { .. }
            | Phase::Idle
            | Phase::Disabled { .. }
            | Phase::Crashed { .. }
            | Phase::InstallFailed { .. } => self.swap(),
            // A newer order does not wait for a run of the older one.
            Phase::Executing { process, .. } => self.stop_run(process, Then::Swap),
            // None of these has a revision beside it.
            Phase::Installing { .. } | Phase::Held | Phase::Removing { .. } | Phase::Gone => {}
        }
    }

    /// The next revision takes over. Nothing runs at this point.
    pub(super) fn swap(&mut self) {
        let Next::Ready { spec: new } = std::mem::replace(&mut self.state.next, Next::Nothing)
        else {
            // The next revision was superseded while the old one stopped.
            self.launch(1);
            return;
        };
        let superseded = format!("superseded by revision {}", new.revision);
        if self.state.spec.config != new.config {
            // The INSTALL of the new revision came after the APPLY, and brings its own.
            self.supersede_owed_apply(&superseded);
        }
        self.supersede_install(&superseded);
        let old = std::mem::replace(&mut self.state.spec, new.clone());
        let proven = self.state.standing == Standing::Proven;
        let runs_once = |spec: &PluginSpec| spec.execution.one_shot().is_some();
        if runs_once(&old) || runs_once(&new) {
            self.replace_outright(&old);
            return;
        }
        self.state.trial = match self.state.trial.take() {
            Some(trial) if trial.last_good.is_revision_of(&new) => {
                self.discard(&old);
                None
            }
            Some(trial) => {
                self.discard(&old);
                Some(Trial::against(trial.last_good))
            }
            None if proven => self.way_back(old, &new).map(Trial::against),
            None => {
                self.discard(&old);
                None
            }
        };
        self.state.owed.install = Due::Yes;
        self.state.restarts = Restarts::default();
        self.launch(1);
    }

    /// A revision that runs to completion takes over, or takes the place of one that does: there is
    /// nothing to be on trial, and nothing to return to.
    fn replace_outright(&mut self, old: &PluginSpec) {
        let new = self.state.spec.clone();
        let last_good = self.state.trial.take().map(|trial| PluginSpec::clone(&trial.last_good));
        for gone in last_good.into_iter().chain([old.clone()]) {
            // What came with the machine stays on it.
            if gone.is_revision_of(&new) || gone.is_local() {
                continue;
            }
            let revision = gone.revision.clone();
            if self.state.standing == Standing::Proven {
                let details = "another revision takes its place";
                self.announce_for(revision.clone(), PluginEventKind::RemoveRequested, details);
                self.announce_for(revision, PluginEventKind::Removed, "");
            }
            self.discard(&gone);
        }
        self.drop_former();
        self.state.standing = Standing::Unproven;
        self.state.runs = Runs::default();
        self.run_for(Trigger::Install);
        self.state.owed.install = Due::Yes;
        self.state.restarts = Restarts::default();
        self.launch(1);
    }

    /// A launch answered: the plugin runs.
    pub(super) fn run(&mut self, process: Process, endpoint: Endpoint) {
        if self.is_one_shot() {
            self.begin_run(process);
            return;
        }
        let owed = std::mem::take(&mut self.state.owed);
        let quiet = owed == Owed::default() && !self.state.restarts.is_reported();
        if !quiet {
            let details = match self.state.restarts.in_a_row {
                0 => String::new(),
                n => format!("after {n} crashes in a row"),
            };
            self.announce(PluginEventKind::Started, &details);
        }
        if owed.install == Due::Yes {
            self.announce(PluginEventKind::Installed, "");
        }
        if owed.apply == Due::Yes {
            let details = "the plugin was started with the new configuration";
            self.end_apply(PluginEventKind::Applied, details);
        }
        self.state.standing = Standing::Proven;
        let watched = Some(endpoint.clone());
        self.effect(Effect::Watch { process: process.clone(), endpoint: watched });
        self.limit_if_due(&process);
        self.state.phase = Phase::Running { process, endpoint, change: Change::None };
    }

    pub(super) fn launch_failed(&mut self, tries: u32, reason: Arc<str>) {
        if tries < self.state.spec.start.attempts {
            self.state.phase = Phase::Pausing { tries, reason };
            return;
        }
        let then = self.start_failed(reason);
        self.conclude(then);
    }

    /// Announces that a start failed for good, and says what follows.
    pub(super) fn start_failed(&mut self, reason: Arc<str>) -> Then {
        let then = match (self.state.trial.is_some(), self.state.standing) {
            (true, _) => Then::Return { reason: reason.clone() },
            (false, Standing::Proven) if self.is_one_shot() => {
                Then::Fail { reason: format!("it could not be started: {reason}").into() }
            }
            (false, Standing::Proven) => {
                self.state.restarts = self.state.restarts.crashed();
                Then::BackOff { reason: reason.clone() }
            }
            (false, Standing::Unproven) => Then::Rest { reason: reason.clone() },
        };
        let owed = std::mem::take(&mut self.state.owed);
        // Like a plugin that crashes again and again, one that cannot be started is not reported
        // every time.
        if owed != Owed::default() || self.state.restarts.is_reported() {
            let details = match then {
                Then::BackOff { .. } => self.state.restarts.details(&reason),
                _ => reason.to_string(),
            };
            self.announce(PluginEventKind::StartFailed, &details);
        }
        if self.state.trial.is_some() {
            self.take_back(&reason);
        } else if owed.install == Due::Yes {
            self.announce(PluginEventKind::InstallFailed, &reason);
        }
        if owed.apply == Due::Yes {
            self.end_apply(PluginEventKind::ApplyFailed, &reason);
        }
        then
    }

    /// The watched process ended by itself.
    pub(super) fn exited(&mut self, live: &Live, cause: ExitCause) {
        self.state.last_exit = Some(cause);
        self.keep_config_of(&live.change);
        self.effect(Effect::Unwatch);
        self.effect(Effect::Sweep);
        if self.ends_with_machine(cause) {
            self.end_with_machine(cause);
            return;
        }
        let reason = self.in_words(cause);
        let then = self.crashed(reason);
        self.conclude(then);
    }

    /// How the process ended, with what would help.
    pub(super) fn in_words(&self, cause: ExitCause) -> Arc<str> {
        cause.advised(self.state.name.as_str(), self.state.limits().memory_bytes).into()
    }

    /// The process stayed over its memory limit. Returns why, with what would help.
    pub(super) fn over_memory(&mut self, reason: &str, peak: u64) -> Arc<str> {
        let cause = ExitCause::OverMemoryLimit { peak: Some(peak) };
        self.state.last_exit = Some(cause);
        let proposed = cause.proposed_limit(self.state.limits().memory_bytes);
        with_remedy(reason, self.state.name.as_str(), proposed).into()
    }

    /// Announces a crash, and says what follows.
    fn crashed(&mut self, reason: Arc<str>) -> Then {
        if self.state.trial.is_some() {
            self.announce(PluginEventKind::Crashed, &reason);
            self.take_back(&format!("{}, while on probation", without_figures(&reason)));
            return Then::Return { reason };
        }
        self.state.restarts = self.state.restarts.crashed();
        if self.state.restarts.is_reported() {
            let details = self.state.restarts.details(&reason);
            self.announce(PluginEventKind::Crashed, &details);
        }
        Then::BackOff { reason }
    }

    /// The monitor came to a judgement about the running process.
    pub(super) fn judged(&mut self, live: &Live, verdict: HealthVerdict) {
        let reason = match verdict {
            HealthVerdict::Healthy => return,
            // Outside of a trial an unhealthy plugin is shown and not restarted: its process runs
            // and answers.
            HealthVerdict::Unhealthy(_) if self.state.trial.is_none() => return,
            HealthVerdict::Unhealthy(reason) | HealthVerdict::Hung(reason) => {
                // Its end has not come yet.
                self.state.last_exit = Some(ExitCause::Unknown);
                reason
            }
            HealthVerdict::OverMemory { reason, peak } => self.over_memory(&reason, peak),
        };
        self.keep_config_of(&live.change);
        self.effect(Effect::Unwatch);
        let then = self.crashed(reason);
        let timeout = self.state.spec.stop_timeout.min(HUNG_STOP_TIMEOUT);
        self.stop(live.target(), then, StopManner::Politely { timeout });
    }

    /// A running plugin is stopped by an order.
    pub(super) fn stop_running(&mut self, live: &Live, then: Then) {
        self.effect(Effect::Unwatch);
        let manner = self.politely();
        self.stop(live.target(), then, manner);
    }

    /// The processes that were to be stopped have ended.
    pub(super) fn after_stop(&mut self, then: Then, stopped: &Stopped) {
        if let Stopped::Ended(cause) = stopped {
            if !self.is_ended_for_memory(&then) {
                self.state.last_exit = Some(*cause);
            }
            match &then {
                Then::Start | Then::Swap | Then::Remove => {
                    self.announce(PluginEventKind::Stopped, &cause.to_string());
                }
                Then::Disable { reason } => {
                    self.announce(PluginEventKind::Stopped, &format!("{cause}; {reason}"));
                }
                // These were announced as a crash or a failed start, or as a failed run.
                Then::Return { .. }
                | Then::BackOff { .. }
                | Then::Rest { .. }
                | Then::Fail { .. } => {}
            }
        }
        if self.state.runs.unfinished == Due::Yes && !matches!(then, Then::Fail { .. }) {
            self.run_failed("it was stopped before it ended".into());
        }
        self.conclude(then);
    }

    /// Whether the process that was stopped had to go because of its memory: that says more than
    /// the signal which ended it.
    fn is_ended_for_memory(&self, then: &Then) -> bool {
        let own_doing = match then {
            Then::BackOff { .. } | Then::Return { .. } | Then::Fail { .. } => true,
            Then::Start | Then::Swap | Then::Rest { .. } | Then::Remove | Then::Disable { .. } => {
                false
            }
        };
        own_doing && matches!(self.state.last_exit, Some(ExitCause::OverMemoryLimit { .. }))
    }

    /// Takes the step that was to follow the end of the process. No process runs at this point.
    fn conclude(&mut self, then: Then) {
        match then {
            Then::Start => self.state.phase = Phase::Stopped { then: Resume::Start },
            Then::Swap => self.state.phase = Phase::Stopped { then: Resume::Swap },
            Then::Return { reason } => self.return_to_last_good(reason),
            Then::BackOff { reason } => self.back_off(reason),
            Then::Rest { reason } => {
                // One that came after the last launch; a next revision can still take it.
                if !matches!(self.state.next, Next::Preparing { .. }) {
                    self.fail_owed_apply("the plugin could not be started");
                }
                let spec = self.state.spec.clone();
                self.discard(&spec);
                self.state.phase = Phase::Crashed { reason };
                self.fall_back_on_local();
            }
            // The files of a local plugin are not the agent's to delete.
            Then::Remove if self.state.spec.is_local() => self.removed(),
            Then::Remove => self.remove(0),
            Then::Fail { reason } => {
                self.run_failed(reason);
                self.rest_idle();
            }
            Then::Disable { reason } => self.stopped_by_rules(reason),
        }
    }

    fn back_off(&mut self, reason: Arc<str>) {
        self.state.phase = Phase::BackingOff { reason, pause: Pause::AfterCrash };
    }

    /// All files of the plugin are deleted.
    pub(super) fn remove(&mut self, failures: u32) {
        let attempt = self.next_attempt();
        self.state.phase = Phase::Removing { attempt, failures };
        self.effect(Effect::Remove { attempt });
    }

    /// The removal did not succeed yet and is tried again. Its event is sent once for each REMOVE:
    /// a process that the kernel does not end would otherwise be reported for ever.
    pub(super) fn removal_failed(&mut self, reason: Arc<str>) {
        if self.state.removal_trouble.is_none() {
            self.announce(PluginEventKind::RemoveFailed, &reason);
        }
        self.state.removal_trouble = Some(reason);
    }

    fn forget_removal_trouble(&mut self) {
        let is_removed = matches!(
            self.state.phase,
            Phase::Stopping { then: Then::Remove, .. } | Phase::Removing { .. }
        );
        if !is_removed {
            self.state.removal_trouble = None;
        }
    }

    /// All files of the plugin are deleted. The plugin is gone, unless it was ordered again
    /// meanwhile.
    pub(super) fn removed(&mut self) {
        self.announce(PluginEventKind::Removed, "");
        // Its files went with all others.
        self.state.former = None;
        match std::mem::replace(&mut self.state.next, Next::Nothing) {
            Next::AfterRemoval { spec } => self.reborn(spec),
            Next::Nothing | Next::Preparing { .. } | Next::Ready { .. } | Next::Failed { .. } => {
                match (self.state.local.clone(), &self.state.person.held_order) {
                    (Some(local), _) => self.return_to_local(local),
                    // Its INSTALL came while the removal was under way, and waits.
                    (None, Some(HeldOrder::Install(spec))) => self.rest_held(spec.clone()),
                    (None, _) => {
                        self.state.phase = Phase::Gone;
                        self.effect(Effect::Retire);
                    }
                }
            }
        }
    }

    /// The files of a revision that is let go are deleted, if they are the agent's.
    pub(super) fn discard(&mut self, spec: &PluginSpec) {
        if !spec.is_local() {
            self.effect(Effect::Discard { revision: spec.revision.clone() });
        }
    }

    /// Another plugin begins under the old name.
    pub(super) fn reborn(&mut self, spec: Arc<PluginSpec>) {
        self.forget_life(spec);
        self.install();
    }

    /// Another plugin is to begin under the old name when a hold ends.
    pub(super) fn rest_held(&mut self, spec: Arc<PluginSpec>) {
        self.forget_life(spec);
        self.state.phase = Phase::Held;
    }

    fn forget_life(&mut self, spec: Arc<PluginSpec>) {
        self.drop_former();
        self.state.spec = spec;
        self.state.next = Next::Nothing;
        self.state.trial = None;
        self.state.standing = Standing::Unproven;
        self.state.restarts = Restarts::default();
        self.state.runs = Runs::default();
        self.state.last_exit = None;
    }
}
