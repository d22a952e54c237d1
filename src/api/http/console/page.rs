//! The frame of every page: the machine, the way to the other pages, and who looks.

use axum::http::StatusCode;
use axum::response::Response;
use guest_agent_console_kit::page::{self, Frame};
use guest_agent_console_kit::pieces::{Ages, badge, lasting};
use guest_agent_proto::local::Machine;
use jiff::Timestamp;
use maud::{Markup, html};
use tonic::{Code, Status};

use crate::api::http::access::Access;
use crate::api::http::session::{LOGIN, Visitor};
use crate::display::{one_line, shortened, timestamp};

/// The name of the product.
const PRODUCT: &str = "guest-agent";

/// Longest label that the header shows, in characters.
const LABEL_MAX: usize = 60;

/// The pages that the header leads to.
const PAGES: [(&str, &str); 5] = [
    ("Overview", "/"),
    ("Events", "/console/events"),
    ("Doctor", "/console/doctor"),
    ("Configuration", "/console/configuration"),
    ("Audit", "/console/audit"),
];

/// A page.
pub(super) struct Page<'a> {
    /// The machine that the agent runs on.
    pub(super) machine: &'a Machine,
    /// The title.
    pub(super) title: &'a str,
    /// The page in the header that this one belongs to.
    pub(super) at: &'a str,
    /// Who looks at it.
    pub(super) visitor: &'a Visitor,
    /// The address of the changes of a page that updates itself.
    pub(super) live: Option<&'a str>,
    /// What is on it.
    pub(super) body: Markup,
}

// === impl Page ===

impl Page<'_> {
    /// The page as a response.
    pub(super) fn respond(self, status: StatusCode) -> Response {
        let Self { machine, title, at, visitor, live, body } = self;
        let place = one_line(&machine.host);
        let frame = Frame {
            product: PRODUCT,
            place: &place,
            about: about(machine, Timestamp::now()),
            pages: &PAGES,
            who: who(visitor),
        };
        page::Page { frame, title, at, live, body }.respond(status)
    }
}

/// What the machine is, in a line.
fn about(machine: &Machine, now: Timestamp) -> Markup {
    let facts = [&machine.os, &machine.kernel, &machine.architecture];
    let labels = std::collections::BTreeMap::from_iter(&machine.labels);
    html! {
        @for fact in facts.into_iter().map(|fact| one_line(fact)).filter(|fact| !fact.is_empty()) {
            span { (fact) }
        }
        @if let Some(booted) = timestamp(machine.booted_at.as_ref()) {
            span { "up " (lasting(Some(booted), Ages::At(now))) }
        }
        @for (name, value) in labels {
            (badge(&shortened(&one_line(&format!("{name}={value}")), LABEL_MAX), ""))
        }
    }
}

fn who(visitor: &Visitor) -> Markup {
    html! {
        @if visitor.session.is_some() {
            span class="quiet" {
                @if visitor.access == Access::Act { "may act" } @else { "may look" }
            }
            form method="post" action="/console/logout" {
                (csrf_field(visitor))
                button type="submit" { "Log out" }
            }
        } @else {
            span class="quiet" { "read only" }
            a href=(LOGIN) { "Log in" }
        }
    }
}

/// What a form has to bring along to be from a page of this visitor.
pub(super) fn csrf_field(visitor: &Visitor) -> Markup {
    html! {
        @if let Some(session) = &visitor.session { (session.field()) }
    }
}

/// A page that says one thing.
pub(super) fn notice(
    machine: &Machine,
    visitor: &Visitor,
    status: StatusCode,
    (title, text): (&str, &str),
) -> Response {
    let body = html! {
        section class="notice" { h1 { (title) } p { (text) } p { a href="/" { "To the overview" } } }
    };
    Page { machine, title, at: "", visitor, live: None, body }.respond(status)
}

/// The page for a plugin that does not exist.
pub(super) fn unknown(machine: &Machine, visitor: &Visitor) -> Response {
    let text = "There is no plugin of this name, or it was removed.";
    notice(machine, visitor, StatusCode::NOT_FOUND, ("No such plugin", text))
}

/// The page for an error of the local API.
pub(super) fn failed(machine: &Machine, visitor: &Visitor, status: &Status) -> Response {
    let code = match status.code() {
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::InvalidArgument => StatusCode::BAD_REQUEST,
        Code::FailedPrecondition => StatusCode::CONFLICT,
        Code::DeadlineExceeded | Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    notice(machine, visitor, code, ("That did not work", status.message()))
}
