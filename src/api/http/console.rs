//! The web console: what the command line shows, as pages that keep themselves up to date.
//!
//! ```text
//!   browser ─► access_check (host, origin, token) ────► routes ─► [`source`] ─► local API
//!      ▲                                                  ├► [`overview`], [`plugin`], [`events`]: HTML, pure
//!      └────────── changed parts of a page ◄── the hub ◄──┘
//! ```
//!
//! A page is whole without a script; the script only puts changed parts in their places. Everything
//! that is shown is escaped, and the policy of [`guest_agent_console_kit::headers`] lets a browser carry out nothing but the
//! agent's own script. Actions take the same path as those of the command line. They need a token
//! that allows them, and a form from a page of the same session.

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use guest_agent_actors::model::id::PluginName;
use guest_agent_console_kit::assets;
use guest_agent_console_kit::live::Hub;
use guest_agent_console_kit::pieces::query;
use guest_agent_proto::local::ListAuditRequest;
use guest_agent_proto::local::local_agent_server::LocalAgent;
use jiff::Timestamp;
use maud::html;
use serde::Deserialize;

use crate::api::http::refusal::Refusal;
use crate::api::http::session::{LOGIN, Sight, Visitor};
use crate::api::http::site::Site;

mod act;
mod audit;
mod choice;
mod configuration;
mod doctor;
mod events;
mod fold;
mod hidden;
mod log;
mod log_pages;
mod login;
mod orders;
mod overview;
mod page;
mod pieces;
mod plugin;
mod row;
mod source;
mod state;
mod timeline;
mod view;

use page::{Page, failed, unknown};
use pieces::Ages;
use source::{Source, Topic};
use state::{Console, no_seat};
use timeline::Timeline;
use view::View;

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
        .route("/console/doctor", get(doctor::show))
        .route("/console/audit", get(audited))
        .route("/console/configuration", get(configuration::show))
        .route("/console/plugins/{name}", get(plugin))
        .route("/console/plugins/{name}/log", get(log_pages::show))
        .route("/console/plugins/{name}/log/live", get(log_pages::follow))
        .route("/console/plugins/{name}/log/download", get(log_pages::download))
        .route("/console/plugins/{name}/{act}", get(orders::ask).post(orders::act))
        .route(LOGIN, get(login::login_page).post(login::login))
        .route("/console/logout", post(login::logout))
        .route(assets::STYLE, get(assets::style))
        .route(assets::SCRIPT, get(assets::script))
        .with_state(Console::new(site.clone(), source, hub))
}

async fn overview(
    State(console): State<Console>,
    visitor: Visitor,
    Query(query): Query<view::Query>,
) -> Response {
    let machine = &console.site.api.machine;
    let view = View::from(query);
    match console.source.overview(&view, visitor.sight).await {
        Ok(overview) => {
            let body = overview.page(Ages::At(Timestamp::now()));
            let live = format!("/console/live{}", view.query(&[("page", "overview")]));
            let live = Some(&*live);
            Page { machine, title: "Overview", at: "/", visitor: &visitor, live, body }
                .respond(StatusCode::OK)
        }
        Err(status) => failed(machine, &visitor, &status),
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
    Query(asked): Query<PluginQuery>,
) -> Response {
    let machine = &console.site.api.machine;
    let Ok(name) = name.parse::<PluginName>() else { return unknown(machine, &visitor) };
    match console.source.plugin(&name, visitor.sight).await {
        Ok(Some(plugin)) => {
            let done = act::done(&asked.done);
            let body = plugin.page(Ages::At(Timestamp::now()), &visitor, done);
            let of = [("page", "plugin"), ("of", name.as_str())];
            let live = format!("/console/live{}", query(&of));
            let live = Some(&*live);
            Page { machine, title: name.as_str(), at: "", visitor: &visitor, live, body }
                .respond(StatusCode::OK)
        }
        Ok(None) => unknown(machine, &visitor),
        Err(status) => failed(machine, &visitor, &status),
    }
}

async fn events(
    State(console): State<Console>,
    visitor: Visitor,
    Query(query): Query<events::Query>,
) -> Response {
    let machine = &console.site.api.machine;
    let wanted = events::Wanted::from(query);
    match console.source.events(&wanted, visitor.sight).await {
        Ok(events) => {
            let body = events.page(Ages::At(Timestamp::now()));
            let live = format!("/console/live{}", wanted.query(&[("page", "events")]));
            // Older events do not change.
            let live = wanted.before.is_none().then_some(&*live);
            let at = "/console/events";
            Page { machine, title: "Events", at, visitor: &visitor, live, body }
                .respond(StatusCode::OK)
        }
        Err(status) => failed(machine, &visitor, &status),
    }
}

/// Shows a page of entries. A visitor without a token sees none: reasons may say what is nobody's
/// business.
async fn audited(
    State(console): State<Console>,
    visitor: Visitor,
    Query(asked): Query<audit::Asked>,
) -> Response {
    let machine = &console.site.api.machine;
    let (title, at) = ("Audit", "/console/audit");
    if visitor.sight != Sight::All {
        let left_out = log::with_token("Who acted is shown with a token only.");
        let body = html! { h1 { "Audit" } section { (left_out) } };
        return Page { machine, title, at, visitor: &visitor, live: None, body }
            .respond(StatusCode::FORBIDDEN);
    }
    // What is no name of a plugin has no entries, and counts as no filter.
    let name = asked.plugin.trim().parse::<PluginName>().map(|name| name.to_string());
    let request = ListAuditRequest {
        name: name.unwrap_or_default(),
        limit: audit::PAGE,
        since: None,
        before: asked.before,
    };
    let name = request.name.clone();
    match console.site.api.list_audit(visitor.request(request)).await {
        Ok(answer) => {
            let body = audit::page(&answer.into_inner(), &name, Ages::At(Timestamp::now()));
            Page { machine, title, at, visitor: &visitor, live: None, body }.respond(StatusCode::OK)
        }
        Err(status) => failed(machine, &visitor, &status),
    }
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
    Query(asked): Query<LiveQuery>,
    Query(view): Query<view::Query>,
    Query(wanted): Query<events::Query>,
) -> Result<Response, Refusal> {
    let none = || Refusal::new(StatusCode::NOT_FOUND, "this page has no live updates");
    let topic = match asked.page.as_str() {
        "overview" => Topic::Overview(view.into(), visitor.sight),
        "plugin" => Topic::Plugin(asked.of.parse().map_err(|_| none())?, visitor.sight),
        "events" => {
            let newest = events::Wanted { before: None, ..wanted.into() };
            Topic::Events(newest, visitor.sight)
        }
        _ => return Err(none()),
    };
    let seat = console.seat().ok_or_else(no_seat)?;
    Ok(console.hub.follow(topic, seat))
}

#[cfg(test)]
mod tests;
