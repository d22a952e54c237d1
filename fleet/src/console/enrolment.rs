//! How machines become agents, and those that are set aside.

use guest_agent_proto::fleet_api::{Agent, Token, TokenState};
use maud::{Markup, html};

use super::deed::{Deed, buttons};
use super::pieces::{
    Ages, Tone, ago, badge, by_hand, cell, labels, none, one_line, page_of, pill, when,
};
use super::role::May;
use super::shown::Shown;

/// What the page is made from.
pub(super) struct Enrolment {
    /// The join tokens; the reason where they are not for the visitor.
    pub(super) tokens: Result<Vec<Token>, String>,
    /// Agents without orders, because two machines use one identity.
    pub(super) quarantined: Vec<Agent>,
    /// Agents that no count includes.
    pub(super) archived: Vec<Agent>,
}

/// The page.
pub(super) fn page(enrolment: &Enrolment, may: &May, ages: Ages) -> Shown {
    let live = html! {
        section aria-labelledby="quarantine-title" {
            h2 id="quarantine-title" { "Quarantine" }
            (agents(&enrolment.quarantined, may, ages, "No two machines use one identity."))
        }
        section aria-labelledby="tokens-title" {
            h2 id="tokens-title" { "Join tokens" }
            @match &enrolment.tokens {
                Err(reason) => p class="empty" { (cell(reason)) },
                Ok(tokens) => (table(tokens, may, ages)),
            }
        }
        section aria-labelledby="archive-title" {
            h2 id="archive-title" { "Archive" }
            (agents(&enrolment.archived, may, ages, "Every agent is counted."))
        }
        (by_hand("guest-fleet token list; guest-fleet agents --archived"))
    };
    Shown::new("Enrolment", "/console/enrolment", live)
}

fn agents(all: &[Agent], may: &May, ages: Ages, empty: &str) -> Markup {
    html! {
        @if all.is_empty() { p class="empty" { (empty) } } @else {
            table {
                thead { tr {
                    th scope="col" { "Agent" } th scope="col" { "Seen" } th scope="col" { "Why" }
                    th scope="col" { span class="hidden" { "Actions" } }
                } }
                tbody {
                    @for agent in all {
                        tr {
                            th scope="row" { a href=(page_of("agent", &agent.id)) { (one_line(&agent.id)) } }
                            td data-label="Seen" {
                                @if agent.seen.is_some() { (ago(agent.seen.as_ref(), ages)) } @else { (none()) }
                            }
                            td data-label="Why" { (cell(agent.quarantine.as_deref().unwrap_or("silent for long, or archived by hand"))) }
                            td data-label="Actions" { (buttons(&Deed::of_agent(agent), &agent.id, may)) }
                        }
                    }
                }
            }
        }
    }
}

fn table(tokens: &[Token], may: &May, ages: Ages) -> Markup {
    html! {
        @if tokens.is_empty() {
            p class="empty" { "No token was made; " code { "guest-fleet token create" } " makes one and shows its secret once." }
        } @else {
            table {
                thead { tr {
                    th scope="col" { "Token" } th scope="col" { "State" } th scope="col" { "Left" } th scope="col" { "Labels" }
                    th scope="col" { "Ends" } th scope="col" { span class="hidden" { "Actions" } }
                } }
                tbody {
                    @for token in tokens {
                        @let (tone, word) = state(token.state());
                        tr {
                            th scope="row" {
                                (one_line(&token.name))
                                div class="note" { "made " (ago(token.made.as_ref(), ages)) " by " (cell(&token.by)) }
                            }
                            td data-label="State" {
                                (pill(tone, word))
                                @if token.ephemeral { " " (badge("short-lived", "Its agents are archived after an hour of silence.")) }
                            }
                            td data-label="Left" class="number" { (token.uses_left) " of " (token.uses) }
                            td data-label="Labels" {
                                @if let Some(agent) = &token.agent { "only " (one_line(agent)) }
                                @else if token.labels.is_empty() { (none()) }
                                @else { span { (labels(&token.labels)) } }
                            }
                            td data-label="Ends" { (when(token.ends.as_ref()).unwrap_or_else(none)) }
                            td data-label="Actions" {
                                @if token.state() == TokenState::Revoked { (none()) }
                                @else { (buttons(&[Deed::RevokeToken], &token.name, may)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn state(state: TokenState) -> (Tone, &'static str) {
    match state {
        TokenState::InForce => (Tone::Good, "in force"),
        TokenState::Ended => (Tone::Quiet, "ended"),
        TokenState::UsedUp => (Tone::Quiet, "used up"),
        TokenState::Revoked => (Tone::Bad, "revoked"),
        TokenState::Unspecified => (Tone::Plain, "unknown"),
    }
}
