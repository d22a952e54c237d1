//! The first page: what needs attention, the other plugins, the machine, and what happened lately.

use std::collections::BTreeMap;

use guest_agent_actors::manager::readiness::Readiness;
use guest_agent_actors::model::id::PluginName;
use guest_agent_console_kit::chart::spark;
use guest_agent_console_kit::live::Parts;
use guest_agent_console_kit::pieces::pill;
use guest_agent_proto::local::{AgentStatus, PluginStatus};
use jiff::Timestamp;
use maud::{Markup, html};

use super::choice::Choice;
use super::events::{self, Line, Names};
use super::pieces::{Ages, ago, fact, page_of, some, state};
use super::row::Row;
use super::view::{Show, Sort, View};
use crate::display::{
    self, Tone, level, level_word, note, one_line, plugin_tone, shortened, timestamp,
};

/// Most plugins on one page. Others are found by a part of their name.
pub(super) const SHOWN_MAX: usize = 200;

/// Longest name or note in the table, in characters; the plugin's own page has all of it.
const NOTE_MAX: usize = 200;

/// What is shown.
#[derive(Clone, Debug)]
pub(super) struct Overview {
    /// The agent itself.
    pub(super) agent: AgentStatus,
    /// Whether it counts as ready.
    pub(super) readiness: Readiness,
    /// What is looked for.
    pub(super) view: View,
    /// The plugins that need attention, the most urgent first; at most [`SHOWN_MAX`].
    pub(super) attention: Vec<Row>,
    /// The others; with those that need attention at most [`SHOWN_MAX`].
    pub(super) rest: Vec<Row>,
    /// How many plugins there are of those that are looked for.
    pub(super) matching: usize,
    /// How many of all plugins each choice has.
    pub(super) counts: Vec<(Show, usize)>,
    /// What happened lately, the newest first.
    pub(super) events: Vec<Line>,
}

// === impl Overview ===

impl Overview {
    /// The parts of the page that change by themselves, each under its id.
    pub(super) fn parts(&self, ages: Ages) -> Parts {
        vec![
            ("attention", self.attention(ages)),
            ("choices", self.choices()),
            ("plugins", self.plugins(ages)),
            ("machine", self.machine(ages)),
            ("events", events::list(&self.events, ages, Names::Shown)),
            ("said", events::said(self.events.first())),
        ]
    }

    /// The whole page, without its frame.
    pub(super) fn page(&self, ages: Ages) -> Markup {
        let parts: BTreeMap<_, _> = self.parts(ages).into_iter().collect();
        html! {
            h1 class="hidden" { "Overview" }
            div id="attention" { (parts["attention"]) }
            section aria-labelledby="plugins-title" {
                div class="title" {
                    h2 id="plugins-title" { "Plugins" }
                    form method="get" action="/" role="search" {
                        label class="hidden" for="filter" { "Part of a plugin's name" }
                        input id="filter" name="plugin" type="search" maxlength="64"
                            placeholder="Find a plugin" value=(self.view.filter);
                        button type="submit" { "Find" }
                    }
                }
                nav id="choices" class="choices" aria-label="Plugins that are shown" { (parts["choices"]) }
                div id="plugins" { (parts["plugins"]) }
            }
            section aria-labelledby="events-title" {
                div class="title" {
                    h2 id="events-title" { "Events" }
                    a href="/console/events" { "All events" }
                }
                div id="events" { (parts["events"]) }
            }
            section id="machine" aria-label="The agent" { (parts["machine"]) }
        }
    }

    /// What somebody has to look at: each with the reason and the next step.
    fn attention(&self, ages: Ages) -> Markup {
        let troubles = &self.agent.troubles;
        if self.attention.is_empty() && troubles.is_empty() {
            return html! {};
        }
        let count = self.attention.len();
        html! {
            section class="attention" aria-labelledby="attention-title" {
                @if count > 0 {
                    h2 id="attention-title" {
                        (count) @if count == 1 { " needs attention" } @else { " need attention" }
                    }
                    ul { @for row in &self.attention { (urgent(row, ages)) } }
                } @else {
                    h2 id="attention-title" { "The agent needs attention" }
                }
                @if !troubles.is_empty() {
                    ul class="troubles" {
                        @for trouble in troubles {
                            li {
                                (one_line(trouble)) "; see " a href="/console/doctor" { "doctor" }
                            }
                        }
                    }
                }
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
        let held = agent.hold.as_ref().map(|held| {
            html! {
                (pill(Tone::Plain, "held")) " by " (one_line(&held.by)) " "
                span class="quiet" { (ago(held.since.as_ref(), ages)) }
            }
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
                (fact("All plugins", held))
            }
        }
    }

    fn choices(&self) -> Markup {
        html! {
            @for (show, count) in &self.counts {
                @if *count > 0 || *show == self.view.show || *show == Show::All {
                    a href={ "/" (self.view.of(*show).query(&[])) }
                        aria-current=[(*show == self.view.show).then_some("true")] {
                        (show.name()) " " span class="number" { (count) }
                    }
                }
            }
        }
    }

    fn plugins(&self, ages: Ages) -> Markup {
        let shown = self.attention.len() + self.rest.len();
        html! {
            @if self.rest.is_empty() {
                p class="empty" {
                    @if !self.view.filter.is_empty() {
                        "No " @if !self.attention.is_empty() { "other " } "plugin has “"
                        (one_line(&self.view.filter)) "” in its name. "
                        a href="/" { "Show all" }
                    } @else if self.view.show != Show::All && self.attention.is_empty() {
                        "No plugin is like that. " a href="/" { "Show all" }
                    } @else if self.attention.is_empty() {
                        "No plugin is installed. The control plane orders them, or "
                        code { "guest-agent install" } "."
                    } @else {
                        "All that there are need attention, and stand above."
                    }
                }
            } @else {
                (self.table(ages))
            }
            @if self.matching > shown {
                p class="quiet" {
                    "And " (self.matching - shown) " more. Find them by a part of their name."
                }
            }
        }
    }

    fn table(&self, ages: Ages) -> Markup {
        const COLUMNS: [Column; 8] = [
            Column::By(Sort::Name),
            Column::By(Sort::State),
            Column::Named("Revision"),
            Column::By(Sort::Cpu),
            Column::By(Sort::Memory),
            Column::Named("Health"),
            Column::By(Sort::Restarts),
            Column::By(Sort::Started),
        ];
        html! {
            table class="plugins" {
                caption class="hidden" { "Plugins that need no attention" }
                thead {
                    tr {
                        @for column in COLUMNS {
                            @match column {
                                Column::By(sort) => th scope="col" aria-sort=[self.view.order(sort)] {
                                    a href={ "/" (self.view.by(sort).query(&[])) } { (sort.name()) }
                                },
                                Column::Named(name) => th scope="col" { (name) },
                            }
                        }
                    }
                }
                tbody { @for row in &self.rest { (shown_row(row, ages)) } }
            }
        }
    }
}

/// The heading of a column.
enum Column {
    /// Of one by which the rows can be sorted.
    By(Sort),
    /// Of another.
    Named(&'static str),
}

/// The name of a plugin, and the way to its page. A folder may have a name that no plugin can have,
/// and then has no page.
fn named(plugin: &PluginStatus) -> Markup {
    let name = shortened(&one_line(&plugin.name), NOTE_MAX);
    html! {
        @if plugin.name.parse::<PluginName>().is_ok() {
            a href=(page_of(&plugin.name)) { (name) }
        } @else { (name) }
    }
}

/// A plugin that needs attention.
fn urgent(row: &Row, ages: Ages) -> Markup {
    let plugin = &row.plugin;
    let verdict = plugin.verdict.clone().unwrap_or_default();
    let next = timestamp(verdict.until.as_ref()).filter(|next| match ages {
        Ages::At(now) => *next > now,
        Ages::Left => true,
    });
    html! {
        li class=(guest_agent_console_kit::pieces::class(plugin_tone(plugin))) {
            div class="title" {
                h3 { (named(plugin)) " " (pill(plugin_tone(plugin), level_word(level(plugin)))) " " (state(plugin)) }
                span class="quiet" {
                    code { (shortened(&one_line(&plugin.revision), 40)) } " "
                    (ago(verdict.since.as_ref(), ages))
                }
            }
            p { (shortened(&one_line(&verdict.reason), NOTE_MAX * 2)) }
            p class="next" {
                @if !verdict.help.is_empty() { "Next: " code { (one_line(&verdict.help)) } }
                @if let Some(next) = next {
                    span class="quiet" { " The agent acts by itself at " (clock(next)) "." }
                }
            }
        }
    }
}

/// The time of day of a moment to come.
fn clock(at: Timestamp) -> Markup {
    let second = display::second(at);
    html! { span title=(second) { (at.strftime("%H:%M:%S UTC").to_string()) } }
}

fn shown_row(row: &Row, ages: Ages) -> Markup {
    let plugin = &row.plugin;
    let note = super::pieces::attention(plugin, ages, NOTE_MAX).or_else(|| {
        let note = note(plugin);
        (!note.is_empty()).then(|| html! { (shortened(&note, NOTE_MAX)) })
    });
    let health = match &plugin.health {
        Some(health) if health.code == 0 => pill(Tone::Good, "healthy"),
        Some(_) => pill(Tone::Bad, "unhealthy"),
        None => html! { span class="quiet" { "–" } },
    };
    html! {
        tr {
            th scope="row" {
                (named(plugin))
                @if let Some(note) = note { span class="note" { (note) } }
            }
            td data-label="State" { span { (state(plugin)) } }
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

/// How many plugins each choice has.
pub(super) fn counts<'a>(
    plugins: impl Iterator<Item = &'a PluginStatus> + Clone,
) -> Vec<(Show, usize)> {
    let count = |show: Show| plugins.clone().filter(|plugin| show.has(plugin)).count();
    Show::ALL.iter().map(|(show, ..)| (*show, count(*show))).collect()
}

/// Splits plugins into those that need attention, the most urgent first, and the others in the order
/// of the view; at most [`SHOWN_MAX`] of both together.
pub(super) fn split(rows: Vec<Row>, view: &View) -> (Vec<Row>, Vec<Row>) {
    let urgent = |row: &Row| display::needs_attention(&row.plugin);
    let (mut attention, mut rest): (Vec<_>, Vec<_>) = rows.into_iter().partition(urgent);
    attention.sort_by_key(|row| (display::urgency(&row.plugin), row.plugin.name.clone()));
    view.sort(&mut rest);
    attention.truncate(SHOWN_MAX);
    rest.truncate(SHOWN_MAX - attention.len());
    (attention, rest)
}
