//! A step of the walk: a line with its name, how long it took and what was seen.

use std::fmt::{Arguments, Display};
use std::io::Write;
use std::time::{Duration, Instant};

/// A step in progress.
pub(super) struct Step {
    name: String,
    since: Instant,
}

/// A step did not happen.
#[derive(Debug, thiserror::Error)]
#[error("step \"{step}\": expected {expected}; seen: {seen}")]
pub(super) struct Unseen {
    step: String,
    expected: String,
    seen: String,
}

/// Prints to stdout. A reader that is gone ends nothing.
pub(super) fn say(text: Arguments<'_>) {
    let mut stdout = std::io::stdout().lock();
    drop(writeln!(stdout, "{text}").and_then(|()| stdout.flush()));
}

/// A time as people read it.
pub(super) fn shown(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

// === impl Step ===

impl Step {
    pub(super) fn begin(name: impl Into<String>) -> Self {
        Self { name: name.into(), since: Instant::now() }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    pub(super) fn done(&self, what: impl Display) {
        say(format_args!("{:>11}  {:>10}  {what}", self.name, shown(self.elapsed())));
    }

    /// A further line of what was seen.
    pub(super) fn also(what: impl Display) {
        say(format_args!("{:>25}{what}", ""));
    }

    /// What was expected and did not come.
    pub(super) fn unseen(&self, expected: impl Display, seen: impl Display) -> anyhow::Error {
        let (step, expected, seen) = (self.name.clone(), expected.to_string(), seen.to_string());
        Unseen { step, expected, seen }.into()
    }

    pub(super) fn check(
        &self,
        holds: bool,
        expected: impl Display,
        seen: impl Display,
    ) -> anyhow::Result<()> {
        if holds { Ok(()) } else { Err(self.unseen(expected, seen)) }
    }
}
