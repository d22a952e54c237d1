//! `rollout preview`: who would get the new release when, and who cannot, by the function that
//! gateways decide with.

use std::collections::BTreeMap;

use guest_fleet_core::desired::{Permission, permission};
use guest_fleet_core::fold::Row;
use guest_fleet_core::place::place;
use guest_fleet_core::rollout::{Size, Wave};
use guest_fleet_core::target::Target;
use guest_fleet_core::time::{Seconds, Zones};
use guest_fleet_core::view::View;
use guest_fleet_server::rollouts::begin::selected;
use guest_fleet_server::rollouts::by_hand::ByHand;
use guest_fleet_server::rollouts::rows::Rows;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::context::Context;
use super::super::failure::{Exit, Failure};
use super::super::lists::load;
use super::super::text::table;
use super::create::{CreateOptions, plan};

/// Most agents that are named of each kind.
const NAMED: usize = 10;

/// What a rollout would do.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PreviewJson {
    /// How many agents it is about.
    pub agents: usize,
    /// Name of the assignment.
    pub assignment: String,
    /// The most agents under way at one time.
    pub budget: u32,
    /// The former revision; null where the plugin was absent.
    pub from: Option<String>,
    /// Agents that would not get it now, by reason.
    pub kept_back: Vec<KeptBackJson>,
    /// Name of the rollout.
    pub name: String,
    /// Name of the plugin.
    pub plugin: String,
    /// The new revision.
    pub to: Option<String>,
    /// The waves.
    pub waves: Vec<WaveJson>,
}

/// A wave.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WaveJson {
    /// How many agents it would reach.
    pub agents: usize,
    /// The first of them.
    pub first: Vec<String>,
    /// Whether a person has to approve the next wave.
    pub needs_approval: bool,
    /// As it was written.
    pub size: String,
    /// How long it is watched, in seconds.
    pub soak_seconds: u64,
    /// How many agents of each zone, by the label `zone`.
    pub zones: BTreeMap<String, usize>,
}

/// Agents that would not get it now.
#[derive(Debug, Serialize, JsonSchema)]
pub struct KeptBackJson {
    /// How many.
    pub agents: usize,
    /// The first of them.
    pub first: Vec<String>,
    /// Why.
    pub reason: String,
}

/// An agent that the rollout is about.
struct Selected<'a> {
    id: &'a str,
    row: &'a Row,
    place: u64,
    kept_back: Option<String>,
}

/// Shows what `create` would do, and changes nothing.
///
/// # Errors
/// As `create`.
pub(super) async fn run(
    options: &CreateOptions,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    let configuration = load(context).await?;
    let rows = Rows::load(context.ledger).await?;
    let (view, now) = (configuration.view(), context.seconds());
    let decision = &context.decision("rollout preview", "");
    let made = plan(options, view, &rows, now, context.zones, decision)?;
    let preview = preview(options, &made, view, &rows, now, context.zones);
    print(&preview, context)?;
    context.document(&preview)?;
    Ok(Exit::Done)
}

fn preview(
    options: &CreateOptions,
    made: &ByHand,
    view: &View,
    rows: &BTreeMap<String, Row>,
    now: Seconds,
    zones: &dyn Zones,
) -> PreviewJson {
    let rollout = &made.rollout.rollout;
    let plugin = &made.rollout.plugin;
    let agents = selected(view, &options.assignment, rows, now).into_iter();
    let mut selected: Vec<Selected<'_>> = agents
        .map(|(id, row)| {
            let may = permission(view, &row.decided_on(id), plugin, &rollout.to, now, zones);
            let kept_back = if row.is_near(now) {
                reason(&may)
            } else {
                Some("out of reach: they get it when they return".to_owned())
            };
            Selected { id, row, place: place(&made.rollout.name, id), kept_back }
        })
        .collect();
    selected.sort_by_key(|agent| agent.place);
    let agents = selected.len();
    let mut kept_back: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for agent in &selected {
        if let Some(reason) = &agent.kept_back {
            kept_back.entry(reason.clone()).or_default().push(agent.id.to_owned());
        }
    }
    let all = u32::try_from(agents).unwrap_or(u32::MAX);
    let mut left: Vec<&Selected<'_>> = selected.iter().collect();
    let mut given = 0;
    let waves = rollout.plan.waves.iter().enumerate().map(|(at, wave)| {
        let goal = usize::try_from(rollout.plan.goal(at, all)).unwrap_or(usize::MAX);
        let (reached, rest) = split(std::mem::take(&mut left), wave, goal.saturating_sub(given));
        given += reached.len();
        left = rest;
        wave_json(wave, &reached)
    });
    PreviewJson {
        waves: waves.collect(),
        agents,
        assignment: options.assignment.clone(),
        budget: rollout.plan.budget,
        from: rollout.from.target().and_then(Target::revision).map(str::to_owned),
        kept_back: kept_back
            .into_iter()
            .map(|(reason, ids)| KeptBackJson {
                agents: ids.len(),
                first: ids.into_iter().take(NAMED).collect(),
                reason,
            })
            .collect(),
        name: made.rollout.name.clone(),
        plugin: plugin.clone(),
        to: rollout.to.revision().map(str::to_owned),
    }
}

/// Those that a wave reaches, and the others.
fn split<'a>(
    left: Vec<&'a Selected<'a>>,
    wave: &Wave,
    goal: usize,
) -> (Vec<&'a Selected<'a>>, Vec<&'a Selected<'a>>) {
    let mut room = goal;
    left.into_iter().partition(|agent| match &wave.size {
        Size::Label(label) => agent.label(&label.key) == Some(label.value.as_str()),
        Size::Count(_) | Size::Percent(_) => {
            let is_in = room > 0;
            room = room.saturating_sub(1);
            is_in
        }
    })
}

fn wave_json(wave: &Wave, reached: &[&Selected<'_>]) -> WaveJson {
    let mut zones = BTreeMap::new();
    for agent in reached {
        let zone = agent.label("zone").unwrap_or("-");
        *zones.entry(zone.to_owned()).or_insert(0) += 1;
    }
    WaveJson {
        agents: reached.len(),
        first: reached.iter().take(NAMED).map(|agent| agent.id.to_owned()).collect(),
        needs_approval: wave.needs_approval,
        size: wave.size.to_string(),
        soak_seconds: wave.soak,
        zones,
    }
}

/// Why a change would not happen now; `None` where it would.
fn reason(may: &Permission) -> Option<String> {
    Some(match may {
        Permission::Go => return None,
        Permission::Conflict { with } => format!("in conflict with the assignment {with}"),
        Permission::Quarantined(_) => "quarantined".to_owned(),
        Permission::NoRelease => "the release was never declared".to_owned(),
        Permission::NoArchive { architecture } if architecture.is_empty() => {
            "their architecture is not known yet".to_owned()
        }
        Permission::NoArchive { architecture } => {
            format!("the release has no archive for {architecture}")
        }
        Permission::Held { hold, reason, .. } => format!("held by {hold}: {reason}"),
        Permission::HeldByOwner(_) => "held by their owner".to_owned(),
        Permission::OutsideWindow { window, .. } => format!("outside of the window {window}"),
        Permission::WaitsForWave { rollout } | Permission::Stopped { rollout, .. } => {
            format!("in the rollout {rollout}")
        }
        Permission::Joins { assignment } => format!("joining the assignment {assignment}"),
        Permission::Paused { assignment } => format!("of the paused assignment {assignment}"),
    })
}

fn print(preview: &PreviewJson, context: &mut Context<'_>) -> Result<(), Failure> {
    let revision =
        |revision: &Option<String>| revision.clone().unwrap_or_else(|| "nothing".to_owned());
    context.say(format_args!(
        "{}: {} {} to {} for {} agents of {}, at most {} under way",
        preview.name,
        preview.plugin,
        revision(&preview.from),
        revision(&preview.to),
        preview.agents,
        preview.assignment,
        preview.budget
    ))?;
    let rows: Vec<Vec<String>> = preview
        .waves
        .iter()
        .zip(1..)
        .map(|(wave, number)| {
            let zones = wave.zones.iter().map(|(zone, count)| format!("{zone} {count}"));
            let then = if wave.needs_approval { "approval" } else { "-" };
            vec![
                number.to_string(),
                wave.size.clone(),
                wave.agents.to_string(),
                format!("{} s", wave.soak_seconds),
                then.to_owned(),
                zones.collect::<Vec<_>>().join(", "),
            ]
        })
        .collect();
    for line in table(&["WAVE", "SIZE", "AGENTS", "SOAK", "THEN", "ZONES"], &rows) {
        context.say(format_args!("{line}"))?;
    }
    for kept in &preview.kept_back {
        let first = kept.first.join(", ");
        context.say(format_args!("not now: {} ({first}): {}", kept.agents, kept.reason))?;
    }
    Ok(())
}

// === impl Selected ===

impl Selected<'_> {
    fn label(&self, key: &str) -> Option<&str> {
        self.row.agent.as_ref()?.labels.get(key)
    }
}
