//! The health of plugins after their orders: faults that an agent reports, or that its events show.

use crate::fingerprint::fingerprint;
use crate::time::{Seconds, rounded};

/// Crashes count so long, in seconds, where events alone tell of them.
pub const CRASH_WINDOW: u64 = 30 * 60;

/// The longest pause before an agent starts a plugin again that crashes, in seconds.
const RESTART_PAUSE: u64 = 300;

/// The longest time for which crashes are a loop, in seconds.
const CRASH_LASTS_MAX: u64 = 24 * 3600;

/// So many crashes within [`CRASH_WINDOW`] are a crash loop. Agents that report faults judge by the same figures.
pub const CRASH_LOOP: usize = 3;

/// The fault of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// How much the plugin suffers.
    pub level: Level,
    /// Its kind.
    pub cause: Cause,
    /// Why, in words; empty where nobody said.
    pub reason: String,
    /// Since when; `None` where that is not known.
    pub since: Option<Seconds>,
}

/// How much a plugin suffers from a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// It does its work, and something about it is wrong.
    Degraded,
    /// It does not do its work.
    Failing,
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// It crashes again and again.
    CrashLoop,
    /// It crashed, and runs again.
    Crashed,
    /// It was killed for the memory that it used.
    OutOfMemory,
    /// It runs, and says that it is not well.
    Unhealthy,
    /// It ended, and waits for its next start.
    Down,
    /// It could not be started.
    StartFailed,
    /// The last run of a plugin that runs once failed.
    RunFailed,
    /// It could not be installed.
    InstallFailed,
    /// It cannot be removed.
    RemoveFails,
    /// Limits or restrictions of it are not enforced.
    NotEnforced,
    /// Something that a newer agent knows.
    Other,
}

/// A fault, and when it ends if nothing more is heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ailment {
    /// The fault.
    pub fault: Fault,
    /// When it ends by itself; `None` where the agent has to say so.
    pub until: Option<Seconds>,
}

/// The last crashes of one revision, by events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crashes {
    /// The revision.
    pub revision: String,
    /// The crashes, oldest first; at most [`CRASH_LOOP`].
    pub at: Vec<Moment>,
    /// Why it crashed last.
    pub reason: String,
    /// For how long they are a loop after the first of them, in seconds.
    pub lasts: u64,
}

/// When a crash was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// When a gateway took its event, by the gateway's clock.
    pub taken: Seconds,
    /// When it happened, by the clock of the machine. Events may wait there for days, and clocks of machines are wrong
    /// at times: only how far apart crashes are is taken from it.
    pub happened: Seconds,
}

/// How many crashes the event stands for whose details these are. Agents of this project say so in its first line, for
/// machines, as `crashes=NUMBER`.
#[must_use]
pub fn crash_count(details: &str) -> u32 {
    let first = details.lines().next().unwrap_or_default();
    first.strip_prefix("crashes=").and_then(|count| count.parse().ok()).unwrap_or(1).max(1)
}

/// The words before the last output of a plugin in the details of an event.
const LAST_OUTPUT: &str = "its last output:";

/// Where an agent begins to say how much memory the plugin used, and how it gets more.
const MACHINES_OWN: [&str; 3] = [": it used ", "; it used ", "; `guest-agent limit "];

/// The reason in the details of a crash's event. Where an event stands for several crashes, agents put their number
/// before the reason, and how many came in a row and the last output of the plugin behind it, and how much memory it
/// used; none of these belongs to the cause.
#[must_use]
pub fn crash_reason(details: &str) -> &str {
    let reason = match details.split_once('\n') {
        Some((first, rest)) if first.starts_with("crashes=") => rest,
        Some(_) | None => details,
    };
    let reason = reason.split_once(LAST_OUTPUT).map_or(reason, |(before, _)| before);
    let reason = reason.trim_end_matches("; ");
    let reason = MACHINES_OWN
        .iter()
        .fold(reason, |reason, own| reason.split_once(own).map_or(reason, |(before, _)| before));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match reason.rsplit_once("; ") {
        Some((cause, row))
            if row.split_once(" times in a row").is_some_and(|it| is_number(it.0)) =>
        {
            cause
        }
        Some(_) | None => reason,
    }
}

// === impl Fault ===

impl Fault {
    /// The cause and the reason without what only one machine has.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        fingerprint(self.cause.text(), &self.reason)
    }

    /// The cause and the reason.
    #[must_use]
    pub fn sentence(&self) -> String {
        match self.reason.as_str() {
            "" => self.cause.text().to_owned(),
            reason => format!("{}: {reason}", self.cause.text()),
        }
    }
}

// === impl Ailment ===

impl Ailment {
    /// The fault at a time; `None` once it has ended by itself.
    #[must_use]
    pub fn at(self, now: Seconds) -> Option<Fault> {
        self.until.is_none_or(|until| now < until).then_some(self.fault)
    }
}

// === impl Cause ===

impl Cause {
    /// Its name in sentences.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::CrashLoop => "crash loop",
            Self::Crashed => "crashed",
            Self::OutOfMemory => "out of memory",
            Self::Unhealthy => "unhealthy",
            Self::Down => "down",
            Self::StartFailed => "start failed",
            Self::RunFailed => "run failed",
            Self::InstallFailed => "install failed",
            Self::RemoveFails => "cannot be removed",
            Self::NotEnforced => "not enforced",
            Self::Other => "another fault",
        }
    }
}

// === impl Crashes ===

impl Crashes {
    /// `count` more at a time. The crashes of another revision are forgotten.
    pub fn add(&mut self, revision: &str, (at, count): (Moment, u32), reason: String) {
        if self.revision != revision {
            *self = Self { revision: revision.to_owned(), ..Self::default() };
        }
        let copies = usize::try_from(count).unwrap_or(CRASH_LOOP).clamp(1, CRASH_LOOP);
        self.at.extend(std::iter::repeat_n(at, copies));
        self.at.drain(..self.at.len().saturating_sub(CRASH_LOOP));
        self.reason = reason;
        // An event that stands for many is followed by one that stands for twice as many.
        let next = u64::from(count).saturating_mul(2 * RESTART_PAUSE);
        self.lasts = next.clamp(CRASH_WINDOW, CRASH_LASTS_MAX);
    }

    /// The crash loop that they are, if they came within [`CRASH_WINDOW`], and not before `since`.
    #[must_use]
    pub fn ailment(&self, since: Seconds) -> Option<Ailment> {
        let (first, last) = (*self.at.first()?, *self.at.last()?);
        let is_loop = self.at.len() >= CRASH_LOOP
            && first.taken >= since
            && last.taken.since(first.taken) < CRASH_WINDOW
            && last.happened.since(first.happened) < CRASH_WINDOW;
        let first = first.taken;
        is_loop.then(|| Ailment {
            fault: Fault {
                level: Level::Failing,
                cause: Cause::CrashLoop,
                reason: self.reason.clone(),
                since: Some(first),
            },
            until: Some(rounded(first, self.lasts.max(CRASH_WINDOW))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crashes(revisions: &[(&str, u64)]) -> Crashes {
        let mut crashes = Crashes::default();
        for (revision, at) in revisions {
            let at = Moment { taken: Seconds(*at), happened: Seconds(*at) };
            crashes.add(revision, (at, 1), "exit code 3".to_owned());
        }
        crashes
    }

    #[test]
    fn three_crashes_of_one_revision_within_half_an_hour_are_a_loop_until_the_first_is_long_ago() {
        let found = crashes(&[("1", 0), ("1", 120), ("1", 200), ("1", 300)]);
        assert_eq!(found.ailment(Seconds(121)), None, "the first one is of before");
        let found = found.ailment(Seconds(120)).expect("a loop");
        assert_eq!(found.fault.fingerprint(), "crash loop: exit code 3");
        assert_eq!(found.fault.since, Some(Seconds(120)));
        assert_eq!(found.until, Some(Seconds(120 + CRASH_WINDOW)));
        let none = |all| crashes(all).ailment(Seconds(0));
        assert_eq!(none(&[("1", 0), ("1", 100)]), None);
        assert_eq!(none(&[("1", 0), ("1", 100), ("2", 200)]), None);
        assert_eq!(none(&[("1", 0), ("1", 100), ("1", CRASH_WINDOW)]), None);
    }

    #[test]
    fn an_event_that_stands_for_many_crashes_is_a_loop_by_itself() {
        let mut found = Crashes::default();
        let at = |at| Moment { taken: Seconds(at), happened: Seconds(5) };
        found.add("1", (at(600), crash_count("crashes=8\nexit code 3")), String::new());
        let until = found.ailment(Seconds(0)).and_then(|found| found.until);
        assert!(until.is_some_and(|until| until >= Seconds(600 + 16 * RESTART_PAUSE)), "{until:?}");
        for (details, count) in [("exit code 3", 1), ("crashes=0", 1), ("crashes=x", 1), ("", 1)] {
            assert_eq!(crash_count(details), count);
        }
        found.add("1", (at(700), u32::MAX), String::new());
        assert_eq!((found.at.len(), found.lasts), (CRASH_LOOP, CRASH_LASTS_MAX));
    }

    #[test]
    fn crashes_that_waited_on_their_machine_are_as_far_apart_as_they_were() {
        let mut found = Crashes::default();
        for happened in [0, 3600, 7200] {
            let at = Moment { taken: Seconds(90_000), happened: Seconds(happened) };
            found.add("1", (at, 1), String::new());
        }
        assert_eq!(found.ailment(Seconds(0)), None);
    }

    #[test]
    fn the_reason_of_a_crash_is_the_same_however_often_it_came() {
        let reasons = [
            "exit code 3",
            "exit code 3; 2 times in a row",
            "crashes=7\nexit code 3; 12 times in a row, 7 of them since the event before this",
            "exit code 3; its last output:\n12:01:07 no disk; bye",
            "crashes=2\nexit code 3; 2 times in a row; its last output:\nx; 3 times in a row",
        ];
        for details in reasons {
            assert_eq!(crash_reason(details), "exit code 3");
        }
        let limit = "out of memory at its limit of 64 MiB";
        let more = "`guest-agent limit web --memory 96M` gives it more";
        for details in [
            format!("{limit}: it used 63.9 MiB at its peak; {more}; 3 times in a row"),
            format!("crashes=2\n{limit}; {more}; its last output:\nx"),
        ] {
            assert_eq!(crash_reason(&details), limit);
        }
        for other in ["", "no disk; 3 of 4 are full", "one\ntwo", "; times in a row"] {
            assert_eq!(crash_reason(other), other);
        }
    }

    #[test]
    fn a_fault_lasts_until_it_ends_by_itself() {
        let fault = Fault {
            level: Level::Degraded,
            cause: Cause::Crashed,
            reason: "exit code 3".to_owned(),
            since: None,
        };
        let until = |until: Option<u64>, now| {
            let ailment = Ailment { fault: fault.clone(), until: until.map(Seconds) };
            ailment.at(Seconds(now))
        };
        assert_eq!(until(Some(100), 99).as_ref(), Some(&fault));
        assert_eq!(until(Some(100), 100), None);
        assert_eq!(until(None, u64::MAX).as_ref(), Some(&fault));
    }

    #[test]
    fn a_fault_without_a_reason_is_its_cause() {
        let fault =
            Fault { level: Level::Failing, cause: Cause::Down, reason: String::new(), since: None };
        assert_eq!((fault.sentence(), fault.fingerprint()), ("down".to_owned(), "down".to_owned()));
    }
}
