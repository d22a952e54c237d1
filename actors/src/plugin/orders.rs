//! What an order does in each phase. The latest order wins: work in flight for an older one is
//! cancelled, and an event reports that to the control plane; only an Apply call is waited for.

use std::sync::Arc;

use crate::model::event::PluginEventKind;
use crate::model::id::{Generation, RevisionId};
use crate::model::runs::{Due, Trigger};
use crate::model::spec::{Config, Difference, PluginSpec};
use crate::plugin::event::{Effect, Order};
use crate::plugin::live::Live;
use crate::plugin::restart::Restarts;
use crate::plugin::state::{Change, Newer, Next, Owed, Phase, Resume, Standing, Target, Then};
use crate::plugin::transition_builder::TransitionBuilder;
use crate::ports::StopManner;

// === impl TransitionBuilder: orders ===

impl TransitionBuilder<'_> {
    /// Takes an order, unless it or a later one was taken before.
    pub(super) fn ordered(&mut self, generation: Generation, order: Order) {
        if generation <= self.state.generation {
            return;
        }
        self.state.generation = generation;
        match self.hold_back(order) {
            // It waits for the end of a hold.
            None => {}
            Some(Order::Install(spec)) => self.ordered_install(spec),
            Some(Order::Remove) => self.ordered_remove(),
            Some(Order::Apply(config)) => self.ordered_apply(config, None),
            Some(Order::Restart) => self.ordered_restart(),
            Some(Order::Asked(act)) => self.asked(act),
        }
        if self.state.phase == Phase::Gone && !self.retires() {
            // The order came just after the plugin's end, and the manager keeps the plugin on the
            // roster until the plugin retires at this order's number.
            self.effect(Effect::Retire);
        }
    }

    pub(super) fn ordered_install(&mut self, spec: Arc<PluginSpec>) {
        if let Some(installed) = self.archive_in_the_way_of(&spec) {
            self.refuse_archive(&installed);
            return;
        }
        if self.refuse_left(&spec) {
            return;
        }
        self.announce_install(&spec);
        let superseded = superseded_by(&spec);
        match self.state.phase.clone() {
            Phase::Gone => self.reborn(spec),
            Phase::Removing { .. } | Phase::Stopping { then: Then::Remove, .. } => {
                self.supersede_next(&spec, &superseded);
                self.state.next = Next::AfterRemoval { spec };
            }
            Phase::Installing { .. } => self.install_instead(spec),
            Phase::Held | Phase::InstallFailed { .. } | Phase::Crashed { .. } => {
                self.supersede_next(&spec, &superseded);
                self.take_config_of(&spec);
                self.reborn(spec);
            }
            Phase::Starting { .. }
            | Phase::Pausing { .. }
            | Phase::Running { .. }
            | Phase::Executing { .. }
            | Phase::Idle
            | Phase::Disabled { .. }
            | Phase::BackingOff { .. }
            | Phase::Stopping { .. }
            | Phase::Stopped { .. } => {
                if spec.is_revision_of(&self.state.spec) && !self.is_replaced_by(&spec) {
                    self.reconcile(spec);
                } else {
                    self.upgrade(spec);
                }
            }
        }
    }

    /// A first installation is in flight and another is wanted.
    fn install_instead(&mut self, spec: Arc<PluginSpec>) {
        let old = self.state.spec.clone();
        if spec.has_files_of(&old) && spec.entry_point == old.entry_point {
            // The wanted archive is being fetched already; how it is run is decided at its launch.
            self.take_config_of(&spec);
            self.state.spec = spec;
            self.state.owed.install = Due::Yes;
            return;
        }
        self.take_config_of(&spec);
        if let Phase::Installing { attempt } = self.state.phase {
            self.effect(Effect::CancelInstall { attempt });
        }
        // The installation may be complete, with its answer still on the way.
        self.discard(&old);
        if !spec.is_revision_of(&old) {
            self.supersede_install(&superseded_by(&spec));
        }
        self.state.spec = spec;
        self.install();
    }

    /// The revision that runs, or is meant to run, is ordered once more.
    pub(super) fn reconcile(&mut self, spec: Arc<PluginSpec>) {
        let difference = self.state.spec.difference(&spec);
        self.supersede_next(&spec, &superseded_by(&spec));
        if !matches!(self.state.phase, Phase::Running { .. }) {
            self.take_config_of(&spec);
        }
        let now_runs_once = spec.execution.one_shot().is_some();
        if self.is_one_shot() != now_runs_once {
            self.change_kind();
        } else if now_runs_once
            && matches!(
                self.state.phase,
                Phase::Starting { .. } | Phase::Executing { .. } | Phase::Idle
            )
        {
            self.reconcile_one_shot(spec, difference);
            self.weigh();
            return;
        }
        self.reconcile_phase(spec, difference);
        self.weigh();
    }

    /// From now on the same revision runs as the other kind of plugin, as if it were new.
    fn change_kind(&mut self) {
        if let Some(trial) = self.state.trial.take() {
            self.discard(&trial.last_good);
        }
        self.drop_former();
        self.state.standing = Standing::Unproven;
    }

    fn reconcile_phase(&mut self, spec: Arc<PluginSpec>, difference: Difference) {
        if let Some(trial) = &mut self.state.trial {
            // It gets another chance, and its order another end.
            trial.taken_back = None;
        }
        if !matches!(self.state.phase, Phase::Disabled { .. }) {
            // One that is disabled may stay so, and then does not run.
            self.state.runs.trigger = spec.execution.one_shot().map(|_| Trigger::Install);
        }
        match self.state.phase.clone() {
            Phase::Running { process, endpoint, change } => {
                self.reconcile_running(&Live { process, endpoint, change }, spec, difference);
            }
            Phase::Starting { attempt, process, .. } => {
                self.state.spec = spec;
                self.state.owed.install = Due::Yes;
                if difference != Difference::Unnoticed {
                    self.effect(Effect::CancelLaunch { attempt });
                    let target = Target { process, endpoint: None };
                    self.stop(target, Then::Start, StopManner::AtOnce);
                }
            }
            Phase::Pausing { .. } | Phase::BackingOff { .. } => {
                self.state.spec = spec;
                self.state.owed.install = Due::Yes;
                self.state.restarts = Restarts::default();
                self.launch(1);
            }
            Phase::Executing { process, .. } => {
                self.state.spec = spec;
                self.state.owed.install = Due::Yes;
                self.stop_run(process, Then::Start);
            }
            Phase::Idle => {
                self.state.spec = spec;
                self.state.owed.install = Due::Yes;
                self.state.restarts = Restarts::default();
                self.launch(1);
            }
            Phase::Disabled { .. } => {
                self.state.spec = spec;
                self.state.owed.install = Due::Yes;
                self.enable(Trigger::Install);
            }
            Phase::Stopping { attempt, target, .. } => {
                self.state.spec = spec;
                self.state.owed.install = Due::Yes;
                self.state.phase = Phase::Stopping { attempt, target, then: Then::Start };
            }
            Phase::Stopped { .. } => {
                self.state.spec = spec;
                self.state.owed.install = Due::Yes;
                self.state.phase = Phase::Stopped { then: Resume::Start };
            }
            // `ordered_install` deals with these.
            Phase::Installing { .. }
            | Phase::InstallFailed { .. }
            | Phase::Crashed { .. }
            | Phase::Held
            | Phase::Removing { .. }
            | Phase::Gone => {}
        }
    }

    fn reconcile_running(&mut self, live: &Live, spec: Arc<PluginSpec>, difference: Difference) {
        let waits = match &live.change {
            Change::None | Change::Applying { newer: None, .. } => None,
            Change::Applying { newer: Some(Newer { config, .. }), .. }
            | Change::Limiting { config, .. } => Some(config),
        };
        if waits.is_some_and(|config| *config != spec.config) {
            self.supersede_owed_apply(&superseded_by(&spec));
        }
        match (difference, &live.change) {
            (Difference::Unnoticed, Change::None) => {
                self.state.spec = spec;
                self.announce(PluginEventKind::Installed, "already installed");
            }
            (Difference::Config, Change::None) => {
                self.take_all_but_config(&spec);
                self.apply(live, spec.config.clone(), Owed::INSTALL);
            }
            // The wanted limits are being set already; the configuration follows.
            (Difference::Unnoticed | Difference::Config, Change::Limiting { attempt, .. }) => {
                self.take_all_but_config(&spec);
                let (attempt, config) = (*attempt, spec.config.clone());
                self.change(live, Change::Limiting { attempt, config });
            }
            // Limits set later take the place of those set before.
            (Difference::Limits, Change::None | Change::Limiting { .. }) => {
                self.take_all_but_config(&spec);
                self.limit(live, spec.config.clone());
            }
            (
                Difference::Unnoticed | Difference::Config | Difference::Limits,
                Change::Applying { .. },
            ) => {
                self.take_all_but_config(&spec);
                let limits = match difference {
                    Difference::Limits => Due::Yes,
                    _as_they_are => Due::No,
                };
                let newer = Newer { config: spec.config.clone(), limits };
                self.change_next(live, newer, Owed::INSTALL);
            }
            (
                Difference::Launch | Difference::Archive,
                Change::None | Change::Applying { .. } | Change::Limiting { .. },
            ) => {
                self.keep_config_of(&live.change);
                self.take_config_of(&spec);
                self.state.spec = spec;
                self.state.owed.install = Due::Yes;
                self.stop_running(live, Then::Start);
            }
        }
    }

    /// Takes the spec of an order, and keeps the configuration until the plugin has taken another.
    fn take_all_but_config(&mut self, spec: &PluginSpec) {
        let config = self.state.spec.config.clone();
        self.state.spec = Arc::new(PluginSpec { config, ..spec.clone() });
    }

    /// The configuration of an INSTALL takes the place of that of an APPLY before it.
    fn take_config_of(&mut self, spec: &PluginSpec) {
        if self.state.spec.config != spec.config {
            self.supersede_owed_apply(&superseded_by(spec));
        }
    }

    /// The files of the same revision from another archive that are in use, or that the plugin may
    /// return to: an installation would overwrite them.
    pub(super) fn archive_in_the_way_of(&self, spec: &PluginSpec) -> Option<Arc<PluginSpec>> {
        match &self.state.phase {
            Phase::Starting { .. }
            | Phase::Pausing { .. }
            | Phase::Running { .. }
            | Phase::Executing { .. }
            | Phase::Idle
            | Phase::Disabled { .. }
            | Phase::BackingOff { .. }
            | Phase::Stopped { .. } => {}
            Phase::Stopping { then, .. } if *then != Then::Remove => {}
            Phase::Stopping { .. }
            | Phase::Installing { .. }
            | Phase::InstallFailed { .. }
            | Phase::Crashed { .. }
            | Phase::Held
            | Phase::Removing { .. }
            | Phase::Gone => return None,
        }
        let last_good = self.state.trial.as_ref().map(|trial| &trial.last_good);
        let mut installed = [Some(&self.state.spec), last_good].into_iter().flatten();
        let is_in_the_way = |installed: &&Arc<PluginSpec>| {
            !spec.is_local() && installed.is_revision_of(spec) && !installed.has_files_of(spec)
        };
        installed.find(is_in_the_way).cloned()
    }

    /// The same revision with another archive is refused.
    fn refuse_archive(&mut self, installed: &PluginSpec) {
        let revision = &installed.revision;
        self.announce_order(revision.clone(), PluginEventKind::InstallRequested, "");
        let details = format!(
            "revision {revision} is installed with the checksum {}; give another archive another \
             revision",
            installed.source.sha256()
        );
        self.announce_for(revision.clone(), PluginEventKind::InstallFailed, &details);
    }

    /// Another revision than the current one is ordered.
    fn upgrade(&mut self, spec: Arc<PluginSpec>) {
        if let Next::Preparing { spec: ordered, attempt } = &self.state.next
            && ordered.has_files_of(&spec)
            && ordered.entry_point == spec.entry_point
        {
            self.state.next = Next::Preparing { spec, attempt: *attempt };
            return;
        }
        self.supersede_next(&spec, &superseded_by(&spec));
        match self.state.phase.clone() {
            Phase::Stopping { attempt, target, then: Then::Swap } => {
                self.state.phase = Phase::Stopping { attempt, target, then: Then::Start };
            }
            Phase::Stopped { .. } => self.state.phase = Phase::Stopped { then: Resume::Start },
            Phase::Stopping { .. }
            | Phase::Starting { .. }
            | Phase::Pausing { .. }
            | Phase::Running { .. }
            | Phase::Executing { .. }
            | Phase::Idle
            | Phase::Disabled { .. }
            | Phase::BackingOff { .. }
            | Phase::Installing { .. }
            | Phase::InstallFailed { .. }
            | Phase::Crashed { .. }
            | Phase::Held
            | Phase::Removing { .. }
            | Phase::Gone => {}
        }
        self.prepare(spec);
    }

    pub(super) fn ordered_remove(&mut self) {
        if self.rests_on_local() {
            self.ordered_remove_of_local();
            return;
        }
        self.take_down("superseded by a REMOVE", "");
    }

    /// Leads to the removal of everything of the plugin. Orders without an outcome end with
    /// `superseded`, before the removal is announced with `details`.
    pub(super) fn take_down(&mut self, superseded: &str, details: &str) {
        self.supersede_all(superseded);
        let revision = self.state.spec.revision.clone();
        self.announce_order(revision, PluginEventKind::RemoveRequested, details);
        self.forget_person();
        // The sender of this order has not received a failure yet.
        self.state.removal_trouble = None;
        match self.state.phase.clone() {
            Phase::Gone => {
                self.announce(PluginEventKind::Removed, "");
                self.effect(Effect::Retire);
            }
            Phase::Removing { .. } | Phase::Stopping { then: Then::Remove, .. } => {}
            Phase::Stopping { target, .. } => {
                // The stop under way told it to keep its data; this one takes its place.
                let manner = self.politely();
                self.stop(target, Then::Remove, manner);
            }
            Phase::Running { process, endpoint, change } => {
                self.stop_running(&Live { process, endpoint, change }, Then::Remove);
            }
            Phase::Starting { attempt, process, .. } => {
                self.effect(Effect::CancelLaunch { attempt });
                self.stop(Target { process, endpoint: None }, Then::Remove, StopManner::AtOnce);
            }
            Phase::Installing { attempt } => {
                self.effect(Effect::CancelInstall { attempt });
                self.stop_nothing();
            }
            Phase::Executing { process, .. } => self.stop_run(process, Then::Remove),
            Phase::InstallFailed { .. }
            | Phase::Pausing { .. }
            | Phase::Idle
            | Phase::Disabled { .. }
            | Phase::BackingOff { .. }
            | Phase::Held
            | Phase::Stopped { .. }
            | Phase::Crashed { .. } => self.stop_nothing(),
        }
    }

    /// No process is known, but processes that a crashed one left must not outlive the files.
    fn stop_nothing(&mut self) {
        let target = Target { process: None, endpoint: None };
        self.stop(target, Then::Remove, StopManner::AtOnce);
    }

    /// The plugin is to have this configuration. An order that waited was announced for a revision
    /// then.
    pub(super) fn ordered_apply(&mut self, config: Option<Config>, waited: Option<RevisionId>) {
        self.supersede_apply("superseded by a later APPLY");
        self.announce_apply(waited);
        let mut has_next = false;
        if let Next::Preparing { spec, .. } | Next::Ready { spec } = &mut self.state.next {
            let mut changed = PluginSpec::clone(spec);
            changed.config.clone_from(&config);
            *spec = Arc::new(changed);
            has_next = true;
        }
        match self.state.phase.clone() {
            Phase::Running { process, endpoint, change } => {
                let live = Live { process, endpoint, change };
                match live.change {
                    Change::None => self.apply(&live, config, Owed::APPLY),
                    Change::Applying { .. } => {
                        let newer = Newer { config, limits: Due::No };
                        self.change_next(&live, newer, Owed::APPLY);
                    }
                    // It follows the limits.
                    Change::Limiting { attempt, .. } => {
                        self.state.owed.apply = Due::Yes;
                        self.change(&live, Change::Limiting { attempt, config });
                    }
                }
            }
            // A run is not cut short for a configuration, and does not take one.
            Phase::Starting { .. } if self.is_one_shot() => self.keep_for_next_run(config),
            Phase::Executing { .. } | Phase::Idle => self.keep_for_next_run(config),
            Phase::Disabled { .. } => {
                self.set_config(config);
                self.end_apply(PluginEventKind::Applied, "the plugin takes it when it is started");
            }
            Phase::Starting { attempt, process, .. } => {
                self.start_with(config);
                self.effect(Effect::CancelLaunch { attempt });
                self.stop(Target { process, endpoint: None }, Then::Start, StopManner::AtOnce);
            }
            Phase::Removing { .. } | Phase::Gone | Phase::Stopping { then: Then::Remove, .. } => {
                self.end_apply(PluginEventKind::ApplyFailed, "the plugin is being removed");
            }
            Phase::Held | Phase::InstallFailed { .. } | Phase::Crashed { .. } if !has_next => {
                self.end_apply(PluginEventKind::ApplyFailed, "the plugin is not installed");
            }
            Phase::Installing { .. }
            | Phase::Held
            | Phase::InstallFailed { .. }
            | Phase::Crashed { .. }
            | Phase::Pausing { .. }
            | Phase::BackingOff { .. }
            | Phase::Stopping { .. }
            | Phase::Stopped { .. } => self.start_with(config),
        }
    }

    fn keep_for_next_run(&mut self, config: Option<Config>) {
        self.set_config(config);
        self.end_apply(PluginEventKind::Applied, "the next run takes it");
    }

    /// The configuration is taken at the next start.
    fn start_with(&mut self, config: Option<Config>) {
        self.set_config(config);
        self.state.owed.apply = Due::Yes;
    }

    pub(super) fn ordered_restart(&mut self) {
        if let Some(local) = self.refused_local() {
            self.ordered_install(local);
            return;
        }
        match self.state.phase.clone() {
            Phase::Running { process, endpoint, change } => {
                self.keep_config_of(&change);
                self.stop_running(&Live { process, endpoint, change }, Then::Start);
            }
            Phase::Starting { attempt, process, .. } => {
                self.run_for(Trigger::Person);
                self.effect(Effect::CancelLaunch { attempt });
                self.stop(Target { process, endpoint: None }, Then::Start, StopManner::AtOnce);
            }
            Phase::Pausing { .. } | Phase::BackingOff { .. } => {
                self.run_for(Trigger::Person);
                self.state.restarts = self.state.restarts.forgiven();
                self.launch(1);
            }
            Phase::Executing { process, .. } => {
                self.run_for(Trigger::Person);
                self.stop_run(process, Then::Start);
            }
            Phase::Idle => {
                self.run_for(Trigger::Person);
                self.launch(1);
            }
            Phase::Disabled { .. } => self.enable(Trigger::Person),
            Phase::Stopping {
                attempt,
                target,
                then: Then::BackOff { .. } | Then::Rest { .. } | Then::Fail { .. },
            } => {
                self.run_for(Trigger::Person);
                self.state.phase = Phase::Stopping { attempt, target, then: Then::Start };
            }
            Phase::InstallFailed { .. } | Phase::Crashed { .. }
                if !matches!(self.state.next, Next::Preparing { .. }) =>
            {
                self.announce(
                    PluginEventKind::InstallRequested,
                    "restart of a failed installation",
                );
                self.install();
            }
            // It is being started already, or is being stopped.
            Phase::InstallFailed { .. }
            | Phase::Crashed { .. }
            | Phase::Stopping { .. }
            | Phase::Stopped { .. }
            | Phase::Installing { .. }
            | Phase::Held
            | Phase::Removing { .. }
            | Phase::Gone => {}
        }
    }
}

pub(super) fn superseded_by(spec: &PluginSpec) -> String {
    format!("superseded by an order for revision {}", spec.revision)
}
