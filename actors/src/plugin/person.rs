//! The requests of a person on the machine for one plugin: to be stopped, started, taken back to the
//! revision before, or limited in another way than its orders say. Holds are in `held.rs`.
//!
//! A stop is one more reason not to run, beside rules: whatever asks whether a plugin may be
//! started gets the same answer from both (`runs.rs`). It lasts until it is taken back, over
//! restarts of the agent and of the machine, and what is ordered meanwhile is carried out as far as
//! it can be without a process.
//!
//! A rollback is the agent's own return to the last good revision, on request. The revision that was
//! left is not taken again until another one is ordered, or a person releases it: a control plane
//! that repeats its order would undo the rollback.

use std::sync::Arc;

use crate::model::act::{Act, HeldOrder, Left, LimitOverride, Person, stopped_by};
use crate::model::event::PluginEventKind;
use crate::model::id::{Process, RevisionId};
use crate::model::runs::Trigger;
use crate::model::spec::PluginSpec;
use crate::plugin::event::Effect;
use crate::plugin::live::Live;
use crate::plugin::state::{Next, Pause, Phase, Target, Then, Trial};
use crate::plugin::transition_builder::TransitionBuilder;
use crate::ports::StopManner;

// === impl TransitionBuilder: people ===

impl TransitionBuilder<'_> {
    pub(super) fn asked(&mut self, act: Act) {
        match act {
            Act::Stop(by) => self.ordered_stop(by),
            Act::Start => self.ordered_start(),
            Act::Rollback(by) => self.ordered_rollback(by),
            Act::Hold(hold) => self.ordered_hold(hold),
            Act::Release => {
                self.state.person.left = None;
                self.end_hold();
            }
            Act::Dismiss { by, revision } => self.dismiss(by, &revision),
            Act::Limit(limits) => self.ordered_limits(limits),
        }
    }

    /// A person knows of the failure of this revision. A failure that came after the person looked
    /// counts on.
    fn dismiss(&mut self, by: Arc<str>, revision: &RevisionId) {
        if let Next::Failed { revision: failed, dismissed, .. } = &mut self.state.next
            && failed == revision
        {
            *dismissed = Some(by);
        }
    }

    /// Limits count over the limits of orders, or those of orders count again. A limit that a
    /// person gave before stays where this order gives none.
    fn ordered_limits(&mut self, limits: Option<LimitOverride>) {
        let comes_back = matches!(self.state.next, Next::AfterRemoval { .. })
            || matches!(self.state.person.held_order, Some(HeldOrder::Install(_)));
        if self.state.phase == Phase::Gone || (self.is_leaving() && !comes_back) {
            return;
        }
        let in_force = self.state.limits();
        let before = self.state.person.limits.take().map(|before| before.limits);
        self.state.person.limits = limits
            .map(|new| LimitOverride { limits: new.limits.or(before.unwrap_or_default()), ..new });
        if self.state.limits() == in_force {
            return;
        }
        match self.state.phase.clone() {
            Phase::Running { process, .. } | Phase::Executing { process, .. } => {
                self.limit_process(process);
            }
            // The launch in flight sets the limits of before.
            Phase::Starting { .. } => self.state.limiting = Some(self.next_attempt()),
            // The plugin may have come down for lack of what it has now.
            Phase::Pausing { .. } | Phase::BackingOff { pause: Pause::AfterCrash, .. } => {
                self.state.restarts = self.state.restarts.forgiven();
                self.launch(1);
            }
            // The next start sets them.
            Phase::BackingOff { pause: Pause::AfterShutdown, .. }
            | Phase::Installing { .. }
            | Phase::InstallFailed { .. }
            | Phase::Idle
            | Phase::Disabled { .. }
            | Phase::Stopping { .. }
            | Phase::Stopped { .. }
            | Phase::Crashed { .. }
            | Phase::Held
            | Phase::Removing { .. }
            | Phase::Gone => {}
        }
    }

    /// The limits that a person changed are set for the process that runs, beside whatever else is
    /// being changed of it.
    pub(super) fn limit_process(&mut self, process: Process) {
        let (attempt, limits) = (self.next_attempt(), self.state.limits());
        self.effect(Effect::Limit { attempt, process, limits });
        self.state.limiting = Some(attempt);
    }

    /// The same for a process that was started with the limits of before, or whose agent ended meanwhile.
    pub(super) fn limit_if_due(&mut self, process: &Process) {
        if self.state.limiting.is_some() {
            self.limit_process(process.clone());
        }
    }

    /// The limits that a person changed are set, or only a start can set them. A run is not cut short
    /// for that.
    pub(super) fn process_limited(&mut self, live: Option<&Live>, result: Result<(), Arc<str>>) {
        self.state.limiting = None;
        if let (Some(live), Err(_)) = (live, result) {
            self.keep_config_of(&live.change);
            self.stop_running(live, Then::Start);
        }
    }

    /// The plugin is to stay stopped.
    fn ordered_stop(&mut self, by: Arc<str>) {
        if self.is_leaving() || self.state.phase == Phase::Gone {
            return;
        }
        let reason = stopped_by(&by);
        self.state.person.stopped = Some(by);
        match self.state.phase.clone() {
            // Rules do not cut a run short; a person does.
            Phase::Executing { process, .. } => self.stop_run(process, Then::Disable { reason }),
            Phase::Starting { attempt, process, .. } => {
                self.effect(Effect::CancelLaunch { attempt });
                let target = Target { process, endpoint: None };
                self.stop(target, Then::Disable { reason }, StopManner::AtOnce);
            }
            Phase::Stopping { attempt, target, then: Then::Start | Then::BackOff { .. } } => {
                let then = Then::Disable { reason };
                self.state.phase = Phase::Stopping { attempt, target, then };
            }
            Phase::Running { .. }
            | Phase::Installing { .. }
            | Phase::InstallFailed { .. }
            | Phase::Pausing { .. }
            | Phase::Idle
            | Phase::Disabled { .. }
            | Phase::BackingOff { .. }
            | Phase::Stopping { .. }
            | Phase::Stopped { .. }
            | Phase::Crashed { .. }
            | Phase::Held
            | Phase::Removing { .. }
            | Phase::Gone => self.weigh(),
        }
    }

    /// The plugin may run again. One that was not stopped is started where it does not run.
    fn ordered_start(&mut self) {
        let was_stopped = self.state.person.stopped.take().is_some();
        match self.state.phase {
            Phase::Disabled { .. } if was_stopped => self.enable(Trigger::Person),
            Phase::Disabled { .. }
            | Phase::Pausing { .. }
            | Phase::BackingOff { .. }
            | Phase::InstallFailed { .. }
            | Phase::Crashed { .. } => self.ordered_restart(),
            // A stop under way looks again when it is over.
            Phase::Stopping { .. }
            | Phase::Running { .. }
            | Phase::Executing { .. }
            | Phase::Starting { .. }
            | Phase::Installing { .. }
            | Phase::Idle
            | Phase::Stopped { .. }
            | Phase::Held
            | Phase::Removing { .. }
            | Phase::Gone => {}
        }
    }

    /// The revision before is to run again. Nothing happens where none is on disk.
    fn ordered_rollback(&mut self, by: Arc<str>) {
        let returns = matches!(
            self.state.phase,
            Phase::Running { .. }
                | Phase::Starting { .. }
                | Phase::Pausing { .. }
                | Phase::Disabled { .. }
                | Phase::BackingOff { .. }
                | Phase::Stopping { .. }
                | Phase::Stopped { .. }
        );
        let Some(target) = self.state.way_back() else { return };
        if !returns || self.is_leaving() {
            return;
        }
        if matches!(self.state.phase, Phase::Stopping { then: Then::Return { .. }, .. }) {
            // The agent returns by itself already, and has said why.
            let revision = self.state.spec.revision.clone();
            self.state.person.left = Some(Left { revision, by });
            return;
        }
        let (target, reason) = (target.clone(), Arc::<str>::from(format!("rolled back by {by}")));
        // What failed before is of a newer order than the revision that is left now.
        if !matches!(self.state.next, Next::Failed { .. }) {
            self.drop_next(Some("superseded by a rollback"), Some(&target));
        }
        self.supersede_apply("superseded by a rollback");
        let revision = self.state.spec.revision.clone();
        self.state.person.left = Some(Left { revision, by });
        if let Some(last_good) = self.state.former.take_if(|_| self.state.trial.is_none()) {
            self.state.trial = Some(Trial::against(last_good));
        }
        // The end of its order, if that has none yet.
        self.take_back(&reason);
        match self.state.phase.clone() {
            Phase::Running { process, endpoint, change } => {
                self.stop_running(&Live { process, endpoint, change }, Then::Return { reason });
            }
            Phase::Starting { attempt, process, .. } => {
                self.effect(Effect::CancelLaunch { attempt });
                let target = Target { process, endpoint: None };
                self.stop(target, Then::Return { reason }, StopManner::AtOnce);
            }
            Phase::Stopping { attempt, target, .. } => {
                let then = Then::Return { reason };
                self.state.phase = Phase::Stopping { attempt, target, then };
            }
            _nothing_runs => self.return_to_last_good(reason),
        }
    }

    /// Refuses an INSTALL of the revision that a person rolled back; another one ends that.
    /// Returns whether it was refused.
    pub(super) fn refuse_left(&mut self, spec: &PluginSpec) -> bool {
        let Some(left) = self.state.person.left.clone() else { return false };
        if left.revision != spec.revision {
            self.state.person.left = None;
            return false;
        }
        let Left { revision, by } = left;
        self.announce_order(revision.clone(), PluginEventKind::InstallRequested, "");
        let details = format!(
            "revision {revision} was rolled back by {by}: order another one, or let it in again with \
             `guest-agent release {}`",
            self.state.name
        );
        self.announce_for(revision, PluginEventKind::InstallFailed, &details);
        true
    }

    /// A revision that proved itself leaves the one before it on disk, to return to.
    pub(super) fn keep_former(&mut self, old: Arc<PluginSpec>) {
        if let Some(older) = self.state.former.replace(old) {
            self.discard(&older);
        }
    }

    /// A revision is about to be put on disk. Where its files are those of the former one, they are
    /// used again; others of the same name go first.
    pub(super) fn use_former(&mut self, spec: &PluginSpec) {
        let former = self.state.former.take_if(|former| former.is_revision_of(spec));
        if let Some(former) = former.filter(|former| !former.has_files_of(spec)) {
            self.discard(&former);
        }
    }

    /// Nothing returns to the former revision any more.
    pub(super) fn drop_former(&mut self) {
        if let Some(former) = self.state.former.take() {
            self.discard(&former);
        }
    }

    /// A removal ends what people asked for, but for a hold that came after it: what is ordered to
    /// follow the removal waits.
    pub(super) fn forget_person(&mut self) {
        let hold = self.state.person.hold.take();
        self.state.person = Person { hold, ..Person::default() };
    }
}
