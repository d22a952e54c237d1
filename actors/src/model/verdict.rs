//! One judgement of a plugin, for people and alarms: whether it needs attention, why, since when,
//! and what to do next. Pure.
//!
//! Whatever shows a plugin shows this: the command line, `doctor`, the console, metrics. It judges
//! by what happened over a while and not by the state of this second: a plugin that crashes every
//! eight seconds is running most of the time. It also ends: crashes count no more once the plugin has
//! been well for [`CALM`], and for twice as long as it ever was between them.

use std::time::{Duration, SystemTime};

use crate::model::exit::{ExitCause, without_remedy};
use crate::model::history::{Condition, Crash, StartTry};
use crate::model::view::{Activity, Held, Pending, PluginView, Reported};
use crate::ports::LAST_OUTPUT;
use crate::text::mebibytes;

/// Crashes count this long.
pub const CRASH_WINDOW: Duration = Duration::from_secs(30 * 60);

/// So many crashes within [`CRASH_WINDOW`] are a crash loop. Pauses between starts grow to five
/// minutes, so a plugin that cannot stay up has more.
pub const CRASH_LOOP: usize = 3;

/// After so long without trouble the crashes of before are over.
pub const CALM: Duration = Duration::from_secs(3 * 60);

/// A plugin that uses more than this share of its memory limit is near it, in percent.
pub const NEAR_LIMIT_PERCENT: u64 = 90;

/// How much attention a plugin needs. The first that holds is the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// It does not do its work.
    Failing,
    /// It does its work, and something about it is wrong.
    Degraded,
    /// A person keeps it as it is.
    Held,
    /// Work for an order is under way.
    Busy,
    /// Nothing is to be done.
    Ok,
}

/// Declares the causes with their names at once, so that each cause has a name.
macro_rules! causes {
    ($($(#[$doc:meta])* $cause:ident $name:literal,)*) => {
        /// The subject of a verdict, for programs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Cause {
            $($(#[$doc])* $cause,)*
        }

        impl Cause {
            /// Its name in documents.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$cause => $name,)*
                }
            }
        }
    };
}

causes! {
    /// It crashes again and again.
    CrashLoop "crash_loop",
    /// It could not be installed.
    InstallFailed "install_failed",
    /// It could not be started, and is not tried again.
    StartFailed "start_failed",
    /// It is down, and is being started.
    StartFails "start_fails",
    /// It ended, and waits for its next start.
    Down "down",
    /// Its last run failed.
    RunFailed "run_failed",
    /// It cannot be removed.
    RemoveFails "remove_fails",
    /// It says that it is not well.
    Unhealthy "unhealthy",
    /// A new revision failed, and the one before it runs on.
    RevisionFailed "revision_failed",
    /// It crashed, and runs again.
    Crashed "crashed",
    /// It is near its memory limit.
    NearLimit "near_limit",
    /// Limits or restrictions of it are not enforced.
    NotEnforced "not_enforced",
    /// Its manifest on the machine is refused.
    ManifestRefused "manifest_refused",
    /// A person stopped it.
    Stopped "stopped",
    /// A person makes orders wait.
    Held "held",
    /// A person rolled a revision back, and it stays away.
    RolledBack "rolled_back",
    /// Work for an order is under way.
    Working "working",
    /// It crashed, and has been well for a while.
    Recovered "recovered",
    /// A new revision failed, and a person dismissed that.
    Dismissed "dismissed",
    /// Nothing is to be done.
    Fine "fine",
}

/// The judgement of one plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How much attention it needs.
    pub level: Level,
    /// The subject of the verdict.
    pub cause: Cause,
    /// Why, as one sentence without a full stop; empty where there is nothing to say.
    pub reason: String,
    /// Since when that is so, where it is known.
    pub since: Option<SystemTime>,
    /// When the next step comes by itself, such as the next start.
    pub until: Option<SystemTime>,
    /// The command that helps or says more; empty where none is needed.
    pub help: String,
}

// === impl Level ===

impl Level {
    /// Every level, the worst first.
    pub const ALL: [Self; 5] = [Self::Failing, Self::Degraded, Self::Held, Self::Busy, Self::Ok];

    /// Its name in documents and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failing => "failing",
            Self::Degraded => "degraded",
            Self::Held => "held",
            Self::Busy => "busy",
            Self::Ok => "ok",
        }
    }
}

// === impl Verdict ===

impl Verdict {
    /// Judges a plugin by what it looks like, by how much memory it was last measured to use
    /// ([`MemoryUse::bytes`](crate::ports::MemoryUse::bytes)), and by the time.
    #[must_use]
    pub fn of(view: &PluginView, memory_bytes: Option<u64>, now: SystemTime) -> Self {
        let case = Case::of(view, memory_bytes, now);
        let trouble = case.failing().or_else(|| case.degraded());
        let verdict = trouble.map(|verdict| case.in_full(verdict));
        let verdict = verdict.or_else(|| case.held()).or_else(|| case.busy());
        verdict.unwrap_or_else(|| case.ok())
    }

    /// Whether somebody has to look at the plugin.
    #[must_use]
    pub const fn needs_attention(&self) -> bool {
        matches!(self.level, Level::Failing | Level::Degraded)
    }
}

/// The plugin that is judged, and the time.
struct Case<'a> {
    view: &'a PluginView,
    memory_bytes: Option<u64>,
    now: SystemTime,
    /// The crashes that count, oldest first.
    counted: Vec<Crash>,
}

// === impl Case ===

impl<'a> Case<'a> {
    fn of(view: &'a PluginView, memory_bytes: Option<u64>, now: SystemTime) -> Self {
        let mut case = Self { view, memory_bytes, now, counted: Vec::new() };
        case.counted = case.counted_crashes();
        case
    }

    fn verdict(
        &self,
        (level, cause): (Level, Cause),
        reason: impl Into<String>,
        since: Option<SystemTime>,
        verb: &str,
    ) -> Verdict {
        let help = match verb {
            "" => String::new(),
            verb => format!("guest-agent {verb} {}", self.view.name),
        };
        let until = self.view.history.next_start;
        Verdict { level, cause, reason: reason.into(), since, until, help }
    }

    /// A trouble with what belongs beside it: the hold that keeps orders from mending it, and the last
    /// line of the process that crashed. The line is at the end, where it can be left out of what not
    /// everybody may see.
    fn in_full(&self, verdict: Verdict) -> Verdict {
        let Verdict { mut reason, .. } = verdict;
        if let Some(held) = &self.view.held {
            let held = in_words(held);
            reason = match reason.split_once(LAST_OUTPUT) {
                Some((why, output)) => format!("{why}{held}; {LAST_OUTPUT}{output}"),
                None => format!("{reason}; {held}"),
            };
        }
        let crashed = matches!(verdict.cause, Cause::CrashLoop | Cause::Crashed | Cause::Down);
        let line = &self.view.history.last_line;
        if crashed && !line.is_empty() && !reason.contains(LAST_OUTPUT) {
            reason = format!("{reason}; {LAST_OUTPUT}\n{line}");
        }
        Verdict { reason, ..verdict }
    }

    /// It does not do its work.
    fn failing(&self) -> Option<Verdict> {
        let PluginView { state, reason, revision, history, .. } = self.view;
        let failing = |cause, why: String, since, verb| {
            self.verdict((Level::Failing, cause), why, since, verb)
        };
        let here = history.since;
        let recent = &self.counted;
        if recent.len() >= CRASH_LOOP && *state != Reported::Stopped {
            let (count, within) = (recent.len(), CRASH_WINDOW.as_secs() / 60);
            let cause = last_end(self.view);
            let why = format!("crashed {count} times within {within} minutes, last {cause}");
            return Some(failing(
                Cause::CrashLoop,
                why,
                recent.first().map(|first| first.at),
                "logs",
            ));
        }
        match state {
            Reported::InstallFailed => {
                let why = format!("revision {revision} could not be installed: {reason}");
                Some(failing(Cause::InstallFailed, why, here, "events"))
            }
            Reported::Crashed if self.view.activity == Activity::Settled => Some(failing(
                Cause::StartFailed,
                format!("could not be started: {reason}"),
                here,
                "logs",
            )),
            Reported::Crashed => Some(failing(
                Cause::Down,
                format!("is down and waits for its next start: {reason}"),
                here,
                "logs",
            )),
            Reported::ExecutionFailed => Some(failing(
                Cause::RunFailed,
                format!("its last run failed: {}", self.still_of_use(reason)),
                here,
                "logs",
            )),
            Reported::Stopping if !reason.is_empty() => Some(failing(
                Cause::RemoveFails,
                format!("cannot be removed: {reason}"),
                here,
                "explain",
            )),
            Reported::Starting => self.start_fails(""),
            Reported::Running => self.is_unwell(),
            // A revision that takes over is started in the place of this one.
            Reported::Stopped => {
                self.view.pending.as_ref().and_then(|pending| {
                    self.start_fails(&format!("revision {} ", pending.revision))
                })
            }
            Reported::Installing | Reported::Stopping | Reported::ExecutionCompleted => None,
        }
    }

    /// A start is under way that is not the first after all was well. `whose` is the revision, where it
    /// is another one than the current.
    fn start_fails(&self, whose: &str) -> Option<Verdict> {
        let PluginView { reason, history, .. } = self.view;
        let StartTry { attempt, of } = history.start?;
        let before = history.down.as_ref();
        let failed =
            |why: &str| format!("{whose}does not start: attempt {attempt} of {of} failed: {why}");
        let why = match (reason.is_empty(), before, attempt) {
            (false, ..) => failed(reason),
            (true, Some(down), _) if history.next_start.is_some() => failed(&down.because),
            (true, None, ..=1) => return None,
            (true, None, _) => {
                format!("{whose}does not start: attempt {attempt} of {of} is under way")
            }
            (true, Some(down), ..=1) => {
                format!(
                    "{whose}is down, and is being started (attempt 1 of {of}): {}",
                    down.because
                )
            }
            (true, Some(down), _) => format!(
                "{whose}does not start: attempt {attempt} of {of} is under way; the one before: {}",
                down.because
            ),
        };
        let since = before.map(|down| down.since).or(history.since);
        Some(self.verdict((Level::Failing, Cause::StartFails), why, since, "logs"))
    }

    fn is_unwell(&self) -> Option<Verdict> {
        let (health, _) = self.view.health.as_ref().filter(|(health, _)| health.code != 0)?;
        let said = match health.results.join("; ") {
            said if said.is_empty() => String::new(),
            said => format!(": {said}"),
        };
        let why = format!("says that it is unhealthy (code {}){said}", health.code);
        let since = match self.view.history.condition {
            Some(Condition::Unwell(since)) => Some(since),
            Some(Condition::Well(_)) | None => None,
        };
        Some(self.verdict((Level::Failing, Cause::Unhealthy), why, since, "logs"))
    }

    /// It does its work, and something is wrong.
    fn degraded(&self) -> Option<Verdict> {
        let PluginView { revision, history, .. } = self.view;
        let degraded = |cause, why: String, since, verb| {
            self.verdict((Level::Degraded, cause), why, since, verb)
        };
        if let Some(failed) = failed_beside(self.view)
            && history.dismissed.is_none()
        {
            let why = match failed.state {
                Reported::InstallFailed => {
                    format!(
                        "revision {} could not be installed, {revision} stays: {}",
                        failed.revision, failed.error
                    )
                }
                _ => format!(
                    "revision {} failed and {revision} came back: {}",
                    failed.revision, failed.error
                ),
            };
            return Some(degraded(Cause::RevisionFailed, why, history.failed_at, "events"));
        }
        let recent = &self.counted;
        if let Some(last) = recent.last()
            && self.view.state != Reported::Stopped
        {
            let times = if recent.len() == 1 { "once" } else { "twice" };
            let (within, cause) = (CRASH_WINDOW.as_secs() / 60, last_end(self.view));
            let why = format!("crashed {times} within {within} minutes, {cause}");
            return Some(degraded(Cause::Crashed, why, Some(last.at), "logs"));
        }
        if let Some(why) = self.is_near_its_limit() {
            return Some(degraded(Cause::NearLimit, why, None, "status"));
        }
        let missing = self.view.unenforced.iter().map(|it| it.what.to_string());
        let missing = missing.collect::<Vec<_>>().join(", ");
        if !missing.is_empty() {
            return Some(degraded(
                Cause::NotEnforced,
                format!("not enforced here: {missing}"),
                None,
                "explain",
            ));
        }
        None
    }

    /// A person keeps it as it is.
    fn held(&self) -> Option<Verdict> {
        let PluginView { reason, revision, history, left, .. } = self.view;
        let held =
            |cause, why: String, since, verb| self.verdict((Level::Held, cause), why, since, verb);
        if self.view.stopped.is_some() && self.view.state == Reported::Stopped {
            return Some(held(Cause::Stopped, reason.to_string(), history.since, "start"));
        }
        if let Some(waiting @ Held { hold, .. }) = &self.view.held {
            let verdict = held(Cause::Held, in_words(waiting), Some(hold.since), "release");
            return Some(Verdict { until: hold.until, ..verdict });
        }
        let left = left.as_ref()?;
        let why = format!(
            "revision {} stays away and {revision} runs: rolled back by {}",
            left.revision, left.by
        );
        Some(held(Cause::RolledBack, why, history.failed_at, "release"))
    }

    fn busy(&self) -> Option<Verdict> {
        let PluginView { state, reason, revision, pending, history, .. } = self.view;
        if self.view.activity == Activity::Settled {
            return None;
        }
        let what = match (pending, state) {
            (Some(next), _) => format!("revision {} is on its way in", next.revision),
            (None, Reported::Installing) => format!("revision {revision} is being installed"),
            (None, Reported::Starting) => "is being started".to_owned(),
            (None, Reported::Stopping) => "is being stopped".to_owned(),
            (None, Reported::Running) => "a change of it is under way".to_owned(),
            (None, _) if !reason.is_empty() => reason.to_string(),
            (None, _) => "work for it is under way".to_owned(),
        };
        let held_up = self.view.progress.and_then(|progress| progress.held_up);
        let what = held_up.map_or(what.clone(), |why| format!("{what}, held up: {why}"));
        Some(self.verdict((Level::Busy, Cause::Working), what, history.since, ""))
    }

    fn ok(&self) -> Verdict {
        let PluginView { reason, history, .. } = self.view;
        let since = history.since.filter(|_| !reason.is_empty());
        let fine = || self.verdict((Level::Ok, Cause::Fine), &**reason, since, "");
        self.recovered().or_else(|| self.dismissed()).unwrap_or_else(fine)
    }

    /// The reason of an end, without its remedy where an order or a person changed something since.
    fn still_of_use<'r>(&self, reason: &'r str) -> &'r str {
        if self.view.is_changed_since_exit() { without_remedy(reason) } else { reason }
    }

    /// It crashed, and crashes no more.
    fn recovered(&self) -> Option<Verdict> {
        let crashes = match self.crashes_since(None).len() {
            0 => return None,
            1 => "one crash".to_owned(),
            count => format!("{count} crashes"),
        };
        let (well_since, last) = (self.well_since()?, last_end(self.view));
        let last = without_remedy(&last);
        if self.view.on_trial {
            let why = format!("had {crashes} before revision {}, last {last}", self.view.revision);
            return Some(self.verdict((Level::Ok, Cause::Recovered), why, Some(well_since), ""));
        }
        // A record may hold any time, also one that nothing can be added to.
        let well_for = self.now.duration_since(well_since).unwrap_or_default();
        let (why, since) = match self.view.history.changed_at {
            Some(changed_at) if well_for < CALM => {
                (format!("had {crashes} until an order changed it, last {last}"), changed_at)
            }
            Some(_) | None => (format!("up again after {crashes}, last {last}"), well_since),
        };
        Some(self.verdict((Level::Ok, Cause::Recovered), why, Some(since), ""))
    }

    /// A new revision failed, and a person knows.
    fn dismissed(&self) -> Option<Verdict> {
        let (failed, by) = (failed_beside(self.view)?, self.view.history.dismissed.as_ref()?);
        let why = format!("the failure of revision {} was dismissed by {by}", failed.revision);
        let since = self.view.history.failed_at;
        Some(self.verdict((Level::Ok, Cause::Dismissed), why, since, ""))
    }

    /// The crashes that count, oldest first: those of the plugin as it is now ordered, until it has been
    /// well for long enough.
    fn counted_crashes(&self) -> Vec<Crash> {
        // The revision before had them. They count again if the agent returns to it.
        if self.view.on_trial {
            return Vec::new();
        }
        // A change in the future was before the clock was set back.
        let changed_at = self.view.history.changed_at.filter(|changed_at| *changed_at <= self.now);
        let counted = self.crashes_since(changed_at);
        let calm = CALM.max(self.longest_run_between().saturating_mul(2));
        let is_calm = self.well_since().is_some_and(|since| {
            self.now.duration_since(since).is_ok_and(|well_for| well_for >= calm)
        });
        if is_calm { Vec::new() } else { counted }
    }

    /// The longest that it ran from one crash to another that followed within [`CRASH_WINDOW`]. A run
    /// that was longer, or that no crash came before, was one without trouble.
    fn longest_run_between(&self) -> Duration {
        let pairs = self.view.history.crashes.windows(2);
        let runs = pairs.filter_map(|pair| {
            let [before, crash] = pair else { return None };
            let gap = crash.at.duration_since(before.at).ok()?;
            let is_recent = self.is_recent(crash);
            (is_recent && gap < CRASH_WINDOW).then_some(crash.ran)
        });
        runs.max().unwrap_or_default()
    }

    /// The crashes within [`CRASH_WINDOW`] and since `changed_at`, oldest first.
    fn crashes_since(&self, changed_at: Option<SystemTime>) -> Vec<Crash> {
        let counts = |crash: &&Crash| {
            self.is_recent(crash) && changed_at.is_none_or(|changed_at| crash.at >= changed_at)
        };
        self.view.history.crashes.iter().filter(counts).copied().collect()
    }

    /// Whether a crash is within [`CRASH_WINDOW`]. One in the future was before the clock was set back.
    fn is_recent(&self, crash: &Crash) -> bool {
        self.now.duration_since(crash.at).is_ok_and(|ago| ago < CRASH_WINDOW)
    }

    /// Since when its process runs and is not unwell.
    fn well_since(&self) -> Option<SystemTime> {
        match (self.view.state, self.view.history.condition) {
            (Reported::Running, Some(Condition::Well(since))) => Some(since),
            _ => None,
        }
    }

    /// Compares the working set with the limit, because that is what the kernel cannot get below
    /// before it ends a process. The whole charge of a group is near the limit of any plugin that
    /// reads files, and harms nobody; resident memory leaves out what the kernel counts though no
    /// process has it mapped, such as files in memory and its own structures. Without a control
    /// group the agent enforces the limit by resident memory, which then is the same figure.
    fn is_near_its_limit(&self) -> Option<String> {
        let (used, limit) = (self.memory_bytes?, self.view.limits.memory_bytes?);
        // A plugin without a process uses nothing, whatever was measured last.
        self.view.pid?;
        let percent = u128::from(used) * 100 / u128::from(limit.max(1));
        (percent >= u128::from(NEAR_LIMIT_PERCENT))
            .then(|| format!("uses {percent} % of its memory limit of {}", mebibytes(limit)))
    }
}

/// Whether a plugin crashed, and none of its crashes counts any more: it has been well since, an order
/// changed it, or they are long ago. An end for lack of memory that is no crash, as that of a revision
/// on trial, is not among them.
#[must_use]
pub fn is_recovered(view: &PluginView, now: SystemTime) -> bool {
    let Some(newest) = view.history.crashes.last() else { return false };
    let ended_since = view
        .last_exit
        .is_some_and(|(cause, at)| cause.is_for_memory() && at.is_some_and(|at| at > newest.at));
    newest.at <= now && !ended_since && Case::of(view, None, now).counted.is_empty()
}

/// Who holds a plugin, and the order that waits.
fn in_words(Held { hold, waits }: &Held) -> String {
    let waits = waits.as_ref().map(|order| format!(", and {order} waits"));
    format!("held by {}{}", hold.by, waits.unwrap_or_default())
}

/// The revision that failed beside the one that runs, unless a person rolled one back since.
#[must_use]
pub fn failed_beside(view: &PluginView) -> Option<&Pending> {
    let pending = view.pending.as_ref().filter(|_| view.left.is_none());
    pending.filter(|pending| pending.has_failed() && !pending.error.is_empty())
}

/// How a plugin crashed last, in the words of then.
#[must_use]
pub fn last_end(view: &PluginView) -> String {
    if !view.history.crash_reason.is_empty() {
        return view.history.crash_reason.to_string();
    }
    let cause = view.last_exit.map_or(ExitCause::Unknown, |(cause, _)| cause);
    cause.under(view.limits.memory_bytes)
}

#[cfg(test)]
mod tests;
