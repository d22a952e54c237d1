//! Logs of plugins, a bounded part at a time: what a browser asks for never makes the agent read
//! more.

use std::io;

use guest_agent_actors::model::id::PluginName;
use maud::{Markup, html};

use super::pieces::page_of;
use crate::api::http::session::LOGIN;
use crate::display::{bytes, moves_others, one_line};
use crate::process::logs::PluginLogs;
use crate::process::logs::read::{Begin, Reader};

/// How much of a log is shown on the plugin's page.
pub(super) const TAIL: u64 = 16 << 10;

/// How much of a log is on one page of it.
pub(super) const PAGE: u64 = 64 << 10;

/// A part of a log, as text. Positions count all bytes that were ever written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// Whole lines where there are any.
    pub(super) text: String,
    /// Where it begins.
    pub(super) from: u64,
    /// Where it ends.
    pub(super) next: u64,
    /// Where the log ends.
    pub(super) end: u64,
}

/// What of a log is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// So many of its last bytes.
    Last(u64),
    /// A page, beginning at a position.
    From(u64),
}

// === impl Part ===

impl Part {
    /// Reads a part, on a thread that may block.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(super) async fn read(
        logs: PluginLogs,
        name: PluginName,
        wanted: Wanted,
    ) -> io::Result<Self> {
        let reading = tokio::task::spawn_blocking(move || Self::read_here(logs, name, wanted));
        reading.await.map_err(io::Error::other)?
    }

    fn read_here(logs: PluginLogs, name: PluginName, wanted: Wanted) -> io::Result<Self> {
        let mut reader = Reader::new(logs.clone(), name.clone(), Begin::LastLines(0))?;
        let end = reader.end()?;
        let (from, most) = match wanted {
            Wanted::Last(most) => (end.saturating_sub(most), most),
            Wanted::From(position) => (position.min(end), PAGE),
        };
        reader = Reader::new(logs, name, Begin::At(from))?;
        let mut data = Vec::new();
        let (mut begin, mut next) = (from, from);
        while let Some(piece) = reader.next()? {
            let length = u64::try_from(piece.data.len()).unwrap_or(u64::MAX);
            if data.is_empty() {
                begin = piece.next.saturating_sub(length);
            }
            next = piece.next;
            data.extend_from_slice(&piece.data);
            if next.saturating_sub(begin) >= most || next >= end {
                break;
            }
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        if data.len() > most {
            next -= u64::try_from(data.len() - most).unwrap_or_default();
            data.truncate(most);
        }
        // Half a line at an end that is not the log's own belongs to the part beside it.
        if begin > 0
            && matches!(wanted, Wanted::Last(_))
            && let Some(first) = data.iter().position(|byte| *byte == b'\n')
        {
            begin += u64::try_from(first + 1).unwrap_or_default();
            data.drain(..=first);
        }
        if next < end
            && let Some(last) = data.iter().rposition(|byte| *byte == b'\n')
        {
            next -= u64::try_from(data.len() - last - 1).unwrap_or_default();
            data.truncate(last + 1);
        }
        let text = String::from_utf8_lossy(&data).into_owned();
        Ok(Self { text, from: begin, next, end: end.max(next) })
    }
}

/// A line without what a terminal would obey; tabs and runs of blanks stay as they are.
pub(super) fn line(text: &str) -> String {
    text.chars().map(|c| if moves_others(c) && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// The lines of a part.
pub(super) fn lines(part: &Part) -> Markup {
    html! {
        @if part.text.is_empty() {
            p class="empty" { "It has written nothing." }
        } @else {
            pre class="log" tabindex="0" aria-label="Log" {
                @for text in part.text.lines() { (line(text)) "\n" }
            }
        }
    }
}

/// The end of a log, or how to see it.
pub(super) fn end(part: Option<&Part>) -> Markup {
    html! {
        @if let Some(part) = part {
            (lines(part))
        } @else {
            p class="empty" {
                "The output of plugins is shown with a token only. " a href=(LOGIN) { "Log in" }
            }
        }
    }
}

/// A page of a log, with the ways to the parts beside it.
pub(super) fn page(name: &str, part: &Part) -> Markup {
    let at = |position: u64| format!("{}/log?at={position}", page_of(name));
    html! {
        h1 { a href=(page_of(name)) { (one_line(name)) } " · log" }
        nav class="title" aria-label="Parts of the log" {
            @if part.from > 0 {
                a href=(at(part.from.saturating_sub(PAGE))) rel="prev" { "Older" }
            }
            span class="quiet" {
                (bytes(part.next.saturating_sub(part.from))) " from " (bytes(part.from)) " of " (bytes(part.end))
            }
            @if part.next < part.end { a href=(at(part.next)) rel="next" { "Newer" } }
            a href={ (page_of(name)) "/log" } { "The end" }
        }
        (lines(part))
    }
}
