//! The progress of a wait, on a terminal; nothing where standard error is no terminal.

use std::fmt::Write;
use std::time::Duration;

use guest_agent_proto::local::PluginStatus;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use jiff::Timestamp;

use super::console::Console;
use super::format::{age, one_line, timestamp};
use crate::display::trial_left;

/// How often the spinner moves.
const BEAT: Duration = Duration::from_millis(120);

const DOWNLOAD: &str = "{msg} [{bar:30}] {bytes}/{total_bytes}, {bytes_per_sec}";
const DOWNLOAD_OF_UNKNOWN_SIZE: &str = "{msg} {bytes}, {bytes_per_sec}";
const WAIT: &str = "{spinner} {msg} ({elapsed})";
const TRIAL: &str = "{spinner} {msg} on trial for {left}";

/// One line that changes, until this is dropped.
pub(super) struct Progress {
    bar: ProgressBar,
    template: &'static str,
    /// When the trial ends that is shown.
    trial_ends: Option<Timestamp>,
    now: fn() -> Timestamp,
}

// === impl Progress ===

impl Progress {
    pub(super) fn new(console: &Console<'_>) -> Self {
        let target = if console.err_is_terminal {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(None, target);
        if console.err_is_terminal {
            bar.enable_steady_tick(BEAT);
        }
        Self { bar, template: "", trial_ends: None, now: console.now }
    }

    /// Shows a sentence.
    pub(super) fn say(&mut self, text: &str) {
        self.template = WAIT;
        self.bar.set_style(style(WAIT));
        self.bar.set_message(text.to_owned());
    }

    /// Shows the state and the download of a plugin.
    pub(super) fn show(&mut self, status: &PluginStatus) {
        let state = status.pending.as_ref().map_or(&status.state, |pending| &pending.state);
        let (template, held_up) = match &status.progress {
            Some(progress) if !progress.held_up.is_empty() => (WAIT, progress.held_up.as_str()),
            Some(progress) if progress.total_bytes.is_some() => (DOWNLOAD, ""),
            Some(_) => (DOWNLOAD_OF_UNKNOWN_SIZE, ""),
            None if trial_left(status, (self.now)()).is_some() => (TRIAL, ""),
            None => (WAIT, ""),
        };
        let trial_ends = timestamp(status.trial_ends.as_ref());
        if template != self.template || trial_ends != self.trial_ends {
            self.template = template;
            self.trial_ends = trial_ends;
            let (ends, now) = (trial_ends.unwrap_or_default(), self.now);
            // It is shown anew with each beat.
            let left = move |_: &ProgressState, out: &mut dyn Write| {
                out.write_str(&age(now(), ends)).unwrap_or_default();
            };
            self.bar.set_style(style(template).with_key("left", left));
        }
        if let Some(progress) = &status.progress {
            if let Some(total) = progress.total_bytes {
                self.bar.set_length(total);
            }
            self.bar.set_position(progress.received_bytes);
        }
        let colon = if held_up.is_empty() { "" } else { ": " };
        self.bar.set_message(one_line(&format!("{} {state}{colon}{held_up}", status.name)));
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("a fixed template")
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
