//! The fault of a plugin, as a report says it: the verdict that every machine would word alike.

use std::time::SystemTime;

use guest_agent_proto::fleet as pb;
use pb::plugin_fault::{Cause, Level};

use crate::model::exit::without_figures;
use crate::model::verdict::{self, Verdict, last_end};
use crate::model::view::{PluginView, Reported};
use crate::ports::without_output;
use crate::text::shortened;

/// Longest reason, in bytes: as long as the texts about the machine.
const REASON_MAX: usize = 256;

/// The fault of a plugin; `None` where it needs no attention.
///
/// How near a plugin is to its memory limit changes with every measurement and is left out; so is a revision
/// that failed while another one runs, because the order for it says that.
#[must_use]
pub fn fault_of(view: &PluginView, now: SystemTime) -> Option<pb::PluginFault> {
    let mut verdict = Verdict::of(view, None, now);
    if verdict.cause == verdict::Cause::RevisionFailed {
        // The revision that runs has a fault of its own, or none.
        verdict = Verdict::of(&PluginView { pending: None, ..view.clone() }, None, now);
    }
    let level = match verdict.level {
        verdict::Level::Failing => Level::Failing,
        verdict::Level::Degraded => Level::Degraded,
        verdict::Level::Held | verdict::Level::Busy | verdict::Level::Ok => return None,
    };
    let (cause, reason) = cause(view, &verdict)?;
    Some(pb::PluginFault {
        level: level.into(),
        cause: cause.into(),
        reason: shortened(&reason, REASON_MAX).to_owned(),
        since: verdict.since.map(Into::into),
    })
}

fn cause(view: &PluginView, verdict: &Verdict) -> Option<(Cause, String)> {
    use verdict::Cause as Of;
    let is_memory = view.last_exit.is_some_and(|(cause, _)| cause.is_for_memory());
    // A failed start quotes the output of the process, which is another one on each machine, as the
    // memory is that a process used.
    let alike = |reason: &str| without_figures(without_output(reason)).to_owned();
    let reason = || alike(&view.reason);
    let last_end = || alike(&last_end(view));
    let down = view.history.down.as_ref();
    Some(match verdict.cause {
        Of::CrashLoop | Of::Crashed | Of::Down if is_memory => {
            let end = last_end();
            // The cause says that already.
            let limit = end.strip_prefix("out of memory ").unwrap_or(&end);
            (Cause::OutOfMemory, limit.to_owned())
        }
        Of::CrashLoop => (Cause::CrashLoop, last_end()),
        Of::Crashed => (Cause::Crashed, last_end()),
        Of::Down => (Cause::Down, reason()),
        // Of a revision that takes over, its order tells.
        Of::StartFails if view.state == Reported::Stopped => return None,
        Of::StartFails => {
            let why = down.map_or_else(reason, |down| alike(&down.because));
            (Cause::StartFailed, why)
        }
        Of::StartFailed => (Cause::StartFailed, reason()),
        Of::RunFailed => (Cause::RunFailed, reason()),
        Of::InstallFailed => (Cause::InstallFailed, reason()),
        Of::RemoveFails => (Cause::RemoveFails, reason()),
        Of::Unhealthy => (Cause::Unhealthy, unhealthy(view)),
        Of::NotEnforced => (Cause::NotEnforced, verdict.reason.clone()),
        Of::RevisionFailed
        | Of::NearLimit
        | Of::ManifestRefused
        | Of::Stopped
        | Of::Held
        | Of::RolledBack
        | Of::Working
        | Of::Recovered
        | Of::Dismissed
        | Of::Fine => return None,
    })
}

/// The answer of the last health check.
fn unhealthy(view: &PluginView) -> String {
    let Some((health, _)) = &view.health else { return String::new() };
    let said = health.results.join("; ");
    let code = format!("code {}", health.code);
    if said.is_empty() { code } else { format!("{code}: {said}") }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::fakes::sample_view;
    use crate::model::exit::ExitCause;
    use crate::model::history::{Crash, Down, StartTry};
    use crate::model::view::{Activity, Pending};
    use crate::ports::Health;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn crashed(times: u64, cause: ExitCause) -> PluginView {
        let mut view = sample_view("web", "2");
        let at = |at| NOW - Duration::from_secs(60 - at);
        let crashes = (0..times).map(|it| Crash { at: at(it), ran: Duration::ZERO });
        view.history.crashes = crashes.collect();
        view.last_exit = Some((cause, None));
        view
    }

    #[track_caller]
    fn check(view: &PluginView, expected: Option<(Level, Cause, &str)>) {
        let fault = fault_of(view, NOW);
        let found = fault.as_ref().map(|it| (it.level(), it.cause(), &*it.reason));
        assert_eq!(found, expected);
    }

    #[test]
    fn a_plugin_without_a_fault_has_none() {
        check(&sample_view("web", "2"), None);
        let stopped = PluginView {
            state: Reported::Stopped,
            stopped: Some("alice".into()),
            ..sample_view("web", "2")
        };
        check(&stopped, None);
    }

    #[test]
    fn one_cause_reads_alike_however_often_it_happened() {
        let code = ExitCause::Exited(3);
        check(&crashed(1, code), Some((Level::Degraded, Cause::Crashed, "exited with code 3")));
        let is_loop = Some((Level::Failing, Cause::CrashLoop, "exited with code 3"));
        check(&crashed(3, code), is_loop);
        check(&crashed(7, code), is_loop);
        let since = fault_of(&crashed(3, code), NOW).and_then(|fault| fault.since);
        assert_eq!(since.map(|at| at.seconds), Some(-60));
    }

    #[test]
    fn a_revision_that_failed_hides_no_fault_of_the_one_that_runs() {
        let failed = Pending {
            revision: "3".parse().expect("a revision"),
            state: Reported::InstallFailed,
            error: Arc::from("no space"),
        };
        let pending = Some(failed);
        check(&PluginView { pending: pending.clone(), ..sample_view("web", "2") }, None);
        let once = PluginView { pending, ..crashed(1, ExitCause::Exited(3)) };
        check(&once, Some((Level::Degraded, Cause::Crashed, "exited with code 3")));
    }

    #[test]
    fn a_plugin_without_memory_says_so_whether_it_crashed_once_or_again_and_again() {
        let why = "without a limit of its own: the machine or all plugins together had \
                   no more";
        let once = crashed(1, ExitCause::OutOfMemory { peak: None });
        check(&once, Some((Level::Degraded, Cause::OutOfMemory, why)));
        let again = crashed(4, ExitCause::OutOfMemory { peak: None });
        check(&again, Some((Level::Failing, Cause::OutOfMemory, why)));
    }

    #[test]
    fn no_fault_quotes_what_a_process_wrote() {
        let mut looped = crashed(3, ExitCause::Exited(3));
        looped.history.crash_reason = "did not listen; its last output:\n12:01:07 bye".into();
        looped.history.last_line = "12:01:07 bye".into();
        check(&looped, Some((Level::Failing, Cause::CrashLoop, "did not listen")));
    }

    #[test]
    fn a_start_that_fails_says_why_and_a_takeover_is_told_by_its_order() {
        let mut starts = PluginView { state: Reported::Starting, ..sample_view("web", "2") };
        starts.history.start = Some(StartTry { attempt: 2, of: 3 });
        let because = "did not listen; its last output:\n12:01:07 bye".into();
        starts.history.down = Some(Down { since: NOW, because });
        check(&starts, Some((Level::Failing, Cause::StartFailed, "did not listen")));
        let pending = Pending {
            revision: "3".parse().expect("a revision"),
            state: Reported::Starting,
            error: Arc::default(),
        };
        let taken_over =
            PluginView { state: Reported::Stopped, pending: Some(pending), ..starts.clone() };
        check(&taken_over, None);
    }

    #[test]
    fn an_unhealthy_plugin_says_what_it_answered() {
        let health = |results: &[&str]| Health {
            code: 7,
            results: results.iter().map(|it| (*it).to_owned()).collect(),
        };
        let unwell = |results| PluginView {
            health: Some((health(results), NOW)),
            ..sample_view("web", "2")
        };
        let told = Some((Level::Failing, Cause::Unhealthy, "code 7: no disk; no net"));
        check(&unwell(&["no disk", "no net"]), told);
        check(&unwell(&[]), Some((Level::Failing, Cause::Unhealthy, "code 7")));
        let long = "é".repeat(REASON_MAX);
        let fault = fault_of(&unwell(&[&long]), NOW).expect("a fault");
        assert!(fault.reason.len() <= REASON_MAX);
    }

    #[test]
    fn a_plugin_that_does_not_run_says_why() {
        let down = |activity| PluginView {
            state: Reported::Crashed,
            activity,
            reason: Arc::from("no such file; its last output:\n12:01:07 bye"),
            ..sample_view("web", "2")
        };
        let settled = Some((Level::Failing, Cause::StartFailed, "no such file"));
        check(&down(Activity::Settled), settled);
        check(&down(Activity::Busy), Some((Level::Failing, Cause::Down, "no such file")));
    }
}
