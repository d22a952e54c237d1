//! Laws of verdicts over views whose times come from records: a record may hold any time, and the
//! clock of a machine may be set to any.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::model::history::{Condition, History, StartTry};

/// The last time that the system can count.
fn latest() -> SystemTime {
    let seconds = u64::try_from(i64::MAX).expect("it is positive");
    SystemTime::UNIX_EPOCH + Duration::new(seconds, 999_999_999)
}

/// The first one that a record can hold.
fn earliest() -> SystemTime {
    SystemTime::UNIX_EPOCH - Duration::from_secs(u64::try_from(i64::MAX).expect("it is positive"))
}

/// Near [`now`], or anywhere.
fn any_time() -> impl Strategy<Value = SystemTime> {
    let near = (0u64..2 * CRASH_WINDOW.as_secs()).prop_map(ago);
    let anywhere = any::<i64>().prop_map(|seconds| {
        let far = Duration::from_secs(seconds.unsigned_abs() / 2);
        if seconds < 0 { SystemTime::UNIX_EPOCH - far } else { SystemTime::UNIX_EPOCH + far }
    });
    prop_oneof![4 => near, 1 => anywhere, 1 => Just(latest()), 1 => Just(earliest())]
}

fn any_duration() -> impl Strategy<Value = Duration> {
    let near = (0u64..3600).prop_map(Duration::from_secs);
    let anywhere = any::<u64>().prop_map(Duration::from_secs);
    prop_oneof![4 => near, 1 => anywhere, 1 => Just(Duration::MAX)]
}

fn maybe<T: std::fmt::Debug>(of: impl Strategy<Value = T>) -> impl Strategy<Value = Option<T>> {
    proptest::option::of(of)
}

fn any_reported() -> impl Strategy<Value = Reported> {
    prop_oneof![
        5 => Just(Reported::Running),
        1 => Just(Reported::Installing),
        1 => Just(Reported::InstallFailed),
        1 => Just(Reported::Starting),
        1 => Just(Reported::Stopping),
        1 => Just(Reported::Stopped),
        1 => Just(Reported::Crashed),
        1 => Just(Reported::ExecutionCompleted),
        1 => Just(Reported::ExecutionFailed),
    ]
}

fn any_history() -> impl Strategy<Value = History> {
    let crash = (any_time(), any_duration()).prop_map(|(at, ran)| Crash { at, ran });
    let condition = (any::<bool>(), any_time())
        .prop_map(|(well, at)| if well { Condition::Well(at) } else { Condition::Unwell(at) });
    let down = any_time().prop_map(|since| Down { since, because: "it left".into() });
    let start = any::<(u32, u32)>().prop_map(|(attempt, of)| StartTry { attempt, of });
    let times = [(); 4].map(|()| maybe(any_time()));
    let words = (prop_oneof![Just(""), Just("exited with code 3")], maybe(Just("they know")));
    let crashes = proptest::collection::vec(crash, 0..6);
    (crashes, words, maybe(down), maybe(condition), times, maybe(start)).prop_map(
        |(crashes, words, down, condition, [changed_at, since, failed_at, next_start], start)| {
            History {
                crashes,
                crash_reason: words.0.into(),
                last_line: words.0.into(),
                down,
                changed_at,
                since,
                failed_at,
                dismissed: words.1.map(Arc::from),
                condition,
                next_start,
                start,
            }
        },
    )
}

fn any_view() -> impl Strategy<Value = PluginView> {
    let pending =
        (any_reported(), prop_oneof![Just(""), Just("HTTP 500")]).prop_map(|(state, error)| {
            Pending { revision: "3".parse().expect("a revision"), state, error: error.into() }
        });
    let last_exit = (
        prop_oneof![Just(ExitCause::OutOfMemory { peak: None }), Just(ExitCause::Exited(3))],
        maybe(any_time()),
    );
    let health = (any::<i32>(), any_time());
    let is_settled = any::<bool>();
    let parts = (any_reported(), any_history(), maybe(pending), maybe(last_exit));
    (parts, maybe(health), is_settled, any::<bool>(), maybe(any::<u64>())).prop_map(
        |((state, history, pending, last_exit), health, is_settled, on_trial, limit)| {
            let mut view = sample_view("web", "2");
            view.limits.memory_bytes = limit;
            let health = health.map(|(code, at)| (Health { code, ..Health::default() }, at));
            let activity = if is_settled { Activity::Settled } else { Activity::Busy };
            PluginView { state, history, pending, last_exit, health, activity, on_trial, ..view }
        },
    )
}

proptest! {
    #[test]
    fn law_every_view_has_a_verdict_and_no_crash_counts_of_a_recovered_plugin(
        view in any_view(), memory in maybe(any::<u64>()), now in any_time()
    ) {
        let verdict = Verdict::of(&view, memory, now);
        prop_assert!(!verdict.needs_attention() || !verdict.reason.is_empty());
        if is_recovered(&view, now) {
            prop_assert!(!matches!(verdict.cause, Cause::CrashLoop | Cause::Crashed));
        }
    }
}

#[test]
fn a_plugin_that_a_record_calls_well_since_the_end_of_time_has_a_verdict() {
    let verdict = verdict_of(|view| {
        crashed(view, &[60]);
        view.history.changed_at = Some(ago(30));
        view.history.condition = Some(Condition::Well(latest()));
    });
    assert_eq!((verdict.level, verdict.cause), (Level::Ok, Cause::Recovered));
}

#[test]
fn a_run_that_a_record_calls_endless_has_a_verdict() {
    let verdict = verdict_of(|view| {
        crashed(view, &[60, 30]);
        view.history.crashes[1].ran = Duration::MAX;
    });
    assert_eq!((verdict.level, verdict.cause), (Level::Degraded, Cause::Crashed));
}
