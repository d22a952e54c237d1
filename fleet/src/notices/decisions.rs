//! Decisions about rollouts and assignments, from the audit record. Pure.

use guest_fleet_core::notice::Kind;
use guest_fleet_core::rollout::StateKind;
use guest_fleet_ledger::records::audit::{AuditChange, AuditRecord};
use guest_fleet_ledger::records::repair::REPAIR;
use guest_fleet_ledger::records::rollout::ROLLOUT;

use super::Notice;
use crate::configuration::words;

/// How much of an entry's own id the id of a notice has: numbers come again where a ledger went back.
const OWN: usize = 8;

/// The notices that follow from an entry of the audit record.
pub(super) fn notices(entry: &AuditRecord) -> Vec<Notice> {
    let own = entry.id.chars().take(OWN).collect::<String>();
    let id = format!("audit-{}-{own}", entry.number);
    let changes = entry.changes.iter();
    changes.filter_map(|change| of_change(entry, change, &id)).collect()
}

fn of_change(entry: &AuditRecord, change: &AuditChange, id: &str) -> Option<Notice> {
    let AuditRecord { who, what, why, .. } = entry;
    let why = if why.is_empty() { String::new() } else { format!(": {why}") };
    if let Some(assignment) = change.key.strip_prefix(REPAIR) {
        let (kind, fix) =
            match (words::is_stopped(&change.before), words::is_stopped(&change.after)) {
                (false, true) => (
                    Kind::OrdersPaused,
                    format!("`guest-fleet resume {assignment} --reason TEXT` lets orders go on"),
                ),
                (true, false) => (Kind::OrdersResumed, String::new()),
                _ => return None,
            };
        return Some(Notice::of_fleet(assignment, id, kind, format!("{what} by {who}{why}"), fix));
    }
    let assignment = change.key.strip_prefix(ROLLOUT)?;
    let after = words::of_rollout(&change.after)?;
    let before = words::of_rollout(&change.before).filter(|before| before.name == after.name);
    let kind = of_rollout(before.map(|before| before.state), after.state)?;
    let name = after.name;
    let fix = match kind {
        Kind::RolloutHalted => format!(
            "`guest-fleet rollout show {name}` shows the failures, `guest-fleet rollout rollback {name}` goes back"
        ),
        Kind::RolloutWaits => {
            format!("`guest-fleet rollout approve {name}` lets the next wave begin")
        }
        _ => String::new(),
    };
    let text = format!("{}; {what} by {who}{why}", change.after);
    let mut notice = Notice::of_fleet(assignment, id, kind, text, fix);
    after.plugin.clone_into(&mut notice.part.plugin);
    Some(notice)
}

/// The kind of a change from one state to another, by their names; `before` is `None` where the rollout is new.
fn of_rollout(before: Option<&str>, after: &str) -> Option<Kind> {
    if before == Some(after) {
        return None;
    }
    match StateKind::of_name(after)? {
        StateKind::Running | StateKind::Soaking => match before.map(StateKind::of_name) {
            Some(Some(StateKind::Running | StateKind::Soaking)) => None,
            Some(Some(StateKind::Draft)) | None => Some(Kind::RolloutBegan),
            Some(_) => Some(Kind::RolloutResumed),
        },
        StateKind::Waiting => Some(Kind::RolloutWaits),
        StateKind::Halted => Some(Kind::RolloutHalted),
        StateKind::RolledBack => Some(Kind::RolloutRolledBack),
        StateKind::Done => Some(Kind::RolloutDone),
        StateKind::Aborted => Some(Kind::RolloutAborted),
        StateKind::Draft | StateKind::Paused | StateKind::RollingBack => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_is_noticed_where_its_state_changes_and_only_there() {
        let none = None;
        for (before, after, expected) in [
            (none, "draft", None),
            (none, "running", Some(Kind::RolloutBegan)),
            // Nobody has to follow it.
            (none, "done", Some(Kind::RolloutDone)),
            (none, "halted", Some(Kind::RolloutHalted)),
            (Some("draft"), "running", Some(Kind::RolloutBegan)),
            (Some("running"), "running", None),
            (Some("running"), "soaking", None),
            (Some("soaking"), "running", None),
            (Some("soaking"), "waiting for approval", Some(Kind::RolloutWaits)),
            (Some("waiting for approval"), "running", Some(Kind::RolloutResumed)),
            (Some("running"), "paused", None),
            (Some("paused"), "running", Some(Kind::RolloutResumed)),
            (Some("running"), "halted", Some(Kind::RolloutHalted)),
            (Some("halted"), "running", Some(Kind::RolloutResumed)),
            (Some("halted"), "rolling back", None),
            (Some("rolling back"), "rolled back", Some(Kind::RolloutRolledBack)),
            // The assignment was deleted.
            (Some("halted"), "aborted", Some(Kind::RolloutAborted)),
            (Some("soaking"), "done", Some(Kind::RolloutDone)),
        ] {
            assert_eq!(of_rollout(before, after), expected, "{before:?} to {after}");
        }
    }
}
