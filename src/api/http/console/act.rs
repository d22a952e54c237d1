//! The pages that change something: login, logout, and orders for plugins.

use std::time::Duration;

use axum::Form;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use guest_agent_actors::model::id::PluginName;
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::local::local_agent_server::LocalAgent;
use guest_agent_proto::local::{ConfigureRequest, RestartRequest};
use maud::{Markup, html};
use serde::Deserialize;
use tonic::Request;

use super::page::{Page, failed, notice, unknown};
use super::pieces::page_of;
use super::plugin;
use super::state::Console;
use crate::api::http::access::{self, Access};
use crate::api::http::refusal::Refusal;
use crate::api::http::session::{LOGIN, Sight, Visitor};
use crate::api::local::remove_order;

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

/// The sentence that is shown after an order.
pub(super) fn done(what: &str) -> Option<&'static str> {
    match what {
        "restart" => Some("The restart is ordered. Its progress is shown below."),
        "remove" => {
            Some("The removal is ordered. The plugin disappears from here when it is removed.")
        }
        _ => None,
    }
}

/// Orders a restart.
pub(super) async fn restart(
    State(console): State<Console>,
    visitor: Visitor,
    Path(name): Path<String>,
    Form(form): Form<Signed>,
) -> Result<Response, Refusal> {
    let name = check(&visitor, &name, &form)?;
    let request = Request::new(RestartRequest { name: name.to_string() });
    Ok(match console.site.api.restart(request).await {
        Ok(_) => ordered(&name, "restart"),
        Err(status) => failed(&visitor, &status),
    })
}

/// Asks whether a plugin is to be removed.
pub(super) async fn ask_removal(
    State(console): State<Console>,
    visitor: Visitor,
    Path(name): Path<String>,
) -> Result<Response, Refusal> {
    visitor.access.require(Access::Act)?;
    let Ok(name) = name.parse::<PluginName>() else { return Ok(unknown(&visitor)) };
    if !matches!(console.source.find(&name).await, Ok(Some(_))) {
        return Ok(unknown(&visitor));
    }
    let body = plugin::removal(name.as_str(), &visitor);
    Ok(Page { title: "Remove", visitor: &visitor, live: None, body }.respond(StatusCode::OK))
}

/// Orders a removal.
pub(super) async fn remove(
    State(console): State<Console>,
    visitor: Visitor,
    Path(name): Path<String>,
    Form(form): Form<Signed>,
) -> Result<Response, Refusal> {
    let name = check(&visitor, &name, &form)?;
    if !matches!(console.source.find(&name).await, Ok(Some(_))) {
        return Ok(unknown(&visitor));
    }
    let orders = ConfigurePluginStates { configure_plugins: vec![remove_order(name.as_str())] };
    let request = Request::new(ConfigureRequest { orders: Some(orders) });
    let answer = console.site.api.configure(request).await;
    let results = match answer {
        Ok(answer) => answer.into_inner().results,
        Err(status) => return Ok(failed(&visitor, &status)),
    };
    match results.into_iter().find(|result| !result.error.is_empty()) {
        None => Ok(ordered(&name, "remove")),
        Some(refused) => {
            let status = StatusCode::CONFLICT;
            Ok(notice(&visitor, status, "The order was refused", &refused.error))
        }
    }
}

/// Shows the form that lets people in.
pub(super) async fn login_page(
    State(console): State<Console>,
    visitor: Option<Visitor>,
) -> Response {
    let can_act = console.site.tokens.watch().borrow().may_anybody_act();
    let hint = "No token allows actions here: api.http_admin_token_file names no usable token.";
    login_form(visitor, StatusCode::OK, (!can_act).then_some(hint))
}

/// Begins a session for a visitor with a valid token.
pub(super) async fn login(
    State(console): State<Console>,
    visitor: Option<Visitor>,
    Form(form): Form<Login>,
) -> Response {
    let digest = access::digest(form.token.trim());
    if console.site.tokens.access_of_digest(&digest).is_none() {
        let _turn = console.wrong_tokens.lock().await;
        tokio::time::sleep(WRONG_TOKEN_COSTS).await;
        let why = "That is no token of this agent.";
        return login_form(visitor, StatusCode::FORBIDDEN, Some(why));
    }
    redirect("/", Some(&console.site.sessions.begin(digest, console.site.scheme)))
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
    let cookie = visitor.session.as_ref().map(|session| site.sessions.end(session, site.scheme));
    Ok(redirect("/", cookie.as_deref()))
}

/// Whether this visitor may give an order for a plugin, and meant to.
fn check(visitor: &Visitor, name: &str, form: &Signed) -> Result<PluginName, Refusal> {
    visitor.access.require(Access::Act)?;
    if !visitor.has_sent(&form.csrf) {
        return Err(forged());
    }
    name.parse().map_err(|_| Refusal::new(StatusCode::NOT_FOUND, "no plugin has this name"))
}

fn forged() -> Refusal {
    let why = "this form is not from a page of this session; open the page again and repeat it";
    Refusal::new(StatusCode::FORBIDDEN, why)
}

fn login_form(visitor: Option<Visitor>, status: StatusCode, error: Option<&str>) -> Response {
    let visitor = visitor.unwrap_or(Visitor {
        access: Access::Read,
        sight: Sight::WithoutOutput,
        session: None,
    });
    let body: Markup = html! {
        section class="notice" {
            h1 { "Log in" }
            p {
                "The token in the file that " code { "api.http_token_file" } " names allows looking; that of "
                code { "api.http_admin_token_file" } " also allows restarting and removing plugins."
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
    Page { title: "Log in", visitor: &visitor, live: None, body }.respond(status)
}

fn ordered(name: &PluginName, what: &str) -> Response {
    redirect(&format!("{}?done={what}", page_of(name.as_str())), None)
}

/// To a page of the agent's own, with a cookie.
fn redirect(to: &str, cookie: Option<&str>) -> Response {
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
