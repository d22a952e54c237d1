//! `gateways`: which processes agents are connected to.

use guest_fleet_server::gateways::presence::{self, Activity, Presence};
use guest_fleet_server::rollouts;
use schemars::JsonSchema;
use serde::Serialize;

use super::by_name::{ByName, InDocuments};
use super::context::Context;
use super::document::Time;
use super::failure::{Exit, Failure};
use super::text::{or_hyphen, table, time};

/// The gateways.
#[derive(Debug, Serialize, JsonSchema)]
pub struct GatewaysJson {
    /// All of them, by id.
    pub gateways: Vec<GatewayJson>,
}

/// A gateway.
#[derive(Debug, Serialize, JsonSchema)]
pub struct GatewayJson {
    /// Streams that it has.
    pub agents: u64,
    /// When it wrote its last heartbeat, by its own clock.
    #[schemars(with = "Option<Time>")]
    pub beat: Option<String>,
    /// How long ago that was, in whole seconds, by the clocks of both machines.
    pub beat_age_seconds: Option<u64>,
    /// Host on which it runs.
    pub host: String,
    /// Its id, which is another one after each start.
    pub id: String,
    /// It holds the lease under which rollouts are moved.
    pub moves_rollouts: bool,
    /// Process id on that host.
    pub pid: u32,
    /// When it started.
    #[schemars(with = "Option<Time>")]
    pub since: Option<String>,
    /// What it does.
    pub state: ByName<Activity>,
    /// Version of its program; empty where it does not tell.
    pub version: String,
}

/// Lists the gateways.
///
/// # Errors
/// The ledger cannot be read.
pub async fn list(context: &mut Context<'_>) -> Result<Exit, Failure> {
    let found = presence::list(context.ledger).await?;
    let holder = rollouts::holder(context.ledger).await?;
    let now = context.now.into();
    let of = |it: &Presence| {
        let age = it.age(now);
        GatewayJson {
            agents: it.record.agents,
            beat: time(it.record.beat.as_ref()),
            beat_age_seconds: age.map(|age| age.as_secs()),
            host: it.record.host.clone(),
            id: it.id().to_owned(),
            moves_rollouts: holder.as_ref().is_some_and(|holder| holder.is(&it.record)),
            pid: it.record.pid,
            since: time(it.record.since.as_ref()),
            state: it.activity(now).into(),
            version: it.record.program.clone(),
        }
    };
    let document = GatewaysJson { gateways: found.iter().map(of).collect() };
    let rows: Vec<Vec<String>> = document.gateways.iter().map(row).collect();
    if rows.is_empty() {
        context.remark(format_args!("no gateway is there: `guest-fleet serve` is one"))?;
    } else {
        let heads =
            ["GATEWAY", "STATE", "ROLLOUTS", "AGENTS", "BEAT", "HOST", "PID", "SINCE", "VERSION"];
        for line in table(&heads, &rows) {
            context.say(format_args!("{line}"))?;
        }
    }
    context.document(&document)?;
    Ok(Exit::Done)
}

fn row(gateway: &GatewayJson) -> Vec<String> {
    let age = gateway.beat_age_seconds.map(|age| format!("{age}s ago"));
    vec![
        gateway.id.clone(),
        gateway.state.0.name().to_owned(),
        (if gateway.moves_rollouts { "moves them" } else { "-" }).to_owned(),
        gateway.agents.to_string(),
        age.unwrap_or_else(|| "-".to_owned()),
        or_hyphen(gateway.host.clone()),
        gateway.pid.to_string(),
        gateway.since.clone().unwrap_or_else(|| "-".to_owned()),
        or_hyphen(gateway.version.clone()),
    ]
}

// === impl Activity ===

impl InDocuments for Activity {
    const SCHEMA: &'static str = "GatewayState";
    const ABOUT: &'static str = "What a gateway does.";
}
