//! Agents that a selector selects, a page at a time, beside the counts of the whole fleet.

use guest_agent_proto::fleet_api::{
    Agent, AgentCounts, ListAgentsRequest, ListAgentsResponse, Standing,
};
use maud::{Markup, html};

use super::pieces::{
    Ages, Tone, ago, by_hand, cell, counted_when, labels, none, one_line, page_of, pill, query,
    shell,
};
use super::shown::Shown;
use super::standing;

/// Agents on one page.
pub(super) const PAGE: u32 = 50;

/// Plugins of an agent that its row names.
const PLUGINS: usize = 6;

/// What is looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wanted {
    /// The selector; empty for all.
    pub(super) select: String,
    /// The plugin; empty for any.
    pub(super) plugin: String,
    /// Where they stand; empty for anywhere.
    pub(super) state: String,
    /// With those that no count includes.
    pub(super) archived: bool,
    /// Where the page before ended; empty for the beginning.
    pub(super) after: String,
}

/// What the page is made from.
pub(super) struct Agents {
    /// What is looked for.
    pub(super) wanted: Wanted,
    /// A page of them; the reason where what is looked for is not possible.
    pub(super) found: Result<ListAgentsResponse, String>,
    /// Counts of the fleet.
    pub(super) counts: AgentCounts,
}

// === impl Wanted ===

impl Wanted {
    /// As the API takes it. A state that is not known does not count.
    pub(super) fn request(&self) -> ListAgentsRequest {
        ListAgentsRequest {
            selector: self.select.clone(),
            plugin: self.plugin.clone(),
            state: standing::named(&self.state).unwrap_or(Standing::Unspecified).into(),
            archived: self.archived,
            cursor: self.after.clone(),
            page_size: PAGE,
        }
    }

    /// As a part of an address.
    pub(super) fn query(&self, more: &[(&str, &str)]) -> String {
        let mut pairs = vec![
            ("select", self.select.as_str()),
            ("plugin", &self.plugin),
            ("state", &self.state),
            ("archived", if self.archived { "yes" } else { "" }),
            ("after", &self.after),
        ];
        pairs.extend_from_slice(more);
        query(&pairs)
    }

    fn command(&self) -> String {
        let mut command = "guest-fleet agents".to_owned();
        let mut add = |option: &str, value: &str| {
            if !value.is_empty() {
                command.push_str(option);
                command.push_str(&shell(value));
            }
        };
        add(" ", &self.select);
        add(" --plugin ", &self.plugin);
        add(" --state ", &self.state);
        add(" --after ", &self.after);
        if self.archived {
            command.push_str(" --archived");
        }
        command
    }
}

/// The page.
pub(super) fn page(agents: &Agents, ages: Ages) -> Shown {
    let Agents { wanted, found, counts } = agents;
    let live = html! {
        (numbers(counts))
        section aria-label="Agents that were found" {
            @match found {
                Err(reason) => p class="error" role="alert" { (cell(reason)) },
                Ok(found) => (rows(wanted, found, ages)),
            }
        }
        (by_hand(&wanted.command()))
    };
    let mut page = Shown::new("Agents", "/console/agents", live);
    page.fixed = html! { h1 { "Agents" } (form(wanted)) };
    page
}

fn form(wanted: &Wanted) -> Markup {
    html! {
        form method="get" action="/console/agents" role="search" {
            label class="hidden" for="select" { "Selector" }
            input id="select" name="select" type="search" maxlength="1024" placeholder="env = prod"
                value=(wanted.select);
            label class="hidden" for="plugin" { "Plugin" }
            input id="plugin" name="plugin" type="search" maxlength="64" placeholder="Plugin" value=(wanted.plugin);
            label class="hidden" for="state" { "Where they stand" }
            select id="state" name="state" {
                option value="" { "standing anywhere" }
                @for (_, word, option) in standing::ALL {
                    option value=(option) selected[wanted.state == option] { (word) }
                }
            }
            label class="check" {
                input name="archived" type="checkbox" value="yes" checked[wanted.archived];
                "archived as well"
            }
            button type="submit" { "Find" }
        }
    }
}

fn numbers(counts: &AgentCounts) -> Markup {
    html! {
        p class="quiet" {
            "In the fleet: "
            @for (count, word) in [
                (counts.present, "present"), (counts.away, "away"), (counts.never_seen, "never seen"),
                (counts.quarantined, "quarantined"), (counts.archived, "archived"),
            ] {
                span class="count" { strong class="number" { (count) } " " (word) } " "
            }
        }
    }
}

fn rows(wanted: &Wanted, found: &ListAgentsResponse, ages: Ages) -> Markup {
    html! {
        @if found.agents.is_empty() {
            p class="empty" {
                @if found.next.is_some() { "None on this page; there may be more." }
                @else if wanted.after.is_empty() { "There is no such agent." }
                @else { "There are no more." }
            }
        } @else {
            table {
                thead { tr {
                    th scope="col" { "Agent" } th scope="col" { "State" } th scope="col" { "Seen" }
                    th scope="col" { "Labels" } th scope="col" { "Plugins" } th scope="col" { "Version" }
                } }
                tbody { @for agent in &found.agents { (row(agent, ages)) } }
            }
        }
        div class="actions pages" {
            @if !wanted.after.is_empty() {
                @let first = Wanted { after: String::new(), ..wanted.clone() };
                a class="button" href={ "/console/agents" (first.query(&[])) } { "From the beginning" }
            }
            @if let Some(next) = &found.next {
                @let next = Wanted { after: next.clone(), ..wanted.clone() };
                a class="button" href={ "/console/agents" (next.query(&[])) } { "Next " (PAGE) }
            }
            (counted_when(found.index.as_ref(), ages))
        }
    }
}

fn row(agent: &Agent, ages: Ages) -> Markup {
    html! {
        tr {
            th scope="row" {
                a href=(page_of("agent", &agent.id)) { (one_line(&agent.id)) }
                @if let Some(host) = &agent.hostname { @if *host != agent.id { div class="note" { (cell(host)) } } }
            }
            td data-label="State" { (state(agent)) }
            td data-label="Seen" { @if agent.seen.is_some() { (ago(agent.seen.as_ref(), ages)) } @else { (none()) } }
            td data-label="Labels" { @if agent.labels.is_empty() { (none()) } @else { span { (labels(&agent.labels)) } } }
            td data-label="Plugins" {
                @if agent.plugins.is_empty() { (none()) } @else {
                    span {
                        @for plugin in agent.plugins.iter().take(PLUGINS) {
                            span class="count" {
                                (one_line(&plugin.plugin)) " "
                                (pill(standing::tone(plugin.state()), standing::word(plugin.state())))
                            } " "
                        }
                        @if agent.plugins.len() > PLUGINS { "and " (agent.plugins.len() - PLUGINS) " more" }
                    }
                }
            }
            td data-label="Version" { (cell(agent.agent_version.as_deref().unwrap_or_default())) }
        }
    }
}

/// Whether it is a member as others are.
pub(super) fn state(agent: &Agent) -> Markup {
    match agent {
        Agent { revoked: Some(_), .. } => pill(Tone::Bad, "revoked"),
        Agent { quarantine: Some(_), .. } => pill(Tone::Busy, "quarantined"),
        Agent { archived: Some(_), .. } => pill(Tone::Quiet, "archived"),
        _ => pill(Tone::Plain, "member"),
    }
}
