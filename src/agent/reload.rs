//! The changes that a new configuration makes in a running agent. Pure.
//!
//! Some settings are applied at once; all others are used only at the start, and wait for the next
//! one. A policy of a plugin is applied at the next launch of that plugin. So neither the old
//! configuration nor the new one is in effect, but [`Change::effective`].

use crate::config::{self, Config};

/// Settings that are applied without a restart. All others wait for a restart.
pub const AT_ONCE: [&str; 29] = [
    "admission.command",
    "admission.timeout",
    "api.command_timeout",
    "api.http_admin_token_file",
    "api.http_allow_remote",
    "api.http_listen",
    "api.http_socket",
    "api.http_socket_group",
    "api.http_socket_mode",
    "api.http_tls_cert",
    "api.http_tls_key",
    "api.http_token_file",
    "api.http_tokens_file",
    "install.cache_max_bytes",
    "install.redirect_hosts",
    "log.level",
    "maintenance.window",
    "plugins.health_failures",
    "plugins.health_interval",
    "plugins.health_timeout",
    "plugins.log_journal_socket",
    "plugins.log_to",
    "plugins.probation",
    "plugins.restart_initial_backoff",
    "plugins.restart_max_backoff",
    "plugins.stop_grace",
    "trust.binding",
    "trust.key_files",
    "trust.keys",
];

/// The end of the only key of policies that is applied without a launch.
const STOP_GRACE: &str = ".stop_grace";

/// The effect of a new configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The configuration that is in effect from now on.
    pub effective: Config,
    /// Keys that are applied now, sorted.
    pub applied: Vec<String>,
    /// Keys of policies that are applied at the next launch of their plugins, sorted: all but
    /// `stop_grace`.
    pub at_next_launch: Vec<String>,
    /// Keys that differ from what is in effect and wait for a restart, sorted.
    pub needs_restart: Vec<String>,
}

// === impl Change ===

impl Change {
    /// The changes when an agent that runs with `current` reads `wanted`.
    #[must_use]
    pub fn between(current: &Config, wanted: &Config) -> Self {
        let mut effective = current.clone();
        let (api, new) = (&mut effective.api, &wanted.api);
        api.command_timeout = new.command_timeout;
        api.http_listen = new.http_listen;
        api.http_allow_remote = new.http_allow_remote;
        api.http_tls_cert.clone_from(&new.http_tls_cert);
        api.http_tls_key.clone_from(&new.http_tls_key);
        api.http_socket.clone_from(&new.http_socket);
        api.http_socket_mode = new.http_socket_mode;
        api.http_socket_group.clone_from(&new.http_socket_group);
        api.http_token_file.clone_from(&new.http_token_file);
        api.http_admin_token_file.clone_from(&new.http_admin_token_file);
        api.http_tokens_file.clone_from(&new.http_tokens_file);
        effective.install.cache_max_bytes = wanted.install.cache_max_bytes;
        effective.install.redirect_hosts.clone_from(&wanted.install.redirect_hosts);
        effective.log.level.clone_from(&wanted.log.level);
        effective.maintenance.clone_from(&wanted.maintenance);
        effective.admission = wanted.admission.clone();
        let (plugins, new) = (&mut effective.plugins, &wanted.plugins);
        plugins.health_failures = new.health_failures;
        plugins.health_interval = new.health_interval;
        plugins.health_timeout = new.health_timeout;
        plugins.log_to.clone_from(&new.log_to);
        plugins.log_journal_socket.clone_from(&new.log_journal_socket);
        plugins.probation = new.probation;
        plugins.restart_initial_backoff = new.restart_initial_backoff;
        plugins.restart_max_backoff = new.restart_max_backoff;
        plugins.stop_grace = new.stop_grace;
        effective.trust.clone_from(&wanted.trust);
        let mut applied = config::differences(current, &effective);
        let before = effective.clone();
        effective.policies.clone_from(&wanted.policies);
        // A stop looks its time up; everything else of a policy was set when the plugin started.
        let (looked_up, at_next_launch): (Vec<_>, Vec<_>) =
            config::differences(&before, &effective)
                .into_iter()
                .partition(|key| key.ends_with(STOP_GRACE));
        applied.extend(looked_up);
        applied.sort();
        let needs_restart = config::differences(&effective, wanted);
        Self { effective, applied, at_next_launch, needs_restart }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::{
        Binding, Loaded, LogDestination, LogFormat, SocketMode, WindowConfig, entries,
    };

    #[test]
    fn nothing_changes_by_reading_the_same_again() {
        let config = Config::default();
        let change = Change::between(&config, &config);
        assert_eq!(change.effective, config);
        assert!(change.applied.is_empty() && change.needs_restart.is_empty());
    }

    #[test]
    fn a_policy_waits_for_its_plugin_and_not_for_the_agent() {
        let current = Config::default();
        let mut wanted = Config::default();
        wanted.policies.defaults.no_new_privileges = Some(true);
        let change = Change::between(&current, &wanted);
        assert_eq!(change.at_next_launch, ["plugins.defaults.no_new_privileges"]);
        assert!(change.applied.is_empty() && change.needs_restart.is_empty());
        assert_eq!(change.effective, wanted);
        let change = Change::between(&wanted, &current);
        assert_eq!(
            change.at_next_launch,
            ["plugins.defaults.no_new_privileges"],
            "also when it goes"
        );
        assert_eq!(change.effective, current);
    }

    #[test]
    fn the_time_after_stop_is_taken_up_at_once_also_from_a_policy() {
        let current = Config::default();
        let mut wanted = Config::default();
        wanted.plugins.stop_grace = Duration::from_secs(1);
        let name = "flusher".parse().expect("a name");
        let policy = wanted.policies.named.entry(name).or_default();
        policy.stop_grace = Some(Duration::from_secs(10));
        policy.required = Some(true);
        let change = Change::between(&current, &wanted);
        assert_eq!(change.applied, ["plugins.flusher.stop_grace", "plugins.stop_grace"]);
        assert_eq!(change.at_next_launch, ["plugins.flusher.required"]);
        assert_eq!(change.effective, wanted);
    }

    #[test]
    fn what_waits_for_a_restart_is_not_in_effect() {
        let current = Config::default();
        let mut wanted = Config::default();
        wanted.log.level = "debug".to_owned();
        wanted.log.format = LogFormat::Json;
        wanted.plugins.probation = Duration::from_secs(1);
        wanted.admission.command = vec!["/bin/admit".to_owned(), "--secret".to_owned()];
        let change = Change::between(&current, &wanted);
        assert_eq!(change.applied, ["admission.command", "log.level", "plugins.probation"]);
        assert_eq!(change.needs_restart, ["log.format"]);
        assert_eq!(change.effective.log.format, LogFormat::Auto);
        assert_eq!(change.effective.log.level, "debug");
        let other_secret = {
            let mut other = wanted.clone();
            other.admission.command[1] = "--other".to_owned();
            other
        };
        let change = Change::between(&wanted, &other_secret);
        assert_eq!(change.applied, ["admission.command"], "what is not shown is compared too");
    }

    #[test]
    fn every_setting_that_is_taken_up_at_once_exists_and_is() {
        let current = Config::default();
        let mut wanted = Config::default();
        let second = Duration::from_millis(1234);
        wanted.admission.command = vec!["/bin/admit".to_owned()];
        wanted.admission.timeout = second;
        wanted.api.command_timeout = second;
        wanted.api.http_listen = Some(([127, 0, 0, 1], 9464).into());
        wanted.api.http_allow_remote = true;
        wanted.api.http_tls_cert = "/etc/tls.crt".to_owned();
        wanted.api.http_tls_key = "/etc/tls.key".to_owned();
        wanted.api.http_socket = "/run/http.sock".to_owned();
        wanted.api.http_socket_mode = SocketMode::GROUP;
        wanted.api.http_socket_group = "scrapers".to_owned();
        wanted.api.http_token_file = "/etc/token".to_owned();
        wanted.api.http_admin_token_file = "/etc/admin-token".to_owned();
        wanted.api.http_tokens_file = "/etc/tokens".to_owned();
        wanted.install.cache_max_bytes = 9;
        wanted.install.redirect_hosts = vec!["example.com".parse().expect("a host")];
        wanted.log.level = "trace".to_owned();
        wanted.maintenance.window = vec![WindowConfig {
            days: vec!["sun".to_owned()],
            from: "02:00".to_owned(),
            to: "04:00".to_owned(),
            zone: "UTC".to_owned(),
            covers: vec!["*".to_owned()],
        }];
        wanted.plugins.health_failures = 9;
        wanted.plugins.health_interval = second;
        wanted.plugins.health_timeout = second;
        wanted.plugins.log_to = vec![LogDestination::Journald];
        wanted.plugins.log_journal_socket = "/run/journal".into();
        wanted.plugins.probation = second;
        wanted.plugins.restart_initial_backoff = second;
        wanted.plugins.restart_max_backoff = second;
        wanted.plugins.stop_grace = second;
        wanted.trust.keys = vec!["RW".to_owned()];
        wanted.trust.key_files = vec!["/etc/key.pub".into()];
        wanted.trust.binding = Binding::Revision;
        let change = Change::between(&current, &wanted);
        assert_eq!(change.applied, AT_ONCE);
        assert_eq!(change.effective, wanted);
        let loaded = Loaded { config: current, origins: Default::default() };
        let keys: Vec<_> = entries(&loaded).into_iter().map(|entry| entry.key).collect();
        assert!(AT_ONCE.iter().all(|key| keys.iter().any(|known| known == key)));
        let page = include_str!("../../docs/service.md");
        assert!(AT_ONCE.iter().all(|key| page.contains(&format!("`{key}`"))), "docs/service.md");
    }
}
