//! The pages on which people log in and out.

use std::time::Duration;

use axum::Form;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde::Deserialize;

use super::page::Page;
use super::state::Console;
use crate::api::http::access::{self, Access};
use crate::api::http::refusal::Refusal;
use crate::api::http::session::{LOGIN, Sight, Visitor};

/// How long a login with a wrong token waits for its answer. One waits at a time.
const WRONG_TOKEN_COSTS: Duration = Duration::from_millis(300);

/// A form whose only content is that it came from a page of this visitor.
#[derive(Deserialize)]
pub(super) struct Signed {
    #[serde(default)]
    csrf: String,
}

/// The form that lets people in.
#[derive(Deserialize)]
pub(super) struct Login {
    #[serde(default)]
    token: String,
}

/// Shows the form that lets people in.
pub(super) async fn login_page(
    State(console): State<Console>,
    visitor: Option<Visitor>,
) -> Response {
    let can_act = console.site.tokens.watch().borrow().may_anybody_act();
    let hint = "No token allows actions here: neither api.http_admin_token_file nor \
                api.http_tokens_file has a usable one.";
    login_form(&console, visitor, StatusCode::OK, (!can_act).then_some(hint))
}

/// Begins a session for a visitor with a valid token.
pub(super) async fn login(
    State(console): State<Console>,
    visitor: Option<Visitor>,
    Form(form): Form<Login>,
) -> Response {
    let digest = access::digest(form.token.trim());
    if console.site.tokens.grant_of_digest(&digest).is_none() {
        let _turn = console.wrong_tokens.lock().await;
        tokio::time::sleep(WRONG_TOKEN_COSTS).await;
        let why = "That is no token of this agent.";
        return login_form(&console, visitor, StatusCode::FORBIDDEN, Some(why));
    }
    let cookie = console.site.scheme.cookie(console.site.sessions.begin(digest));
    redirect("/", Some(&cookie))
}

/// Ends the session.
pub(super) async fn logout(
    State(console): State<Console>,
    visitor: Visitor,
    Form(form): Form<Signed>,
) -> Result<Response, Refusal> {
    if !visitor.has_sent(&form.csrf) {
        return Err(forged());
    }
    let site = &console.site;
    let cookie =
        visitor.session.as_ref().map(|session| site.scheme.cookie(site.sessions.end(session)));
    Ok(redirect("/", cookie.as_deref()))
}

/// The refusal of a form that is not from a page of its session.
pub(super) fn forged() -> Refusal {
    let why = "this form is not from a page of this session; open the page again and repeat it";
    Refusal::new(StatusCode::FORBIDDEN, why)
}

fn login_form(
    console: &Console,
    visitor: Option<Visitor>,
    status: StatusCode,
    error: Option<&str>,
) -> Response {
    let visitor = visitor.unwrap_or(Visitor {
        access: Access::Read,
        token: None,
        caller: None,
        sight: Sight::WithoutOutput,
        session: None,
    });
    let body: Markup = html! {
        section class="notice" {
            h1 { "Log in" }
            p {
                "A token allows looking, or acting as well. Whose it is stands in "
                code { "api.http_tokens_file" } "; the tokens of " code { "api.http_token_file" }
                " (looking) and " code { "api.http_admin_token_file" } " (acting) have files of their own."
            }
            @if let Some(error) = error { p class="error" role="alert" { (error) } }
            form method="post" action=(LOGIN) {
                label for="token" { "Token" }
                input id="token" name="token" type="password" required autofocus
                    autocomplete="current-password" maxlength="4096";
                button type="submit" { "Log in" }
            }
        }
    };
    let machine = &console.site.api.machine;
    Page { machine, title: "Log in", at: "", visitor: &visitor, live: None, body }.respond(status)
}

/// To a page of the agent's own, with a cookie.
pub(super) fn redirect(to: &str, cookie: Option<&str>) -> Response {
    let mut headers = HeaderMap::new();
    let pairs: [(HeaderName, Option<&str>); 2] =
        [(header::LOCATION, Some(to)), (header::SET_COOKIE, cookie)];
    for (name, value) in pairs {
        if let Some(Ok(value)) = value.map(HeaderValue::from_str) {
            headers.insert(name, value);
        }
    }
    (StatusCode::SEE_OTHER, headers).into_response()
}
