//! Bounds how many lines one cause may write to the log. Pure: the caller passes the time.
//!
//! Lines that one place of the program logs about one plugin are of one kind. In a window of time,
//! [`LINES_MAX`] lines of each kind are written; the others are counted, and the count is logged
//! when the window is over. Without this a plugin that fails in a loop, or a peer that sends
//! nonsense, would push everything else out of the journal.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Lines of one kind that are written in one window.
pub(crate) const LINES_MAX: u64 = 60;

/// How long a window is.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);

/// Most kinds that are counted by place and subject. Beyond it, lines are counted by place alone.
const KINDS_MAX: usize = 1024;

/// The kind of a line: lines of one kind share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    /// The place in the program that logs the line.
    pub(crate) place: LogSite,
    /// A hash of the line's subject, such as a plugin. Zero when the line has no subject, or when
    /// [`KINDS_MAX`] kinds are counted already.
    pub(crate) about: u64,
}

/// A place in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LogSite {
    pub(crate) target: &'static str,
    pub(crate) file: &'static str,
    pub(crate) line: u32,
}

/// What to do with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It is written.
    Write,
    /// It is counted.
    Count,
}

/// Lines that were counted instead of written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unwritten {
    /// The place in the program that logs them.
    pub(crate) place: LogSite,
    pub(crate) lines: u64,
    /// The first of them.
    pub(crate) example: String,
}

/// The windows of all kinds with a recent line.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    windows: HashMap<Kind, Window>,
}

#[derive(Debug)]
struct Window {
    since: Instant,
    lines: u64,
    /// When the first line came that was not written.
    example: String,
}

// === impl Repeats ===

impl Repeats {
    /// Counts a line of this kind and decides whether to write it. Calls `text` for the first line
    /// of a window that is not written.
    pub(crate) fn heard(
        &mut self,
        kind: Kind,
        now: Instant,
        text: impl FnOnce() -> String,
    ) -> Decision {
        let is_full = self.windows.len() >= KINDS_MAX;
        let kind = if is_full && !self.windows.contains_key(&kind) {
            Kind { about: 0, ..kind }
        } else {
            kind
        };
        let window = self.windows.entry(kind);
        let window =
            window.or_insert_with(|| Window { since: now, lines: 0, example: String::new() });
        // A window with unwritten lines stays, even when it is over, until `over` or `all` takes
        // it.
        if window.unwritten() == 0 && window.is_over(now) {
            (window.since, window.lines) = (now, 0);
        }
        window.lines = window.lines.saturating_add(1);
        match window.unwritten() {
            0 => Decision::Write,
            1 => {
                window.example = text();
                Decision::Count
            }
            _ => Decision::Count,
        }
    }

    /// Removes the windows that have ended, and returns the lines that they did not write.
    pub(crate) fn over(&mut self, now: Instant) -> Vec<Unwritten> {
        self.take(|window| window.is_over(now))
    }

    /// Removes all windows, ended or not, and returns the lines that they did not write.
    pub(crate) fn all(&mut self) -> Vec<Unwritten> {
        self.take(|_| true)
    }

    fn take(&mut self, is_wanted: impl Fn(&Window) -> bool) -> Vec<Unwritten> {
        let taken = self.windows.extract_if(|_, window| is_wanted(window));
        let taken = taken.filter(|(_, window)| window.unwritten() > 0);
        let mut taken: Vec<_> = taken
            .map(|(kind, window)| {
                let lines = window.unwritten();
                Unwritten { place: kind.place, lines, example: window.example }
            })
            .collect();
        taken.sort_by_key(|unwritten| std::cmp::Reverse(unwritten.lines));
        taken
    }
}

// === impl Window ===

impl Window {
    fn unwritten(&self) -> u64 {
        self.lines.saturating_sub(LINES_MAX)
    }

    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= WINDOW
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn kind(line: u32, about: u64) -> Kind {
        Kind { place: LogSite { target: "agent", file: "a.rs", line }, about }
    }

    fn say(repeats: &mut Repeats, kind: Kind, now: Instant, times: u64) -> u64 {
        let heard = (0..times).map(|number| repeats.heard(kind, now, || format!("line {number}")));
        u64::try_from(heard.filter(|verdict| *verdict == Decision::Write).count()).expect("few")
    }

    #[test]
    fn what_is_said_too_often_is_counted_and_told_once() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        assert_eq!(say(&mut repeats, kind(1, 1), now, 5000), LINES_MAX);
        assert_eq!(say(&mut repeats, kind(1, 2), now, 1), 1, "of something else");
        assert!(repeats.over(now).is_empty(), "the window is open");
        let later = now + WINDOW;
        let told = repeats.over(later);
        let [unwritten] = &told[..] else { panic!("{told:?}") };
        assert_eq!(unwritten.lines, 5000 - LINES_MAX);
        assert_eq!(unwritten.example, format!("line {LINES_MAX}"));
        assert!(repeats.over(later).is_empty() && repeats.windows.is_empty());
        assert_eq!(say(&mut repeats, kind(1, 1), later, 5000), LINES_MAX, "a new window");
        assert_eq!(repeats.all().len(), 1, "at the end nothing is kept back");
    }

    #[test]
    fn a_count_that_nobody_asked_for_is_not_lost() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        say(&mut repeats, kind(1, 1), now, LINES_MAX + 2);
        assert_eq!(say(&mut repeats, kind(1, 1), now + 2 * WINDOW, 1), 0);
        assert_eq!(repeats.over(now + 2 * WINDOW).first().map(|told| told.lines), Some(3));
    }

    #[test]
    fn who_talks_of_ever_new_things_fills_neither_the_log_nor_the_memory() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        let kinds = 100_000;
        let written: u64 = (1..=kinds).map(|about| say(&mut repeats, kind(1, about), now, 1)).sum();
        assert_eq!(written, u64::try_from(KINDS_MAX).expect("small") + LINES_MAX);
        assert_eq!(repeats.windows.len(), KINDS_MAX + 1);
        assert_eq!(say(&mut repeats, kind(2, 1), now, 1), 1, "another place has its own count");
    }

    proptest! {
        #[test]
        fn law_every_line_is_written_or_counted(
            lines in proptest::collection::vec((0u32..3, 0u64..4, 0u64..40), 0..900)
        ) {
            let (mut repeats, mut now) = (Repeats::default(), Instant::now());
            let (mut written, mut told) = (0, 0);
            for (line, about, seconds) in &lines {
                now += Duration::from_secs(*seconds) / 8;
                written += say(&mut repeats, kind(*line, *about), now, 1);
                if *seconds == 7 {
                    told += repeats.over(now).iter().map(|unwritten| unwritten.lines).sum::<u64>();
                }
            }
            told += repeats.all().iter().map(|unwritten| unwritten.lines).sum::<u64>();
            prop_assert_eq!(written + told, u64::try_from(lines.len()).expect("few"));
        }
    }
}
