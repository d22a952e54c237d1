//! Who changed what.

use guest_agent_proto::fleet_api::{AuditEntry, AuditVerdict};
use maud::{Markup, html};

use super::pieces::{Ages, Tone, ago, by_hand, cell, one_line, pill};
use super::shown::Shown;

/// Entries on one page.
pub(super) const PAGE: u32 = 50;

/// What the page is made from.
pub(super) struct Audit {
    /// A page of entries, the newest first.
    pub(super) entries: Vec<AuditEntry>,
    /// What a check of the whole record found, where somebody asked for one.
    pub(super) verdict: Option<AuditVerdict>,
}

/// The page.
pub(super) fn page(audit: &Audit, ages: Ages) -> Shown {
    let last = audit.entries.last().map(|entry| entry.number);
    let is_full = u32::try_from(audit.entries.len()).is_ok_and(|count| count >= PAGE);
    let live = html! {
        @if let Some(verdict) = &audit.verdict { (checked(verdict)) }
        section aria-label="Entries" {
            @if audit.entries.is_empty() { p class="empty" { "Nobody changed anything." } } @else {
                table {
                    thead { tr {
                        th scope="col" { "Number" } th scope="col" { "When" } th scope="col" { "Who" } th scope="col" { "What" }
                        th scope="col" { "Changed" } th scope="col" { "Why" }
                    } }
                    tbody { @for entry in &audit.entries { (row(entry, ages)) } }
                }
            }
            @if let Some(last) = last.filter(|last| is_full && *last > 1) {
                div class="actions pages" {
                    a class="button" href={ "/console/audit?before=" (last) } { "Older" }
                }
            }
        }
        (by_hand(if audit.verdict.is_some() { "guest-fleet audit verify" } else { "guest-fleet audit" }))
    };
    let mut page = Shown::new("Audit", "/console/audit", live);
    page.fixed = html! {
        div class="title" {
            h1 { "Audit" }
            a class="button" href="/console/audit?check=yes" { "Check that it is whole" }
        }
    };
    page
}

fn checked(verdict: &AuditVerdict) -> Markup {
    html! {
        section {
            @if verdict.problems.is_empty() {
                p { (pill(Tone::Good, "whole")) " " (verdict.checked) " entries were checked." }
            } @else {
                p { (pill(Tone::Bad, "not whole")) " " (verdict.checked) " entries were checked." }
                ul class="reasons" { @for problem in &verdict.problems { li { (cell(problem)) } } }
            }
            p class="by-hand" { "Its head: " code { (one_line(&verdict.head)) } }
        }
    }
}

fn row(entry: &AuditEntry, ages: Ages) -> Markup {
    html! {
        tr {
            th scope="row" class="number" { (entry.number) }
            td data-label="When" { (ago(entry.at.as_ref(), ages)) }
            td data-label="Who" { span { (cell(&entry.who)) div class="note" { (cell(&entry.from)) } } }
            td data-label="What" { (cell(&entry.what)) }
            td data-label="Changed" {
                div {
                    @for change in &entry.changes {
                        div {
                            (one_line(&change.kind)) " " (one_line(&change.name))
                            div class="note" {
                                @if let Some(before) = &change.before { (cell(before)) " → " }
                                @if let Some(after) = &change.after { (cell(after)) } @else { "deleted" }
                            }
                        }
                    }
                }
            }
            td data-label="Why" { (cell(&entry.why)) }
        }
    }
}
