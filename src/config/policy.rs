//! What plugins may do on this machine, by local policy: `[plugins.NAME]`, and `[plugins.defaults]`
//! for all of them.
//!
//! ```text
//! each layer: its tables below [plugins] ─► settings (layers) ─► values, checked (values) ─► Policies
//! launcher: Policies::of(name) ─► Policy, key by key: the plugin's own, else the defaults'
//! ```
//!
//! Policies are not part of the schema of fixed keys, because plugins have names of their own: a
//! table below `[plugins]` is a policy, any other value there is a setting. This module does not
//! look at the machine; the launcher and `doctor` find out whether a user exists.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use guest_agent_actors::model::id::PluginName;

use super::duration::format_duration;

mod layers;
mod values;

#[cfg(test)]
pub(super) use layers::KEYS;
pub(super) use layers::{fold, setting_of_text, take_tables};
pub(crate) use values::capability_names;
pub use values::{
    Account, CAPABILITY_NAMES, Capabilities, LIMITS, Limit, LimitName, Seccomp, Umask,
};

/// The name that stands for all plugins. A plugin of this name has the defaults.
pub const DEFAULTS: &str = "defaults";

/// All policies of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// The policy of every plugin that has no other value.
    pub defaults: Policy,
    /// The policies of single plugins.
    pub named: BTreeMap<PluginName, Policy>,
}

/// The policy of a plugin. `None` leaves a property as every process that the agent starts has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The user it runs as.
    pub user: Option<Account>,
    /// The group it runs as; without one, the user's primary group.
    pub group: Option<Account>,
    /// Whether no program that it executes may gain privileges.
    pub no_new_privileges: Option<bool>,
    /// The capabilities it keeps.
    pub capabilities: Option<Capabilities>,
    /// Paths that it may read and execute besides its own files and the system's programs.
    /// Absolute.
    pub read_only_paths: Option<Vec<PathBuf>>,
    /// Paths that it may also write. Absolute.
    pub read_write_paths: Option<Vec<PathBuf>>,
    /// Whether it has a folder of its own for temporary files, and no access to the common ones.
    pub private_tmp: Option<bool>,
    /// Which system calls the kernel refuses it.
    pub seccomp: Option<Seccomp>,
    /// Its resource limits, soft and hard.
    pub rlimits: BTreeMap<LimitName, Limit>,
    /// Mode bits that files it makes do not get.
    pub umask: Option<Umask>,
    /// How readily the kernel kills it when memory is short, -1000 to 1000.
    pub oom_score_adj: Option<i32>,
    /// Whether it may use the agent's own sockets although its policy confines it.
    pub agent_socket: Option<bool>,
    /// How long it may take to exit once it has answered Stop.
    pub stop_grace: Option<Duration>,
    /// Whether it does not run where any part of this cannot be enforced.
    pub required: Option<bool>,
}

// === impl Policies ===

impl Policies {
    /// The policy that applies to a plugin.
    #[must_use]
    pub fn of(&self, name: &PluginName) -> Policy {
        match self.named.get(name) {
            Some(own) => own.over(&self.defaults),
            None => self.defaults.clone(),
        }
    }

    /// Every key that is set, with its value as TOML: `plugins.NAME.key`, sorted.
    #[must_use]
    pub fn entries(&self) -> Vec<(String, String)> {
        let values = self.values().into_iter();
        values.map(|(key, value)| (key, value.to_string())).collect()
    }

    /// Every key that is set, with its value: `plugins.NAME.key`, sorted.
    pub(super) fn values(&self) -> Vec<(String, toml::Value)> {
        let named = self.named.iter().map(|(name, policy)| (quoted(name.as_str()), policy));
        let all = std::iter::once((DEFAULTS.to_owned(), &self.defaults)).chain(named);
        let mut entries: Vec<_> = all
            .flat_map(|(owner, policy)| {
                let keys = policy.values().into_iter();
                keys.map(move |(key, value)| (format!("plugins.{owner}.{key}"), value))
            })
            .collect();
        entries.sort_by(|(one, _), (other, _)| one.cmp(other));
        entries
    }
}

/// A name as a TOML key.
fn quoted(name: &str) -> String {
    if name.contains('.') { format!("\"{name}\"") } else { name.to_owned() }
}

// === impl Policy ===

impl Policy {
    /// This policy, with the values of the other one where it has none.
    #[must_use]
    pub fn over(&self, base: &Self) -> Self {
        let mut rlimits = base.rlimits.clone();
        rlimits.extend(self.rlimits.iter().map(|(name, limit)| (*name, *limit)));
        let (own, base) = (self.clone(), base.clone());
        Self {
            user: own.user.or(base.user),
            group: own.group.or(base.group),
            no_new_privileges: own.no_new_privileges.or(base.no_new_privileges),
            capabilities: own.capabilities.or(base.capabilities),
            read_only_paths: own.read_only_paths.or(base.read_only_paths),
            read_write_paths: own.read_write_paths.or(base.read_write_paths),
            private_tmp: own.private_tmp.or(base.private_tmp),
            seccomp: own.seccomp.or(base.seccomp),
            rlimits,
            umask: own.umask.or(base.umask),
            oom_score_adj: own.oom_score_adj.or(base.oom_score_adj),
            agent_socket: own.agent_socket.or(base.agent_socket),
            stop_grace: own.stop_grace.or(base.stop_grace),
            required: own.required.or(base.required),
        }
    }

    fn values(&self) -> Vec<(String, toml::Value)> {
        let paths = |paths: &Option<Vec<PathBuf>>| {
            paths.as_ref().map(|paths| {
                paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().into()
            })
        };
        let text = |text: Option<String>| text.map(toml::Value::from);
        let fixed = [
            ("user", text(self.user.as_ref().map(Account::to_string))),
            ("group", text(self.group.as_ref().map(Account::to_string))),
            ("no_new_privileges", self.no_new_privileges.map(Into::into)),
            ("capabilities", self.capabilities.map(|kept| kept.names().into())),
            ("read_only_paths", paths(&self.read_only_paths)),
            ("read_write_paths", paths(&self.read_write_paths)),
            ("private_tmp", self.private_tmp.map(Into::into)),
            ("seccomp", text(self.seccomp.map(|profile| profile.name().to_owned()))),
            ("umask", text(self.umask.map(|umask| umask.to_string()))),
            ("oom_score_adj", self.oom_score_adj.map(Into::into)),
            ("agent_socket", self.agent_socket.map(Into::into)),
            ("stop_grace", text(self.stop_grace.map(format_duration))),
            ("required", self.required.map(Into::into)),
        ];
        let fixed = fixed.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        let limits = self
            .rlimits
            .iter()
            .map(|(name, limit)| (format!("rlimits.{}", name.name()), limit.to_toml()));
        fixed.chain(limits).collect()
    }
}

#[cfg(test)]
mod tests;
