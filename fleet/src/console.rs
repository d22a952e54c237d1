//! The web console of a fleet: what the command line shows, as pages that keep themselves up to date.
//!
//! ```text
//!   browser ─► check (host, origin, session) ─► pages, thoughts, deeds ─► source ─► calls ─► API
//!      ▲                                          ├► now, rollout, agents, …: HTML, pure
//!      └────────── changed parts of a page ◄── the hub ◄──┘
//! ```
//!
//! The console asks the API, in the name of the person who is logged in, and nothing else: it shows and does
//! nothing that the API would refuse this person. A page is whole without a script; the script only puts
//! changed parts in their places. Everything that is shown is escaped, and the policy of
//! [`guest_agent_console_kit::headers`] lets a browser carry out nothing but the console's own script. Whatever
//! changes something is a form from a page of the same session, after a page that says how many machines it
//! touches.

mod agent;
mod agents;
mod assignments;
mod audit;
mod callback;
mod calls;
mod check;
mod deed;
mod deeds;
mod enrolment;
mod entry;
mod frame;
mod holds;
mod login;
mod names;
mod now;
mod pages;
mod people;
mod pieces;
mod provider;
mod refuse;
mod releases;
mod role;
mod rollout;
mod rollouts;
mod scheme;
mod shown;
mod site;
mod source;
mod standing;
mod steer;
mod stranger;
mod system;
#[cfg(test)]
mod tests;
mod thoughts;
mod told;
mod topic;
mod waves;

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use axum::{Router, middleware};
use guest_agent_console_kit::assets;
use guest_agent_console_kit::live::Hub;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::identity::Authenticate;
use crate::identity::sessions::SESSIONS;
use login::{CALLBACK, LOGIN, PROVIDER, Sessions};
use site::Site;
use source::Source;

pub use callback::{CallbackUrl, CallbackUrlError};
pub use calls::Calls;
pub use people::People;
pub use scheme::Scheme;

/// Largest body of a request, in bytes: declarations that somebody compares, as a form.
const BODY_MAX: usize = 256 << 10;

/// Most logins that are finished at once.
const FINISHING: usize = 16;

/// How the console is served.
#[derive(Clone)]
pub struct Settings {
    /// Whether browsers reach it over TLS.
    pub scheme: Scheme,
    /// Names, beside addresses and `localhost`, under which browsers may ask for it.
    pub names: Vec<String>,
    /// How people log in by an identity provider; without it, by tokens alone.
    pub people: Option<People>,
}

/// The pages of the console, at `/` and below `/console/`. Streams end with `ending`.
pub fn routes(
    calls: Arc<dyn Calls>,
    authenticate: Arc<dyn Authenticate>,
    settings: Settings,
    ending: CancellationToken,
) -> Router {
    let people = settings.people.as_ref().map(|people| people.sessions.clone());
    let source = Source { calls, authenticate, people };
    let site = Site {
        hub: Hub::new(source.clone(), ending),
        source,
        sessions: Arc::new(Sessions::with_most(SESSIONS)),
        people: settings.people,
        finishing: Arc::new(Semaphore::new(FINISHING)),
        scheme: settings.scheme,
        names: settings.names.into(),
        wrong_tokens: Arc::default(),
    };
    Router::new()
        .route("/", get(pages::first))
        .route("/console/live", get(pages::live))
        .route("/console/{page}", get(pages::page))
        .route("/console/rollout/{verb}", get(deeds::ask_to_steer).post(deeds::steer))
        .route("/console/do/{deed}", get(deeds::ask).post(deeds::act))
        .route("/console/preview", get(thoughts::preview).post(thoughts::begin))
        .route("/console/diff", get(thoughts::ask_for_text).post(thoughts::diff))
        .route("/console/hold", get(thoughts::ask_to_hold).post(thoughts::hold))
        .route(LOGIN, get(entry::form).post(entry::log_in))
        .route(PROVIDER, get(provider::begin))
        .route(CALLBACK, get(provider::finish))
        .route("/console/logout", post(entry::log_out))
        .route(assets::STYLE, get(assets::style))
        .route(assets::SCRIPT, get(assets::script))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(middleware::from_fn_with_state(site.clone(), check::check))
        .with_state(site)
}
