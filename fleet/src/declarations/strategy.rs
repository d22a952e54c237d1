//! A strategy: how the changes of an assignment go, or those of all that say nothing.

use guest_fleet_core::duration;
use guest_fleet_core::rollout::{OnHalt, Strategy, StrategyWave, reach_all};
use guest_fleet_core::window::Weekly;

use super::fields::{Context, Fields, shown};
use super::tree::Node;
use super::window;

/// Largest budget.
pub const BUDGET_MAX: u32 = 10_000;

/// Longest time for which a wave is watched, in seconds.
const SOAK_MAX: u64 = 30 * 24 * 3600;

/// Most windows of a strategy.
const WINDOWS: usize = 20;

const ALLOWED: [&str; 6] = ["waves", "soak", "budget", "approval", "windows", "on_halt"];

const HINTS: [(&str, &str); 2] = [
    ("wave", "write `waves = [\"1\", \"10%\", \"100%\"]`"),
    (
        "window",
        "write `windows = [{ days = [\"mon\"], from = \"09:00\", to = \"16:00\", zone = \"Europe/Zurich\" }]`",
    ),
];

/// The words of [`OnHalt`].
pub(crate) const STAY: &str = "stay";
pub(crate) const AUTO_BACK: &str = "auto_back";

/// Reads a strategy; `None` when it has a problem.
pub(crate) fn read(context: &mut Context<'_>, node: &Node, path: &str) -> Option<Strategy> {
    let fields = Fields::new(context, node, path, &ALLOWED, &HINTS)?;
    let waves = waves(context, &fields);
    let soak = soak(context, &fields);
    let budget = budget(context, &fields);
    let approval = fields.get("approval").map(|_| fields.flag(context, "approval"));
    let windows = windows(context, &fields);
    let on_halt = on_halt(context, &fields);
    Some(Strategy {
        waves: waves?,
        soak: soak?,
        budget: budget?,
        approval,
        windows: windows?,
        on_halt: on_halt?,
    })
}

fn waves(context: &mut Context<'_>, fields: &Fields<'_>) -> Option<Vec<StrategyWave>> {
    let Some(node) = fields.get("waves") else { return Some(Vec::new()) };
    let key = fields.key("waves");
    let items = context.list(node, &key)?;
    let mut waves = Vec::new();
    for item in items {
        let text = context.text(item, &key)?;
        match text.parse() {
            Ok(wave) => waves.push(wave),
            Err(reason) => {
                let fix = "write waves such as \"5\", \"10%\" or \"ring=canary,soak=1h,approve\"";
                context.problem(item.place, &key, reason, fix);
            }
        }
    }
    if waves.len() < items.len() {
        return None;
    }
    if waves.is_empty() {
        let fix = "leave it out for the usual waves, or write \"100%\" for all together";
        context.problem(node.place, &key, "there is no wave", fix);
        return None;
    }
    if let Err((reason, fix)) = reach_all(&waves) {
        context.problem(node.place, &key, reason, fix);
        return None;
    }
    Some(waves)
}

/// `Some(None)` where the key is missing.
fn soak(context: &mut Context<'_>, fields: &Fields<'_>) -> Option<Option<u64>> {
    if fields.get("soak").is_none() {
        return Some(None);
    }
    let (text, at) = fields.text(context, "soak")?;
    let soak = duration::parse(text).map(|soak| soak.as_secs()).and_then(|soak| {
        if soak <= SOAK_MAX {
            Ok(soak)
        } else {
            Err(format!("{} is longer than {}", shown(text), duration::words(SOAK_MAX)))
        }
    });
    match soak {
        Ok(soak) => Some(Some(soak)),
        Err(reason) => {
            context.problem(at, &fields.key("soak"), reason, "write a time such as \"30m\"");
            None
        }
    }
}

fn budget(context: &mut Context<'_>, fields: &Fields<'_>) -> Option<Option<u32>> {
    if fields.get("budget").is_none() {
        return Some(None);
    }
    let (number, at) = fields.integer(context, "budget")?;
    match u32::try_from(number) {
        Ok(budget @ 1..=BUDGET_MAX) => Some(Some(budget)),
        _ => {
            let reason = format!("{number} is not a number of agents that may be under way");
            let fix = format!("write a number from 1 to {BUDGET_MAX}");
            context.problem(at, &fields.key("budget"), reason, fix);
            None
        }
    }
}

fn windows(context: &mut Context<'_>, fields: &Fields<'_>) -> Option<Vec<Weekly>> {
    let Some(node) = fields.get("windows") else { return Some(Vec::new()) };
    let key = fields.key("windows");
    let items = context.list(node, &key)?;
    if items.len() > WINDOWS {
        let reason = format!("{} windows are too many", items.len());
        context.problem(node.place, &key, reason, format!("write at most {WINDOWS}"));
        return None;
    }
    let all = items.iter().map(|item| {
        let fields = Fields::new(context, item, key.as_str(), &window::HOURS, &[])?;
        window::weekly(context, &fields)
    });
    // The problems of all windows, and not of the first alone.
    all.collect::<Vec<_>>().into_iter().collect()
}

fn on_halt(context: &mut Context<'_>, fields: &Fields<'_>) -> Option<Option<OnHalt>> {
    if fields.get("on_halt").is_none() {
        return Some(None);
    }
    let (text, at) = fields.text(context, "on_halt")?;
    match text {
        STAY => Some(Some(OnHalt::Stay)),
        AUTO_BACK => Some(Some(OnHalt::GoBack)),
        _ => {
            let reason = format!("{} is unknown", shown(text));
            let fix = format!(
                "write \"{STAY}\", to wait for a person, or \"{AUTO_BACK}\", to give agents the former release"
            );
            context.problem(at, &fields.key("on_halt"), reason, fix);
            None
        }
    }
}
