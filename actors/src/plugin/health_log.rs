//! The health of a plugin, and which changes of it are events. Pure: times are arguments.
//!
//! ```text
//!   health check ─► HealthLog::heard ─► News: nothing │ to be recorded │ an event
//! ```
//!
//! A change between a code of 0 and another one is an event, with the words of the plugin; other words for
//! the same health are not. A process counts as healthy from its start on, so that a first check with another
//! code is an event and one with 0 is not. The end of a process is an event of its own, so the health of the
//! next one begins anew.
//!
//! A plugin may change its mind with every check, and each event is a write here and in a fleet. So one event
//! that it is unhealthy and one that it is healthy again come in [`QUIET`], no more: while less time has passed
//! since the last event that it is unhealthy, another one waits. It comes with the first check after that which
//! finds the plugin unhealthy still. Each event says how many changes before it had none. This bound holds over
//! processes and over restarts of the agent.

use std::time::{Duration, SystemTime};

use crate::model::event::PluginEventKind;
use crate::model::history::Condition;
use crate::ports::Health;
use crate::text::echoed;

/// The least time between two events that a plugin is unhealthy.
pub const QUIET: Duration = Duration::from_secs(600);

/// Most bytes of a plugin's words in an event and in its record.
pub const WORDS_MAX: usize = 512;

/// The health of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthLog {
    /// The answer to the last health check of its process, and when that was.
    pub last: Option<(Health, SystemTime)>,
    /// How its process is; `None` where none runs.
    pub condition: Option<Condition>,
    /// The state of its events.
    pub reported: Reported,
}

/// The state of the events about the health of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// The health of the process in the last event.
    pub health: Told,
    /// When the last event was that it is unhealthy.
    pub unhealthy_at: Option<SystemTime>,
    /// Changes since the last event that had none themselves.
    pub left_out: u32,
}

/// The health of a process in the last event about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Told {
    /// It is healthy, or no event said anything.
    #[default]
    Healthy,
    /// It is unhealthy.
    Unhealthy,
}

/// The outcome of a health check.
#[must_use = "an event that nobody writes is lost"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The plugin is as it was.
    Nothing,
    /// Its health changed, and no event reports that yet.
    Changed,
    /// An event of this kind with these details.
    Event(PluginEventKind, String),
}

// === impl HealthLog ===

impl HealthLog {
    /// Another process runs since this time, or none.
    pub fn begin(&mut self, started_at: Option<SystemTime>) {
        self.last = None;
        self.condition = started_at.map(Condition::Well);
        self.reported.health = Told::Healthy;
    }

    /// A health check of the process was answered.
    pub fn heard(&mut self, health: Health, at: SystemTime) -> News {
        let is_well = health.code == 0;
        let before = self.condition;
        self.condition = Some(Condition::after(before, is_well, at));
        let was_well = !matches!(before, Some(Condition::Unwell(_)));
        let words = words(&health);
        let code = health.code;
        self.last = Some((health, at));
        if was_well != is_well {
            self.reported.left_out = self.reported.left_out.saturating_add(1);
        }
        let kind = match (self.reported.health, is_well) {
            (Told::Healthy, false) if !self.reported.is_quiet(at) => PluginEventKind::Unhealthy,
            (Told::Unhealthy, true) => PluginEventKind::Healthy,
            _ if was_well != is_well => return News::Changed,
            _ => return News::Nothing,
        };
        let since = |condition: Option<Condition>| match condition {
            Some(Condition::Unwell(since)) => at.duration_since(since).unwrap_or_default(),
            Some(Condition::Well(_)) | None => Duration::ZERO,
        };
        let mut parts = Vec::new();
        if is_well {
            parts.push(format!("it was unhealthy for {}s", since(before).as_secs()));
            parts.extend((!words.is_empty()).then_some(words));
            self.reported.health = Told::Healthy;
        } else {
            let colon = if words.is_empty() { "" } else { ": " };
            parts.push(format!("code {code}{colon}{words}"));
            let late = since(self.condition).as_secs();
            parts.extend((late > 0).then(|| format!("it has been unhealthy for {late}s")));
            self.reported.health = Told::Unhealthy;
            self.reported.unhealthy_at = Some(at);
        }
        // The last change is the one of this event.
        let left_out = std::mem::take(&mut self.reported.left_out).saturating_sub(1);
        let times = match left_out {
            0 => None,
            1 => Some("once".to_owned()),
            many => Some(format!("{many} times")),
        };
        let left_out = times.map(|it| format!("its health changed {it} before, without an event"));
        parts.extend(left_out);
        News::Event(kind, parts.join("; "))
    }

    /// The last answer as a record keeps it: its code, its words and when it was given.
    pub(super) fn kept(&self) -> Option<(i32, String, SystemTime)> {
        let (health, at) = self.last.as_ref()?;
        Some((health.code, words(health), *at))
    }
}

// === impl Reported ===

impl Reported {
    /// Whether the last event that it is unhealthy is too young for another one. One in the future was before
    /// the clock was set back.
    fn is_quiet(&self, now: SystemTime) -> bool {
        let age = self.unhealthy_at.and_then(|at| now.duration_since(at).ok());
        age.is_some_and(|age| age < QUIET)
    }
}

/// The words of an answer in one line, within their bound.
fn words(health: &Health) -> String {
    echoed(&health.results.join("; "), WORDS_MAX)
}

#[cfg(test)]
mod tests;
