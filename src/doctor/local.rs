//! Whether the manifests of local plugins can be used.
//!
//! Reads them again, as the agent does at its start and when it is reloaded. What the running agent
//! refuses and can be used by now waits for that.

use std::collections::BTreeMap;
use std::path::Path;

use guest_agent_actors::error::Chain;
use guest_agent_actors::model::verdict::Cause;
use guest_agent_proto::local::PluginStatus;

use super::check::{Agent, Finding, Host, Severity, is_denied, not_looked_at};
use crate::display::one_line;
use crate::install::local_manifests::PluginFolders;

const RELOAD: &str = "systemctl reload guest-agent";

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let dir = &host.config.agent.local_plugin_dir;
    let read = PluginFolders::new(dir.clone()).read();
    let plugins = match host.agent {
        Agent::Answers { plugins, .. } => plugins.as_slice(),
        Agent::Hidden { .. } | Agent::Silent { .. } => &[],
    };
    let mut findings = Vec::new();
    let refused = match read {
        Ok(scan) => scan.refused,
        Err(error) => {
            findings.push(Finding::new(
                Severity::Error,
                "the local plugins cannot be read",
                Chain(&error).to_string(),
                format!("make {} a folder that only root may write to", dir.display()),
            ));
            BTreeMap::new()
        }
    };
    findings.extend(refused.iter().map(|(name, why)| refused_now(name, why, dir)));
    findings.extend(plugins.iter().filter_map(|plugin| refused_before(plugin, &refused)));
    findings
}

fn refused_now(name: &str, why: &str, dir: &Path) -> Finding {
    if is_denied(why) {
        return not_looked_at(format_args!("the local plugin {name}"), why);
    }
    let fix = format!(
        "correct the files in {}, then reload the agent: {RELOAD}",
        dir.join(name).display()
    );
    Finding::new(Severity::Error, format!("the local plugin {name} is refused"), why, fix)
}

/// A manifest that the agent refused when it read it last, and that can be used now or is gone.
fn refused_before(plugin: &PluginStatus, refused: &BTreeMap<String, String>) -> Option<Finding> {
    let verdict = plugin.verdict.as_ref()?;
    if verdict.cause != Cause::ManifestRefused.name() || refused.contains_key(&plugin.name) {
        return None;
    }
    let what = format!("the agent still refuses the local plugin {}", one_line(&plugin.name));
    let fix = format!("its manifest has changed since; reload the agent: {RELOAD}");
    Some(Finding::new(Severity::Warning, what, one_line(&verdict.reason), fix))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use guest_agent_proto::local::{SweepResponse, Verdict};

    use super::*;
    use crate::config::Config;

    #[test]
    fn what_the_agent_refuses_is_told_once_and_also_when_it_is_mended() {
        let dir = tempfile::tempdir().expect("a folder");
        let broken = dir.path().join("broken");
        std::fs::create_dir(&broken).expect("a folder");
        std::fs::write(broken.join("manifest.json"), "{").expect("written");
        let refused = |name: &str| PluginStatus {
            name: name.to_owned(),
            verdict: Some(Verdict {
                cause: Cause::ManifestRefused.name().to_owned(),
                reason: "its manifest is refused".to_owned(),
                ..Verdict::default()
            }),
            ..PluginStatus::default()
        };
        let plugins = vec![refused("broken"), refused("mended"), PluginStatus::default()];
        let leftovers = Ok(SweepResponse::default());
        let agent = Agent::Answers { itself: Box::default(), leftovers, plugins };
        let mut config = Config::default();
        config.agent.local_plugin_dir = dir.path().to_owned();
        let found = check(&Host { config: &config, agent: &agent, now: SystemTime::UNIX_EPOCH });
        let whats: Vec<_> = found.iter().map(|it| (it.severity, it.what.as_str())).collect();
        assert_eq!(
            whats,
            [
                (Severity::Error, "the local plugin broken is refused"),
                (Severity::Warning, "the agent still refuses the local plugin mended"),
            ]
        );
        assert!(found.iter().all(|it| it.fix.ends_with(RELOAD)), "{found:?}");
    }
}
