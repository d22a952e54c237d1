//! The control plane itself: its gateways, its counts, and who looks.

use guest_agent_proto::fleet_api::{Caller, Gateway, GatewayState, Index};
use maud::{Markup, html};

use super::pieces::{
    Ages, Tone, ago, badge, by_hand, cell, counted_when, fact, none, one_line, pill,
};
use super::role::May;
use super::shown::Shown;

/// What the page is made from.
pub(super) struct System {
    /// Who looks.
    pub(super) caller: Caller,
    /// The gateways; the reason where they are not for the visitor.
    pub(super) gateways: Result<Vec<Gateway>, String>,
    /// How old the counts are.
    pub(super) index: Option<Index>,
}

/// The page.
pub(super) fn page(system: &System, ages: Ages) -> Shown {
    let caller = &system.caller;
    let live = html! {
        section aria-labelledby="gateways-title" {
            h2 id="gateways-title" { "Gateways" }
            @match &system.gateways {
                Err(reason) => p class="empty" { (cell(reason)) },
                Ok(gateways) => (table(gateways, ages)),
            }
        }
        section aria-labelledby="counts-title" {
            h2 id="counts-title" { "Counts" }
            p { (counted_when(system.index.as_ref(), ages)) }
        }
        section aria-labelledby="you-title" {
            h2 id="you-title" { "You" }
            dl class="facts" {
                (fact("Name", Some(one_line(&caller.name))))
                (fact("May", Some(html! {
                    @if caller.grants.is_empty() { "nothing" }
                    @for grant in &caller.grants {
                        div {
                            (May::of(&Caller { name: String::new(), grants: vec![grant.clone()] }).word()) " on "
                            (badge(&grant.scope, ""))
                        }
                    }
                })))
            }
        }
        (by_hand("guest-fleet gateways"))
    };
    Shown::new("System", "/console/system", live)
}

fn table(gateways: &[Gateway], ages: Ages) -> Markup {
    html! {
        @if gateways.is_empty() { p class="empty" { "No gateway ever started." } } @else {
            table {
                thead { tr {
                    th scope="col" { "Host" } th scope="col" { "State" } th scope="col" { "Streams" }
                    th scope="col" { "Heartbeat" } th scope="col" { "Started" } th scope="col" { "Version" }
                } }
                tbody {
                    @for gateway in gateways {
                        tr {
                            th scope="row" {
                                (one_line(&gateway.host)) " "
                                @if gateway.moves_rollouts { (badge("moves rollouts", "")) }
                                div class="note" { (one_line(&gateway.id)) ", process " (gateway.pid) }
                            }
                            td data-label="State" {
                                @match gateway.state() {
                                    GatewayState::Serving => (pill(Tone::Good, "serving")),
                                    GatewayState::Draining => (pill(Tone::Busy, "draining")),
                                    GatewayState::Silent => (pill(Tone::Bad, "silent")),
                                    GatewayState::Unspecified => (none()),
                                }
                            }
                            td data-label="Streams" class="number" { (gateway.agents) }
                            td data-label="Heartbeat" { (ago(gateway.beat.as_ref(), ages)) }
                            td data-label="Started" { (ago(gateway.since.as_ref(), ages)) }
                            td data-label="Version" { (cell(&gateway.version)) }
                        }
                    }
                }
            }
        }
    }
}
