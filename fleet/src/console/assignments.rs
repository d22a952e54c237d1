//! All assignments; what a rollout of one would do; and what declarations would change.

use guest_agent_proto::fleet_api::{
    Assignment, Change, ChangeKind, ListAssignmentsResponse, RecordChange, Role, RolloutPreview,
};
use maud::{Markup, html};

use super::deed::{Deed, buttons};
use super::pieces::{
    Ages, Tone, badge, by_hand, cell, counted, counted_when, none, one_line, pill, query, revision,
    shell, standings,
};
use super::role::May;
use super::shown::Shown;

/// The page.
pub(super) fn page(found: &ListAssignmentsResponse, may: &May, ages: Ages) -> Shown {
    let live = html! {
        section aria-labelledby="assignments-title" {
            div class="title" {
                h2 id="assignments-title" { "Who should run what" }
                (counted_when(found.index.as_ref(), ages))
            }
            @if found.assignments.is_empty() {
                p class="empty" { "Nothing is assigned. See " code { "guest-fleet apply" } "." }
            } @else {
                table {
                    thead { tr {
                        th scope="col" { "Assignment" } th scope="col" { "Plugin" } th scope="col" { "Selects" }
                        th scope="col" { "Agents" } th scope="col" { span class="hidden" { "Actions" } }
                    } }
                    tbody { @for one in &found.assignments { (row(one, may)) } }
                }
            }
        }
        (by_hand("guest-fleet assignments"))
    };
    let mut page = Shown::new("Assignments", "/console/assignments", live);
    page.fixed = html! {
        div class="title" {
            h1 { "Assignments" }
            a class="button" href="/console/diff" { "What would declarations change?" }
        }
    };
    page
}

fn row(one: &Assignment, may: &May) -> Markup {
    let has_failed = one.counts.iter().flat_map(|counts| &counts.states).any(|state| {
        use guest_agent_proto::fleet_api::Standing;
        matches!(state.state(), Standing::Failed | Standing::TakenBack)
    });
    html! {
        tr {
            th scope="row" {
                (one_line(&one.name))
                @if one.priority != 0 { " " (badge(&format!("priority {}", one.priority), "")) }
                @if one.attempt > 0 { " " (badge(&format!("attempt {}", one.attempt), "")) }
            }
            td data-label="Plugin" {
                span {
                    (one_line(&one.plugin)) " "
                    @if one.absent { (pill(Tone::Plain, "absent")) } @else { (revision(one.revision.as_deref())) }
                }
            }
            td data-label="Selects" {
                span {
                    a href={ "/console/agents" (query(&[("select", &one.select)])) } { (one_line(&one.select)) }
                    @if one.own_labels { " " (badge("own labels", "Labels that machines claim themselves may select.")) }
                }
            }
            td data-label="Agents" { (one.counts.as_ref().map_or_else(none, |it| standings("Agents", it))) }
            td data-label="Actions" {
                div class="actions" {
                    @if !one.absent {
                        a class="button" href={ "/console/preview" (query(&[("assignment", &one.name)])) }
                            aria-label={ "Preview a rollout of " (one_line(&one.name)) } { "Preview a rollout…" }
                    }
                    @if has_failed { (buttons(&[Deed::Retry], &one.name, may)) }
                }
            }
        }
    }
}

/// A rollout that somebody thinks of.
#[derive(Clone, Debug, Default)]
pub(super) struct Thought {
    /// Name of the assignment.
    pub(super) assignment: String,
    /// The new revision; empty where none was chosen yet.
    pub(super) to: String,
    /// Name of the rollout.
    pub(super) name: String,
    /// The waves, with blanks between; empty for the usual ones.
    pub(super) waves: String,
}

// === impl Thought ===

impl Thought {
    /// The waves one by one.
    pub(super) fn waves(&self) -> Vec<String> {
        self.waves.split_whitespace().map(str::to_owned).collect()
    }

    fn command(&self, verb: &str) -> String {
        let mut command = format!(
            "guest-fleet rollout {verb} {} --assignment {} --to {}",
            shell(&self.name),
            shell(&self.assignment),
            shell(&self.to)
        );
        for wave in self.waves() {
            command.push_str(" --wave ");
            command.push_str(&shell(&wave));
        }
        command
    }
}

/// The page on which somebody thinks of a rollout: the form, and what it would do. `csrf` makes the button
/// that begins it, for those who may.
pub(super) fn preview(
    thought: &Thought,
    revisions: &[String],
    preview: Option<&Result<RolloutPreview, String>>,
    (may, csrf): (&May, &Markup),
) -> Markup {
    html! {
        h1 { "Preview of a rollout" }
        section {
            form class="fields" method="get" action="/console/preview" {
                label for="assignment" { "Assignment" }
                input id="assignment" name="assignment" required maxlength="256" value=(thought.assignment);
                label for="to" { "New revision" }
                input id="to" name="to" required maxlength="256" list="revisions" value=(thought.to);
                datalist id="revisions" { @for one in revisions { option value=(one) {} } }
                label for="name" { "Name of the rollout; it also draws who comes first" }
                input id="name" name="name" required maxlength="64" value=(thought.name);
                label for="waves" { "Waves, such as “ring=canary,approve 10% 100%”; empty: the usual ones" }
                input id="waves" name="waves" maxlength="1024" value=(thought.waves);
                div class="actions" { button type="submit" { "Show what it would do" } }
            }
        }
        @match preview {
            None => {},
            Some(Err(reason)) => p class="troubles" role="alert" { (cell(reason)) },
            Some(Ok(found)) => {
                (previewed(found))
                @if may.act_as(Role::Operator) {
                    section class="notice" {
                        p class="touches" {
                            "Touches " (counted(found.agents, "machine")) " in all, at most " (found.budget) " at one time."
                        }
                        form method="post" action="/console/preview" {
                            (csrf)
                            @for (name, value) in [
                                ("assignment", &thought.assignment), ("to", &thought.to), ("name", &thought.name),
                                ("waves", &thought.waves),
                            ] { input type="hidden" name=(name) value=(value); }
                            label for="reason" { "Reason, for those who look later" }
                            input id="reason" name="reason" maxlength="200";
                            div class="actions" {
                                button type="submit" { "Begin " (one_line(&thought.name)) }
                                a class="button" href="/console/assignments" { "Back" }
                            }
                        }
                    }
                }
                (by_hand(&thought.command("preview")))
            },
        }
    }
}

fn previewed(found: &RolloutPreview) -> Markup {
    html! {
        section aria-labelledby="waves-title" {
            h2 id="waves-title" {
                (one_line(&found.plugin)) " " (revision(found.from.as_deref())) " → " (revision(found.to.as_deref()))
                " for " (counted(found.agents, "machine"))
            }
            table {
                thead { tr {
                    th scope="col" { "Wave" } th scope="col" { "Size" } th scope="col" { "Machines" }
                    th scope="col" { "Watched" } th scope="col" { "Then" } th scope="col" { "Zones" } th scope="col" { "The first" }
                } }
                tbody {
                    @for (wave, number) in found.waves.iter().zip(1..) {
                        tr {
                            th scope="row" { (number) }
                            td data-label="Size" { (one_line(&wave.size)) }
                            td data-label="Machines" class="number" { (wave.agents) }
                            td data-label="Watched" class="number" { (wave.soak_seconds) " s" }
                            td data-label="Then" { @if wave.needs_approval { "approval" } @else { (none()) } }
                            td data-label="Zones" {
                                span { @for (zone, count) in &wave.zones { span class="count" { (one_line(zone)) " " (count) } " " } }
                            }
                            td data-label="The first" { (cell(&wave.first.join(", "))) }
                        }
                    }
                }
            }
            @for kept in &found.kept_back {
                p { "Not now: " strong { (kept.agents) } " (" (cell(&kept.first.join(", "))) "): " (cell(&kept.reason)) }
            }
        }
    }
}

/// The page on which somebody pastes declarations: the form, and what they would change.
pub(super) fn diff(text: &str, found: Option<&Result<Change, String>>, csrf: &Markup) -> Markup {
    html! {
        h1 { "What would declarations change?" }
        section {
            form class="fields" method="post" action="/console/diff" {
                (csrf)
                label for="text" { "A file of declarations, as TOML. This page changes nothing." }
                textarea id="text" name="text" required maxlength="60000" spellcheck="false" { (text) }
                div class="actions" { button type="submit" { "Compare" } }
            }
        }
        @match found {
            None => {},
            Some(Err(reason)) => p class="troubles" role="alert" { (cell(reason)) },
            Some(Ok(change)) => (changes(change)),
        }
        (by_hand("guest-fleet diff -f fleet/"))
    }
}

/// What was changed, or would be.
fn changes(change: &Change) -> Markup {
    html! {
        section aria-labelledby="changes-title" {
            h2 id="changes-title" {
                @if change.changes.is_empty() { "Nothing would change" } @else {
                    "Would change " (counted(u64::try_from(change.changes.len()).unwrap_or(u64::MAX), "record"))
                }
            }
            @if !change.changes.is_empty() { (records(&change.changes)) }
            p class="quiet" { (counted(change.unchanged, "declaration")) " are there as they are." }
            @for note in &change.notes { p { (cell(note)) } }
            @if !change.undeclared.is_empty() {
                h3 { "Not declared here, and left as they are" }
                (records(&change.undeclared))
            }
        }
    }
}

fn records(all: &[RecordChange]) -> Markup {
    html! {
        ul class="events" {
            @for one in all {
                @let (class, word) = match one.change() {
                    ChangeKind::Created => ("good", "new"),
                    ChangeKind::Replaced => ("busy", "other"),
                    ChangeKind::Deleted => ("bad", "gone"),
                    ChangeKind::Unspecified => ("plain", "stays"),
                };
                li class=(class) {
                    span class="when" { (word) }
                    span class="kind" { (one_line(&one.kind)) " " (one_line(&one.name)) }
                    span class="what" {
                        @if let Some(before) = &one.before { span class="details" { "was: " (cell(before)) } }
                        @if let Some(after) = &one.after { span class="details" { "would be: " (cell(after)) } }
                    }
                }
            }
        }
    }
}
