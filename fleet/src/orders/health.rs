//! The health of plugins, as agents report it, or as a list shows it of those that report nothing.

use guest_agent_proto::agent_controlplane::current_plugin_states::{Status, StatusValue};
use guest_agent_proto::fleet::PluginReport;
use guest_fleet_core::fold::bounded;
use guest_fleet_core::health::{Cause, Fault, Level};
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::records::Numbered;
use guest_fleet_ledger::records::report::FaultPart;

/// Most plugins of one list whose faults are kept with their reasons; those with more say that they are faulty.
pub(super) const REASONS: usize = 64;

/// How long the words about a fault of a list stay that goes on, in seconds: three lists.
const WORDS: u64 = 15 * 60;

/// The fault that a report tells; `None` where it tells none, or one without a level.
pub(super) fn of_report(report: &PluginReport) -> Option<FaultPart> {
    let told = report.fault.as_ref()?;
    let number = |number: i32| u32::try_from(number).unwrap_or(0);
    let since = told.since.as_ref().and_then(|at| u64::try_from(at.seconds).ok());
    let fault = Fault {
        level: Level::of_number(number(told.level))?,
        cause: Cause::of_number(number(told.cause)).unwrap_or(Cause::Other),
        reason: bounded(&told.reason),
        since: since.map(Seconds),
    };
    Some(FaultPart::of(&fault))
}

/// The fault that the state of a plugin in a list is. A list does not say since when.
pub(super) fn of_status(status: StatusValue, code: i32, result: &str) -> Option<FaultPart> {
    let (cause, reason) = match status {
        StatusValue::Crashed => (Cause::Down, result.to_owned()),
        StatusValue::ExecutionFailed => (Cause::RunFailed, result.to_owned()),
        StatusValue::InstallFailed => (Cause::InstallFailed, result.to_owned()),
        StatusValue::Running if code != 0 && result.is_empty() => {
            (Cause::Unhealthy, format!("code {code}"))
        }
        StatusValue::Running if code != 0 => (Cause::Unhealthy, format!("code {code}: {result}")),
        StatusValue::Running
        | StatusValue::StateValueUnspecified
        | StatusValue::Starting
        | StatusValue::Stopping
        | StatusValue::Stopped
        | StatusValue::Installing
        | StatusValue::ExecutionCompleted => return None,
    };
    let fault = Fault { level: Level::Failing, cause, reason: bounded(&reason), since: None };
    Some(FaultPart::of(&fault))
}

/// A status as it is kept: the state, and of a faulty plugin the reason while there is room for one.
pub(super) fn kept_status(status: &Status, room: &mut usize) -> Status {
    let is_faulty = of_status(status.status(), status.response_code, "").is_some();
    let mut kept = Status { status: status.status, ..Status::default() };
    if is_faulty {
        kept.response_code = status.response_code;
        if let Some(left) = room.checked_sub(1) {
            *room = left;
            kept.results = vec![bounded(&status.results.join("; "))];
        }
    }
    kept
}

/// A fault of a list after the one that was `known` of the same revision: it goes on since then where the level is the
/// same, and with the same words for a while where the cause is.
pub(super) fn following(new: &FaultPart, known: Option<&FaultPart>, now: u64) -> FaultPart {
    let known = known.filter(|known| known.level == new.level);
    let since = new.since.or(known.and_then(|known| known.since)).or(Some(now));
    let is_recent =
        |known: &&FaultPart| known.cause == new.cause && now.saturating_sub(known.worded) < WORDS;
    let (reason, worded) = match known.filter(is_recent) {
        Some(known) => (known.reason.clone(), known.worded),
        None => (new.reason.clone(), now),
    };
    FaultPart { since, reason, worded, ..new.clone() }
}

#[cfg(test)]
mod tests {
    use guest_agent_proto::fleet::PluginFault;
    use guest_agent_proto::fleet::plugin_fault;

    use super::*;

    #[test]
    fn each_cause_of_a_report_has_its_number_in_the_ledger() {
        use plugin_fault::Cause as Told;
        let all = [
            (Told::CrashLoop, Cause::CrashLoop),
            (Told::Crashed, Cause::Crashed),
            (Told::OutOfMemory, Cause::OutOfMemory),
            (Told::Unhealthy, Cause::Unhealthy),
            (Told::Down, Cause::Down),
            (Told::StartFailed, Cause::StartFailed),
            (Told::RunFailed, Cause::RunFailed),
            (Told::InstallFailed, Cause::InstallFailed),
            (Told::RemoveFails, Cause::RemoveFails),
            (Told::NotEnforced, Cause::NotEnforced),
            (Told::Unspecified, Cause::Other),
        ];
        for (told, expected) in all {
            let fault = PluginFault {
                level: plugin_fault::Level::Failing.into(),
                cause: told.into(),
                ..PluginFault::default()
            };
            let report = PluginReport { fault: Some(fault), ..PluginReport::default() };
            let found = of_report(&report).and_then(|part| part.fault());
            assert_eq!(
                found.map(|fault| (fault.level, fault.cause)),
                Some((Level::Failing, expected))
            );
        }
        let newer = PluginFault { level: 7, ..PluginFault::default() };
        let report = PluginReport { fault: Some(newer), ..PluginReport::default() };
        assert_eq!(of_report(&report), None, "a level that nobody knows");
    }

    #[test]
    fn a_list_says_which_plugins_do_not_work_and_why() {
        let of = |status, code, result| {
            of_status(status, code, result).and_then(|part| part.fault()).map(|it| it.sentence())
        };
        let sentence = |text: &str| Some(text.to_owned());
        assert_eq!(of(StatusValue::Running, 0, "well"), None);
        assert_eq!(of(StatusValue::Running, 7, ""), sentence("unhealthy: code 7"));
        assert_eq!(of(StatusValue::Running, 7, "no disk"), sentence("unhealthy: code 7: no disk"));
        assert_eq!(of(StatusValue::Crashed, 0, "exit code 3"), sentence("down: exit code 3"));
        assert_eq!(of(StatusValue::Stopped, 1, "x"), None);
    }

    #[test]
    fn of_a_list_no_more_reasons_are_kept_than_there_is_room_for() {
        let long = Status {
            status: StatusValue::Crashed.into(),
            results: vec!["ä".repeat(9999); 9],
            ..Status::default()
        };
        let mut room = 1;
        assert!(kept_status(&long, &mut room).results[0].len() <= 256);
        assert_eq!(kept_status(&long, &mut room).results, Vec::<String>::new());
        assert_eq!(kept_status(&long, &mut room).status(), StatusValue::Crashed);
        let well = Status { results: vec!["x".to_owned()], ..Status::default() };
        assert_eq!(kept_status(&well, &mut 1).results, Vec::<String>::new());
    }

    #[test]
    fn a_fault_of_a_list_began_when_it_was_seen_first_and_keeps_its_words_for_a_while() {
        let fault = |level, reason: &str, since| FaultPart {
            level,
            reason: reason.to_owned(),
            since,
            ..FaultPart::default()
        };
        let known = FaultPart { worded: 50, ..fault(2, "old", Some(40)) };
        let after = |known: Option<&FaultPart>, now| {
            let next = following(&fault(2, "new", None), known, now);
            (next.reason, next.since, next.worded)
        };
        assert_eq!(after(None, 100), ("new".to_owned(), Some(100), 100));
        assert_eq!(after(Some(&known), 100), ("old".to_owned(), Some(40), 50));
        let later = 50 + WORDS;
        assert_eq!(after(Some(&known), later), ("new".to_owned(), Some(40), later));
        let milder = fault(1, "old", Some(40));
        assert_eq!(after(Some(&milder), 100), ("new".to_owned(), Some(100), 100));
    }
}
