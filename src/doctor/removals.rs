//! Plugins whose removal does not succeed.

use super::check::{Agent, Finding, Host, Severity};

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let Agent::Answers { plugins, .. } = &host.agent else { return Vec::new() };
    // Only a removal that failed has a reason while the plugin stops.
    let stuck = plugins.iter().filter(|it| it.state == "STOPPING" && !it.reason.is_empty());
    let finding = |plugin: &guest_agent_proto::local::PluginStatus| {
        let name = &plugin.name;
        Finding::new(
            Severity::Warning,
            format!("the plugin {name} cannot be removed yet; the agent tries again"),
            plugin.reason.clone(),
            format!(
                "see what its processes wait for: guest-agent explain {name}; a process that the \
                 kernel does not end goes with a restart of the machine only"
            ),
        )
    };
    stuck.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use guest_agent_proto::local::{PluginStatus, SweepResponse};

    use super::*;
    use crate::config::Config;

    #[test]
    fn only_a_removal_that_failed_is_a_finding() {
        let plugin = |name: &str, state: &str, reason: &str| PluginStatus {
            name: name.to_owned(),
            state: state.to_owned(),
            reason: reason.to_owned(),
            ..PluginStatus::default()
        };
        let plugins = vec![
            plugin("stops", "STOPPING", ""),
            plugin("stuck", "STOPPING", "processes remain: 7"),
            plugin("crashed", "CRASHED", "exit code 1"),
        ];
        let leftovers = Ok(SweepResponse::default());
        let agent = Agent::Answers { itself: Box::default(), leftovers, plugins };
        let config = Config::default();
        let findings = check(&Host { config: &config, agent, now: SystemTime::UNIX_EPOCH });
        let [finding] = &*findings else { panic!("{findings:?}") };
        assert!(finding.what.contains("the plugin stuck cannot be removed"), "{finding:?}");
        assert_eq!(finding.why, "processes remain: 7");
    }
}
