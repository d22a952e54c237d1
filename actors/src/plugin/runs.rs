//! Runs of one-shot plugins, and what rules do to a plugin of either kind.
//!
//! A one-shot plugin runs once when a revision of it is installed, and then whenever a trigger
//! names something it has not run for: another boot, another instance, another beat of its
//! interval. What it ran for last is part of its state and durable before the run begins, so no
//! trigger makes it run twice, whatever happens to the agent; a trigger that comes while a run is
//! under way counts for that run.
//!
//! Every run that was announced as started is announced as completed or failed exactly once.
//!
//! `machine.rs` decides which of these arrows is taken when something happened.

use std::sync::Arc;

use crate::model::act::stopped_by;
use crate::model::event::PluginEventKind;
use crate::model::exit::ExitCause;
use crate::model::id::Process;
use crate::model::runs::{Due, Firing, Heeded, Mark, Marks, Outcome, Trigger};
use crate::model::spec::{Difference, PluginSpec};
use crate::plugin::event::{Boot, Effect, Found};
use crate::plugin::state::{EXECUTION_SLICES, Phase, Resume, Standing, Target, Then};
use crate::plugin::transition_builder::TransitionBuilder;
use crate::ports::StopManner;
use crate::scheduler::rules::{RuleVerdict, evaluate};

/// The reason that the event gives for a run whose process has ended, because the machine restarted
/// or the agent ended together with its plugins.
const CUT_SHORT: &str = "the run was cut short by a restart";

// === impl TransitionBuilder: runs ===

impl TransitionBuilder<'_> {
    pub(super) fn is_one_shot(&self) -> bool {
        self.state.spec.execution.one_shot().is_some()
    }

    /// A revision that never ran counts its first run for the current occurrences.
    pub(super) fn count_first_run(&mut self) {
        let first =
            self.state.standing == Standing::Unproven || self.state.owed.install == Due::Yes;
        if first && self.is_one_shot() {
            self.state.runs.marks = Marks::counted();
        }
    }

    /// The next run of a one-shot plugin, also one that comes after a stop, a pause or a restart of
    /// the agent, begins for this reason. It is durable with the decision.
    pub(super) fn run_for(&mut self, trigger: Trigger) {
        self.state.runs.trigger = self.is_one_shot().then_some(trigger);
    }

    /// Between two runs: a trigger makes the plugin run, unless it did for the same before.
    pub(super) fn triggered(&mut self, firing: Firing) {
        let trigger = firing.trigger();
        if self.heed(firing) == Heeded::Run {
            self.run_for(trigger);
            self.launch(1);
        }
    }

    /// During a run: a trigger counts for it, so that runs do not pile up.
    pub(super) fn coalesce(&mut self, firing: Firing) {
        self.heed(firing);
    }

    fn heed(&mut self, firing: Firing) -> Heeded {
        let Some(one_shot) = self.state.spec.execution.one_shot() else { return Heeded::Counted };
        let (triggers, marks) = (one_shot.triggers, &mut self.state.runs.marks);
        match firing {
            Firing::Startup(boot) if triggers.startup => marks.startup.heed(boot),
            Firing::FirstBoot(instance) if triggers.firstboot => marks.firstboot.heed(instance),
            Firing::Interval(beat) if triggers.interval.is_some() => marks.interval.heed_beat(beat),
            // Fired for a spec that was replaced meanwhile.
            Firing::Startup(_) | Firing::FirstBoot(_) | Firing::Interval(_) => Heeded::Counted,
        }
    }

    /// The machine restarted: a run of before does not count for the boot that is current now.
    pub(super) fn rebooted(&mut self) {
        let startup = &mut self.state.runs.marks.startup;
        if *startup == Mark::Counted {
            *startup = Mark::Never;
        }
    }

    /// A run has a process.
    pub(super) fn begin_run(&mut self, process: Process) {
        let owed = std::mem::take(&mut self.state.owed);
        self.announce(PluginEventKind::Started, "");
        if owed.install == Due::Yes {
            self.announce(PluginEventKind::Installed, "");
        }
        if owed.apply == Due::Yes {
            let details = "the plugin was started with the new configuration";
            self.end_apply(PluginEventKind::Applied, details);
        }
        self.state.standing = Standing::Proven;
        self.state.runs.total = self.state.runs.total.saturating_add(1);
        self.state.runs.unfinished = Due::Yes;
        self.effect(Effect::Watch { process: process.clone(), endpoint: None });
        self.limit_if_due(&process);
        self.state.phase = Phase::Executing { process, slices_left: EXECUTION_SLICES };
    }

    /// A run ended by itself.
    pub(super) fn run_ended(&mut self, cause: ExitCause) {
        self.state.last_exit = Some(cause);
        self.effect(Effect::Unwatch);
        self.effect(Effect::Sweep);
        if cause == ExitCause::Exited(0) {
            self.announce(PluginEventKind::ExecutionCompleted, "");
            self.state.runs.last = Outcome::Completed;
            self.state.runs.unfinished = Due::No;
        } else {
            self.run_failed(self.in_words(cause));
        }
        self.rest_idle();
    }

    /// The outcome of a run that failed, or could not begin.
    pub(super) fn run_failed(&mut self, reason: Arc<str>) {
        self.announce(PluginEventKind::ExecutionFailed, &reason);
        self.state.runs.last = Outcome::Failed { reason };
        self.state.runs.unfinished = Due::No;
    }

    /// One more part of the time that a run may take is over.
    pub(super) fn run_takes_long(&mut self, process: Process, slices_left: u32) {
        let slices_left = slices_left.saturating_sub(1);
        if slices_left > 0 {
            self.state.phase = Phase::Executing { process, slices_left };
            return;
        }
        let timeout = self.state.spec.execution.timeout().as_secs_f32();
        let reason = format!("it did not end within {timeout}s").into();
        self.stop_run(process, Then::Fail { reason });
    }

    /// A run is cut short.
    pub(super) fn stop_run(&mut self, process: Process, then: Then) {
        self.effect(Effect::Unwatch);
        let manner = self.politely();
        self.stop(Target { process: Some(process), endpoint: None }, then, manner);
    }

    /// The agent restarted during a run. The run continues, or the agent asks the kernel how its
    /// process ended; the run is not begun again.
    pub(super) fn run_recovered(&mut self, process: Process, found: &Found) {
        if found.process.as_ref() != Some(&process) && found.boot == Boot::New {
            self.effect(Effect::Sweep);
            self.run_failed(CUT_SHORT.into());
            self.rest_idle();
            return;
        }
        self.effect(Effect::Watch { process: process.clone(), endpoint: None });
        if found.process.as_ref() == Some(&process) {
            self.limit_if_due(&process);
        }
    }

    /// The agent restarted when a run was about to begin. The agent finds out whether it did, if it
    /// can; the run does not begin a second time for the same occurrence.
    pub(super) fn start_of_run_recovered(&mut self, recorded: Option<Process>, found: Found) {
        let recorded_pid = recorded.as_ref().map(|process| process.pid);
        let survivor = match found.boot {
            Boot::Same => found.process.or(recorded),
            Boot::New => found.process,
        };
        if let Some(process) = survivor {
            self.begin_run(process);
            return;
        }
        let reason = match recorded_pid {
            Some(_) => CUT_SHORT,
            None => {
                "the agent restarted when the run was about to begin; whether it ran is unknown"
            }
        };
        if std::mem::take(&mut self.state.owed.install) == Due::Yes {
            self.announce(PluginEventKind::Installed, "");
        }
        self.state.standing = Standing::Proven;
        self.run_failed(reason.into());
        self.rest_idle();
    }

    /// A one-shot plugin waits for its next trigger.
    pub(super) fn rest_idle(&mut self) {
        self.settle_owed("the plugin is installed", "the next run takes it");
        self.state.phase = Phase::Idle;
        self.weigh();
    }

    /// The same revision of a one-shot plugin is ordered once more. It does not run for that.
    pub(super) fn reconcile_one_shot(&mut self, spec: Arc<PluginSpec>, difference: Difference) {
        let interval = |spec: &PluginSpec| {
            spec.execution.one_shot().and_then(|one_shot| one_shot.triggers.interval)
        };
        if interval(&self.state.spec) != interval(&spec) {
            self.state.runs.marks.interval = Mark::Counted;
        }
        self.state.spec = spec;
        if matches!(self.state.phase, Phase::Starting { .. }) {
            self.state.owed.install = Due::Yes;
            return;
        }
        self.announce(
            PluginEventKind::Installed,
            match difference {
                Difference::Unnoticed => "already installed",
                Difference::Config
                | Difference::Limits
                | Difference::Launch
                | Difference::Archive => "already installed; the next run takes what changed",
            },
        );
    }
}

// === impl TransitionBuilder: rules ===

impl TransitionBuilder<'_> {
    /// Whether the plugin may run: a person who stopped it decides before its rules do.
    fn verdict(&self) -> RuleVerdict {
        if let Some(by) = &self.state.person.stopped {
            return RuleVerdict::Disabled { because: stopped_by(by) };
        }
        evaluate(&self.state.spec.execution.rules, self.facts)
    }

    /// Why the plugin must not be started now, if it must not. Where rules cannot be decided, a
    /// plugin that ran keeps running, and one that never ran is not started.
    pub(super) fn withheld(&self) -> Option<Arc<str>> {
        let rests = matches!(self.state.phase, Phase::Disabled { .. });
        match self.verdict() {
            RuleVerdict::Enabled { .. } => None,
            RuleVerdict::Disabled { because } => Some(because),
            RuleVerdict::Unknown { why } => {
                (rests || self.state.standing == Standing::Unproven).then_some(why)
            }
        }
    }

    /// The plugin is installed and does not run.
    pub(super) fn rest_disabled(&mut self, reason: Arc<str>) {
        self.settle_owed(
            &format!("installed, and not started: {reason}"),
            "the plugin takes it when it is started",
        );
        self.state.phase = Phase::Disabled { reason };
    }

    fn settle_owed(&mut self, installed: &str, applied: &str) {
        let owed = std::mem::take(&mut self.state.owed);
        if owed.install == Due::Yes {
            self.announce(PluginEventKind::Installed, installed);
        }
        if owed.apply == Due::Yes {
            self.end_apply(PluginEventKind::Applied, applied);
        }
    }

    /// The facts about the machine changed, or the rules did.
    pub(super) fn weigh(&mut self) {
        match (self.state.phase.clone(), self.verdict()) {
            (Phase::Disabled { .. }, RuleVerdict::Enabled { .. }) => self.enable(Trigger::Rule),
            (Phase::Disabled { .. }, RuleVerdict::Disabled { because }) => {
                self.state.phase = Phase::Disabled { reason: because };
            }
            (Phase::Running { process, endpoint, change }, RuleVerdict::Disabled { because }) => {
                self.keep_config_of(&change);
                let live = super::live::Live { process, endpoint, change };
                self.stop_running(&live, Then::Disable { reason: because });
            }
            // The start of a run is as good as a run: it is not cut short.
            (Phase::Starting { attempt, process, .. }, RuleVerdict::Disabled { because })
                if !self.is_one_shot() =>
            {
                self.effect(Effect::CancelLaunch { attempt });
                let target = Target { process, endpoint: None };
                self.stop(target, Then::Disable { reason: because }, StopManner::AtOnce);
            }
            (
                Phase::Idle
                | Phase::Pausing { .. }
                | Phase::BackingOff { .. }
                | Phase::Stopped { then: Resume::Start },
                RuleVerdict::Disabled { because },
            ) => self.rest_disabled(because),
            // The others do not run, or look at the rules before they start anything.
            (
                Phase::Installing { .. }
                | Phase::InstallFailed { .. }
                | Phase::Starting { .. }
                | Phase::Pausing { .. }
                | Phase::Running { .. }
                | Phase::Executing { .. }
                | Phase::Idle
                | Phase::Disabled { .. }
                | Phase::BackingOff { .. }
                | Phase::Stopping { .. }
                | Phase::Stopped { .. }
                | Phase::Crashed { .. }
                | Phase::Held
                | Phase::Removing { .. }
                | Phase::Gone,
                RuleVerdict::Enabled { .. }
                | RuleVerdict::Disabled { .. }
                | RuleVerdict::Unknown { .. },
            ) => {}
        }
    }

    /// A disabled plugin may run, unless its rules still say otherwise.
    pub(super) fn enable(&mut self, trigger: Trigger) {
        if let Some(reason) = self.withheld() {
            self.rest_disabled(reason);
        } else if self.is_one_shot() && self.state.standing == Standing::Proven {
            self.settle_owed("already installed", "the next run takes it");
            self.state.phase = Phase::Idle;
        } else {
            self.state.restarts = self.state.restarts.forgiven();
            self.run_for(trigger);
            self.launch(1);
        }
    }

    /// The plugin was stopped because of its rules.
    pub(super) fn stopped_by_rules(&mut self, reason: Arc<str>) {
        match self.verdict() {
            // The rules allow it again by now.
            RuleVerdict::Enabled { .. } => {
                self.run_for(Trigger::Rule);
                self.state.phase = Phase::Stopped { then: Resume::Start };
            }
            RuleVerdict::Disabled { because } => self.rest_disabled(because),
            RuleVerdict::Unknown { .. } => self.rest_disabled(reason),
        }
    }
}
