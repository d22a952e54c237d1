//! The pages of a log: a part of it, its new lines for a page that follows it, and all of it as a file.

use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use guest_agent_actors::model::id::PluginName;
use guest_agent_console_kit::live::{self, Seat};
use maud::html;
use serde_json::json;

use super::log::{self, Asked, Lines, PAGE, Wanted, timed};
use super::page::{Page, failed, unknown};
use super::state::{Console, no_seat};
use crate::api::http::refusal::Refusal;
use crate::api::http::session::{Sight, Visitor};
use crate::process::logs::PluginLogs;
use crate::process::logs::read::{Begin, Reader};

/// How often a log is looked at when nothing says that it grew.
const BEAT: Duration = Duration::from_millis(500);

/// Shortest time between two messages to a page. What is written in between is one message.
const PAUSE: Duration = Duration::from_millis(100);

/// Most lines of one message; a plugin that writes faster is followed line by line all the same.
const MESSAGE_MAX: usize = 1000;

/// A log that is followed.
struct Followed {
    reader: Reader,
    logs: PluginLogs,
    lines: Lines,
    needle: String,
    with_times: bool,
    seat: Seat,
}

/// The page of a log.
pub(super) async fn show(
    State(console): State<Console>,
    visitor: Visitor,
    Path(name): Path<String>,
    Query(asked): Query<Asked>,
) -> Response {
    let machine = &console.site.api.machine;
    let Ok(name) = name.parse::<PluginName>() else { return unknown(machine, &visitor) };
    if visitor.sight != Sight::All {
        let body = html! { section { (log::end(None)) } };
        let page = Page { machine, title: "Log", at: "", visitor: &visitor, live: None, body };
        return page.respond(StatusCode::FORBIDDEN);
    }
    match console.source.find(&name).await {
        Ok(Some(_)) => {}
        Ok(None) => return unknown(machine, &visitor),
        Err(status) => return failed(machine, &visitor, &status),
    }
    let wanted = match asked.at {
        _ if !asked.find.is_empty() => Wanted::With(asked.needle()),
        Some(position) => Wanted::From(position),
        None => Wanted::Last(PAGE),
    };
    let part = console.source.log(&name, wanted).await;
    let title = format!("{name} · log");
    let body = html! { section { (log::page(name.as_str(), &part, &asked)) } };
    Page { machine, title: &title, at: "", visitor: &visitor, live: None, body }
        .respond(StatusCode::OK)
}

/// New lines of a log, as server-sent events. The id of an event is the position after its lines, so
/// that a browser that connects again goes on from there.
pub(super) async fn follow(
    State(console): State<Console>,
    visitor: Visitor,
    Path(name): Path<String>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let name = readable(&console, &visitor, &name).await?;
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let at = last.or(asked.at).unwrap_or(u64::MAX);
    let seat = console.seat().ok_or_else(no_seat)?;
    let logs = console.site.api.logs.clone();
    let (of, opened) = (name.clone(), logs.clone());
    let reader = tokio::task::spawn_blocking(move || {
        let end = Reader::new(opened.clone(), of.clone(), Begin::LastLines(0))?.end()?;
        Reader::new(opened, of, Begin::At(at.min(end)))
    });
    let reader = reader.await.map_err(io::Error::other).and_then(|reader| reader);
    let reader = reader.map_err(|error| unreadable(&name, &error))?;
    let (needle, with_times) = (asked.needle(), asked.wants_times());
    let followed = Followed { reader, logs, lines: Lines::default(), needle, with_times, seat };
    Ok(live::events(futures_util::stream::unfold(followed, Followed::next)))
}

/// All of a log, as a file.
pub(super) async fn download(
    State(console): State<Console>,
    visitor: Visitor,
    Path(name): Path<String>,
) -> Result<Response, Refusal> {
    let name = readable(&console, &visitor, &name).await?;
    let (logs, of) = (console.site.api.logs.clone(), name.clone());
    let opening = tokio::task::spawn_blocking(move || {
        let reader = Reader::new(logs, of, Begin::At(0))?;
        let end = reader.end()?;
        Ok((reader, end))
    });
    let opened = opening.await.map_err(io::Error::other).and_then(|opened| opened);
    let opened = opened.map_err(|error| unreadable(&name, &error))?;
    // Ends where the log ended when it was asked for: a plugin may write faster than a browser reads.
    let pieces = futures_util::stream::try_unfold(opened, |(mut reader, end)| async move {
        if reader.at() >= end {
            return Ok::<_, io::Error>(None);
        }
        let read = tokio::task::spawn_blocking(move || reader.next().map(|piece| (reader, piece)));
        let (reader, piece) = read.await.map_err(io::Error::other)??;
        Ok(piece.map(|piece| (Bytes::from(piece.data), (reader, end))))
    });
    let file = format!("attachment; filename=\"{name}.log\"");
    let mut response = Body::from_stream(pieces).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if let Ok(file) = HeaderValue::from_str(&file) {
        headers.insert(header::CONTENT_DISPOSITION, file);
    }
    Ok(response)
}

/// The plugin, if there is one of this name and the visitor may see what it prints.
async fn readable(console: &Console, visitor: &Visitor, name: &str) -> Result<PluginName, Refusal> {
    if visitor.sight != Sight::All {
        return Err(Refusal::unknown());
    }
    let none = || Refusal::new(StatusCode::NOT_FOUND, "no plugin has this name");
    let name: PluginName = name.parse().map_err(|_| none())?;
    match console.source.find(&name).await {
        Ok(Some(_)) => Ok(name),
        Ok(None) => Err(none()),
        Err(status) => {
            let why = status.message().to_owned();
            Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, why))
        }
    }
}

fn unreadable(name: &PluginName, error: &io::Error) -> Refusal {
    let why = format!("the log of {name} cannot be read: {error}");
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, why)
}

// === impl Followed ===

impl Followed {
    /// The next message; `None` when the stream ends.
    async fn next(mut self) -> Option<(Event, Self)> {
        loop {
            // Before the log is read, so that nothing is missed between the two.
            let logs = self.logs.clone();
            let written = logs.written();
            let mut reader = self.reader;
            let read = tokio::task::spawn_blocking(move || {
                let piece = reader.next()?;
                let times = piece.as_ref().map(|piece| reader.written(piece));
                Ok::<_, io::Error>((reader, piece, times.unwrap_or_default()))
            });
            // A log that cannot be read any more ends the stream; the page connects again.
            let (reader, piece, times) = read.await.ok()?.ok()?;
            self.reader = reader;
            if let Some(piece) = piece {
                let lines = self.lines.take(&piece.data, &times);
                let wanted = lines.into_iter().filter(|(text, _)| {
                    self.needle.is_empty() || text.to_lowercase().contains(&self.needle)
                });
                let mut wanted: Vec<_> = wanted.collect();
                let left_out = wanted.len().saturating_sub(MESSAGE_MAX);
                wanted.drain(..left_out);
                let mut html = String::new();
                if left_out > 0 {
                    html.push_str(
                        &timed(&format!("… {left_out} lines left out"), None, false).into_string(),
                    );
                }
                for (text, at) in wanted {
                    html.push_str(&timed(&text, at, self.with_times).into_string());
                }
                if html.is_empty() {
                    continue;
                }
                let data = json!({ "lines": html, "skipped": piece.skipped }).to_string();
                tokio::time::sleep(PAUSE).await;
                let at = piece.next.saturating_sub(self.lines.pending());
                return Some((Event::default().id(at.to_string()).data(data), self));
            }
            tokio::select! {
                () = written => {}
                () = tokio::time::sleep(BEAT) => {}
                () = self.seat.lost() => return None,
            }
        }
    }
}
