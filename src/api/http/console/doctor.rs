//! The page of what `guest-agent doctor` finds, as far as the agent itself can look.

use std::time::{Duration, SystemTime};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use guest_agent_console_kit::pieces::{class, pill};
use guest_agent_proto::local::local_agent_server::LocalAgent;
use guest_agent_proto::local::{ExamineRequest, GetStatusRequest, SweepRequest};
use maud::{Markup, html};
use tonic::{Request, Response as Answer, Status};

use super::page::{Page, failed};
use super::state::Console;
use crate::api::http::session::Visitor;
use crate::display::{Tone, one_line};
use crate::doctor::{self, Agent, CHECKS, Finding, Host, Severity};

/// Longest that an examination may take.
const EXAMINED_MAX: Duration = Duration::from_secs(8);

/// Examines the machine, and shows what was found.
pub(super) async fn show(State(console): State<Console>, visitor: Visitor) -> Response {
    let machine = &console.site.api.machine;
    // One at a time: an examination reads files, and browsers of strangers can ask for it.
    let examined = async {
        let _turn = console.examination.lock().await;
        examine(&console).await
    };
    let examined = tokio::time::timeout(EXAMINED_MAX, examined).await;
    match examined
        .unwrap_or_else(|_| Err(Status::deadline_exceeded("the examination takes too long")))
    {
        Ok(findings) => {
            let (title, body) = ("Doctor", page(&findings));
            Page { machine, title, at: "/console/doctor", visitor: &visitor, live: None, body }
                .respond(StatusCode::OK)
        }
        Err(status) => failed(machine, &visitor, &status),
    }
}

async fn examine(console: &Console) -> Result<Vec<Finding>, Status> {
    let api = &console.site.api;
    let config = console.site.config.borrow().clone();
    let itself = api.examine(Request::new(ExamineRequest {})).await?.into_inner();
    let leftovers = api.sweep(Request::new(SweepRequest { delete: false })).await;
    let leftovers = leftovers.map(Answer::into_inner).map_err(|it| it.message().to_owned());
    let plugins =
        api.get_status(Request::new(GetStatusRequest::default())).await?.into_inner().plugins;
    let agent = Agent::Answers { itself: Box::new(itself), leftovers, plugins };
    let looking = tokio::task::spawn_blocking(move || {
        let host = Host { config: &config, agent: &agent, now: SystemTime::now() };
        doctor::examine(&host)
    });
    looking.await.map_err(|_| Status::internal("the examination was aborted"))
}

/// The findings, the worst first.
pub(super) fn page(findings: &[Finding]) -> Markup {
    let problems = findings.iter().filter(|finding| finding.is_problem()).count();
    let about: Vec<&str> = CHECKS.iter().map(|check| check.about).collect();
    html! {
        div class="title" {
            h1 { "Doctor" }
            span class="quiet" { "as " code { "guest-agent doctor" } " finds it, seen by the agent" }
        }
        section aria-label="Findings" {
            @match problems {
                0 => p class="good" { "Nothing is wrong." },
                1 => p class="bad" { "1 problem was found." },
                _ => p class="bad" { (problems) " problems were found." },
            }
            ul class="findings" {
                @for finding in findings { (shown(finding)) }
            }
            p class="quiet" { "Looked at: " (about.join(", ")) "." }
        }
    }
}

fn shown(finding: &Finding) -> Markup {
    let (tone, word) = match finding.severity {
        Severity::Error => (Tone::Bad, "error"),
        Severity::Warning => (Tone::Busy, "warning"),
        Severity::Note => (Tone::Plain, "note"),
    };
    html! {
        li class=(class(tone)) {
            p { (pill(tone, word)) " " strong { (one_line(&finding.what)) } }
            p class="quiet" { (one_line(&finding.why)) }
            @if !finding.fix.is_empty() { p class="next" { "Next: " code { (one_line(&finding.fix)) } } }
        }
    }
}

/// A finding in whose every text there is this one.
#[cfg(test)]
pub(super) fn finding(text: &str) -> Finding {
    Finding::new(Severity::Error, text, text, text)
}
