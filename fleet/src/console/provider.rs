//! Logging in by the identity provider.
//!
//! ```text
//!   page of logins ─► begin ─► provider ─► finish ─┬─► a page that leads on: its session is new
//!                       └── sealed cookie ──►      ├─► no role: who it is, and what an admin does
//!                                                  └─► page of logins, with what went wrong
//! ```
//!
//! The cookie of a session is strict, and a browser does not send one where another site led it to. So a login does
//! not end with a redirect, which would still be the other site's, but with a page of the console that leads on.

use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use guest_agent_console_kit::session::{Cookie, secrets};
use maud::html;
use serde::Deserialize;

use super::entry::{Asked, shown};
use super::frame::Page;
use super::login::{LOGIN, Login, target};
use super::people::People;
use super::pieces::{one_line, query};
use super::refuse::{redirect, refuse};
use super::site::{Site, Visitor};
use super::stranger;
use crate::chain::Chain;
use crate::identity::oidc::{self, Callback, Finished, OidcError};
use crate::identity::sessions::SessionEnd;

/// Most cookies of logins of one request that are looked at.
const COOKIES: usize = 4;

/// What the provider sends a browser back with.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Returned {
    state: Option<String>,
    code: Option<String>,
    error: Option<String>,
    iss: Option<String>,
}

/// Sends a browser to the provider.
pub(super) async fn begin(
    State(site): State<Site>,
    visitor: Option<Visitor>,
    headers: HeaderMap,
    Query(asked): Query<Asked>,
) -> Response {
    let Some(people) = &site.people else { return nobody() };
    let next = target(&asked.next);
    if is_of_other_site(&headers) {
        // A person begins a login, and no page of another site does.
        return redirect(&format!("{LOGIN}{}", query(&[("next", next)])), None);
    }
    match people.oidc.begin(&people.callback.url(), next).await {
        Ok(begun) => {
            // The browser will come back without the strict cookie of its session, which would then stay open.
            if let Some(before) = &visitor {
                drop(site.end(&before.session));
            }
            let cookie = Cookie { value: begun.cookie, lasts: oidc::LOGIN };
            redirect(&begun.url, Some(&site.scheme.login_cookie(cookie)))
        }
        Err(error) => failed(&site, visitor.as_ref(), &error, next),
    }
}

/// Begins the session of a person that the provider sends back. It has an id of its own, whatever the browser
/// sent.
pub(super) async fn finish(
    State(site): State<Site>,
    visitor: Option<Visitor>,
    headers: HeaderMap,
    Query(returned): Query<Returned>,
) -> Response {
    let Some(people) = &site.people else { return nobody() };
    let Ok(_turn) = site.finishing.try_acquire() else {
        let why = "too many people log in at this moment; load this page again";
        return refuse(StatusCode::SERVICE_UNAVAILABLE, why);
    };
    match finished(&site, people, &headers, &returned).await {
        Ok(finished) => entered(&site, people, visitor.as_ref(), finished),
        Err(error) => {
            let mut response = failed(&site, visitor.as_ref(), &error, "");
            // A login of another browser says nothing of this one's, and a provider that was away takes the code
            // once it is back.
            if error.is_refusal() && !matches!(error, OidcError::NoLogin) {
                set(&mut response, &over(&site));
            }
            response
        }
    }
}

/// Finishes the login that one of the cookies is of.
async fn finished(
    site: &Site,
    people: &People,
    headers: &HeaderMap,
    returned: &Returned,
) -> Result<Finished, OidcError> {
    let callback = Callback {
        state: returned.state.as_deref(),
        code: returned.code.as_deref(),
        error: returned.error.as_deref(),
        issuer: returned.iss.as_deref(),
    };
    for cookie in secrets(headers, site.scheme.login_name()).take(COOKIES) {
        match people.oidc.finish(cookie, callback).await {
            Err(OidcError::NoLogin) => {}
            finished => return finished,
        }
    }
    Err(OidcError::NoLogin)
}

/// What a person gets that the provider knows.
fn entered(
    site: &Site,
    people: &People,
    visitor: Option<&Visitor>,
    Finished { login, kept }: Finished,
) -> Response {
    let (name, groups) = (login.name.clone(), login.groups.clone());
    let secret = match people.sessions.begin(login, None) {
        Ok(secret) => secret,
        Err(SessionEnd::NoRole(_) | SessionEnd::Over) => {
            tracing::info!(who = name, "a person without a role logged in");
            return stranger::unknown(people.oidc.issuer(), &name, &groups, &over(site));
        }
        Err(SessionEnd::Unavailable(stale)) => {
            tracing::warn!(error = %Chain(&stale), "a login cannot be checked");
            let why = "It cannot be found out now what you may do. Try again.";
            return shown(site, visitor, (StatusCode::SERVICE_UNAVAILABLE, Some(why)), &kept);
        }
    };
    if let Some(before) = visitor {
        drop(site.end(&before.session));
    }
    tracing::info!(who = name, "logs in to the console by the identity provider");
    let to = target(&kept);
    let body = html! {
        section class="notice" {
            h1 { "You are logged in" }
            p { "As " strong { (one_line(&name)) } "." }
            p { a class="button" href=(to) { "Go on" } }
        }
    };
    let page = Page { title: "Logged in", at: "", visitor: None, live: None, body };
    let mut response = page.respond(StatusCode::OK);
    if let Ok(on) = HeaderValue::from_str(&format!("0; url={to}")) {
        response.headers_mut().insert(header::REFRESH, on);
    }
    set(&mut response, &over(site));
    set(&mut response, &site.scheme.cookie(site.sessions.begin(Login::of_person(&secret))));
    response
}

/// The page of logins, with what went wrong.
fn failed(site: &Site, visitor: Option<&Visitor>, error: &OidcError, next: &str) -> Response {
    let (status, why) = match error {
        OidcError::NoLogin => {
            tracing::debug!("a login came back that no browser of this process began");
            (StatusCode::BAD_REQUEST, sentence(error))
        }
        error if error.is_refusal() => {
            tracing::info!(error = %Chain(error), "a login by the identity provider is refused");
            (StatusCode::FORBIDDEN, sentence(error))
        }
        error => {
            tracing::warn!(error = %Chain(error), "nobody can log in by the identity provider");
            let why = "The identity provider cannot be asked now. Try again; the log of `guest-fleet serve` \
                       says why. A token works meanwhile.";
            (StatusCode::SERVICE_UNAVAILABLE, why.to_owned())
        }
    };
    shown(site, visitor, (status, Some(&why)), next)
}

/// An error as a sentence.
fn sentence(error: &OidcError) -> String {
    let text = one_line(&error.to_string());
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

/// The cookie that replaces that of a login which is over.
fn over(site: &Site) -> String {
    site.scheme.login_cookie(Cookie { value: String::new(), lasts: std::time::Duration::ZERO })
}

fn set(response: &mut Response, cookie: &str) {
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
}

/// Whether a page of another site led the browser here, as far as the browser says so.
fn is_of_other_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    site.is_some_and(|site| !matches!(site, b"same-origin" | b"none"))
}

fn nobody() -> Response {
    refuse(StatusCode::NOT_FOUND, "this fleet has no identity provider; log in at /console/login")
}
