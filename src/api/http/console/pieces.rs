//! Small parts that show plugins. What no agent is needed for is in [`guest_agent_console_kit`].

pub(super) use guest_agent_console_kit::pieces::{Ages, class, fact, some};
use guest_agent_console_kit::pieces::{badge, pill};
use guest_agent_proto::local::{PluginStatus, VerdictLevel};
use jiff::Timestamp;
use maud::{Markup, html};

use crate::display::{
    level, level_word, one_line, plugin_tone, shortened, state_word, timestamp, values, what_is_so,
};

/// The state of a plugin, and what else is so.
pub(super) fn state(plugin: &PluginStatus) -> Markup {
    // A sentence about a hold says how long it lasts. A page is no clock, so its badge says only that.
    let so = what_is_so(plugin, Timestamp::UNIX_EPOCH);
    html! {
        (pill(plugin_tone(plugin), state_word(values::state(plugin))))
        @for (word, more) in so {
            " " (badge(word, if word == "held" { "" } else { &more }))
        }
    }
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
        (pill(plugin_tone(plugin), level_word(level))) " "
        (shortened(&one_line(&verdict.reason), most)) " "
        span class="quiet" { (ago(verdict.since.as_ref(), ages)) }
        @if !verdict.help.is_empty() { " " code { (one_line(&verdict.help)) } }
    })
}

/// How long ago something was, and when on a closer look. Nothing where that is unknown.
pub(super) fn ago(at: Option<&prost_types::Timestamp>, ages: Ages) -> Markup {
    guest_agent_console_kit::pieces::ago(timestamp(at), ages)
}

/// Where the page of a plugin is. Names consist of letters, digits, `.`, `_` and `-`.
pub(super) fn page_of(name: &str) -> String {
    format!("/console/plugins/{name}")
}
