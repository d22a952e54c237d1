//! `agents` from the index: pages in the order of ids, by selector, plugin and state.

use std::collections::BTreeSet;

use guest_fleet_core::fold::{Doors, Presence, Row};
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::time::Seconds;
use guest_fleet_server::configuration::words;
use guest_fleet_server::fold::reader::Index;

use super::context::Context;
use super::failure::Failure;
use super::rows::{AgentJson, AgentRowJson, Options, PluginJson};

/// The agents that the options select, and where the next page begins.
pub(super) async fn read(
    index: &mut Index<'_>,
    options: &Options,
    context: &Context<'_>,
) -> Result<(Vec<AgentRowJson>, Option<String>), Failure> {
    let now = context.seconds();
    let limit = usize::try_from(options.limit).unwrap_or(usize::MAX);
    let (holds, windows) = index.hours();
    let doors = Doors { holds: &holds, windows: &windows, zones: context.zones };
    let selector = options.selector.as_ref().or(options.select.as_ref());
    let is_wanted = |id: &str, row: &Row| is_wanted(options, selector, id, row, now, &doors);
    let page = index.rows(options.after.as_deref(), limit, is_wanted).await?;
    let agents = page.rows.iter().map(|(id, row)| shown(id, row, now, &doors));
    Ok((agents.collect(), page.next))
}

fn is_wanted(
    options: &Options,
    selector: Option<&Selector>,
    id: &str,
    row: &Row,
    now: Seconds,
    doors: &Doors<'_>,
) -> bool {
    let Some(agent) = &row.agent else { return false };
    let is_archived = row.presence(now) == Some(Presence::Archived);
    if is_archived && !options.archived {
        return false;
    }
    if selector.is_some_and(|selector| !selector.selects(id, &agent.labels, OwnLabels::Trusted)) {
        return false;
    }
    if options.plugin.is_none() && options.state.is_none() {
        return true;
    }
    let plugins = names(row).into_iter();
    plugins
        .filter(|name| options.plugin.as_deref().is_none_or(|plugin| plugin == *name))
        .any(|name| options.state.is_none_or(|state| state == row.word(name, now, doors).into()))
}

/// The plugins of which anything is known but events.
fn names(row: &Row) -> BTreeSet<&str> {
    let reported = row.report.iter().flat_map(|report| report.plugins.keys());
    row.wanted.keys().chain(row.orders.keys()).chain(reported).map(String::as_str).collect()
}

fn shown(id: &str, row: &Row, now: Seconds, doors: &Doors<'_>) -> AgentRowJson {
    let agent = row.agent.clone().unwrap_or_default();
    let report = row.report.as_ref();
    let some = |text: &String| (!text.is_empty()).then(|| text.clone());
    let archived = agent.archived_after().filter(|at| *at <= now).map(words::time);
    let mut labels = agent.labels.token;
    labels.extend(agent.labels.operator);
    let json = AgentJson {
        agent_version: report.and_then(|report| some(&report.version)),
        architecture: report.and_then(|report| some(&report.architecture)),
        archived,
        hostname: report.and_then(|report| some(&report.hostname)),
        id: id.to_owned(),
        labels,
        os: report.and_then(|report| some(&report.os)),
        own_labels: agent.labels.own,
        quarantine: agent.quarantine,
        revoked: agent.revoked.map(words::time),
        seen: agent.seen.map(words::time),
        since: agent.since.map(words::time),
    };
    let plugins = names(row).into_iter().map(|name| PluginJson {
        has: report.and_then(|report| report.plugins.get(name)?.revision.clone()),
        plugin: name.to_owned(),
        reason: row.orders.get(name).and_then(|order| some(&order.reason)),
        revision: row.wanted.get(name).and_then(|wanted| wanted.revision().map(str::to_owned)),
        state: row.word(name, now, doors).into(),
    });
    AgentRowJson { agent: json, plugins: Some(plugins.collect()) }
}
