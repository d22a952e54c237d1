//! The progress of a wait, on a terminal; nothing where standard error is no terminal.

use std::time::Duration;

use guest_agent_proto::local::PluginStatus;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::console::Console;
use super::format::one_line;

/// How often the spinner moves.
const BEAT: Duration = Duration::from_millis(120);

const DOWNLOAD: &str = "{msg} [{bar:30}] {bytes}/{total_bytes}, {bytes_per_sec}";
const DOWNLOAD_OF_UNKNOWN_SIZE: &str = "{msg} {bytes}, {bytes_per_sec}";
const WAIT: &str = "{spinner} {msg} ({elapsed})";

/// One line that changes, until this is dropped.
pub(super) struct Progress {
    bar: ProgressBar,
    template: &'static str,
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
        Self { bar, template: "" }
    }

    /// One that shows nothing.
    pub(super) fn hidden() -> Self {
        Self { bar: ProgressBar::hidden(), template: "" }
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
            None => (WAIT, ""),
        };
        if template != self.template {
            self.template = template;
            self.bar.set_style(style(template));
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
