//! The first page: the machine, all plugins, and what happened lately.

use std::collections::BTreeMap;

use guest_agent_actors::manager::readiness::Readiness;
use guest_agent_actors::messages::Point;
use guest_agent_actors::model::id::PluginName;
use guest_agent_proto::local::{AgentStatus, Event, PluginStatus};
use maud::{Markup, html};

use super::chart::{Series, Unit, spark};
use super::pieces::{Ages, ago, attention, fact, page_of, pill, some, state};
use super::timeline;
use crate::display::{Tone, note, one_line, shortened};

/// Most plugins on one page. Others are found by a part of their name.
pub(super) const SHOWN_MAX: usize = 200;

/// Longest name or note in the table, in characters; the plugin's own page has all of it.
const NOTE_MAX: usize = 200;

/// The tone of each state, and how many plugins are in it, by the name of the state.
pub(super) type States = BTreeMap<String, (Tone, usize)>;

/// What is shown.
#[derive(Clone, Debug)]
pub(super) struct Overview {
    /// The agent itself.
    pub(super) agent: AgentStatus,
    /// Whether it counts as ready.
    pub(super) readiness: Readiness,
    /// The plugins whose names have `filter` in them, at most [`SHOWN_MAX`].
    pub(super) rows: Vec<Row>,
    /// How many there are of those.
    pub(super) matching: usize,
    /// How many plugins are in which state, of all.
    pub(super) states: States,
    /// How many plugins need attention, of all.
    pub(super) attention: usize,
    /// What was looked for; empty for all.
    pub(super) filter: String,
    /// What happened lately, the newest first.
    pub(super) events: Vec<Event>,
}

/// One plugin.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// What it looks like.
    pub(super) plugin: PluginStatus,
    /// What it used lately, oldest first.
    pub(super) points: Vec<Point>,
}

// === impl Row ===

impl Row {
    /// What its processes took of the processor.
    pub(super) fn cpu(&self) -> Series {
        let points = self.points.iter().map(|point| (point.at, f64::from(point.cpu_percent)));
        Series { name: "CPU", unit: Unit::Percent, points: points.collect(), limit: None }
    }

    /// What its processes had of the memory.
    pub(super) fn memory(&self) -> Series {
        let points = self.points.iter().map(|point| (point.at, point.memory_bytes as f64));
        Series { name: "Memory", unit: Unit::Bytes, points: points.collect(), limit: None }
    }
}

// === impl Overview ===

impl Overview {
    /// The parts of the page that change by themselves, each under its id.
    pub(super) fn parts(&self, ages: Ages) -> Vec<(&'static str, Markup)> {
        vec![
            ("machine", self.machine(ages)),
            ("plugins", self.plugins(ages)),
            ("events", timeline::list(&self.events, ages, timeline::Names::Shown)),
            ("said", timeline::said(self.events.first())),
        ]
    }

    /// The whole page, without its frame.
    pub(super) fn page(&self, ages: Ages) -> Markup {
        let parts: BTreeMap<_, _> = self.parts(ages).into_iter().collect();
        html! {
            h1 class="hidden" { "Overview" }
            section id="machine" aria-label="This machine" { (parts["machine"]) }
            section aria-labelledby="plugins-title" {
                div class="title" {
                    h2 id="plugins-title" { "Plugins" }
                    form method="get" action="/" role="search" {
                        label class="hidden" for="filter" { "Part of a plugin's name" }
                        input id="filter" name="plugin" type="search" maxlength="64"
                            placeholder="Find a plugin" value=(self.filter);
                        button type="submit" { "Find" }
                    }
                }
                div id="plugins" { (parts["plugins"]) }
            }
            section aria-labelledby="events-title" {
                div class="title" {
                    h2 id="events-title" { "Events" }
                    a href="/console/events" { "All events" }
                }
                div id="events" { (parts["events"]) }
            }
        }
    }

    fn machine(&self, ages: Ages) -> Markup {
        let agent = &self.agent;
        let link = if agent.link_connected {
            pill(Tone::Good, "connected")
        } else if agent.link == "none is configured" {
            pill(Tone::Plain, "none")
        } else {
            pill(Tone::Busy, "not connected")
        };
        // The pill says it already.
        let link_text = one_line(agent.link.strip_prefix("connected to ").unwrap_or(&agent.link));
        let ready = match &self.readiness {
            Readiness::Ready { .. } => pill(Tone::Good, "ready"),
            Readiness::Waiting { .. } => pill(Tone::Busy, "waiting"),
        };
        let states = self.states.iter().map(|(name, (tone, count))| {
            html! { span class="count" { (pill(*tone, name)) " " (count) } }
        });
        html! {
            dl class="cards" {
                (fact("Agent", Some(html! { strong { (one_line(&agent.version)) } " "
                    span class="quiet" { "started " (ago(agent.started_at.as_ref(), ages)) } })))
                (fact("Instance", some(&agent.instance_id)))
                (fact("Readiness", Some(ready)))
                (fact("Control plane", Some(html! { (link) " "
                    span class="quiet" { (shortened(&link_text, NOTE_MAX)) } })))
                (fact("Events to deliver", Some(html! { strong { (agent.outbox_depth) } })))
                (fact("Plugins", Some(html! {
                    @if self.states.is_empty() { "none" }
                    @for state in states { (state) " " }
                })))
            }
            @if self.attention > 0 {
                p class="troubles" {
                    strong { (self.attention) }
                    @if self.attention == 1 { " plugin needs" } @else { " plugins need" }
                    " attention; they come first."
                }
            }
            @if !agent.troubles.is_empty() {
                ul class="troubles" {
                    @for trouble in &agent.troubles {
                        li { (one_line(trouble)) "; see " code { "guest-agent doctor" } }
                    }
                }
            }
        }
    }

    fn plugins(&self, ages: Ages) -> Markup {
        html! {
            @if self.rows.is_empty() {
                p class="empty" {
                    @if self.filter.is_empty() {
                        "No plugin is installed. The control plane orders them, or "
                        code { "guest-agent install" } "."
                    } @else {
                        "No plugin has “" (one_line(&self.filter)) "” in its name. "
                        a href="/" { "Show all" }
                    }
                }
            } @else {
                table class="plugins" {
                    thead {
                        tr {
                            @for heading in ["Plugin", "State", "Revision", "CPU", "Memory",
                                "Health", "Restarts", "Started"] {
                                th scope="col" { (heading) }
                            }
                        }
                    }
                    tbody { @for row in &self.rows { (shown(row, ages)) } }
                }
                @if self.matching > self.rows.len() {
                    p class="quiet" {
                        "And " (self.matching - self.rows.len()) " more. Find them by a part of their name."
                    }
                }
            }
        }
    }
}

fn shown(row: &Row, ages: Ages) -> Markup {
    let plugin = &row.plugin;
    let name = one_line(&plugin.name);
    let attention = attention(plugin, ages, NOTE_MAX);
    let note = note(plugin);
    let health = match &plugin.health {
        Some(health) if health.code == 0 => pill(Tone::Good, "healthy"),
        Some(_) => pill(Tone::Bad, "unhealthy"),
        None => html! { span class="quiet" { "–" } },
    };
    html! {
        tr {
            th scope="row" {
                // A folder may have a name that no plugin can have, and then has no page.
                @if plugin.name.parse::<PluginName>().is_ok() {
                    a href=(page_of(&plugin.name)) { (shortened(&name, NOTE_MAX)) }
                } @else { (shortened(&name, NOTE_MAX)) }
                @if let Some(attention) = attention { span class="note" { (attention) } }
                @else if !note.is_empty() { span class="note" { (shortened(&note, NOTE_MAX)) } }
            }
            td data-label="State" { (state(plugin)) }
            td data-label="Revision" { code { (shortened(&one_line(&plugin.revision), 40)) } }
            td data-label="CPU" { (spark(&row.cpu())) }
            td data-label="Memory" { (spark(&row.memory())) }
            td data-label="Health" { (health) }
            td data-label="Restarts" class="number" { (plugin.restarts) }
            td data-label="Started" {
                @if plugin.pid.is_some() { (ago(plugin.started_at.as_ref(), ages)) }
                @else { span class="quiet" { "–" } }
            }
        }
    }
}
