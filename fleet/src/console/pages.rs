//! Answers a browser that asks for a page, or follows one.

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use maud::html;

use super::frame::{Page, failed, notice};
use super::pieces::Ages;
use super::refuse::refuse;
use super::site::{Site, Visitor};
use super::steer::Steer;
use super::topic::{Asked, Topic};

/// The first page.
pub(super) async fn first(State(site): State<Site>, visitor: Visitor) -> Response {
    show(&site, &visitor, &Topic::Now, None).await
}

/// Every other page that keeps itself up to date.
pub(super) async fn page(
    State(site): State<Site>,
    visitor: Visitor,
    Path(page): Path<String>,
    Query(asked): Query<Asked>,
) -> Response {
    let done = match asked.done.as_str() {
        "" => None,
        word => Some(Steer::named(word).map_or("Done.", Steer::done)),
    };
    match Topic::of(&page, asked) {
        Some(topic) => show(&site, &visitor, &topic, done).await,
        None => {
            let text = "The pages that there are stand at the top.";
            notice(&visitor, StatusCode::NOT_FOUND, ("There is no such page", text))
        }
    }
}

async fn show(site: &Site, visitor: &Visitor, topic: &Topic, done: Option<&str>) -> Response {
    let shown = match site.source.show(&visitor.who, topic, Ages::At(Timestamp::now())).await {
        Ok(shown) => shown,
        Err(status) => return failed(visitor, &status),
    };
    let body = html! {
        @if let Some(done) = done { p class="done" role="status" { (done) } }
        (shown.body())
    };
    let live = topic.live();
    let (title, at, live) = (shown.title.as_str(), shown.at, live.as_deref());
    Page { title, at, visitor: Some(visitor), live, body }.respond(StatusCode::OK)
}

/// What changes on a page, as server-sent events.
pub(super) async fn live(
    State(site): State<Site>,
    visitor: Visitor,
    Query(asked): Query<Asked>,
) -> Response {
    let page = asked.page.clone();
    let Some(topic) = Topic::of(&page, asked).filter(|topic| topic.live().is_some()) else {
        return refuse(StatusCode::NOT_FOUND, "this page has no live updates");
    };
    let mut sessions = site.sessions.watch();
    let seat = site.hub.seat(async move { drop(sessions.changed().await) });
    let Some(seat) = seat else {
        let why = "too many browsers follow pages of this fleet; close one, or read the page again";
        return refuse(StatusCode::SERVICE_UNAVAILABLE, why);
    };
    site.hub.follow((topic, visitor.session.of), seat)
}
