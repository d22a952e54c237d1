//! Declared things as one line of text, for lists, differences and the audit record. No line has a
//! configuration or a URL in it: both may be secrets.

use guest_fleet_core::desired::{OwnersHold, Permission};
use guest_fleet_core::duration;
use guest_fleet_core::gate::{Halt, Meter};
use guest_fleet_core::repair::{Repair, Stop};
use guest_fleet_core::rollout::{Cause, OnHalt, Rollout, State, Strategy};
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::{
    Assignment, AssignmentRollout, Hold, Plugins, Policy, Release, Target, Window,
};
use guest_fleet_core::window::Weekly;
use jiff::Timestamp;

/// Digits that are shown of a digest.
const DIGITS: usize = 12;

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

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

/// How it goes on with drifted agents of an assignment.
#[must_use]
pub fn repair(repair: &Repair) -> String {
    match &repair.stop {
        Some(stop) => stopped(stop),
        None if repair.is_resumed => {
            "drifted agents are ordered again, although they are many".to_owned()
        }
        None if repair.accepted > 0 => format!(
            "orders go on; generations up to {} that the ledger does not know are accepted",
            repair.accepted
        ),
        None => "drifted agents are ordered again".to_owned(),
    }
}

/// Why agents are not ordered again.
#[must_use]
pub fn stopped(stop: &Stop) -> String {
    match stop {
        Stop::Many { drifted, of } => {
            format!(
                "stopped: {drifted} of {of} agents drifted at once, so that no agent is ordered again"
            )
        }
        Stop::Unreadable => "paused: the record of its repairs cannot be read".to_owned(),
        Stop::LedgerWentBack { agent, generation } => format!(
            "paused: {agent} reports generation {generation}, which the ledger does not know: the ledger went \
             back, and what it wants may be old"
        ),
    }
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
        Permission::Joins { assignment } => format!(
            "waits for its wave: it came to the assignment {assignment}, and a rollout begins for it"
        ),
        Permission::Paused { assignment } => format!(
            "paused: the assignment {assignment} waits for a person, see `guest-fleet status`"
        ),
        Permission::Stopped { rollout, state } => {
            format!("keeps what it has: the rollout {rollout} is {state}")
        }
        Permission::Held { hold, by, reason, until } => {
            format!("held by {}{}: {reason} (hold {hold})", or_nobody(by), until_words(*until))
        }
        Permission::HeldByOwner(OwnersHold { by, reason, until }) => {
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

/// The revision of a target, or that the plugin should be absent.
#[must_use]
pub fn target(target: &Target) -> &str {
    target.revision().unwrap_or("(absent)")
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
    let strategy = strategy(&assignment.strategy);
    let strategy = if strategy.is_empty() { strategy } else { format!(", rollout {strategy}") };
    let by_hand = assignment.declared.as_ref().map(target);
    let by_hand = by_hand.map_or_else(String::new, |it| format!(", by hand (the files say {it})"));
    format!("{what}{place}{priority}{attempt}{strategy}{by_hand}")
}

/// `no change at once on env = prod`.
#[must_use]
pub fn policy(policy: &Policy) -> String {
    let rules = [
        policy.by_rollout.then_some("no change at once"),
        policy.undoes_owners.then_some("changes by people on the machine are undone"),
    ];
    let rules: Vec<&str> = rules.into_iter().flatten().collect();
    format!("{}{}", rules.join(", "), on(&policy.selector, OwnLabels::Ignored))
}

/// `waves 1 10% 100%, soak 30m, budget 20, approval, on halt auto_back`; empty where it says nothing.
#[must_use]
pub fn strategy(strategy: &Strategy) -> String {
    let Strategy { waves, soak, budget, approval, windows, on_halt } = strategy;
    let mut parts = Vec::new();
    if !waves.is_empty() {
        let waves: Vec<String> = waves.iter().map(ToString::to_string).collect();
        parts.push(format!("waves {}", waves.join(" ")));
    }
    parts.extend(soak.map(|soak| format!("soak {}", duration::words(soak))));
    parts.extend(budget.map(|budget| format!("budget {budget}")));
    parts.extend(
        approval.map(
            |is_needed| {
                if is_needed { "approval".to_owned() } else { "no approval".to_owned() }
            },
        ),
    );
    parts.extend(windows.iter().map(weekly));
    parts.extend(on_halt.map(|on_halt| match on_halt {
        OnHalt::Stay => "on a halt it stays".to_owned(),
        OnHalt::GoBack => "on a halt it goes back".to_owned(),
    }));
    parts.join(", ")
}

/// `monitor 1.2 to 1.3, running, wave 2 of 5, budget 10`.
#[must_use]
pub fn rollout(found: &AssignmentRollout) -> String {
    let AssignmentRollout { name, plugin, rollout, .. } = found;
    let what = |target: &Target| target.revision().unwrap_or("nothing").to_owned();
    let from = rollout.from.target().map_or_else(String::new, |from| format!("{} ", what(from)));
    let to = what(&rollout.to);
    let pace = if rollout.plan.is_at_once() {
        "all at once".to_owned()
    } else {
        let (wave, waves) = (rollout.wave + 1, rollout.plan.waves.len());
        format!("wave {wave} of {waves}, budget {}", rollout.plan.budget)
    };
    format!("{name}: {plugin} {from}to {to}, {}, {pace}", rollout.state.name())
}

/// The parts of a rollout's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutWords<'a> {
    /// Its name.
    pub name: &'a str,
    /// Name of the plugin.
    pub plugin: &'a str,
    /// The name of its state.
    pub state: &'a str,
}

/// Reads the parts of what [`rollout`] wrote; `None` where somebody else did.
#[must_use]
pub fn of_rollout(words: &str) -> Option<RolloutWords<'_>> {
    let (name, rest) = words.split_once(": ")?;
    let (plugin, _) = rest.split_once(' ')?;
    // The state stands behind the revisions, which may have a comma in them.
    let (before, pace) = rest.rsplit_once(", ")?;
    let before = if pace.starts_with("budget ") { before.rsplit_once(", ")?.0 } else { before };
    let (_, state) = before.rsplit_once(", ")?;
    Some(RolloutWords { name, plugin, state })
}

/// Whether the words of a [`repair`] say that orders stopped.
#[must_use]
pub fn is_stopped(repair: &str) -> bool {
    repair.starts_with("stopped: ") || repair.starts_with("paused: ")
}

/// Why the gate halted a rollout, as a sentence.
#[must_use]
pub fn halt(cause: &Halt) -> String {
    let by_test = |what: &str, meter: &Meter| {
        format!(
            "{} {what}, and {:.1} would of themselves: the evidence of {:.1} is above {:.1}",
            meter.failed, meter.expected, meter.evidence, meter.limit
        )
    };
    match cause {
        Halt::FirstWave { fingerprint } => {
            format!("an agent of the first wave failed ({fingerprint})")
        }
        Halt::TwoInAWave { wave } => format!("two agents of wave {} failed", wave + 1),
        Halt::SeenBefore { fingerprint } => {
            format!("an agent failed as one of an earlier wave did ({fingerprint})")
        }
        Halt::Installs(meter) => by_test("installations failed", meter),
        Halt::Faults(meter) => by_test("agents failed beside those that wait", meter),
        Halt::BeforeAfter(meter) => by_test("agents failed after their order", meter),
    }
}

/// Why a rollout halted that has not gone on since, as a sentence; `None` where it did not.
#[must_use]
pub fn halted(rollout: &Rollout) -> Option<String> {
    let last = rollout.halted.iter().find(|halted| halted.target == rollout.to);
    let of_this = last.filter(|halted| halted.at >= rollout.start());
    match &rollout.state {
        State::Halted(halted) => Some(cause(halted)),
        State::RollingBack | State::RolledBack | State::Aborted => {
            of_this.map(|halted| cause(&halted.cause))
        }
        State::Draft | State::Running(_) | State::Paused(_) | State::Done => None,
    }
}

/// Why a rollout halted, as a sentence.
#[must_use]
pub fn cause(cause: &Cause) -> String {
    match cause {
        Cause::Gate(halted) => halt(halted),
        Cause::Person(reason) => format!("a person halted it: {reason}"),
        Cause::Restored => "the ledger was restored from a copy".to_owned(),
    }
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
    DAYS.into_iter().zip(weekly.days).filter(|(_, is_one)| *is_one).map(|(day, _)| day).collect()
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
