//! The page of what people asked of this agent, and who they are.

use guest_agent_actors::model::id::PluginName;
use guest_agent_console_kit::pieces::{pill, query};
use guest_agent_proto::local::{AuditAct, AuditEntry, AuditVia, ListAuditResponse};
use maud::{Markup, html};
use serde::Deserialize;

use super::pieces::{Ages, ago, page_of};
use crate::display::{Tone, one_line};

/// How many entries are on a page.
pub(super) const PAGE: u32 = 100;

/// What is looked for, as the address of a page says it.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Asked {
    #[serde(default)]
    pub(super) plugin: String,
    #[serde(default)]
    pub(super) before: u64,
}

/// The entries, the newest first.
pub(super) fn page(found: &ListAuditResponse, name: &str, ages: Ages) -> Markup {
    let oldest = found.entries.first().filter(|_| found.more);
    html! {
        div class="title" {
            h1 { "Audit" }
            form method="get" action="/console/audit" role="search" {
                label class="hidden" for="of" { "Only what was asked of this plugin" }
                input id="of" name="plugin" type="search" maxlength="64" placeholder="Of one plugin"
                    value=(name);
                button type="submit" { "Show" }
            }
        }
        section aria-label="Who acted" {
            (table(&found.entries, ages))
            nav class="pages" aria-label="Pages of entries" {
                @if let Some(oldest) = oldest {
                    @let before = oldest.number.to_string();
                    a href={ "/console/audit" (query(&[("plugin", name), ("before", &before)])) } rel="next" { "Older" }
                }
            }
        }
    }
}

/// Entries as a table, the newest first; they come with the oldest first.
pub(super) fn table(entries: &[AuditEntry], ages: Ages) -> Markup {
    html! {
        @if entries.is_empty() { p class="empty" { "Nobody has asked anything." } } @else {
            table {
                thead {
                    tr {
                        @for heading in ["When", "Who", "What", "Of", "Detail", "Answer"] {
                            th scope="col" { (heading) }
                        }
                    }
                }
                tbody { @for entry in entries.iter().rev() { (row(entry, ages)) } }
            }
        }
    }
}

fn row(entry: &AuditEntry, ages: Ages) -> Markup {
    html! {
        tr {
            td data-label="When" { (ago(entry.at.as_ref(), ages)) }
            th scope="row" { (one_line(&entry.who)) " " span class="quiet" { (via(entry.via())) } }
            td data-label="What" { (act_word(entry.what())) }
            td data-label="Of" {
                span {
                    @if entry.all { "all plugins" }
                    @else if entry.plugin.is_empty() { "the agent" }
                    @else if entry.plugin.parse::<PluginName>().is_ok() {
                        a href=(page_of(&entry.plugin)) { (one_line(&entry.plugin)) }
                    } @else { (one_line(&entry.plugin)) }
                }
            }
            td data-label="Detail" {
                @if entry.detail.is_empty() { span class="quiet" { "–" } }
                @else { span { (one_line(&entry.detail)) } }
            }
            td data-label="Answer" {
                @if entry.refused.is_empty() { span { (pill(Tone::Good, "accepted")) } }
                @else { span { (pill(Tone::Bad, "refused")) " " (one_line(&entry.refused)) } }
            }
        }
    }
}

const fn via(via: AuditVia) -> &'static str {
    match via {
        AuditVia::AgentSocket => "over the agent's socket",
        AuditVia::Http => "over HTTP",
        AuditVia::CommandSocket => "over the command socket",
        AuditVia::ControlPlane => "from the control plane",
        AuditVia::Unspecified => "",
    }
}

const fn act_word(act: AuditAct) -> &'static str {
    match act {
        AuditAct::Install => "Install",
        AuditAct::Remove => "Remove",
        AuditAct::Apply => "Apply a configuration",
        AuditAct::Restart => "Restart",
        AuditAct::Stop => "Stop",
        AuditAct::Start => "Start",
        AuditAct::Rollback => "Roll back",
        AuditAct::Hold => "Hold",
        AuditAct::Release => "Release",
        AuditAct::Dismiss => "Dismiss a failure",
        AuditAct::Limit => "Change limits",
        AuditAct::Run => "Run",
        AuditAct::VmEvent => "VM event",
        AuditAct::Orders => "Orders",
        AuditAct::Sweep => "Sweep",
        AuditAct::Forget => "Forget",
        AuditAct::ClearQuarantine => "Clear the quarantine",
        AuditAct::Unspecified => "Something",
    }
}
