use std::time::{Duration, SystemTime};

use super::*;
use crate::fakes::sample_view;
use crate::model::act::{Hold, Left};
use crate::model::history::Down;
use crate::model::view::Pending;
use crate::ports::{Health, Shortfall};

mod laws;

const MIB: u64 = 1 << 20;

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)
}

fn ago(seconds: u64) -> SystemTime {
    now() - Duration::from_secs(seconds)
}

/// A plugin that runs, changed like this, and its verdict in short.
fn judged(change: impl FnOnce(&mut PluginView)) -> (Level, String) {
    let verdict = verdict_of(change);
    (verdict.level, verdict.reason)
}

fn verdict_of(change: impl FnOnce(&mut PluginView)) -> Verdict {
    let mut view = sample_view("web", "2");
    change(&mut view);
    Verdict::of(&view, Some(10 * MIB), now())
}

#[track_caller]
fn check(change: impl FnOnce(&mut PluginView), level: Level, reason: &str) {
    assert_eq!(judged(change), (level, reason.to_owned()));
}

fn limited(view: &mut PluginView, mebibytes: u64) {
    view.limits.memory_bytes = Some(mebibytes * MIB);
}

fn crashed(view: &mut PluginView, seconds_ago: &[u64]) {
    let crash = |seconds: &u64| Crash { at: ago(*seconds), ran: Duration::from_secs(1) };
    view.history.crashes = seconds_ago.iter().map(crash).collect();
    view.history.crash_reason = "exited with code 3".into();
    view.last_exit = Some((ExitCause::Exited(3), None));
}

fn failed(state: Reported, error: &str) -> Option<Pending> {
    Some(Pending { revision: "3".parse().unwrap(), state, error: error.into() })
}

#[test]
fn a_plugin_that_runs_and_says_nothing_is_ok() {
    check(|_| {}, Level::Ok, "");
}

#[test]
fn a_crash_loop_is_judged_by_its_crashes_and_not_by_the_state_of_this_second() {
    let why = "crashed 4 times within 30 minutes, last exited with code 3";
    for state in [Reported::Running, Reported::Starting, Reported::Crashed] {
        let looping = |view: &mut PluginView| {
            crashed(view, &[1700, 900, 320, 4]);
            view.state = state;
            view.history.next_start = Some(now() + Duration::from_secs(240));
        };
        let verdict = verdict_of(looping);
        assert_eq!((verdict.level, &*verdict.reason), (Level::Failing, why));
        assert_eq!(verdict.since, Some(ago(1700)));
        assert_eq!(verdict.until, Some(now() + Duration::from_secs(240)));
        assert_eq!(verdict.help, "guest-agent logs web");
    }
    // Crashes of long ago are forgiven; so are those of a clock that was set back.
    let why = "crashed twice within 30 minutes, exited with code 3";
    check(|view| crashed(view, &[9000, 5000, 1801, 900, 4]), Level::Degraded, why);
    check(|view| crashed(view, &[9000, 5000, 1801]), Level::Ok, "");
    let in_the_future = |view: &mut PluginView| {
        let crash = Crash { at: now() + Duration::from_secs(60), ran: Duration::ZERO };
        view.history.crashes = vec![crash; 5];
    };
    check(in_the_future, Level::Ok, "");
}

/// A plugin that runs and is well since so many seconds.
fn well(view: &mut PluginView, seconds: u64) {
    view.history.condition = Some(Condition::Well(ago(seconds)));
}

#[test]
fn crashes_are_over_once_the_plugin_has_been_well_for_a_while() {
    let looped = |seconds_well| {
        move |view: &mut PluginView| {
            crashed(view, &[1000, 600, 400, 300]);
            well(view, seconds_well);
        }
    };
    assert_eq!(judged(looped(179)).0, Level::Failing);
    let over = verdict_of(looped(180));
    assert_eq!((over.level, over.cause), (Level::Ok, Cause::Recovered));
    assert_eq!(over.reason, "up again after 4 crashes, last exited with code 3");
    assert_eq!((over.since, &*over.help), (Some(ago(180)), ""));
    let once = |view: &mut PluginView| {
        crashed(view, &[200]);
        well(view, 190);
    };
    check(once, Level::Ok, "up again after one crash, last exited with code 3");
    // One that says that it is unwell is not calm, and neither is one without a process.
    let unwell = |view: &mut PluginView| {
        looped(500)(view);
        view.history.condition = Some(Condition::Unwell(ago(500)));
    };
    assert_eq!(judged(unwell).0, Level::Failing);
    let down = |view: &mut PluginView| {
        looped(500)(view);
        view.state = Reported::Crashed;
    };
    assert_eq!(judged(down).0, Level::Failing);
}

#[test]
fn a_plugin_that_crashes_every_five_minutes_is_not_well_in_between() {
    let every = |period: u64, first_ran, seconds_well| {
        move |view: &mut PluginView| {
            crashed(view, &[4, 3, 2, 1].map(|it| it * period + 60));
            for crash in &mut view.history.crashes {
                crash.ran = Duration::from_secs(period - 10);
            }
            view.history.crashes[0].ran = first_ran;
            well(view, seconds_well);
        }
    };
    let week = Duration::from_secs(7 * 24 * 3600);
    assert_eq!(judged(every(300, week, 350)).0, Level::Failing);
    // Twice as long as any run between two crashes; the run of a week came before them.
    assert_eq!(judged(every(300, week, 580)).0, Level::Ok);
    // The crash before is out of the window, and still one that it did not run long after.
    let rare = every(1500, week, 1550);
    let verdict = verdict_of(rare);
    assert_eq!((verdict.level, verdict.cause), (Level::Degraded, Cause::Crashed));
}

#[test]
fn an_order_that_changes_the_plugin_ends_the_verdict_about_its_crashes() {
    let changed = |seconds_ago, seconds_well| {
        move |view: &mut PluginView| {
            crashed(view, &[100, 90, 80, 70]);
            view.history.changed_at = Some(ago(seconds_ago));
            well(view, seconds_well);
        }
    };
    let why = "had 4 crashes until an order changed it, last exited with code 3";
    let verdict = verdict_of(changed(60, 59));
    assert_eq!((verdict.level, &*verdict.reason), (Level::Ok, why));
    assert_eq!(verdict.since, Some(ago(60)));
    // A crash since then counts.
    let again = "crashed twice within 30 minutes, exited with code 3";
    check(changed(85, 10), Level::Degraded, again);
    // A change in the future was before the clock was set back, and hides nothing.
    let clock_set_back = |view: &mut PluginView| {
        changed(60, 5)(view);
        view.history.changed_at = Some(now() + Duration::from_secs(1 << 26));
    };
    assert_eq!(judged(clock_set_back).0, Level::Failing);
    let later = |view: &mut PluginView| {
        crashed(view, &[700, 690, 680]);
        view.history.changed_at = Some(ago(660));
        well(view, 600);
    };
    check(later, Level::Ok, "up again after 3 crashes, last exited with code 3");
}

#[test]
fn a_plugin_that_ran_out_of_memory_names_the_limit_that_it_hit() {
    let out = |cause: ExitCause, limit: Option<u64>| {
        let limit = limit.map(|limit| limit * MIB);
        move |view: &mut PluginView| {
            crashed(view, &[60]);
            view.last_exit = Some((cause, None));
            view.history.crash_reason = cause.under(limit).into();
            // It is another one by now.
            limited(view, 512);
        }
    };
    let once = "crashed once within 30 minutes, ";
    let why = format!("{once}out of memory at its limit of 64 MiB");
    check(out(ExitCause::OutOfMemory { peak: None }, Some(64)), Level::Degraded, &why);
    let why = format!("{once}ended over its memory limit of 64 MiB");
    check(out(ExitCause::OverMemoryLimit { peak: None }, Some(64)), Level::Degraded, &why);
    let (_, why) = judged(out(ExitCause::OutOfMemory { peak: None }, None));
    assert!(why.contains("without a limit of its own"), "{why}");
}

#[test]
fn what_does_not_run_is_failing_with_the_reason() {
    let down = |state, activity| {
        move |view: &mut PluginView| {
            (view.state, view.activity, view.pid) = (state, activity, None);
            view.reason = "no space left".into();
            view.history.since = Some(ago(9));
        }
    };
    for (state, activity, why, help) in [
        (
            Reported::InstallFailed,
            Activity::Settled,
            "revision 2 could not be installed: no space left",
            "guest-agent events web",
        ),
        (
            Reported::Crashed,
            Activity::Settled,
            "could not be started: no space left",
            "guest-agent logs web",
        ),
        (
            Reported::Crashed,
            Activity::Busy,
            "is down and waits for its next start: no space left",
            "guest-agent logs web",
        ),
        (
            Reported::ExecutionFailed,
            Activity::Settled,
            "its last run failed: no space left",
            "guest-agent logs web",
        ),
        (
            Reported::Stopping,
            Activity::Busy,
            "cannot be removed: no space left",
            "guest-agent explain web",
        ),
    ] {
        let verdict = verdict_of(down(state, activity));
        assert_eq!((verdict.level, &*verdict.reason), (Level::Failing, why));
        assert_eq!((verdict.since, &*verdict.help), (Some(ago(9)), help));
    }
}

#[test]
fn a_start_is_failing_from_its_second_attempt_on() {
    let starting = |attempt, reason: &'static str| {
        move |view: &mut PluginView| {
            (view.state, view.activity) = (Reported::Starting, Activity::Busy);
            view.reason = reason.into();
            view.history.start = Some(StartTry { attempt, of: 3 });
        }
    };
    check(starting(1, ""), Level::Busy, "is being started");
    let why = "does not start: attempt 1 of 3 failed: it did not listen within 30s";
    check(starting(1, "it did not listen within 30s"), Level::Failing, why);
    let why = "does not start: attempt 2 of 3 is under way";
    check(starting(2, ""), Level::Failing, why);
}

#[test]
fn a_plugin_that_says_that_it_is_unwell_is_failing_since_it_first_said_so() {
    let unwell = |view: &mut PluginView| {
        let results = vec!["the database is gone".to_owned()];
        view.health = Some((Health { code: 7, results }, ago(1)));
        view.history.condition = Some(Condition::Unwell(ago(300)));
    };
    let verdict = verdict_of(unwell);
    let why = "says that it is unhealthy (code 7): the database is gone";
    assert_eq!((verdict.level, &*verdict.reason), (Level::Failing, why));
    assert_eq!(verdict.since, Some(ago(300)));
}

#[test]
fn a_revision_that_failed_beside_one_that_runs_is_degraded() {
    let with = |state| {
        move |view: &mut PluginView| {
            view.pending = failed(state, "exited with code 1, while on probation");
            view.history.failed_at = Some(ago(60));
        }
    };
    let verdict = verdict_of(with(Reported::Crashed));
    let why = "revision 3 failed and 2 came back: exited with code 1, while on probation";
    assert_eq!((verdict.level, &*verdict.reason), (Level::Degraded, why));
    assert_eq!(verdict.since, Some(ago(60)));
    let why = "revision 3 could not be installed, 2 stays: exited with code 1, while on probation";
    check(with(Reported::InstallFailed), Level::Degraded, why);
    // One that is on its way has not failed.
    let on_its_way = |view: &mut PluginView| {
        view.activity = Activity::Busy;
        view.pending = failed(Reported::Installing, "");
    };
    check(on_its_way, Level::Busy, "revision 3 is on its way in");
}

#[test]
fn a_plugin_near_its_limit_is_degraded_while_it_runs() {
    check(|view| limited(view, 12), Level::Ok, "");
    let why = "uses 90 % of its memory limit of 11 MiB";
    check(|view| limited(view, 11), Level::Degraded, why);
    let ended = |view: &mut PluginView| {
        limited(view, 11);
        view.pid = None;
    };
    check(ended, Level::Ok, "");
}

#[test]
fn limits_that_nothing_enforces_are_degraded() {
    let unenforced = |view: &mut PluginView| {
        view.unenforced =
            [Shortfall::of_limit("max_memory_usage_bytes", "no groups", "mount them")]
                .into_iter()
                .collect();
    };
    check(unenforced, Level::Degraded, "not enforced here: max_memory_usage_bytes");
}

#[test]
fn what_its_rules_keep_from_running_is_ok_and_says_why() {
    let disabled = |view: &mut PluginView| {
        view.state = Reported::Stopped;
        view.reason = "its rules do not hold".into();
    };
    check(disabled, Level::Ok, "its rules do not hold");
}

#[test]
fn levels_are_in_order_and_named() {
    assert!(Level::ALL.is_sorted());
    let names = Level::ALL.map(Level::name);
    assert_eq!(names, ["failing", "degraded", "held", "busy", "ok"]);
}

#[test]
fn what_a_person_stopped_is_held_and_its_crashes_are_not_held_against_it() {
    let stopped = |view: &mut PluginView| {
        crashed(view, &[30, 20, 10, 5]);
        (view.state, view.stopped, view.pid) =
            (Reported::Stopped, Some("root: maintenance".into()), None);
        view.reason = "stopped by root: maintenance".into();
        view.history.since = Some(ago(3));
    };
    let verdict = verdict_of(stopped);
    assert_eq!((verdict.level, verdict.cause), (Level::Held, Cause::Stopped));
    assert_eq!(verdict.reason, "stopped by root: maintenance");
    assert_eq!((verdict.since, &*verdict.help), (Some(ago(3)), "guest-agent start web"));
    // While the stop is under way it is busy.
    let stopping = |view: &mut PluginView| {
        stopped(view);
        (view.state, view.activity) = (Reported::Stopping, Activity::Busy);
        view.reason = "".into();
        view.history.crashes.clear();
    };
    check(stopping, Level::Busy, "is being stopped");
}

#[test]
fn a_revision_that_a_person_rolled_back_is_held_and_not_degraded() {
    let rolled_back = |view: &mut PluginView| {
        view.pending = failed(Reported::Crashed, "rolled back by root: it is slow");
        let (revision, by) = ("3".parse().unwrap(), "root: it is slow".into());
        view.left = Some(Left { revision, by });
    };
    let verdict = verdict_of(rolled_back);
    assert_eq!((verdict.level, verdict.cause), (Level::Held, Cause::RolledBack));
    assert_eq!(verdict.reason, "revision 3 stays away and 2 runs: rolled back by root: it is slow");
    assert_eq!(verdict.help, "guest-agent release web");
}

#[test]
fn a_failure_that_a_person_dismissed_counts_no_more() {
    let dismissed = |view: &mut PluginView| {
        view.pending = failed(Reported::InstallFailed, "404");
        view.history.failed_at = Some(ago(50));
        view.history.dismissed = Some("root: known".into());
    };
    let verdict = verdict_of(dismissed);
    assert_eq!((verdict.level, verdict.cause), (Level::Ok, Cause::Dismissed));
    assert_eq!(verdict.reason, "the failure of revision 3 was dismissed by root: known");
    assert_eq!(verdict.since, Some(ago(50)));
    // It hides nothing else.
    let and_crashes = |view: &mut PluginView| {
        dismissed(view);
        crashed(view, &[10]);
    };
    assert_eq!(verdict_of(and_crashes).cause, Cause::Crashed);
}

#[test]
fn a_rollback_is_not_hidden_by_an_older_failure() {
    let rolled_back = |view: &mut PluginView| {
        view.pending = failed(Reported::InstallFailed, "the server answered 404");
        let (revision, by) = ("4".parse().unwrap(), "root: it is slow".into());
        view.left = Some(Left { revision, by });
    };
    let why = "revision 4 stays away and 2 runs: rolled back by root: it is slow";
    check(rolled_back, Level::Held, why);
}

#[test]
fn a_crash_has_the_last_line_and_a_trouble_the_hold_that_keeps_it() {
    let printed = |view: &mut PluginView| {
        crashed(view, &[30, 20, 10]);
        view.history.last_line = "panic: no configuration".into();
    };
    let why = "crashed 3 times within 30 minutes, last exited with code 3";
    let line = "its last output:\npanic: no configuration";
    check(printed, Level::Failing, &format!("{why}; {line}"));
    let hold = Hold { by: "root: freeze".into(), since: ago(90), until: None };
    let held = Held { hold, waits: Some("an INSTALL of revision 3".into()) };
    let and_held = |view: &mut PluginView| {
        printed(view);
        view.held = Some(held.clone());
    };
    let by = "held by root: freeze, and an INSTALL of revision 3 waits";
    check(and_held, Level::Failing, &format!("{why}; {by}; {line}"));
    // A start that failed quotes its output itself.
    let down = |view: &mut PluginView| {
        view.held = Some(held.clone());
        (view.state, view.reason) = (Reported::Crashed, "ended; its last output:\nbye".into());
        view.history.last_line = "another".into();
    };
    let why = format!("could not be started: ended; {by}; its last output:\nbye");
    check(down, Level::Failing, &why);
}

fn down(because: &str) -> Option<Down> {
    Some(because)
        .filter(|it| !it.is_empty())
        .map(|because| Down { since: ago(77), because: because.into() })
}

#[test]
fn a_plugin_is_down_until_it_runs_and_not_only_between_two_starts() {
    let starting = |attempt, because: &'static str| {
        move |view: &mut PluginView| {
            view.state = Reported::Starting;
            view.history.start = Some(StartTry { attempt, of: 3 });
            view.history.down = down(because);
            view.activity = Activity::Busy;
        }
    };
    check(starting(1, ""), Level::Busy, "is being started");
    let why = "is down, and is being started (attempt 1 of 3): exited with code 3";
    check(starting(1, "exited with code 3"), Level::Failing, why);
    let why = "does not start: attempt 2 of 3 is under way; the one before: it did not listen";
    check(starting(2, "it did not listen"), Level::Failing, why);
    assert_eq!(verdict_of(starting(2, "it did not listen")).since, Some(ago(77)));
}

#[test]
fn a_revision_that_takes_over_and_does_not_come_up_is_failing_while_the_old_one_is_stopped() {
    let taking_over = |attempt, because: &'static str| {
        move |view: &mut PluginView| {
            (view.state, view.activity, view.pid) = (Reported::Stopped, Activity::Busy, None);
            view.pending = failed(Reported::Starting, "");
            view.history.start = Some(StartTry { attempt, of: 3 });
            view.history.down = down(because);
        }
    };
    check(taking_over(1, ""), Level::Busy, "revision 3 is on its way in");
    let why = "revision 3 does not start: attempt 2 of 3 is under way; the one before: it did not \
               listen";
    check(taking_over(2, "it did not listen"), Level::Failing, why);
}

#[test]
fn a_plugin_has_recovered_once_no_crash_of_it_counts() {
    let recovered = |change: &dyn Fn(&mut PluginView)| {
        let mut view = sample_view("web", "2");
        change(&mut view);
        is_recovered(&view, now())
    };
    assert!(!recovered(&|_| {}), "it never crashed");
    let calm = |view: &mut PluginView, seconds_well| {
        crashed(view, &[400, 300]);
        well(view, seconds_well);
    };
    assert!(!recovered(&|view| calm(view, 100)));
    assert!(recovered(&|view| calm(view, 200)));
    assert!(recovered(&|view| {
        calm(view, 10);
        view.history.changed_at = Some(ago(20));
    }));
    // The end of a revision on trial is no crash, and not over with the crashes before it.
    assert!(!recovered(&|view| {
        calm(view, 200);
        view.last_exit = Some((ExitCause::OutOfMemory { peak: None }, Some(ago(210))));
    }));
    assert!(recovered(&|view| {
        calm(view, 200);
        view.last_exit = Some((ExitCause::OutOfMemory { peak: None }, Some(ago(300))));
    }));
    assert!(!recovered(&|view| {
        crashed(view, &[]);
        let at = now() + Duration::from_secs(9);
        view.history.crashes = vec![Crash { at, ran: Duration::ZERO }];
    }));
}

#[test]
fn the_crashes_of_the_revision_before_are_not_said_of_the_one_on_trial() {
    let on_trial = |view: &mut PluginView| {
        crashed(view, &[60, 50, 40]);
        well(view, 20);
        view.on_trial = true;
    };
    let verdict = verdict_of(on_trial);
    assert_eq!((verdict.level, verdict.cause), (Level::Ok, Cause::Recovered));
    assert_eq!(verdict.reason, "had 3 crashes before revision 2, last exited with code 3");
}
