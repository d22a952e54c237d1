//! Whether an order goes back to a revision from before. Pure.

use std::cmp::Ordering;

use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_agent_proto::local::{Event, PluginStatus};

use crate::display::values;
use crate::hostinfo::preflight::finding::{Finding, Severity};

/// Most numbers of a version.
const NUMBERS_MAX: usize = 8;

/// What there is to say about the order for the revision `wanted` of a plugin that is there, with
/// its recorded events.
pub(super) fn finding(wanted: &str, now: &PluginStatus, events: &[Event]) -> Option<Finding> {
    let running = now.revision.as_str();
    if wanted.is_empty() {
        return None;
    }
    if now.rolled_back == wanted {
        return Some(Finding::new(
            Severity::Error,
            "the agent would refuse the order",
            format!("revision {wanted} was rolled back, and stays away"),
            format!("let it in again with `guest-agent release {}`", now.name),
        ));
    }
    if running.is_empty() || running == wanted {
        return None;
    }
    let why = if now.rollback_to == wanted {
        format!("revision {wanted} is the one that ran before {running}")
    } else if compare(wanted, running) == Some(Ordering::Less) {
        format!("{wanted} is a lower version than {running}")
    } else if events.iter().any(|event| started(event, wanted)) {
        format!("revision {wanted} ran before {running}")
    } else {
        return None;
    };
    let fix = if now.rollback_to == wanted {
        format!("if that is meant, `guest-agent rollback {}` needs no archive", now.name)
    } else {
        "order a newer revision, unless going back is meant".to_owned()
    };
    Some(Finding::new(Severity::Warning, "this is a downgrade", why, fix))
}

/// Whether an event says that a revision ran.
fn started(event: &Event, revision: &str) -> bool {
    event.revision == revision && values::event_type(event) == PluginEventType::PluginStarted
}

/// Compares two versions where both are numbers with dots between them. Missing numbers are zero.
fn compare(one: &str, other: &str) -> Option<Ordering> {
    Some(numbers(one)?.cmp(&numbers(other)?))
}

fn numbers(version: &str) -> Option<[u64; NUMBERS_MAX]> {
    let mut numbers = [0; NUMBERS_MAX];
    let mut places = numbers.iter_mut();
    for number in version.strip_prefix('v').unwrap_or(version).split('.') {
        // `parse` would take a sign.
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        *places.next()? = number.parse().ok().filter(|_| is_number)?;
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(revision: &str) -> PluginStatus {
        PluginStatus {
            name: "a".to_owned(),
            revision: revision.to_owned(),
            ..PluginStatus::default()
        }
    }

    fn why(wanted: &str, now: &PluginStatus, events: &[Event]) -> Option<String> {
        finding(wanted, now, events).map(|finding| finding.why)
    }

    #[test]
    fn a_lower_version_is_a_downgrade() {
        let is_lower = |wanted, running| why(wanted, &now(running), &[]).is_some();
        for (wanted, running) in [("1.9", "1.10"), ("1", "1.0.1"), ("v1.2", "1.3"), ("9", "10")] {
            assert!(is_lower(wanted, running), "{wanted} {running}");
            assert!(!is_lower(running, wanted), "{running} {wanted}");
        }
        // Revisions are texts of any form; of these nothing is known.
        for other in
            ["1.10", "1.10.0", "2", "1.9-rc1", "", "1..2", "+1", "a", "9999999999999999999999"]
        {
            assert!(!is_lower(other, "1.10"), "{other}");
        }
        assert!(!is_lower("1", ""), "nothing runs");
    }

    #[test]
    fn a_revision_that_ran_before_is_a_downgrade_whatever_it_is_called() {
        let mut there = now("blue");
        there.rollback_to = "green".to_owned();
        let former = finding("green", &there, &[]).expect("a downgrade");
        assert!(former.fix.contains("guest-agent rollback a"), "{former}");
        let mut ran = Event { revision: "red".to_owned(), ..Event::default() };
        assert_eq!(why("red", &there, std::slice::from_ref(&ran)), None, "it was not started");
        ran.set_type_value(PluginEventType::PluginStarted);
        ran.r#type = "PLUGIN_STARTED".to_owned();
        let said = why("red", &there, std::slice::from_ref(&ran));
        assert_eq!(said.as_deref(), Some("revision red ran before blue"));
        assert_eq!(why("blue", &there, &[ran]), None, "it runs");
    }

    #[test]
    fn a_revision_that_was_rolled_back_is_refused() {
        let mut there = now("1");
        there.rolled_back = "2".to_owned();
        let refused = finding("2", &there, &[]).expect("a finding");
        assert_eq!(refused.severity, Severity::Error);
        assert!(refused.fix.contains("guest-agent release a"), "{refused}");
        assert_eq!(why("3", &there, &[]), None);
    }
}
