//! One agent: what it should have, what it has, why not, what was ordered, and what happened.

use guest_agent_proto::fleet_api::{Certificate, Event, Explanation, Order, Reported, WholeAgent};
use maud::{Markup, html};

use super::agents::state;
use super::deed::{Deed, buttons};
use super::pieces::{
    Ages, Tone, ago, badge, by_hand, cell, fact, labels, none, one_line, pill, revision, shell,
    some, when,
};
use super::role::May;
use super::shown::Shown;
use super::standing;

/// What the page is made from.
pub(super) struct Whole {
    /// The agent.
    pub(super) agent: WholeAgent,
    /// What happened to its plugins, the newest first.
    pub(super) events: Vec<Event>,
}

/// The page.
pub(super) fn page(whole: &Whole, may: &May, ages: Ages) -> Shown {
    let agent = whole.agent.agent.clone().unwrap_or_default();
    let id = one_line(&agent.id);
    let deeds = Deed::of_agent(&agent);
    let live = html! {
        div class="title" {
            h1 { (id) " " (state(&agent)) }
            span class="quiet" {
                @if agent.seen.is_some() { "seen " (ago(agent.seen.as_ref(), ages)) } @else { "never seen" }
            }
        }
        @if let Some(why) = &agent.quarantine { p class="troubles" role="alert" { (cell(why)) } }
        (buttons(&deeds, &agent.id, may))
        section aria-labelledby="plugins-title" {
            h2 id="plugins-title" { "Plugins" }
            @if whole.agent.plugins.is_empty() {
                p class="empty" { "No plugin is assigned, ordered or reported." }
            }
            ul class="findings" {
                @for plugin in &whole.agent.plugins { li { (of_plugin(plugin, ages)) } }
            }
        }
        div class="columns" {
            section aria-labelledby="facts-title" {
                h2 id="facts-title" { "The machine" }
                (facts(&whole.agent, ages))
            }
            section aria-labelledby="events-title" {
                h2 id="events-title" { "Events" }
                (events(&whole.events, ages))
            }
        }
        @if !whole.agent.certificates.is_empty() {
            section aria-labelledby="certificates-title" {
                h2 id="certificates-title" { "Certificates" }
                (certificates(&whole.agent.certificates))
            }
        }
        (by_hand(&format!("guest-fleet agent {}", shell(&agent.id))))
    };
    let mut page = Shown::new(&id, "/console/agents", live);
    page.fixed = html! {};
    page
}

/// Desired, actual, and what is between them.
fn of_plugin(plugin: &Explanation, ages: Ages) -> Markup {
    let desired = plugin.desired.as_ref();
    let help = format!("guest-fleet explain {} {}", shell(&plugin.agent), shell(&plugin.plugin));
    html! {
        h3 {
            (one_line(&plugin.plugin)) " "
            (pill(standing::tone(plugin.state()), standing::word(plugin.state())))
        }
        p { (cell(&plugin.sentence)) }
        @if let Some(next) = &plugin.next { p { "To do: " (cell(next)) } }
        dl class="facts" {
            (fact("Should have", desired.map(|it| html! {
                strong { (revision(it.revision.as_deref())) } " "
                span class="quiet" { "by " (one_line(&it.assignment)) @if it.attempt > 0 { ", attempt " (it.attempt) } }
            })))
            (fact("Has", plugin.reported.as_ref().map(|it| reported(it, ages))))
            (fact("Ordered", plugin.order.as_ref().map(|it| order(it, ages))))
            (fact("Assignments", (plugin.assignments.len() > 1).then(|| html! {
                @for one in &plugin.assignments {
                    div {
                        (badge(&one.name, &one.select)) " " (revision(one.revision.as_deref()))
                        @if one.decides { " decides" } @else { " does not, priority " (one.priority) }
                    }
                }
            })))
            @for missing in &plugin.missing_secrets {
                (fact("Secret missing", Some(html! {
                    strong class="bad" { (one_line(&missing.name)) } " on " (one_line(&missing.gateway)) ": "
                    (cell(&missing.problem))
                })))
            }
        }
        (by_hand(&help))
    }
}

fn reported(it: &Reported, ages: Ages) -> Markup {
    html! {
        strong { (revision(it.revision.as_deref())) } " " (one_line(&it.status))
        @if let Some(pending) = &it.pending { ", " (one_line(pending)) " on its way" }
        @if it.local { " " (badge("local", "It came with the machine.")) }
        @if it.stopped_by_owner { " " (badge("stopped", "A person on the machine stopped it.")) }
        " " span class="quiet" { "generation " (it.generation) ", reported " (ago(it.at.as_ref(), ages)) }
    }
}

fn order(it: &Order, ages: Ages) -> Markup {
    html! {
        strong { (revision(it.revision.as_deref())) } ": " (cell(&it.state)) " "
        (ago(it.since.as_ref(), ages)) " "
        span class="quiet" {
            "generation " (it.generation) " of " (one_line(&it.assignment)) ", made " (ago(it.made.as_ref(), ages))
        }
    }
}

fn facts(whole: &WholeAgent, ages: Ages) -> Markup {
    let agent = whole.agent.clone().unwrap_or_default();
    let text = |text: &Option<String>| text.as_deref().and_then(some);
    let all = |pairs: &std::collections::BTreeMap<String, String>| {
        (!pairs.is_empty()).then(|| labels(pairs))
    };
    html! {
        dl class="facts" {
            (fact("Host", text(&agent.hostname)))
            (fact("Labels", all(&agent.labels)))
            (fact("Own labels", all(&agent.own_labels)))
            (fact("System", text(&agent.os)))
            (fact("Kernel", text(&whole.kernel)))
            (fact("Architecture", text(&agent.architecture)))
            (fact("Agent", text(&agent.agent_version)))
            (fact("Can", some(&whole.capabilities.join(", "))))
            (fact("Since", agent.since.as_ref().map(|at| ago(Some(at), ages))))
            (fact("Join token", text(&whole.token)))
            (fact("Archived", agent.archived.as_ref().map(|at| ago(Some(at), ages))))
            (fact("Revoked", agent.revoked.as_ref().map(|at| ago(Some(at), ages))))
        }
    }
}

fn events(events: &[Event], ages: Ages) -> Markup {
    html! {
        @if events.is_empty() { p class="empty" { "Nothing happened to its plugins." } }
        ul class="events" {
            @for event in events {
                li class=(if is_bad(&event.r#type) { "bad" } else { "plain" }) {
                    span class="when" { (ago(event.at.as_ref(), ages)) }
                    span class="kind" { (words(&event.r#type)) }
                    span class="what" {
                        (one_line(&event.plugin)) " " (one_line(&event.revision))
                        @if !event.details.is_empty() { span class="details" { (cell(&event.details)) } }
                    }
                }
            }
        }
    }
}

/// `PLUGIN_CRASHED` as `crashed`.
fn words(kind: &str) -> String {
    let kind = one_line(kind);
    kind.strip_prefix("PLUGIN_").unwrap_or(&kind).to_lowercase().replace('_', " ")
}

fn is_bad(kind: &str) -> bool {
    ["CRASHED", "FAILED", "UNHEALTHY", "EXCEEDED"].iter().any(|part| kind.contains(part))
}

fn certificates(all: &[Certificate]) -> Markup {
    html! {
        table {
            thead { tr {
                th scope="col" { "Serial" } th scope="col" { "State" } th scope="col" { "Issued" } th scope="col" { "Ends" }
            } }
            tbody {
                @for one in all {
                    tr {
                        th scope="row" { code { (one_line(&one.serial)) } }
                        td data-label="State" {
                            @if one.revoked.is_some() { (pill(Tone::Bad, "revoked")) } @else { (pill(Tone::Plain, "issued")) }
                        }
                        td data-label="Issued" { (when(one.issued.as_ref()).unwrap_or_else(none)) }
                        td data-label="Ends" { (when(one.ends.as_ref()).unwrap_or_else(none)) }
                    }
                }
            }
        }
    }
}
