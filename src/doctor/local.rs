//! Whether the manifests of local plugins can be used.

use guest_agent_actors::error::Chain;

use super::check::{Finding, Host, Severity};
use crate::install::local_manifests::PluginFolders;

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let dir = &host.config.agent.local_plugin_dir;
    match PluginFolders::new(dir.clone()).read() {
        Ok(scan) => scan
            .refused
            .into_iter()
            .map(|(name, why)| {
                let fix = format!(
                    "correct the files in {}, then reload the agent: systemctl reload guest-agent",
                    dir.join(&name).display()
                );
                let what = format!("the local plugin {name} is refused");
                Finding::new(Severity::Error, what, why, fix)
            })
            .collect(),
        Err(error) => vec![Finding::new(
            Severity::Error,
            "the local plugins cannot be read",
            Chain(&error).to_string(),
            format!("make {} a folder that only root may write to", dir.display()),
        )],
    }
}
