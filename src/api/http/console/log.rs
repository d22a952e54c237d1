//! Logs of plugins, a bounded part at a time: what a browser asks for never makes the agent keep more
//! than that in memory.
//!
//! ```text
//!   ?at=POSITION a part · ?find=TEXT the lines that have it · live: new lines as events · download: all
//! ```

use std::io;
use std::time::SystemTime;

use guest_agent_actors::model::id::PluginName;
use guest_agent_console_kit::pieces::query;
use jiff::Timestamp;
use maud::{Markup, html};
use serde::Deserialize;

use super::pieces::page_of;
use crate::api::http::session::LOGIN;
use crate::display::{bytes, moves_others, one_line};
use crate::process::logs::PluginLogs;
use crate::process::logs::read::{Begin, Reader, Written, written_at};

/// How much of a log is shown on the plugin's page.
pub(super) const TAIL: u64 = 16 << 10;

/// How much of a log is on one page of it.
pub(super) const PAGE: u64 = 64 << 10;

/// Most lines that a search shows; the newest ones.
const FOUND_MAX: usize = 500;

/// Most bytes at the end of a log that a search looks at.
const SEARCHED_MAX: u64 = 64 << 20;

/// Longest text that is searched for, in characters.
const FIND_MAX: usize = 200;

/// Longest line that a search shows, in bytes.
pub(super) const LINE_MAX: usize = 4 << 10;

/// A part of a log, as text. Positions count all bytes that were ever written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// Whole lines where there are any.
    pub(super) text: String,
    /// When its lines were written.
    pub(super) times: Vec<Written>,
    /// Where it begins.
    pub(super) from: u64,
    /// Where it ends.
    pub(super) next: u64,
    /// Where the log ends.
    pub(super) end: u64,
    /// How many bytes were not searched, because they are too far from the end.
    pub(super) not_searched: u64,
}

/// What of a log is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// So many of its last bytes.
    Last(u64),
    /// A page, beginning at a position.
    From(u64),
    /// The last lines with this text in them, whatever its case.
    With(String),
}

/// What is looked for, as the address of a page says it.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Asked {
    pub(super) at: Option<u64>,
    #[serde(default)]
    pub(super) find: String,
    #[serde(default)]
    pub(super) times: String,
}

// === impl Asked ===

impl Asked {
    /// The text that lines have to have, in lower case; empty for all lines.
    pub(super) fn needle(&self) -> String {
        self.find.chars().take(FIND_MAX).collect::<String>().to_lowercase()
    }

    /// Whether times are shown.
    pub(super) fn wants_times(&self) -> bool {
        !self.times.is_empty()
    }

    fn query(&self, at: Option<u64>) -> String {
        let at = at.map(|at| at.to_string()).unwrap_or_default();
        let times = if self.wants_times() { "on" } else { "" };
        query(&[("find", &self.find), ("times", times), ("at", &at)])
    }
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
        let reading = tokio::task::spawn_blocking(move || match wanted {
            Wanted::Last(most) => Self::read_here(logs, name, None, most),
            Wanted::From(position) => Self::read_here(logs, name, Some(position), PAGE),
            Wanted::With(needle) => Self::search(logs, name, &needle),
        });
        reading.await.map_err(io::Error::other)?
    }

    fn read_here(
        logs: PluginLogs,
        name: PluginName,
        position: Option<u64>,
        most: u64,
    ) -> io::Result<Self> {
        let end = Reader::new(logs.clone(), name.clone(), Begin::LastLines(0))?.end()?;
        let from = position.map_or(end.saturating_sub(most), |position| position.min(end));
        let mut reader = Reader::new(logs, name, Begin::At(from))?;
        let (mut data, mut times) = (Vec::new(), Vec::new());
        let (mut begin, mut next) = (from, from);
        while let Some(piece) = reader.next()? {
            let length = u64::try_from(piece.data.len()).unwrap_or(u64::MAX);
            if data.is_empty() {
                begin = piece.next.saturating_sub(length);
            }
            let base = data.len();
            times.extend(reader.written(&piece).into_iter().map(|(at, time)| (base + at, time)));
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
            && position.is_none()
            && let Some(first) = data.iter().position(|byte| *byte == b'\n')
        {
            begin += u64::try_from(first + 1).unwrap_or_default();
            data.drain(..=first);
            times.iter_mut().for_each(|(at, _)| *at = at.saturating_sub(first + 1));
        }
        if next < end
            && let Some(last) = data.iter().rposition(|byte| *byte == b'\n')
        {
            next -= u64::try_from(data.len() - last - 1).unwrap_or_default();
            data.truncate(last + 1);
        }
        let (text, times) = as_text(&data, times);
        Ok(Self { text, times, from: begin, next, end: end.max(next), not_searched: 0 })
    }

    /// Reads the log through for lines with a text, and keeps the last of them.
    fn search(logs: PluginLogs, name: PluginName, needle: &str) -> io::Result<Self> {
        let end = Reader::new(logs.clone(), name.clone(), Begin::LastLines(0))?.end()?;
        let from = end.saturating_sub(SEARCHED_MAX);
        let mut reader = Reader::new(logs, name, Begin::At(from))?;
        let mut found = std::collections::VecDeque::new();
        let mut lines = Lines::default();
        let (mut begin, mut next) = (None, from);
        while next < end
            && let Some(piece) = reader.next()?
        {
            let length = u64::try_from(piece.data.len()).unwrap_or(u64::MAX);
            begin.get_or_insert(piece.next.saturating_sub(length));
            next = piece.next;
            let written = reader.written(&piece);
            for line in lines.take(&piece.data, &written) {
                if line.0.to_lowercase().contains(needle) {
                    if found.len() >= FOUND_MAX {
                        found.pop_front();
                    }
                    found.push_back(line);
                }
            }
        }
        if lines.pending() > 0
            && let Some(line) = lines.rest()
            && line.0.to_lowercase().contains(needle)
        {
            found.push_back(line);
        }
        let (mut text, mut times) = (String::new(), Vec::new());
        for (line, at) in found {
            times.push((text.len(), at));
            text.push_str(&line);
            text.push('\n');
        }
        let begin = begin.unwrap_or(from);
        let not_searched = if from > 0 { begin } else { 0 };
        Ok(Self { text, times, from: begin, next, end: end.max(next), not_searched })
    }
}

/// Bytes as text, with the places of times in that text.
fn as_text(data: &[u8], times: Vec<Written>) -> (String, Vec<Written>) {
    match std::str::from_utf8(data) {
        Ok(text) => (text.to_owned(), times),
        Err(_) => {
            let shown = |at: usize| String::from_utf8_lossy(&data[..at.min(data.len())]).len();
            let times = times.into_iter().map(|(at, time)| (shown(at), time)).collect();
            (String::from_utf8_lossy(data).into_owned(), times)
        }
    }
}

/// A line of a log, and when it was written.
pub(super) type Line = (String, Option<SystemTime>);

/// Puts the lines of a log together from its pieces.
#[derive(Debug, Default)]
pub(super) struct Lines {
    rest: Vec<u8>,
    /// How many bytes the line that has not ended has so far, those that are cut included.
    length: u64,
    since: Option<SystemTime>,
}

// === impl Lines ===

impl Lines {
    /// The lines that end in a piece. One that is too long is cut.
    pub(super) fn take(&mut self, data: &[u8], written: &[Written]) -> Vec<Line> {
        let mut lines = Vec::new();
        let mut at = 0;
        while let Some(length) = memchr::memchr(b'\n', &data[at..]) {
            if self.rest.is_empty() {
                self.since = written_at(written, at);
            }
            self.add(&data[at..at + length]);
            lines.extend(self.rest());
            at += length + 1;
        }
        if at < data.len() {
            if self.rest.is_empty() {
                self.since = written_at(written, at);
            }
            self.add(&data[at..]);
        }
        lines
    }

    fn add(&mut self, data: &[u8]) {
        let room = LINE_MAX.saturating_sub(self.rest.len());
        self.rest.extend_from_slice(&data[..data.len().min(room)]);
        self.length += u64::try_from(data.len()).unwrap_or_default();
    }

    /// How many bytes of the last piece belong to a line that has not ended.
    pub(super) fn pending(&self) -> u64 {
        self.length
    }

    /// The line that has not ended.
    pub(super) fn rest(&mut self) -> Option<Line> {
        let rest = std::mem::take(&mut self.rest);
        self.length = 0;
        let text = String::from_utf8_lossy(&rest).into_owned();
        Some((text, self.since.take()))
    }
}

/// A line without what a terminal would obey; tabs and runs of blanks stay as they are.
pub(super) fn line(text: &str) -> String {
    text.chars().map(|c| if moves_others(c) && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// A line with its time.
pub(super) fn timed(text: &str, at: Option<SystemTime>, with_times: bool) -> Markup {
    let at = at.and_then(|at| Timestamp::try_from(at).ok());
    html! {
        span class="row" {
            @if with_times {
                span class="stamp" {
                    @if let Some(at) = at { (at.strftime("%Y-%m-%d %H:%M:%S%.3f").to_string()) }
                    @else { "time unknown" }
                } " "
            }
            (line(text)) "\n"
        }
    }
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
    match part {
        Some(part) => lines(part),
        None => with_token("The output of plugins is shown with a token only."),
    }
}

/// A sentence about what a visitor without a token does not see, and the way to log in.
pub(super) fn with_token(sentence: &str) -> Markup {
    html! { p class="empty" { (sentence) " " a href=(LOGIN) { "Log in" } } }
}

/// The lines of a part with their times.
fn rows(part: &Part) -> impl Iterator<Item = (&str, Option<SystemTime>)> {
    let mut at = 0;
    part.text.split_inclusive('\n').map(move |text| {
        let written = written_at(&part.times, at);
        at += text.len();
        (text.trim_end_matches(['\n', '\r']), written)
    })
}

/// A page of a log, with the ways to the parts beside it.
pub(super) fn page(name: &str, part: &Part, asked: &Asked) -> Markup {
    let base = format!("{}/log", page_of(name));
    let at = |position: u64| format!("{base}{}", asked.query(Some(position)));
    let is_search = !asked.find.is_empty();
    // At the end, new lines are added by the script.
    let follow = (part.next >= part.end && asked.at.is_none())
        .then(|| format!("{base}/live{}", asked.query(Some(part.next))));
    html! {
        div class="title" {
            h1 { a href=(page_of(name)) { (one_line(name)) } " · log" }
            form method="get" action=(base) role="search" class="filters" {
                label class="hidden" for="find" { "Text in lines" }
                input id="find" name="find" type="search" maxlength=(FIND_MAX) placeholder="Lines with…"
                    value=(asked.find);
                label class="check" {
                    input type="checkbox" name="times" value="on" checked[asked.wants_times()];
                    " Times"
                }
                button type="submit" { "Show" }
                a class="button" href={ (base) "/download" } download { "Download" }
            }
        }
        nav class="title" aria-label="Parts of the log" {
            @if is_search {
                span class="quiet" {
                    (part.text.lines().count()) " lines"
                    @if part.text.lines().count() >= FOUND_MAX { ", the newest that have it" }
                    @if part.not_searched > 0 { "; the first " (bytes(part.not_searched)) " were not searched" }
                }
                a href=(base) { "All lines" }
            } @else {
                @if part.from > 0 {
                    a href=(at(part.from.saturating_sub(PAGE))) rel="prev" { "Older" }
                }
                span class="quiet" {
                    (bytes(part.next.saturating_sub(part.from))) " from " (bytes(part.from)) " of " (bytes(part.end))
                }
                @if part.next < part.end { a href=(at(part.next)) rel="next" { "Newer" } }
                @if asked.at.is_some() { a href={ (base) (asked.query(None)) } { "The end" } }
            }
            @if follow.is_some() {
                label class="check scripted" { input type="checkbox" id="follow" checked; " Follow" }
            }
        }
        pre class="log tall" tabindex="0" aria-label="Log" data-follow=[follow] {
            @for (text, at) in rows(part) { (timed(text, at, asked.wants_times())) }
        }
    }
}
