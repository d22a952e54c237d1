//! Small parts that all pages are made of. Every text goes through here as text: what is written in
//! `html!` is escaped, and nothing in the console is ever marked as not to be.

use guest_agent_proto::local::{PluginStatus, VerdictLevel};
use jiff::Timestamp;
use maud::{Markup, html};

use crate::display::values::Named;
use crate::display::{Tone, age, level, one_line, plugin_tone, shortened, timestamp};

/// How ages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ages {
    /// The ages at this time, for browsers without scripts.
    At(Timestamp),
    /// By the script, which keeps them right; so that a part of a page changes only when something
    /// happened, and not with every second that passes.
    Left,
}

/// The style class of a tone.
pub(super) const fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Plain => "plain",
        Tone::Good => "good",
        Tone::Busy => "busy",
        Tone::Bad => "bad",
        Tone::Quiet => "quiet",
    }
}

/// A word on a coloured ground. The word alone says it all.
pub(super) fn pill(tone: Tone, word: &str) -> Markup {
    html! { span class={ "pill " (class(tone)) } { (one_line(word)) } }
}

/// The state of a plugin.
pub(super) fn state(plugin: &PluginStatus) -> Markup {
    pill(plugin_tone(plugin), &plugin.state)
}

/// Why a plugin needs attention, since when, and the command that helps; nothing where it does not.
/// Only `most` characters of the reason are shown.
pub(super) fn attention(plugin: &PluginStatus, ages: Ages, most: usize) -> Option<Markup> {
    let verdict = plugin.verdict.as_ref()?;
    let level = level(plugin);
    if !matches!(level, VerdictLevel::Failing | VerdictLevel::Degraded | VerdictLevel::Held) {
        return None;
    }
    Some(html! {
        (pill(plugin_tone(plugin), level.name())) " "
        (shortened(&one_line(&verdict.reason), most)) " "
        span class="quiet" { (ago(verdict.since.as_ref(), ages)) }
        @if !verdict.help.is_empty() { " " code { (one_line(&verdict.help)) } }
    })
}

/// How long ago something was, and when on a closer look. Nothing where that is unknown.
pub(super) fn ago(at: Option<&prost_types::Timestamp>, ages: Ages) -> Markup {
    let Some(at) = timestamp(at) else { return html! {} };
    let second = Timestamp::from_second(at.as_second()).unwrap_or(at).to_string();
    let text = match ages {
        Ages::At(now) => format!("{} ago", age(at, now)),
        Ages::Left => second.clone(),
    };
    html! { time datetime=(second) title=(second) { (text) } }
}

/// Where the page of a plugin is. Names consist of letters, digits, `.`, `_` and `-`.
pub(super) fn page_of(name: &str) -> String {
    format!("/console/plugins/{name}")
}

/// A term and its value.
pub(super) fn fact(term: &str, text: Option<impl maud::Render>) -> Markup {
    html! {
        @if let Some(text) = text {
            div { dt { (term) } dd { (text) } }
        }
    }
}

/// A text, unless it is empty.
pub(super) fn some(text: &str) -> Option<String> {
    Some(one_line(text)).filter(|text| !text.is_empty())
}
