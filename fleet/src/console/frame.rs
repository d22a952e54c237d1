//! The frame of every page: the way to the other pages, and who looks.

use axum::http::StatusCode;
use axum::response::Response;
use guest_agent_console_kit::page::{self, Frame};
use guest_agent_proto::fleet_api::{Change, Role};
use maud::{Markup, html};
use tonic::{Code, Status};

use super::pieces::one_line;
use super::refuse::redirect;
use super::site::Visitor;
use super::told::reason;

/// The name of the product.
const PRODUCT: &str = "guest-fleet";

/// The pages that the header leads to.
const PAGES: [(&str, &str); 9] = [
    ("Now", "/"),
    ("Rollouts", "/console/rollouts"),
    ("Agents", "/console/agents"),
    ("Releases", "/console/releases"),
    ("Assignments", "/console/assignments"),
    ("Holds", "/console/holds"),
    ("Enrolment", "/console/enrolment"),
    ("Audit", "/console/audit"),
    ("System", "/console/system"),
];

/// A page.
pub(super) struct Page<'a> {
    /// The title.
    pub(super) title: &'a str,
    /// The page in the header that this one belongs to.
    pub(super) at: &'a str,
    /// Who looks at it; nobody on the page where people log in.
    pub(super) visitor: Option<&'a Visitor>,
    /// The address of the changes of a page that updates itself.
    pub(super) live: Option<&'a str>,
    /// What is on it.
    pub(super) body: Markup,
}

// === impl Page ===

impl Page<'_> {
    /// The page as a response.
    pub(super) fn respond(self, status: StatusCode) -> Response {
        let Self { title, at, visitor, live, body } = self;
        let frame = Frame {
            product: PRODUCT,
            place: "",
            about: html! {},
            pages: if visitor.is_some() { &PAGES } else { &[] },
            who: visitor.map(who).unwrap_or_default(),
        };
        page::Page { frame, title, at, live, body }.respond(status)
    }
}

fn who(visitor: &Visitor) -> Markup {
    html! {
        span class="quiet" { (one_line(&visitor.who.name)) ", " (visitor.may().word()) }
        form method="post" action="/console/logout" {
            (visitor.session.field())
            button type="submit" { "Log out" }
        }
    }
}

/// A page that says one thing.
pub(super) fn notice(
    visitor: &Visitor,
    status: StatusCode,
    (title, text): (&str, &str),
) -> Response {
    let body = html! {
        section class="notice" { h1 { (title) } p { (one_line(text)) } p { a href="/" { "To the first page" } } }
    };
    Page { title, at: "", visitor: Some(visitor), live: None, body }.respond(status)
}

/// The page for an error of the API.
pub(super) fn failed(visitor: &Visitor, status: &Status) -> Response {
    let (code, title) = match status.code() {
        Code::NotFound => (StatusCode::NOT_FOUND, "There is no such thing"),
        Code::InvalidArgument | Code::OutOfRange => {
            (StatusCode::BAD_REQUEST, "That is not possible")
        }
        Code::PermissionDenied => (StatusCode::FORBIDDEN, "You may not"),
        Code::FailedPrecondition | Code::AlreadyExists | Code::Aborted => {
            (StatusCode::CONFLICT, "That is not possible now")
        }
        Code::DeadlineExceeded | Code::Unavailable | Code::ResourceExhausted => {
            (StatusCode::SERVICE_UNAVAILABLE, "The fleet does not answer")
        }
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "That did not work"),
    };
    notice(visitor, code, (title, &reason(status)))
}

/// What becomes of the browser once something was asked of the API.
pub(super) fn finished(visitor: &Visitor, done: Result<Change, Status>, to: &str) -> Response {
    match done {
        Ok(_) => redirect(to, None),
        Err(status) => failed(visitor, &status),
    }
}

/// The refusal of somebody with a role that is too small.
pub(super) fn too_little(visitor: &Visitor, needed: Role) -> Response {
    let needed = match needed {
        Role::Approver => "approver",
        Role::Admin => "admin",
        _ => "operator",
    };
    let text = format!("This needs the role {needed}; you are {}.", visitor.may().word());
    notice(visitor, StatusCode::FORBIDDEN, ("You may not", &text))
}
