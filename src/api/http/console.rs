//! The web console: what the command line shows, as pages that keep themselves up to date.
//!
//! ```text
//!   browser ─► access_check (host, origin, token) ────► routes ─► [`source`] ─► local API
//!      ▲                                                  ├► [`overview`], [`plugin`], [`log`]: HTML, pure
//!      └────────── changed parts of a page ◄── [`live`] ◄─┘
//! ```
//!
//! A page is whole without a script; the script only puts changed parts in their places. Everything
//! that is shown is escaped, and the policy in [`page`] lets a browser carry out nothing but the
//! agent's own script. Actions take the same path as those of the command line. They need a token
//! that allows them, and a form from a page of the same session.

use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use guest_agent_actors::model::id::PluginName;
use jiff::Timestamp;
use maud::html;
use serde::Deserialize;

use crate::api::http::refusal::Refusal;
use crate::api::http::session::{LOGIN, Sight, Visitor};
use crate::api::http::site::Site;

mod act;
mod chart;
mod hidden;
mod live;
mod log;
mod overview;
mod page;
mod pieces;
mod plugin;
mod source;
mod state;
mod timeline;

use live::{Hub, Topic};
use page::{Page, failed, unknown};
use pieces::Ages;
use source::Source;
use state::Console;
use timeline::Timeline;

/// How often an idle stream sends a comment, so that it is not taken for dead.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Longest filter, in characters.
const FILTER_MAX: usize = 64;

/// The pages of the console, and a task that keeps the newest events for them until the site ends.
pub(crate) fn routes(site: &Site) -> Router<Site> {
    let timeline = Timeline::new();
    tokio::spawn(timeline.clone().follow(site.api.clone(), site.ending.clone()));
    let source = Source { api: site.api.clone(), timeline };
    let hub = Hub::new(source.clone(), site.ending.clone());
    Router::new()
        .route("/", get(overview))
        .route("/console/live", get(live))
        .route("/console/events", get(events))
        .route("/console/plugins/{name}", get(plugin))
        .route("/console/plugins/{name}/log", get(log_page))
        .route("/console/plugins/{name}/restart", post(act::restart))
        .route("/console/plugins/{name}/remove", get(act::ask_removal).post(act::remove))
        .route(LOGIN, get(act::login_page).post(act::login))
        .route("/console/logout", post(act::logout))
        .route("/console/style.css", get(style))
        .route("/console/script.js", get(script))
        .with_state(Console::new(site.clone(), source, hub))
}

#[derive(Deserialize)]
struct OverviewQuery {
    #[serde(default)]
    plugin: String,
}

async fn overview(
    State(console): State<Console>,
    visitor: Visitor,
    Query(query): Query<OverviewQuery>,
) -> Response {
    let filter: String = query.plugin.trim().chars().take(FILTER_MAX).collect();
    match console.source.overview(&filter, visitor.sight).await {
        Ok(overview) => {
            let body = overview.page(Ages::At(Timestamp::now()));
            let live = Some(("overview", filter.as_str()));
            Page { title: "Overview", visitor: &visitor, live, body }.respond(StatusCode::OK)
        }
        Err(status) => failed(&visitor, &status),
    }
}

#[derive(Deserialize)]
struct PluginQuery {
    #[serde(default)]
    done: String,
}

async fn plugin(
    State(console): State<Console>,
    visitor: Visitor,
    Path(name): Path<String>,
    Query(query): Query<PluginQuery>,
) -> Response {
    let Ok(name) = name.parse::<PluginName>() else { return unknown(&visitor) };
    match console.source.plugin(&name, visitor.sight).await {
        Ok(Some(plugin)) => {
            let body = plugin.page(Ages::At(Timestamp::now()), &visitor, act::done(&query.done));
            let live = Some(("plugin", name.as_str()));
            Page { title: name.as_str(), visitor: &visitor, live, body }.respond(StatusCode::OK)
        }
        Ok(None) => unknown(&visitor),
        Err(status) => failed(&visitor, &status),
    }
}

#[derive(Deserialize)]
struct LogQuery {
    at: Option<u64>,
}

async fn log_page(
    State(console): State<Console>,
    visitor: Visitor,
    Path(name): Path<String>,
    Query(query): Query<LogQuery>,
) -> Response {
    let Ok(name) = name.parse::<PluginName>() else { return unknown(&visitor) };
    if visitor.sight != Sight::All {
        let body = log::end(None);
        let title = "Log";
        return Page { title, visitor: &visitor, live: None, body }.respond(StatusCode::FORBIDDEN);
    }
    match console.source.find(&name).await {
        Ok(Some(_)) => {}
        Ok(None) => return unknown(&visitor),
        Err(status) => return failed(&visitor, &status),
    }
    let wanted = query.at.map_or(log::Wanted::Last(log::PAGE), log::Wanted::From);
    let part = console.source.log(&name, wanted).await;
    let title = format!("{name} · log");
    let body = log::page(name.as_str(), &part);
    Page { title: &title, visitor: &visitor, live: None, body }.respond(StatusCode::OK)
}

#[derive(Deserialize)]
struct EventsQuery {
    #[serde(default)]
    plugin: String,
}

async fn events(
    State(console): State<Console>,
    visitor: Visitor,
    Query(query): Query<EventsQuery>,
) -> Response {
    let name: String = query.plugin.trim().chars().take(FILTER_MAX).collect();
    let of = Some(name.as_str()).filter(|name| !name.is_empty());
    let newest = console.source.timeline.newest(timeline::KEPT_MAX, of, visitor.sight);
    let body = html! {
        div class="title" {
            h1 { "Events" }
            form method="get" action="/console/events" role="search" {
                label class="hidden" for="of" { "Only those of this plugin" }
                input id="of" name="plugin" type="search" maxlength="64" placeholder="Of one plugin"
                    value=(name);
                button type="submit" { "Show" }
            }
        }
        section {
            (timeline::list(&newest, Ages::At(Timestamp::now()), timeline::Names::Shown))
            @if newest.len() >= timeline::KEPT_MAX {
                p class="quiet" { "For older events see " code { "guest-agent events" } "." }
            }
        }
    };
    Page { title: "Events", visitor: &visitor, live: None, body }.respond(StatusCode::OK)
}

#[derive(Deserialize)]
struct LiveQuery {
    page: String,
    #[serde(default)]
    of: String,
}

/// What changes on a page, as server-sent events.
async fn live(
    State(console): State<Console>,
    visitor: Visitor,
    Query(query): Query<LiveQuery>,
) -> Result<Response, Refusal> {
    let none = || Refusal::new(StatusCode::NOT_FOUND, "this page has no live updates");
    let topic = match query.page.as_str() {
        "overview" => Topic::Overview(query.of.chars().take(FILTER_MAX).collect(), visitor.sight),
        "plugin" => Topic::Plugin(query.of.parse().map_err(|_| none())?, visitor.sight),
        _ => return Err(none()),
    };
    let allowed = (console.site.sessions.watch(), console.site.tokens.watch());
    let follower = console.hub.follow(topic, allowed).ok_or_else(|| {
        let why = "too many browsers follow pages of this agent; close one, or read the page again";
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, why)
    })?;
    let beat = KeepAlive::new().interval(HEARTBEAT);
    Ok(Sse::new(follower.stream()).keep_alive(beat).into_response())
}

async fn style() -> Response {
    asset("text/css; charset=utf-8", include_str!("console/style.css"))
}

async fn script() -> Response {
    asset("text/javascript; charset=utf-8", include_str!("console/script.js"))
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    // Small, and another one with the next version of the agent.
    let kept = (header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=60"));
    (page::headers(kind), [kept], text).into_response()
}

#[cfg(test)]
mod tests;
