//! `[[maintenance.window]]`: when changes of plugins may begin. Pure but for the rules of time zones, which
//! come from the machine's database or from the one that is compiled in.
//!
//! ```text
//! text ─► WindowConfig ─ parse ─► MaintenanceWindow ─┬─► openings(now): of each window
//!                          └─► why not (config check)  └─► opening(plugin): of all that cover it
//! ```
//!
//! A plugin that no window covers may be changed at any time. One that several cover may be changed while
//! any of them is open.

use std::time::{Duration, SystemTime};

use guest_agent_actors::model::id::PluginName;
use guest_agent_actors::model::window::Opening;
use guest_fleet::zones::IanaZones;
use guest_fleet_core::time::Seconds;
use guest_fleet_core::window::{self, DAY_NAMES, Weekly, lasting, time_of_day};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most windows of a machine.
pub(super) const WINDOWS_MAX: usize = 64;

/// Most plugins that one window names.
const COVERS_MAX: usize = 256;

/// Stands for all plugins.
const ALL: &str = "*";

/// `[maintenance]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MaintenanceConfig {
    /// When changes of plugins may begin; without a window, at any time.
    pub window: Vec<WindowConfig>,
}

/// `[[maintenance.window]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WindowConfig {
    /// The days on which it opens: some of `mon` to `sun`.
    pub days: Vec<String>,
    /// The time of day at which it opens, such as `02:00`.
    pub from: String,
    /// The time of day at which it closes, such as `04:30`; one before `from` is on the next day, and
    /// `24:00` is midnight.
    pub to: String,
    /// The time zone of both, by its name in the IANA database, such as `Europe/Zurich`.
    pub zone: String,
    /// The plugins that it covers, by name; `*` for all.
    #[serde(default = "all_plugins")]
    pub covers: Vec<String>,
}

#[cfg(test)]
impl MaintenanceConfig {
    /// One window for these plugins: on Thursdays from two to three, UTC.
    pub(crate) fn on_thursdays(covers: &[&str]) -> Self {
        let covers = covers.iter().map(|&plugin| plugin.to_owned()).collect();
        let (days, zone) = (vec!["thu".to_owned()], "UTC".to_owned());
        let (from, to) = ("02:00".to_owned(), "03:00".to_owned());
        Self { window: vec![WindowConfig { days, from, to, zone, covers }] }
    }
}

/// One window, as it can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaintenanceWindow {
    weekly: Weekly,
    /// `None` for all plugins.
    covers: Option<Vec<PluginName>>,
}

/// All windows, as they can be asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceWindows(Vec<MaintenanceWindow>);

fn all_plugins() -> Vec<String> {
    vec![ALL.to_owned()]
}

// === impl MaintenanceConfig ===

impl MaintenanceConfig {
    /// The windows. All of a checked configuration can be read.
    #[must_use]
    pub fn windows(&self) -> MaintenanceWindows {
        MaintenanceWindows(self.window.iter().filter_map(|window| window.parse().ok()).collect())
    }
}

// === impl WindowConfig ===

impl WindowConfig {
    /// The window.
    ///
    /// # Errors
    /// Says what is wrong with it, and what to write instead.
    pub fn parse(&self) -> Result<MaintenanceWindow, String> {
        let days = self.weekdays()?;
        let (from, to) = (time("from", &self.from)?, time("to", &self.to)?);
        let minutes = lasting(from, to).ok_or_else(|| {
            format!(
                "it never opens: from {} to {} is no time; a whole day is `from = \"00:00\"`, `to = \
                 \"24:00\"`",
                self.from, self.to
            )
        })?;
        let weekly = Weekly { days, opens: from, minutes, zone: self.zone.clone() };
        match weekly.opening(Seconds(0), &IanaZones) {
            window::Opening::UnknownZone => Err(format!(
                "it never opens: {:?} is no time zone of the IANA database; write one such as \
                 \"Europe/Zurich\" or \"UTC\"",
                self.zone
            )),
            window::Opening::Closed { next: None } => Err(format!(
                "it never opens: no {} of its zone has these times",
                self.days.join(", ")
            )),
            window::Opening::Open { .. } | window::Opening::Closed { next: Some(_) } => {
                Ok(MaintenanceWindow { weekly, covers: self.plugins()? })
            }
        }
    }

    /// The window in words, such as `sat, sun from 02:00 to 04:00 Europe/Zurich`.
    #[must_use]
    pub fn in_words(&self) -> String {
        format!("{} from {} to {} {}", self.days.join(", "), self.from, self.to, self.zone)
    }

    /// What it covers, in words.
    #[must_use]
    pub fn covers_in_words(&self) -> String {
        if self.covers.iter().any(|name| name == ALL) {
            "all plugins".to_owned()
        } else {
            self.covers.join(", ")
        }
    }

    fn weekdays(&self) -> Result<[bool; 7], String> {
        let known = DAY_NAMES.join("\", \"");
        let mut days = [false; 7];
        for text in &self.days {
            let found = DAY_NAMES.iter().zip(&mut days).find(|(name, _)| *name == text);
            let (_, day) =
                found.ok_or_else(|| format!("{text:?} is not a day; write some of \"{known}\""))?;
            *day = true;
        }
        if !days.contains(&true) {
            return Err(format!("it never opens: it has no day; write some of \"{known}\""));
        }
        Ok(days)
    }

    fn plugins(&self) -> Result<Option<Vec<PluginName>>, String> {
        if self.covers.iter().any(|name| name == ALL) {
            return Ok(None);
        }
        let count = self.covers.len();
        if !(1..=COVERS_MAX).contains(&count) {
            return Err(format!(
                "it covers {count} plugins; name 1 to {COVERS_MAX}, or write `covers = [\"*\"]` for \
                 all"
            ));
        }
        let name = |text: &String| {
            text.parse::<PluginName>()
                .map_err(|error| format!("{text:?} is not the name of a plugin: {error}"))
        };
        self.covers.iter().map(name).collect::<Result<_, _>>().map(Some)
    }
}

fn time(key: &str, text: &str) -> Result<u16, String> {
    time_of_day(text)
        .ok_or_else(|| format!("{key} = {text:?} is not a time of day; write it as \"02:30\""))
}

// === impl MaintenanceWindow ===

impl MaintenanceWindow {
    /// Whether it is open.
    #[must_use]
    pub fn opening(&self, now: SystemTime) -> Opening {
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let moment = |at: Seconds| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(at.0));
        match self.weekly.opening(Seconds(since.as_secs()), &IanaZones) {
            window::Opening::Open { until } => Opening::Open { until: moment(until) },
            window::Opening::Closed { next } => Opening::Closed { until: next.and_then(moment) },
            window::Opening::UnknownZone => Opening::Closed { until: None },
        }
    }

    fn covers(&self, plugin: &PluginName) -> bool {
        self.covers.as_ref().is_none_or(|plugins| plugins.contains(plugin))
    }
}

// === impl MaintenanceWindows ===

impl MaintenanceWindows {
    /// Whether each window is open, in their order.
    #[must_use]
    pub fn openings(&self, now: SystemTime) -> Vec<Opening> {
        self.0.iter().map(|window| window.opening(now)).collect()
    }

    /// Whether changes of a plugin may begin, where each window is like this.
    #[must_use]
    pub fn of(&self, plugin: &PluginName, openings: &[Opening]) -> Opening {
        let covering = self.0.iter().zip(openings).filter(|(window, _)| window.covers(plugin));
        let all = covering.map(|(_, opening)| *opening).reduce(|one, other| match (one, other) {
            (Opening::Open { until: one }, Opening::Open { until: other }) => {
                Opening::Open { until: one.max(other) }
            }
            (open @ Opening::Open { .. }, Opening::Closed { .. })
            | (Opening::Closed { .. }, open @ Opening::Open { .. }) => open,
            (Opening::Closed { until: one }, Opening::Closed { until: other }) => {
                Opening::Closed { until: [one, other].into_iter().flatten().min() }
            }
        });
        all.unwrap_or(Opening::Open { until: None })
    }
}

#[cfg(test)]
mod tests;
