//! The frame of every page, and the headers that restrict what a browser does with it.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};
use tonic::{Code, Status};

use crate::api::http::access::Access;
use crate::api::http::session::Visitor;

/// What a page of the console may load and do: nothing that is not the agent's own. There is no
/// inline script or style, so text that ends up as markup is not carried out either.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; \
    connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// A small picture of three plugins, one of which is on.
const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'\
    %3E%3Crect width='16' height='16' rx='4' fill='%231d5fd1'/%3E%3Cg fill='%23fff'%3E%3Crect x='3' \
    y='3' width='4' height='4' rx='1'/%3E%3Crect x='9' y='3' width='4' height='4' rx='1' opacity='.5'\
    /%3E%3Crect x='3' y='9' width='4' height='4' rx='1' opacity='.5'/%3E%3C/g%3E%3C/svg%3E";

/// A page.
pub(super) struct Page<'a> {
    /// The title.
    pub(super) title: &'a str,
    /// Who looks at it.
    pub(super) visitor: &'a Visitor,
    /// The topic of a page that updates itself: which page, and of what.
    pub(super) live: Option<(&'a str, &'a str)>,
    /// What is on it.
    pub(super) body: Markup,
}

// === impl Page ===

impl Page<'_> {
    /// The page as a response.
    pub(super) fn respond(self, status: StatusCode) -> Response {
        let body = self.framed().into_string();
        (status, headers("text/html; charset=utf-8"), body).into_response()
    }

    fn framed(self) -> Markup {
        let Self { title, visitor, live, body } = self;
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (title) " · guest-agent" }
                    link rel="icon" href=(ICON);
                    link rel="stylesheet" href="/console/style.css";
                    @if live.is_some() {
                        noscript { meta http-equiv="refresh" content="10"; }
                    }
                    script src="/console/script.js" defer {}
                }
                body data-live=[live.map(|(page, _)| page)] data-of=[live.map(|(_, of)| of)] {
                    a class="skip" href="#main" { "To the content" }
                    header {
                        a class="brand" href="/" { "guest-agent" }
                        nav aria-label="Pages" {
                            a href="/" { "Overview" }
                            a href="/console/events" { "Events" }
                        }
                        @if live.is_some() {
                            p id="live" class="quiet" role="status" {
                                noscript { "again every 10 s" }
                            }
                        }
                        (who(visitor))
                    }
                    main id="main" tabindex="-1" { (body) }
                    p id="said" class="hidden" role="status" aria-live="polite" {}
                }
            }
        }
    }
}

fn who(visitor: &Visitor) -> Markup {
    html! {
        div class="who" {
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
                a href="/console/login" { "Log in" }
            }
        }
    }
}

/// What a form has to bring along to be from a page of this visitor.
pub(super) fn csrf_field(visitor: &Visitor) -> Markup {
    html! {
        @if let Some(session) = &visitor.session {
            input type="hidden" name="csrf" value=(session.csrf);
        }
    }
}

/// A page that says one thing.
pub(super) fn notice(visitor: &Visitor, status: StatusCode, title: &str, text: &str) -> Response {
    let body = html! {
        section class="notice" { h1 { (title) } p { (text) } p { a href="/" { "To the overview" } } }
    };
    Page { title, visitor, live: None, body }.respond(status)
}

/// The headers of everything that the console serves.
pub(super) fn headers(kind: &'static str) -> [(HeaderName, HeaderValue); 2] {
    [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
    ]
}

/// The page for a plugin that does not exist.
pub(super) fn unknown(visitor: &Visitor) -> Response {
    let text = "There is no plugin of this name, or it was removed.";
    notice(visitor, StatusCode::NOT_FOUND, "No such plugin", text)
}

/// The page for an error of the local API.
pub(super) fn failed(visitor: &Visitor, status: &Status) -> Response {
    let code = match status.code() {
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::InvalidArgument => StatusCode::BAD_REQUEST,
        Code::DeadlineExceeded | Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    notice(visitor, code, "That did not work", status.message())
}
