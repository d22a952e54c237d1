//! Times, sizes, states and foreign text as people read them, on the command line and in the web
//! console, and sentences about plugins, events and the agent.
//!
//! Nothing here knows where the text is printed. All foreign text comes out on one line and without
//! control characters. It is not escaped for HTML: the code that writes HTML does that.

mod explain;
mod mask;
mod plugin;
pub(crate) mod values;
mod verdict;

use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_agent_proto::local::{Event, NotEnforced};
use jiff::Timestamp;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

pub(crate) use explain::{doing, reasons, rule_line, rules_heads, trigger_line, wait_line};
pub(crate) use mask::masked;
pub(crate) use plugin::{
    agent_line, exit, health, hold, limits, memory, note, pending, progress, ran_for,
};
pub(crate) use verdict::{
    attention, is_only_refused, level, needs_attention, plugin_tone, remark, sentence, urgency,
};

/// How good or bad a value is for the operators of the machine. Colours show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Nothing in particular.
    Plain,
    /// As it should be.
    Good,
    /// On its way.
    Busy,
    /// Wrong.
    Bad,
    /// Not what is looked for first.
    Quiet,
}

/// The tone of a state.
pub(crate) const fn state_tone(state: StatusValue) -> Tone {
    match state {
        StatusValue::Running | StatusValue::ExecutionCompleted => Tone::Good,
        StatusValue::Installing | StatusValue::Starting | StatusValue::Stopping => Tone::Busy,
        StatusValue::Crashed | StatusValue::InstallFailed | StatusValue::ExecutionFailed => {
            Tone::Bad
        }
        StatusValue::Stopped | StatusValue::StateValueUnspecified => Tone::Plain,
    }
}

/// The name of an event for people, and its tone.
pub(crate) fn event_kind(event: &Event) -> (&str, Tone) {
    use PluginEventType as Type;
    let tone = match values::event_type(event) {
        Type::PluginStarted | Type::PluginInstalled | Type::PluginExecutionCompleted => Tone::Good,
        Type::PluginCrashed
        | Type::PluginInstallFailed
        | Type::PluginStartFailed
        | Type::PluginRemoveFailed
        | Type::PluginConfigApplyFailed
        | Type::PluginExecutionFailed => Tone::Bad,
        Type::PluginConfigInstall
        | Type::PluginConfigRemove
        | Type::PluginRemoved
        | Type::PluginStopped
        | Type::PluginConfigApply
        | Type::PluginConfigApplied
        | Type::Unspecified => Tone::Plain,
    };
    (event.r#type.strip_prefix("PLUGIN_").unwrap_or(&event.r#type), tone)
}

/// A wire time as RFC 3339 in UTC; `None` when it is absent or no time at all.
pub(crate) fn rfc3339(time: Option<&prost_types::Timestamp>) -> Option<String> {
    timestamp(time).map(|time| time.to_string())
}

/// A wire time.
pub(crate) fn timestamp(time: Option<&prost_types::Timestamp>) -> Option<Timestamp> {
    let time = time?;
    Timestamp::new(time.seconds, time.nanos).ok()
}

/// How long ago, in one unit: `12s`, `5m`, `3h`, `9d`.
pub(crate) fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = (now.as_second() - since.as_second()).max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Bytes in binary units with one decimal: `512 B`, `1.5 MiB`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    // Tenths of a unit, in whole numbers: exact for every u64.
    let mut tenths = u128::from(count) * 10 / 1024;
    let mut unit = UNITS[0];
    for larger in &UNITS[1..] {
        if tenths < 10_240 {
            break;
        }
        tenths /= 1024;
        unit = larger;
    }
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// A text on one line without control characters: plugins and archives choose their texts, and no
/// text may move the cursor of the reader's terminal.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for part in text.split(|c: char| moves_others(c) || c.is_whitespace()) {
        if !part.is_empty() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(part);
        }
    }
    line
}

/// Whether a character does something to others around it: control characters, and those that turn
/// the direction of writing, with which a text can look like another one.
pub(crate) fn moves_others(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A restriction that is not enforced, the reason and the fix.
pub(crate) fn not_enforced(shortfall: &NotEnforced) -> String {
    let NotEnforced { what, why, fix } = shortfall;
    format!("{what}: {why}; {fix}")
}

/// The beginning of a text, marked when it is cut off, in at most so many columns of a terminal.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    if text.width() <= most {
        return text.to_owned();
    }
    let (mut short, mut used) = (String::new(), 0);
    for c in text.chars() {
        used += c.width().unwrap_or_default();
        if used >= most {
            break;
        }
        short.push(c);
    }
    if most > 0 {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_one_unit() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        for (seconds, text) in
            [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172_800, "2d")]
        {
            assert_eq!(age(at(1000), at(1000 + seconds)), text);
        }
        assert_eq!(age(at(1000), at(0)), "0s", "a clock that went back is not an error");
    }

    #[test]
    fn sizes_have_one_decimal() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (10 << 20, "10.0 MiB"),
            (u64::MAX, "16383.9 PiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn foreign_text_cannot_move_the_cursor() {
        assert_eq!(one_line("a\n\x1b[2Jb\r\n  c\u{9b}1m"), "a [2Jb c 1m");
        assert_eq!(one_line("rm\u{202e}\u{2066}gpj.exe"), "rm gpj.exe");
        assert_eq!(shortened("abcdef", 4), "abc…");
        assert_eq!(shortened("abcd", 4), "abcd");
        assert_eq!(shortened("abcd", 0), "");
    }

    #[test]
    fn characters_may_be_wider_than_one_column() {
        assert_eq!(shortened("日本語", 6), "日本語");
        assert_eq!(shortened("日本語", 5), "日本…");
        assert_eq!(shortened("日本語", 4), "日…");
    }
}
