//! All rollouts.

use guest_agent_console_kit::gauge::{Slice, slices};
use guest_agent_proto::fleet_api::Rollout;
use maud::{Markup, html};

use super::pieces::{Tone, by_hand, cell, counted, none, one_line, page_of, pill, revision};
use super::shown::Shown;

/// The page.
pub(super) fn page(rollouts: &[Rollout]) -> Shown {
    let mut sorted: Vec<&Rollout> = rollouts.iter().collect();
    sorted.sort_by_key(|rollout| (rank(&rollout.state), rollout.name.as_str()));
    let live = html! {
        section aria-label="Rollouts" {
            @if sorted.is_empty() {
                p class="empty" {
                    "No assignment has a rollout. The page of the "
                    a href="/console/assignments" { "assignments" } " begins one."
                }
            } @else { (table(&sorted)) }
        }
        (by_hand("guest-fleet rollout list"))
    };
    let mut page = Shown::new("Rollouts", "/console/rollouts", live);
    let halted = sorted.iter().filter(|rollout| rollout.state == "halted").count();
    if halted > 0 {
        page.said =
            format!("{} halted", counted(u64::try_from(halted).unwrap_or(u64::MAX), "rollout"));
    }
    page
}

/// Rollouts as a table.
pub(super) fn table(rollouts: &[&Rollout]) -> Markup {
    html! {
        table {
            thead { tr {
                th scope="col" { "Rollout" } th scope="col" { "State" } th scope="col" { "Plugin" }
                th scope="col" { "Wave" } th scope="col" { "Agents" } th scope="col" { "Failed" }
            } }
            tbody {
                @for rollout in rollouts {
                    tr {
                        th scope="row" { a href=(page_of("rollout", &rollout.name)) { (one_line(&rollout.name)) } }
                        td data-label="State" { (state(rollout)) }
                        td data-label="Plugin" {
                            span {
                                (one_line(&rollout.plugin)) " "
                                span class="quiet" {
                                    (revision(rollout.from.as_deref())) " → " (revision(rollout.to.as_deref()))
                                }
                            }
                        }
                        td data-label="Wave" {
                            span class="number" { (rollout.wave) " of " (rollout.waves.len()) }
                        }
                        td data-label="Agents" {
                            @match &rollout.progress {
                                Some(progress) => (slices("Agents", &given(progress.given, progress.targets))),
                                None => (none()),
                            }
                        }
                        td data-label="Failed" {
                            @match rollout.progress.as_ref().map(|progress| progress.failures) {
                                Some(0) | None => (none()),
                                Some(count) => strong class="bad number" { (count) },
                            }
                        }
                    }
                    @if let Some(cause) = &rollout.cause {
                        tr { td colspan="6" class="bad" { (cell(cause)) } }
                    }
                }
            }
        }
    }
}

fn given(given: u32, targets: u32) -> [Slice; 2] {
    let slice =
        |tone, name: &str, count: u32| Slice { tone, name: name.to_owned(), count: count.into() };
    [
        slice(Tone::Good, "given", given),
        slice(Tone::Quiet, "to come", targets.saturating_sub(given)),
    ]
}

/// The state of a rollout.
pub(super) fn state(rollout: &Rollout) -> Markup {
    pill(tone(&rollout.state), &rollout.state)
}

/// How good or bad a state is.
pub(super) fn tone(state: &str) -> Tone {
    match state {
        "halted" => Tone::Bad,
        "running" | "soaking" | "rolling back" | "waiting for approval" | "paused" => Tone::Busy,
        "done" => Tone::Good,
        _ => Tone::Plain,
    }
}

/// What is looked at first.
fn rank(state: &str) -> u8 {
    match state {
        "halted" => 0,
        "rolling back" => 1,
        "waiting for approval" => 2,
        "paused" => 3,
        "running" | "soaking" => 4,
        "draft" => 5,
        _ => 6,
    }
}

/// Whether it goes on, or waits for somebody.
pub(super) fn is_live(state: &str) -> bool {
    !matches!(state, "done" | "rolled back" | "aborted")
}
