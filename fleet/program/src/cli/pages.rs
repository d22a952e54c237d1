//! `agents` from the index: pages in the order of ids, by selector, plugin, state, health and presence.

use std::collections::BTreeSet;

use guest_fleet_core::fold::{Doors, Row};
use guest_fleet_core::health::{Fault, Level};
use guest_fleet_core::presence::{Links, Presence};
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::time::Seconds;
use guest_fleet_server::configuration::words;
use guest_fleet_server::fold::reader::Index;

use super::context::Context;
use super::failure::Failure;
use super::presence::connection;
use super::rows::{AgentJson, AgentRowJson, Options, PluginJson};

/// How agents are read at one moment.
#[derive(Clone, Copy)]
struct At<'a> {
    now: Seconds,
    doors: Doors<'a>,
    links: &'a Links,
}

/// The agents that the options select, and where the next page begins.
pub(super) async fn read(
    index: &mut Index<'_>,
    options: &Options,
    context: &Context<'_>,
) -> Result<(Vec<AgentRowJson>, Option<String>), Failure> {
    let limit = usize::try_from(options.limit).unwrap_or(usize::MAX);
    let (holds, windows) = index.hours();
    let doors = Doors { holds: &holds, windows: &windows, zones: context.zones };
    let links = index.links().clone();
    let at = At { now: context.seconds(), doors, links: &links };
    let is_wanted = |id: &str, row: &Row| at.is_wanted(options, id, row);
    let page = index.rows(options.after.as_deref(), limit, is_wanted).await?;
    let agents = page.rows.iter().map(|(id, row)| at.shown(id, row));
    Ok((agents.collect(), page.next))
}

/// The plugins of which anything is known but events.
fn names(row: &Row) -> BTreeSet<&str> {
    let reported = row.report.iter().flat_map(|report| report.plugins.keys());
    row.wanted.keys().chain(row.orders.keys()).chain(reported).map(String::as_str).collect()
}

// === impl At ===

impl At<'_> {
    fn is_wanted(&self, options: &Options, id: &str, row: &Row) -> bool {
        let Some(agent) = &row.agent else { return false };
        let selector: Option<&Selector> = options.selector.as_ref().or(options.select.as_ref());
        let is_selected =
            selector.is_none_or(|selector| selector.selects(id, &agent.labels, OwnLabels::Trusted));
        let is_there = options.archived || row.is_counted(self.now);
        if !is_selected || !is_there || (options.offline && !self.is_offline(row)) {
            return false;
        }
        let has_filter = options.plugin.is_some() || options.state.is_some() || options.unhealthy;
        let is_plugin = |name: &&str| options.plugin.as_deref().is_none_or(|it| it == *name);
        let passes = |name: &str| {
            options.state.is_none_or(|state| state == row.word(name, self.now, &self.doors))
                && (!options.unhealthy || self.is_unhealthy(row, name))
        };
        !has_filter || names(row).into_iter().filter(is_plugin).any(passes)
    }

    /// Whether the agent has no stream for long, also in quarantine.
    fn is_offline(&self, row: &Row) -> bool {
        let link = row.link(self.links, self.now);
        self.links.presence(link, self.now) == Presence::Offline
    }

    fn is_unhealthy(&self, row: &Row, plugin: &str) -> bool {
        row.word(plugin, self.now, &self.doors).is_unhealthy()
            || self.fault(row, plugin).is_some_and(|fault| fault.level == Level::Failing)
    }

    /// The fault of a plugin now.
    fn fault(&self, row: &Row, plugin: &str) -> Option<Fault> {
        row.ailment(plugin)?.at(self.now)
    }

    fn shown(&self, id: &str, row: &Row) -> AgentRowJson {
        let (now, link) = (self.now, row.link(self.links, self.now));
        let presence = row.presence(self.links, now).unwrap_or(Presence::NeverSeen);
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
            connection: connection(link, row.session.as_ref()),
            hostname: report.and_then(|report| some(&report.hostname)),
            id: id.to_owned(),
            labels,
            os: report.and_then(|report| some(&report.os)),
            own_labels: agent.labels.own,
            presence: presence.into(),
            quarantine: agent.quarantine,
            revoked: agent.revoked.map(words::time),
            seen: link.seen().map(words::time),
            since: agent.since.map(words::time),
        };
        let plugins = names(row).into_iter().map(|name| self.plugin(row, name));
        AgentRowJson { agent: json, plugins: Some(plugins.collect()) }
    }

    fn plugin(&self, row: &Row, name: &str) -> PluginJson {
        let reported = row.report.as_ref().and_then(|report| report.plugins.get(name));
        let order = row.orders.get(name);
        let some = |text: &String| (!text.is_empty()).then(|| text.clone());
        PluginJson {
            fault: self.fault(row, name).as_ref().map(Into::into),
            has: reported.and_then(|reported| reported.revision.clone()),
            held_by_owner: reported.is_some_and(|reported| reported.is_held),
            plugin: name.to_owned(),
            reason: order.and_then(|order| some(&order.reason)),
            revision: row.wanted.get(name).and_then(|wanted| wanted.revision().map(str::to_owned)),
            since: order.map(|order| words::time(order.since)),
            state: row.word(name, self.now, &self.doors).into(),
            is_unhealthy: self.is_unhealthy(row, name),
        }
    }
}
