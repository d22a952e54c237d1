//! What was ordered of plugins and does not hold on this machine.

use std::collections::BTreeMap;

use super::check::{Agent, Finding, Host, Severity};

/// Plugins that are named one by one.
const NAMED: usize = 10;

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let Agent::Answers { plugins, .. } = host.agent else { return Vec::new() };
    // What is missing for one is mostly missing for all of them.
    let mut missing: BTreeMap<[&str; 3], Vec<&str>> = BTreeMap::new();
    for plugin in plugins {
        for it in &plugin.not_enforced {
            missing.entry([&it.what, &it.why, &it.fix]).or_default().push(&plugin.name);
        }
    }
    let finding = |([what, why, fix], names): ([&str; 3], Vec<&str>)| {
        let what = format!("{what} is not enforced for {}", listed(&names));
        Finding::new(Severity::Warning, what, why, fix)
    };
    missing.into_iter().map(finding).collect()
}

fn listed(names: &[&str]) -> String {
    let named = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use guest_agent_proto::local::{NotEnforced, PluginStatus, SweepResponse};

    use super::*;
    use crate::config::Config;

    #[test]
    fn what_many_plugins_lack_is_one_finding() {
        let not_enforced = |what: &str| NotEnforced {
            what: what.to_owned(),
            why: "why".to_owned(),
            fix: "fix".to_owned(),
        };
        let plugin = |number: usize| PluginStatus {
            name: format!("p{number}"),
            not_enforced: vec![not_enforced("limit of tasks")],
            ..PluginStatus::default()
        };
        let mut plugins: Vec<PluginStatus> = (0..12).map(plugin).collect();
        plugins[3].not_enforced.push(not_enforced("memory limit"));
        let agent = Agent::Answers {
            itself: Box::default(),
            leftovers: Ok(SweepResponse::default()),
            plugins,
        };
        let config = Config::default();
        let findings = check(&Host { config: &config, agent: &agent, now: SystemTime::UNIX_EPOCH });
        let what: Vec<&str> = findings.iter().map(|finding| finding.what.as_str()).collect();
        assert_eq!(
            what,
            [
                "limit of tasks is not enforced for p0, p1, p2, p3, p4, p5, p6, p7, p8, p9 and 2 more",
                "memory limit is not enforced for p3",
            ]
        );
        assert_eq!((&*findings[0].why, &*findings[0].fix), ("why", "fix"));
    }
}
