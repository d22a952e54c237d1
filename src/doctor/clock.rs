//! Whether the time of day can be true.

use std::time::{Duration, SystemTime};

use super::check::{Agent, Finding, Host, Severity};
use crate::hostinfo::preflight::host::{SET_CLOCK, clock};

/// Less than this is the pace of clocks being set.
const SLACK: Duration = Duration::from_secs(60);

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = clock(host.now).into_iter().collect();
    if let Agent::Answers { itself, .. } = host.agent
        && let Some(started) = itself.agent.as_ref().and_then(|agent| agent.started_at)
        && let Ok(started) = SystemTime::try_from(started)
        && started > host.now + SLACK
    {
        let what = "the agent was started in the future";
        let why = "the clock was set back after that; the times of events are not in order";
        findings.push(Finding::new(Severity::Warning, what, why, SET_CLOCK));
    }
    findings
}
