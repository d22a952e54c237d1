//! The pages on which people log in and out.

use std::time::Duration;

use axum::Form;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;

use super::frame::Page;
use super::login::{LOGIN, Login, target};
use super::pieces::{one_line, query};
use super::refuse::{redirect, refuse};
use super::site::{Site, Visitor};
use super::source::Nobody;
use crate::chain::Chain;
use crate::identity::Refusal;

/// How long a login with a wrong token waits for its answer. One waits at a time.
const WRONG_TOKEN_COSTS: Duration = Duration::from_millis(300);

/// Where a login leads.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    pub(super) next: String,
}

/// The form that lets people in.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Entry {
    token: String,
    next: String,
}

/// A form whose only content is that it came from a page of this session.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Signed {
    csrf: String,
}

/// Shows the form that lets people in.
pub(super) async fn form(
    State(site): State<Site>,
    visitor: Option<Visitor>,
    Query(asked): Query<Asked>,
) -> Response {
    shown(&site, visitor.as_ref(), (StatusCode::OK, None), &asked.next)
}

/// Begins a session for a person with a valid token. It has an id of its own, whatever the browser sent.
pub(super) async fn log_in(
    State(site): State<Site>,
    visitor: Option<Visitor>,
    Form(form): Form<Entry>,
) -> Response {
    let login = Login::of_token(form.token.trim());
    let (status, why) = match site.source.who(&login).await {
        Ok(who) => {
            if let Some(before) = &visitor {
                drop(site.end(&before.session));
            }
            tracing::info!(who = who.name, "logs in to the console");
            let cookie = site.scheme.cookie(site.sessions.begin(login));
            return redirect(target(&form.next), Some(&cookie));
        }
        Err(Nobody::Refused(Refusal::Unavailable(error))) => {
            let error = Chain(&*error);
            tracing::warn!(%error, "a login cannot be checked");
            let why = "It cannot be found out now whose token that is. Try again.".to_owned();
            (StatusCode::SERVICE_UNAVAILABLE, why)
        }
        // Only a person with the secret comes here.
        Err(Nobody::Refused(refusal @ (Refusal::Ended(_) | Refusal::Revoked(_)))) => {
            (StatusCode::FORBIDDEN, format!("{refusal}."))
        }
        Err(Nobody::Refused(Refusal::Unknown) | Nobody::Over | Nobody::NoRole(_)) => {
            (StatusCode::FORBIDDEN, "That is no token of this fleet.".to_owned())
        }
    };
    let _turn = site.wrong_tokens.lock().await;
    tokio::time::sleep(WRONG_TOKEN_COSTS).await;
    shown(&site, visitor.as_ref(), (status, Some(&why)), &form.next)
}

/// Ends the session.
pub(super) async fn log_out(
    State(site): State<Site>,
    visitor: Visitor,
    Form(form): Form<Signed>,
) -> Response {
    if !visitor.session.has_sent(&form.csrf) {
        return forged();
    }
    redirect(LOGIN, Some(&site.scheme.cookie(site.end(&visitor.session))))
}

/// The refusal of a form that is not from a page of its session.
pub(super) fn forged() -> Response {
    let why = "this form is not from a page of this session; open the page again and repeat it";
    refuse(StatusCode::FORBIDDEN, why)
}

/// The page on which people log in, with what was wrong with a login before.
pub(super) fn shown(
    site: &Site,
    visitor: Option<&Visitor>,
    (status, error): (StatusCode, Option<&str>),
    next: &str,
) -> Response {
    let next = Some(next).filter(|next| target(next) == *next);
    let has_provider = site.people.is_some();
    let body = html! {
        section class="notice" {
            h1 { "Log in" }
            @if let Some(error) = error { p class="error" role="alert" { (error) } }
            (by_provider(site, next))
            p {
                @if has_provider { "Or with" } @else { "With" }
                " a token of the fleet's API. What it may do, you may do here. "
                code { "guest-fleet access token create" } " makes one."
            }
            form method="post" action=(LOGIN) {
                label for="token" { "Token" }
                input id="token" name="token" type="password" required autofocus[!has_provider]
                    autocomplete="current-password" maxlength="4096";
                @if let Some(next) = next { input type="hidden" name="next" value=(next); }
                button type="submit" { "Log in" }
            }
        }
    };
    Page { title: "Log in", at: "", visitor, live: None, body }.respond(status)
}

/// The way to the identity provider, where there is one. It is a link, because a browser follows no form to another
/// site by the policy of the pages; and it names its host, because the provider sends the browser back to that.
fn by_provider(site: &Site, next: Option<&str>) -> Markup {
    let Some(people) = &site.people else { return html! {} };
    let next = query(&[("next", next.unwrap_or_default())]);
    let start = format!("{}{next}", people.callback.start());
    html! {
        p { a class="button" href=(start) { "Log in with the identity provider" } }
        p class="quiet" { "It is " (one_line(people.oidc.issuer())) "." }
        @if people.oidc.is_away() {
            p class="error" role="alert" {
                "The identity provider does not answer. It is asked again by itself; the log of "
                code { "guest-fleet serve" } " says why. A token works meanwhile."
            }
        }
    }
}
