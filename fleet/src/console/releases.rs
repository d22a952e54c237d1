//! All releases, as a matrix: a row for each revision, and how many agents stand where with it.

use std::collections::BTreeMap;

use guest_agent_proto::fleet_api::{ListReleasesResponse, Release, Standing};
use maud::{Markup, html};

use super::pieces::{Ages, badge, by_hand, counted_when, none, one_line, query};
use super::shown::Shown;
use super::standing;

/// A column: its name, and the standings that it counts.
type Column = (&'static str, &'static [Standing]);

/// The columns. Every standing that a count can have is in one of them.
const COLUMNS: [Column; 6] = [
    ("Done", &[Standing::Done]),
    (
        "Under way",
        &[Standing::Ordered, Standing::Acknowledged, Standing::Installing, Standing::OnProbation],
    ),
    ("Waits", &[Standing::Waits, Standing::WaitsForWave, Standing::OutsideWindow]),
    ("Held", &[Standing::Held, Standing::HeldByOwner, Standing::Quarantined]),
    ("Silent", &[Standing::Silent]),
    (
        "Failed",
        &[
            Standing::Failed,
            Standing::TakenBack,
            Standing::Conflict,
            Standing::NoRelease,
            Standing::NoArchive,
        ],
    ),
];

/// The page.
pub(super) fn page(found: &ListReleasesResponse, ages: Ages) -> Shown {
    let mut plugins: BTreeMap<&str, Vec<&Release>> = BTreeMap::new();
    for release in &found.releases {
        plugins.entry(&release.plugin).or_default().push(release);
    }
    let live = html! {
        @if plugins.is_empty() {
            section { p class="empty" { "Nothing is declared to be installed. See " code { "guest-fleet apply" } "." } }
        }
        @for (plugin, releases) in &plugins {
            section aria-label=(one_line(plugin)) {
                div class="title" {
                    h2 { (one_line(plugin)) }
                    (counted_when(found.index.as_ref(), ages))
                }
                (matrix(plugin, releases))
            }
        }
        (by_hand("guest-fleet releases"))
    };
    Shown::new("Releases", "/console/releases", live)
}

fn matrix(plugin: &str, releases: &[&Release]) -> Markup {
    html! {
        table {
            thead { tr {
                th scope="col" { "Revision" } th scope="col" { "Have it" } th scope="col" { "Should" }
                @for (name, _) in COLUMNS { th scope="col" { (name) } }
                th scope="col" { "Archives" }
            } }
            tbody { @for release in releases { (row(plugin, release)) } }
        }
    }
}

fn row(plugin: &str, release: &Release) -> Markup {
    let states = || release.counts.iter().flat_map(|counts| &counts.states);
    html! {
        tr {
            th scope="row" {
                (one_line(&release.revision))
                @if !release.assignments.is_empty() {
                    div class="note" { "wanted by " (one_line(&release.assignments.join(", "))) }
                }
            }
            td data-label="Have it" class="number" { (release.having.map_or_else(none, |it| html! { strong { (it) } })) }
            td data-label="Should" class="number" {
                (release.counts.as_ref().map_or_else(none, |it| html! { (it.agents) }))
            }
            @for (name, standings) in COLUMNS {
                @let found = states().filter(|one| standings.contains(&one.state()));
                @let count = found.map(|one| one.agents).fold(0, u64::saturating_add);
                td data-label=(name) class="number" {
                    @if count == 0 { (none()) } @else if let [one] = standings {
                        @let query = query(&[("plugin", plugin), ("state", standing::option(*one))]);
                        a href={ "/console/agents" (query) } { (count) }
                    } @else { (count) }
                }
            }
            td data-label="Archives" {
                span {
                    @for (architecture, archive) in &release.archives {
                        (badge(architecture, &archive.sha256)) " "
                        @if archive.elsewhere { span class="quiet" { "elsewhere " } }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_standing_that_can_be_wanted_is_in_one_column() {
        for (standing, ..) in standing::ALL {
            let columns = COLUMNS.iter().filter(|(_, all)| all.contains(&standing)).count();
            let is_counted = !matches!(standing, Standing::Archived | Standing::NotAssigned);
            assert_eq!(columns, usize::from(is_counted), "{standing:?}");
        }
    }
}
