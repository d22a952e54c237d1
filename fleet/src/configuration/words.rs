//! Declared things as one line of text, for lists, differences and the audit record. No line has a
//! configuration or a URL in it: both may be secrets.

use guest_fleet_core::desired::{OwnersHold, Permission};
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::{
    Assignment, AssignmentRollout, Hold, Plugins, Release, Target, Window,
};
use guest_fleet_core::window::{DAY_NAMES, Weekly};
use jiff::Timestamp;

/// Digits that are shown of a digest.
const DIGITS: usize = 12;

/// A time as RFC 3339 in UTC.
#[must_use]
pub fn time(at: Seconds) -> String {
    timestamp(at).to_string()
}

/// A time as a value; the latest where it is beyond all.
#[must_use]
pub fn timestamp(at: Seconds) -> Timestamp {
    let at = i64::try_from(at.0).ok().and_then(|at| Timestamp::from_second(at).ok());
    at.unwrap_or(Timestamp::MAX)
}

/// What keeps a change back, and until when.
#[must_use]
pub fn permission(permission: &Permission) -> String {
    match permission {
        Permission::Go => {
            "waits to be ordered: that happens when a gateway has the agent's stream".to_owned()
        }
        Permission::Conflict { with } => {
            format!("waits: the assignment {with} has the same priority and wants something else")
        }
        Permission::Quarantined(why) => format!("quarantined: {why}"),
        Permission::NoRelease => "waits: the release was never declared".to_owned(),
        Permission::NoArchive { architecture } if architecture.is_empty() => {
            "waits: the agent has not said its architecture yet".to_owned()
        }
        Permission::NoArchive { architecture } => {
            format!("waits: the release has no archive for {architecture}")
        }
        Permission::WaitsForWave { .. } => "waits for its wave".to_owned(),
        Permission::Stopped { rollout, state } => {
            format!("keeps what it has: the rollout {rollout} is {state}")
        }
        Permission::Held { hold, by, reason, until } => {
            format!("held by {}{}: {reason} (hold {hold})", or_nobody(by), until_words(*until))
        }
        Permission::HeldByOwner(OwnersHold { is_window: true, until, .. }) => {
            format!("outside of the windows that its owner set{}", until_words(*until))
        }
        Permission::HeldByOwner(OwnersHold { by, reason, until, is_window: false }) => {
            format!("held by owner {}{}: {reason}", or_nobody(by), until_words(*until))
        }
        Permission::OutsideWindow { window, next: Some(next) } => {
            format!("outside its window until {} (window {window})", time(*next))
        }
        Permission::OutsideWindow { window, next: None } => {
            format!("outside its window, which never opens (window {window})")
        }
    }
}

fn or_nobody(by: &str) -> &str {
    if by.is_empty() { "somebody" } else { by }
}

fn until_words(until: Option<Seconds>) -> String {
    until.map_or_else(String::new, |until| format!(" until {}", time(until)))
}

/// The beginning of a digest.
#[must_use]
pub fn short(digest: &str) -> String {
    digest.chars().take(DIGITS).collect()
}

/// `amd64 0123456789ab, arm64 …`.
#[must_use]
pub fn release(release: &Release) -> String {
    let archives = release.archives.iter().map(|(architecture, archive)| {
        let place = if archive.url.is_empty() { "" } else { " elsewhere" };
        format!("{architecture} {}{place}", short(&archive.digest))
    });
    archives.collect::<Vec<_>>().join(", ")
}

/// `monitor 1.2 on env = prod`.
#[must_use]
pub fn assignment(assignment: &Assignment) -> String {
    let Assignment { plugin, selector, own_labels, priority, attempt, .. } = assignment;
    let what = match &assignment.target {
        Target::Revision(revision) => format!("{plugin} {revision}"),
        Target::Absent => format!("no {plugin}"),
    };
    let some = |word: &str, number: i64| match number {
        0 => String::new(),
        number => format!(", {word} {number}"),
    };
    let place = on(selector, *own_labels);
    let priority = some("priority", (*priority).into());
    let attempt = some("attempt", (*attempt).into());
    format!("{what}{place}{priority}{attempt}")
}

/// `monitor 1.2 to 1.3, running, wave 2 of 5, budget 10`.
#[must_use]
pub fn rollout(found: &AssignmentRollout) -> String {
    let AssignmentRollout { name, plugin, rollout } = found;
    let what = |target: &Target| target.revision().unwrap_or("nothing").to_owned();
    let four_eyes = if rollout.four_eyes.is_some() { ", four eyes" } else { "" };
    format!(
        "{name}: {plugin} {} to {}, {}, wave {} of {}, budget {}{four_eyes}",
        what(&rollout.from),
        what(&rollout.to),
        rollout.state.name(),
        rollout.wave + 1,
        rollout.plan.waves.len(),
        rollout.plan.budget
    )
}

/// `all plugins on env = prod until …: the reason`.
#[must_use]
pub fn hold(hold: &Hold) -> String {
    let until = hold.until.map_or_else(String::new, |until| format!(" until {}", time(until)));
    let place = on(&hold.selector, hold.own_labels);
    format!("{}{place}{until}: {}", plugins(&hold.plugins), hold.reason)
}

/// `all plugins on env = prod, mon tue 02:00-04:00 Europe/Zurich`.
#[must_use]
pub fn window(window: &Window) -> String {
    let place = on(&window.selector, window.own_labels);
    format!("{}{place}, {}", plugins(&window.plugins), weekly(&window.weekly))
}

/// `mon tue 02:00-04:00 Europe/Zurich`.
#[must_use]
pub fn weekly(weekly: &Weekly) -> String {
    let (from, to) = hours(weekly);
    format!("{} {from}-{to} {}", days(weekly).join(" "), weekly.zone)
}

/// The days as they are declared.
#[must_use]
pub fn days(weekly: &Weekly) -> Vec<&'static str> {
    DAY_NAMES
        .into_iter()
        .zip(weekly.days)
        .filter(|(_, is_one)| *is_one)
        .map(|(day, _)| day)
        .collect()
}

/// When it opens and closes, as it is declared.
#[must_use]
pub fn hours(weekly: &Weekly) -> (String, String) {
    const DAY: u16 = 24 * 60;
    let clock = |minutes: u16| format!("{:02}:{:02}", minutes / 60, minutes % 60);
    let to = weekly.opens.saturating_add(weekly.minutes);
    (clock(weekly.opens), clock(if to > DAY { to - DAY } else { to }))
}

/// `all plugins`, or their names.
#[must_use]
pub fn plugins(plugins: &Plugins) -> String {
    match plugins {
        Plugins::All => "all plugins".to_owned(),
        Plugins::Named(names) => names.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
    }
}

fn on(selector: &Selector, own: OwnLabels) -> String {
    let trust = if own == OwnLabels::Trusted { " (own labels trusted)" } else { "" };
    format!(" on {selector}{trust}")
}
