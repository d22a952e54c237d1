//! Files that are in the way: what the agent would delete and cannot, and what is not its own.

use guest_agent_proto::local::SweepFate;

use super::check::{Agent, Finding, Host, Severity};
use crate::display::values;

/// Things that are named one by one.
const NAMED: usize = 20;

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let Agent::Answers { leftovers, .. } = host.agent else { return Vec::new() };
    let report = match leftovers {
        Ok(report) => report,
        Err(why) => {
            let what = "the agent cannot tell which files are needed";
            let fix = "try again in a moment; until then the agent deletes no files";
            return vec![Finding::new(Severity::Note, what, why, fix)];
        }
    };
    let of = |fate| report.items.iter().filter(move |item| values::fate(item) == fate);
    let failed = of(SweepFate::Failed).map(|item| {
        let what = format!("{} cannot be swept", item.path);
        let fix = "see why it cannot be read or deleted; the agent tries again by itself";
        Finding::new(Severity::Warning, what, item.why.as_str(), fix)
    });
    let left = of(SweepFate::LeftAlone).map(|item| {
        let what = format!("{} is not deleted", item.path);
        let fix = "move it away if it is yours, delete it if it is not needed";
        Finding::new(Severity::Note, what, item.why.as_str(), fix)
    });
    let mut findings: Vec<Finding> = failed.take(NAMED).chain(left.take(NAMED)).collect();
    let more = of(SweepFate::LeftAlone).count().saturating_sub(NAMED);
    if more > 0 {
        let what = format!("{more} more files are not deleted");
        let fix = "`guest-agent doctor --sweep` names them all";
        findings.push(Finding::new(Severity::Note, what, "the agent did not make them", fix));
    }
    findings
}
