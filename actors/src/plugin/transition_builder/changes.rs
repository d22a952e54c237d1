//! Changes of a plugin while it runs: another configuration, other limits.

use std::sync::Arc;

use super::TransitionBuilder;
use crate::model::event::PluginEventKind;
use crate::model::id::Attempt;
use crate::model::runs::Due;
use crate::model::spec::{Config, PluginSpec};
use crate::plugin::event::{ApplyFailure, Effect};
use crate::plugin::live::Live;
use crate::plugin::state::{Answers, Change, Phase, Then};

// === impl TransitionBuilder: changes ===

impl TransitionBuilder<'_> {
    /// An Apply call ended.
    pub(in crate::plugin) fn applied(
        &mut self,
        live: &Live,
        answered: Attempt,
        result: Result<(), ApplyFailure>,
    ) {
        let Change::Applying { attempt, config, answers } = &live.change else { return };
        if *attempt != answered {
            return;
        }
        match result {
            Ok(()) => {
                self.set_config(config.clone());
                let details = "the plugin took the new configuration";
                match answers {
                    Answers::Apply => self.end_apply(PluginEventKind::Applied, details),
                    Answers::Install => self.announce(PluginEventKind::Installed, details),
                }
                self.settle(live);
            }
            Err(ApplyFailure::Unimplemented) => {
                self.keep_config_of(&live.change);
                self.stop_running(live, Then::Start);
            }
            Err(ApplyFailure::Failed(reason)) => {
                let details = format!("the old configuration stays: {reason}");
                match answers {
                    Answers::Apply => self.end_apply(PluginEventKind::ApplyFailed, &details),
                    Answers::Install => self.announce(PluginEventKind::InstallFailed, &details),
                }
                self.settle(live);
            }
        }
    }

    /// Limits are set while the plugin runs, for an INSTALL with this configuration.
    pub(in crate::plugin) fn limit(&mut self, live: &Live, config: Option<Config>) {
        let attempt = self.next_attempt();
        let (process, limits) = (live.process.clone(), self.state.spec.limits);
        self.effect(Effect::Limit { attempt, process, limits });
        self.change(live, Change::Limiting { attempt, config });
    }

    /// Limits were set, or could not be: then a start does it.
    pub(in crate::plugin) fn limited(
        &mut self,
        live: &Live,
        answered: Attempt,
        result: Result<(), Arc<str>>,
    ) {
        let Change::Limiting { attempt, config } = &live.change else { return };
        if *attempt != answered {
            return;
        }
        match result {
            Ok(()) if *config == self.state.spec.config => {
                self.announce(PluginEventKind::Installed, "its limits were changed while it runs");
                self.settle(live);
            }
            Ok(()) => self.apply(live, config.clone(), Answers::Install),
            Err(_) => {
                self.keep_config_of(&live.change);
                self.stop_running(live, Then::Start);
            }
        }
    }

    fn settle(&mut self, live: &Live) {
        self.change(live, Change::None);
    }

    pub(in crate::plugin) fn change(&mut self, live: &Live, change: Change) {
        let (process, endpoint) = (live.process.clone(), live.endpoint.clone());
        self.state.phase = Phase::Running { process, endpoint, change };
    }

    /// A stop or a crash cuts a change short: the next start makes it.
    pub(in crate::plugin) fn keep_config_of(&mut self, change: &Change) {
        let (config, answers) = match change {
            Change::None => return,
            Change::Applying { config, answers, .. } => (config, *answers),
            Change::Limiting { config, .. } => (config, Answers::Install),
        };
        self.set_config(config.clone());
        match answers {
            Answers::Install => self.state.owed.install = Due::Yes,
            Answers::Apply => self.state.owed.apply = Due::Yes,
        }
    }

    pub(in crate::plugin) fn set_config(&mut self, config: Option<Config>) {
        let mut spec = PluginSpec::clone(&self.state.spec);
        spec.config = config;
        self.state.spec = Arc::new(spec);
    }

    /// A configuration is handed to the running plugin.
    pub(in crate::plugin) fn apply(
        &mut self,
        live: &Live,
        config: Option<Config>,
        answers: Answers,
    ) {
        let attempt = self.next_attempt();
        let endpoint = live.endpoint.clone();
        self.effect(Effect::Apply { attempt, endpoint, config: config.clone() });
        self.change(live, Change::Applying { attempt, config, answers });
    }
}
