//! Whether the time of day can be true.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Agent, Finding, Host, Severity};

/// 2025-01-01: no machine that runs this agent is older.
const EARLIEST: Duration = Duration::from_secs(1_735_689_600);

/// Less than this is the pace of clocks being set.
const SLACK: Duration = Duration::from_secs(60);

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let fix = "set the clock: `timedatectl set-ntp true`, or what sets it on this machine";
    let mut findings = Vec::new();
    if host.now < UNIX_EPOCH + EARLIEST {
        let what = "the clock says it is before 2025";
        let why = "certificates and tokens are taken for not yet valid, and events get wrong times";
        findings.push(Finding::new(Severity::Error, what, why, fix));
    }
    if let Agent::Answers { itself, .. } = &host.agent
        && let Some(started) = itself.agent.as_ref().and_then(|agent| agent.started_at)
        && let Ok(started) = SystemTime::try_from(started)
        && started > host.now + SLACK
    {
        let what = "the agent was started in the future";
        let why = "the clock was set back since; events are not in the order of their times";
        findings.push(Finding::new(Severity::Warning, what, why, fix));
    }
    findings
}
