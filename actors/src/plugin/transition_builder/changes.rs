//! Changes of a plugin while it runs: another configuration, other limits.

use std::sync::Arc;

use super::TransitionBuilder;
use crate::model::event::PluginEventKind;
use crate::model::id::Attempt;
use crate::model::runs::Due;
use crate::model::spec::{Config, PluginSpec};
use crate::plugin::event::{ApplyFailure, Effect};
use crate::plugin::live::Live;
use crate::plugin::state::{Change, Newer, Owed, Phase, Then};

/// The knowledge of the Apply call before a change.
#[derive(Clone, Copy)]
enum Call {
    /// The plugin took its configuration.
    Taken,
    /// Whether the plugin took its configuration, in whole or in part, is unknown.
    Unknown,
}

// === impl TransitionBuilder: changes ===

impl TransitionBuilder<'_> {
    /// An Apply call ended.
    pub(in crate::plugin) fn applied(
        &mut self,
        live: &Live,
        answered: Attempt,
        result: Result<(), ApplyFailure>,
    ) {
        let Change::Applying { attempt, config, answers, newer } = &live.change else { return };
        if *attempt != answered {
            return;
        }
        match result {
            Ok(()) => {
                self.set_config(config.clone());
                self.took(*answers);
                match newer.clone() {
                    None => self.settle(live),
                    Some(newer) => self.follow(live, newer, Call::Taken),
                }
            }
            Err(ApplyFailure::Unimplemented) => {
                self.keep_config_of(&live.change);
                self.stop_running(live, Then::Start);
            }
            Err(ApplyFailure::Failed(reason)) => {
                let details = format!("the old configuration stays: {reason}");
                if answers.install == Due::Yes {
                    self.announce(PluginEventKind::InstallFailed, &details);
                }
                if answers.apply == Due::Yes {
                    self.end_apply(PluginEventKind::ApplyFailed, &details);
                }
                match newer.clone() {
                    None => self.settle(live),
                    Some(newer) => self.follow(live, newer, Call::Unknown),
                }
            }
        }
    }

    /// The plugin has the configuration of these orders.
    fn took(&mut self, orders: Owed) {
        let details = "the plugin took the new configuration";
        if orders.install == Due::Yes {
            self.announce(PluginEventKind::Installed, details);
        }
        if orders.apply == Due::Yes {
            self.end_apply(PluginEventKind::Applied, details);
        }
    }

    /// No call is in flight any more: the change that waits for that begins.
    fn follow(&mut self, live: &Live, Newer { config, limits }: Newer, call: Call) {
        match (limits, call) {
            (Due::Yes, Call::Taken) => {
                // The change of limits answers for the INSTALL.
                self.state.owed.install = Due::No;
                self.limit(live, config);
            }
            // Only a start is sure to set limits and configuration then.
            (Due::Yes, Call::Unknown) => {
                self.set_config(config);
                self.stop_running(live, Then::Start);
            }
            (Due::No, Call::Taken | Call::Unknown) => {
                let orders = std::mem::take(&mut self.state.owed);
                self.apply(live, config, orders);
            }
        }
    }

    /// The agent restarted during a change. How far it came is unknown, so it is made once more; one
    /// that waits takes its place.
    pub(in crate::plugin) fn change_again(&mut self, live: &Live) {
        match &live.change {
            Change::None => {}
            Change::Applying { config, answers, newer: None, .. } => {
                self.apply(live, config.clone(), *answers);
            }
            Change::Applying { newer: Some(newer), .. } => {
                self.owe(&live.change);
                self.follow(live, newer.clone(), Call::Unknown);
            }
            Change::Limiting { config, .. } => self.limit(live, config.clone()),
        }
    }

    /// A newer order changes a plugin that an Apply call is in flight for: the change waits for the
    /// end of the call, in the place of one that waits already.
    pub(in crate::plugin) fn change_next(&mut self, live: &Live, newer: Newer, order: Owed) {
        let Change::Applying { attempt, config, answers, newer: before } = live.change.clone()
        else {
            return;
        };
        let limits = before.map_or(newer.limits, |before| before.limits.or(newer.limits));
        // The call answers for an order of the kind no more: that order shares its end with this one,
        // or ended already.
        let answers = Owed {
            install: if order.install == Due::Yes { Due::No } else { answers.install },
            apply: if order.apply == Due::Yes { Due::No } else { answers.apply },
        };
        let joins = newer.config == config && limits == Due::No;
        let change = if joins {
            // The call does what is wanted.
            let waited = std::mem::take(&mut self.state.owed);
            Change::Applying {
                attempt,
                config,
                answers: answers.and(order).and(waited),
                newer: None,
            }
        } else {
            self.state.owed = self.state.owed.and(order);
            let newer = Some(Newer { config: newer.config, limits });
            Change::Applying { attempt, config, answers, newer }
        };
        self.change(live, change);
    }

    /// Limits are set while the plugin runs, for an INSTALL with this configuration.
    pub(in crate::plugin) fn limit(&mut self, live: &Live, config: Option<Config>) {
        let attempt = self.next_attempt();
        let (process, limits) = (live.process.clone(), self.state.limits());
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
                let details = match &self.state.person.limits {
                    None => "its limits were changed while it runs",
                    Some(_) => {
                        "its limits were changed while it runs; those of its owner count in their \
                         place"
                    }
                };
                self.announce(PluginEventKind::Installed, details);
                if std::mem::take(&mut self.state.owed.apply) == Due::Yes {
                    self.end_apply(PluginEventKind::Applied, "the plugin has it already");
                }
                self.settle(live);
            }
            Ok(()) => {
                let waited = std::mem::take(&mut self.state.owed);
                self.apply(live, config.clone(), Owed::INSTALL.and(waited));
            }
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
        let config = match change {
            Change::None => return,
            Change::Applying { newer: Some(Newer { config, .. }), .. }
            | Change::Applying { config, newer: None, .. }
            | Change::Limiting { config, .. } => config,
        };
        self.set_config(config.clone());
        self.owe(change);
    }

    /// The orders of a change that was cut short are answered later. An APPLY whose configuration
    /// nobody wants any more ends.
    fn owe(&mut self, change: &Change) {
        let orders = match change {
            Change::None => return,
            Change::Applying { config, answers, newer, .. } => {
                let is_outdated = newer.as_ref().is_some_and(|newer| newer.config != *config);
                if is_outdated && answers.apply == Due::Yes {
                    self.supersede_call("superseded by a newer configuration");
                }
                let apply = if is_outdated { Due::No } else { answers.apply };
                Owed { apply, ..*answers }
            }
            Change::Limiting { .. } => Owed::INSTALL,
        };
        self.state.owed = self.state.owed.and(orders);
    }

    pub(in crate::plugin) fn set_config(&mut self, config: Option<Config>) {
        let mut spec = PluginSpec::clone(&self.state.spec);
        spec.config = config;
        self.state.spec = Arc::new(spec);
    }

    /// A configuration is handed to the running plugin.
    pub(in crate::plugin) fn apply(&mut self, live: &Live, config: Option<Config>, answers: Owed) {
        let attempt = self.next_attempt();
        let endpoint = live.endpoint.clone();
        self.effect(Effect::Apply { attempt, endpoint, config: config.clone() });
        self.change(live, Change::Applying { attempt, config, answers, newer: None });
    }
}
