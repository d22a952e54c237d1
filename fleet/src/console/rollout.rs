//! One rollout: its waves, its gate, where its agents stand, what failed and what that has in common, and
//! who moved it.

use guest_agent_console_kit::gauge::{Slice, meter, slices};
use guest_agent_proto::fleet_api::{AuditEntry, Meter, Rollout, RolloutProgress};
use maud::{Markup, html};

use super::pieces::{
    Ages, Tone, ago, by_hand, cell, counted, fact, one_line, page_of, query, revision, shell,
};
use super::role::May;
use super::rollouts::{state, tone};
use super::shown::Shown;
use super::steer::Steer;
use super::waves::of_wave;

/// What the page is made from.
pub(super) struct Whole {
    /// The rollout.
    pub(super) rollout: Rollout,
    /// Who and what moved it, the newest first; `None` where the visitor may not read it.
    pub(super) history: Option<Vec<AuditEntry>>,
}

/// The page.
pub(super) fn page(whole: &Whole, may: &May, ages: Ages) -> Shown {
    let rollout = &whole.rollout;
    let name = one_line(&rollout.name);
    let live = html! {
        div class="title" {
            h1 { (name) " " (state(rollout)) }
            span class="quiet" {
                (one_line(&rollout.plugin)) " " (revision(rollout.from.as_deref())) " → "
                (revision(rollout.to.as_deref()))
            }
        }
        @if let Some(cause) = &rollout.cause { p class="troubles" role="alert" { (cell(cause)) } }
        @if let Some(waiting) = rollout.progress.as_ref().and_then(|it| it.waiting.as_deref()) {
            p class="doing" { (cell(waiting)) }
        }
        (buttons(rollout, may))
        section aria-labelledby="waves-title" {
            h2 id="waves-title" { "Waves" }
            (waves(rollout))
        }
        @match &rollout.progress {
            None => section { p class="empty" { "Nobody counted yet: " code { "guest-fleet serve" } " does." } }
            Some(progress) => (counts(rollout, progress, ages)),
        }
        section aria-labelledby="facts-title" {
            h2 id="facts-title" { "What it is" }
            (facts(rollout, ages))
        }
        section aria-labelledby="history-title" {
            h2 id="history-title" { "Time line" }
            (history(whole.history.as_deref(), ages))
        }
        (by_hand(&format!("guest-fleet rollout show {}", shell(&rollout.name))))
    };
    let mut page = Shown::new(&name, "/console/rollouts", live);
    page.fixed = html! {};
    page.said = format!("{name} is {}", rollout.state);
    page
}

/// The buttons of what can be done now, for those who may. Each leads to a page that asks.
fn buttons(rollout: &Rollout, may: &May) -> Markup {
    let suiting: Vec<Steer> =
        Steer::suiting(rollout).filter(|steer| may.act_as(steer.role())).collect();
    html! {
        @if !suiting.is_empty() {
            div class="actions" {
                @for steer in suiting {
                    a class=(if steer.is_dangerous() { "button danger" } else { "button" })
                        href={ "/console/rollout/" (steer.word()) (query(&[("of", &rollout.name)])) } {
                        (steer.name()) " (" (steer.reach(rollout).short()) ")…"
                    }
                }
            }
        }
    }
}

/// The waves as a bar in parts: those that are over, the one that it is in, and those to come.
fn waves(rollout: &Rollout) -> Markup {
    let has_begun = rollout.state != "draft";
    html! {
        ol class="waves" {
            @for (at, (words, number)) in rollout.waves.iter().zip(1_u64..).enumerate() {
                @let (class, word) = match () {
                    () if !has_begun || number > rollout.wave => ("quiet", "to come"),
                    () if number < rollout.wave || rollout.state == "done" => ("good", "over"),
                    () => (if tone(&rollout.state) == Tone::Bad { "bad" } else { "busy" }, "now"),
                };
                li class=(class) aria-current=[(word == "now").then_some("step")] {
                    strong { "Wave " (number) ": " (one_line(words)) }
                    (word)
                    @if word == "to come" { ", " (of_wave(rollout, at).short()) }
                }
            }
        }
    }
}

fn counts(rollout: &Rollout, progress: &RolloutProgress, ages: Ages) -> Markup {
    html! {
        section aria-labelledby="gate-title" {
            h2 id="gate-title" { "Gate" }
            (gate(rollout, progress))
        }
        section aria-labelledby="stands-title" {
            div class="title" {
                h2 id="stands-title" { "Agents" }
                span class="quiet" { "counted " (ago(progress.as_of.as_ref(), ages)) }
            }
            (stands(progress))
        }
        @if progress.failures > 0 { (failures(progress, ages)) }
        @if !progress.kept.is_empty() || progress.may_arrive_count > 0 { (others(progress)) }
    }
}

/// What the gate knows: what failed, what was to be expected, and where it halts.
fn gate(rollout: &Rollout, progress: &RolloutProgress) -> Markup {
    html! {
        p {
            strong class=[(progress.failures > 0).then_some("bad")] { (progress.failures) " failed" }
            " of " (progress.given) " that were given it. "
            @if progress.meters.is_empty() {
                span class="quiet" {
                    "In a fleet of less than 200 the first failure of the first wave halts it, and later two, or one \
                     whose cause was seen before."
                }
            } @else {
                span class="quiet" { "It halts where the evidence of one line reaches its limit." }
            }
        }
        @if !progress.meters.is_empty() {
            table {
                thead { tr {
                    th scope="col" { "Of" } th scope="col" { "Failed" } th scope="col" { "Expected" }
                    th scope="col" { "Evidence" } th scope="col" { "Limit" }
                } }
                tbody { @for one in &progress.meters { (gate_row(one)) } }
            }
        }
        p class="quiet" {
            (format!("{:.1}", rollout.tolerated * 100.0)) " % may fail of themselves."
        }
    }
}

fn gate_row(one: &Meter) -> Markup {
    let of = one_line(&one.of);
    let said = format!("{of}: evidence {:.1} of {:.1}", one.evidence, one.limit);
    html! {
        tr {
            th scope="row" { (of) }
            td data-label="Failed" class="number" { (one.failed) }
            td data-label="Expected" class="number" { (format!("{:.1}", one.expected)) }
            td data-label="Evidence" {
                span { span class="number" { (format!("{:.1}", one.evidence)) } (meter(&said, one.evidence, one.limit)) }
            }
            td data-label="Limit" class="number" { (format!("{:.1}", one.limit)) }
        }
    }
}

fn stands(progress: &RolloutProgress) -> Markup {
    let all = progress.stands.iter().map(|one| Slice {
        tone: stand_tone(&one.stand),
        name: one_line(&one.stand),
        count: one.agents.into(),
    });
    html! {
        p {
            strong { (progress.given) } " of " (counted(progress.targets.into(), "machine")) " were given it; "
            strong { (progress.in_flight) } " under way."
        }
        (slices("Agents", &all.collect::<Vec<_>>()))
    }
}

/// How good or bad it is to stand there.
fn stand_tone(stand: &str) -> Tone {
    match stand {
        "done" | "back" => Tone::Good,
        "under way" | "silent" | "kept back" | "without a release for it" | "out of reach" => {
            Tone::Busy
        }
        "crashed" | "failed" | "taken back" | "failed to go back" => Tone::Bad,
        _ => Tone::Quiet,
    }
}

fn failures(progress: &RolloutProgress, ages: Ages) -> Markup {
    html! {
        section aria-labelledby="failed-title" {
            h2 id="failed-title" { "What failed" }
            @if !progress.fingerprints.is_empty() {
                h3 { "By cause" }
                ul class="reasons" {
                    @for one in &progress.fingerprints {
                        li { strong class="number" { (one.agents) " ×" } " " (cell(&one.fingerprint)) }
                    }
                }
            }
            @if !progress.facets.is_empty() {
                h3 { "What the failed have, and the passed have not" }
                table {
                    thead { tr {
                        th scope="col" { "Property" } th scope="col" { "Value" } th scope="col" { "Failed have it" }
                        th scope="col" { "Passed have it" }
                    } }
                    tbody {
                        @for one in &progress.facets {
                            tr {
                                th scope="row" { (cell(&one.key)) }
                                td data-label="Value" { (cell(&one.value)) }
                                td data-label="Failed" class="number" { (one.failed) }
                                td data-label="Passed" class="number" { (one.passed) }
                            }
                        }
                    }
                }
            }
            @if !progress.failed.is_empty() {
                h3 { "The first of them" }
                ul class="events" {
                    @for one in &progress.failed {
                        li class="bad" {
                            span class="when" { (ago(one.at.as_ref(), ages)) }
                            span class="kind" { a href=(page_of("agent", &one.agent)) { (one_line(&one.agent)) } }
                            span class="what" { (cell(&one.reason)) " " span class="quiet" { "wave " (one.wave) } }
                        }
                    }
                }
            }
        }
    }
}

fn others(progress: &RolloutProgress) -> Markup {
    html! {
        section aria-labelledby="others-title" {
            h2 id="others-title" { "Who waits" }
            ul class="reasons" {
                @for one in &progress.kept {
                    li { a href=(page_of("agent", &one.agent)) { (one_line(&one.agent)) } ": " (cell(&one.why)) }
                }
                @if progress.may_arrive_count > 0 {
                    li {
                        "At " (counted(progress.may_arrive_count.into(), "machine")) " an order may still arrive: "
                        @for (at, agent) in progress.may_arrive.iter().enumerate() {
                            @if at > 0 { ", " }
                            a href=(page_of("agent", agent)) { (one_line(agent)) }
                        }
                    }
                }
            }
        }
    }
}

fn facts(rollout: &Rollout, ages: Ages) -> Markup {
    let history = rollout.history.unwrap_or_default();
    let installations = history.failed.saturating_add(history.succeeded);
    let progress = rollout.progress.as_ref();
    html! {
        dl class="facts" {
            (fact("Assignment", Some(html! { a href="/console/assignments" { (one_line(&rollout.assignment)) } })))
            (fact("Plugin", Some(one_line(&rollout.plugin))))
            (fact("From", Some(revision(rollout.from.as_deref()))))
            (fact("To", Some(revision(rollout.to.as_deref()))))
            (fact("Under way", Some(format!("at most {} at one time", counted(rollout.budget.into(), "machine")))))
            (fact("Earlier rollouts", (history.rollouts > 0).then(|| format!(
                "{} of {} failed in {}", history.failed, counted(installations, "installation"),
                counted(history.rollouts, "rollout")))))
            (fact("Counted", progress.map(|it| ago(it.as_of.as_ref(), ages))))
        }
    }
}

/// Entries of the audit record as a time line.
pub(super) fn history(entries: Option<&[AuditEntry]>, ages: Ages) -> Markup {
    html! {
        @match entries {
            None => p class="empty" { "Who moved it is shown to those who see the whole fleet." },
            Some([]) => p class="empty" { "Nobody moved it." },
            Some(entries) => ul class="events" {
                @for entry in entries {
                    li {
                        span class="when" { (ago(entry.at.as_ref(), ages)) }
                        span class="kind" { (one_line(&entry.what)) }
                        span class="what" {
                            (cell(&entry.who))
                            @if !entry.why.is_empty() { ": " (cell(&entry.why)) }
                            @for change in &entry.changes {
                                span class="details" {
                                    (one_line(&change.kind)) " " (one_line(&change.name))
                                    @if let Some(after) = &change.after { ": " (cell(after)) } @else { ": deleted" }
                                }
                            }
                        }
                    }
                }
            },
        }
    }
}
