//! Whether the agent runs, and whether it has its control plane.

use super::check::{Agent, Finding, Host, Severity, not_looked_at};

/// As many events as this wait only when something is wrong.
const WAITING: u64 = 1000;

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let agent = match host.agent {
        Agent::Silent { reason, hint, .. } => {
            let what = "the agent does not answer";
            return vec![Finding::new(Severity::Error, what, reason, hint)];
        }
        Agent::Hidden { reason } => {
            return vec![not_looked_at("the agent and its plugins", reason)];
        }
        Agent::Answers { itself, .. } => itself.agent.clone().unwrap_or_default(),
    };
    let mut findings = Vec::new();
    let config = &host.config.control_plane;
    let wanted = config.enabled && config.endpoint.is_some();
    if wanted && !agent.link_connected {
        findings.push(Finding::new(
            Severity::Warning,
            "the control plane is not connected",
            agent.link.clone(),
            "check control_plane.endpoint, and proxies and firewalls between; plugins continue to \
             run, orders and events wait",
        ));
    }
    // Where nothing is configured, the metadata server may say where it is; most machines have
    // none.
    if config.enabled && !wanted && agent.link.starts_with("not connected") {
        findings.push(Finding::new(
            Severity::Note,
            "no control plane is configured",
            agent.link,
            "set control_plane.endpoint; or control_plane.enabled = false, to have no control \
             plane",
        ));
    }
    if agent.outbox_depth >= WAITING {
        findings.push(Finding::new(
            Severity::Warning,
            format!("{} events wait for the control plane", agent.outbox_depth),
            "it does not acknowledge them; beyond 100,000 the least important are dropped",
            "see why with `guest-agent events`, and in the control plane's own log",
        ));
    }
    findings
}
