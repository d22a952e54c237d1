//! The model: what was ordered of each plugin last, and whether what is seen fits that.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::local::PluginStatus;
use sha2::{Digest, Sha256};

use crate::harness::{Archive, orders, processes};

/// A kill this long before an order may still decide how the order ends: the agent may have been
/// away, and may learn of the kill and of the order in either sequence.
const AFTERMATH: Duration = Duration::from_secs(10);

/// One plugin of the chaos.
pub(super) struct Subject {
    pub(super) name: String,
    /// What its programs are given.
    arguments: Vec<String>,
    /// Processes that it starts itself.
    pub(super) helpers: usize,
    /// Who gives its orders.
    pub(super) door: Door,
    /// What was ordered last.
    pub(super) desired: Desired,
    /// Good revisions that were ever ordered. A removal between them may never have been sent: a
    /// control plane leaves out what a newer order makes meaningless.
    good: BTreeSet<String>,
    /// When `desired` became about another revision, or the same once more.
    installed_at: Instant,
    /// When its own process was killed last.
    pub(super) killed_at: Option<Instant>,
    /// Whether one of its helpers was ever killed.
    pub(super) lost_helpers: bool,
    /// Orders that the local socket has not taken yet, oldest first.
    pub(super) owed: Vec<ConfigurePlugin>,
    /// Installations that were ordered.
    orders: u32,
}

/// Who gives the orders for a plugin. Always the same, so that their order is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    ControlPlane,
    LocalSocket,
}

/// What a plugin has to come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Desired {
    Gone,
    Good { revision: String, config: String },
    Bad { revision: String },
}

/// Whether what is seen of a plugin is what was ordered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    AsOrdered,
    /// It failed, which a plugin may whose process is killed while it is on trial or starts. That
    /// has to have been told.
    FailedForAReason,
    NotYet,
}

// === impl Subject ===

impl Subject {
    /// The plugin of this number. Numbers differ in how their plugins behave.
    pub(super) fn new(number: usize) -> Self {
        let (arguments, helpers): (&[&str], usize) = match number % 6 {
            1 => (&["--fork-children=1"], 1),
            2 => (&["--setsid-children=2"], 2),
            3 => (&["--apply=unimplemented"], 0),
            4 => (&["--ignore-stop"], 0),
            5 => (&["--fork-children=1", "--setsid-children=1", "--ignore-sigterm"], 2),
            _ => (&[], 0),
        };
        Self {
            name: format!("p{number:02}"),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            helpers,
            door: if number.is_multiple_of(5) { Door::LocalSocket } else { Door::ControlPlane },
            desired: Desired::Gone,
            good: BTreeSet::new(),
            installed_at: Instant::now(),
            killed_at: None,
            lost_helpers: false,
            owed: Vec::new(),
            orders: 0,
        }
    }

    /// Orders a revision that can run.
    pub(super) fn install(&mut self, archive: &Archive, config: &str) -> ConfigurePlugin {
        let revision = revision_of(archive).to_owned();
        let order = self.order_of(&revision, archive, config, &[]);
        self.good.insert(revision.clone());
        self.wants(Desired::Good { revision, config: config.to_owned() });
        order
    }

    /// Orders a revision that cannot run, for whatever is wrong with this archive or argument.
    pub(super) fn install_bad(
        &mut self,
        revision: &str,
        archive: &Archive,
        argument: Option<&str>,
    ) -> ConfigurePlugin {
        self.wants(Desired::Bad { revision: revision.to_owned() });
        self.order_of(revision, archive, "", argument.as_slice())
    }

    /// Orders another configuration, if there is something that can take one. A fleet has no other way for
    /// it than the revision once more.
    pub(super) fn apply(&mut self, config: &str, good: &[Archive]) -> Option<ConfigurePlugin> {
        let Desired::Good { revision, .. } = &self.desired else { return None };
        let revision = revision.clone();
        if self.door == Door::ControlPlane {
            let archive = good.iter().find(|archive| revision_of(archive) == revision)?;
            return Some(self.install(archive, config));
        }
        self.desired = Desired::Good { revision, config: config.to_owned() };
        Some(orders::apply(&self.name, Some(config)))
    }

    /// Orders its removal.
    pub(super) fn remove(&mut self) -> ConfigurePlugin {
        self.wants(Desired::Gone);
        orders::remove(&self.name)
    }

    /// What has to be so, is it? `status` is what the agent says.
    pub(super) fn judge(&self, status: Option<&PluginStatus>) -> Verdict {
        let Some(status) = status else {
            return if self.desired == Desired::Gone {
                Verdict::AsOrdered
            } else {
                Verdict::NotYet
            };
        };
        if status.busy || status.pid.is_some_and(|pid| !processes::is_alive(pid)) {
            return Verdict::NotYet;
        }
        match &self.desired {
            Desired::Gone => Verdict::NotYet,
            Desired::Bad { revision } if self.has_failed(status, revision) => Verdict::AsOrdered,
            Desired::Good { revision, config }
                if status.state == "RUNNING"
                    && status.revision == *revision
                    && status.config_hash == digest(config)
                    && status.pending.is_none() =>
            {
                Verdict::AsOrdered
            }
            // Also without any damage: a busy machine may not answer an Apply in time.
            Desired::Good { revision, .. }
                if status.state == "RUNNING" && status.revision == *revision =>
            {
                Verdict::FailedForAReason
            }
            Desired::Good { revision, .. }
                if self.was_disturbed() && self.has_failed(status, revision) =>
            {
                Verdict::FailedForAReason
            }
            Desired::Bad { .. } | Desired::Good { .. } => Verdict::NotYet,
        }
    }

    /// Whether a revision has failed: there is nothing else, or what ran before it runs again.
    fn has_failed(&self, status: &PluginStatus, revision: &str) -> bool {
        let failed = |state: &str| ["INSTALL_FAILED", "CRASHED"].contains(&state);
        let alone = status.revision == revision && failed(&status.state);
        let beside_another = status.state == "RUNNING"
            && self.good.contains(&status.revision)
            && status
                .pending
                .as_ref()
                .is_some_and(|pending| pending.revision == revision && failed(&pending.state));
        alone || beside_another
    }

    fn was_disturbed(&self) -> bool {
        self.killed_at.is_some_and(|killed| killed + AFTERMATH > self.installed_at)
    }

    fn wants(&mut self, desired: Desired) {
        self.desired = desired;
        self.installed_at = Instant::now();
    }

    /// An order like no other: a fleet gives none for what runs already, and a revision that failed
    /// meanwhile would be shown beside it for ever.
    fn order_of(
        &mut self,
        revision: &str,
        archive: &Archive,
        config: &str,
        more: &[&str],
    ) -> ConfigurePlugin {
        self.orders += 1;
        let stop_timeout = orders::seconds(0.5 + f64::from(self.orders) / 1000.0);
        let mut install = orders::install(&self.name, revision, archive)
            .manifest(|manifest| manifest.stop_timeout = stop_timeout);
        for argument in self.arguments.iter().map(String::as_str).chain(more.iter().copied()) {
            install = install.arg(argument);
        }
        if config.is_empty() { install.order() } else { install.config(config).order() }
    }
}

fn revision_of(archive: &Archive) -> &str {
    archive.name.trim_end_matches(".tar")
}

/// How a configuration is named; nothing for none.
fn digest(config: &str) -> String {
    if config.is_empty() {
        return String::new();
    }
    Sha256::digest(config).iter().map(|byte| format!("{byte:02x}")).collect()
}
