//! Draws a model on a terminal of any size. Pure.
//!
//! From the top: about the agent, the list (or one plugin, or the help), the last events, the keys.
//! What does not fit is left out in this order: the events, the keys, the end of the list.

use std::cmp::Reverse;

use guest_agent_proto::local::Event;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

use super::super::console::Tone;
use super::super::events;
use super::super::format::{age, one_line, padded, shortened, timestamp, width};
use super::canvas::{Theme, draw, take_bottom, take_top};
use super::model::{Face, Link, Model};
use crate::display::{needs_attention, state_tone, values};

mod list;

/// Troubles of the agent itself that are shown; `doctor` has the rest.
const TROUBLES_MAX: usize = 2;

/// Least height of a terminal that shows events as well, and most of them.
const EVENTS_FROM: u16 = 14;
const EVENTS_MAX: u16 = 8;

/// The help: what each key does.
const HELP: [&str; 16] = [
    "",
    "  Up Down k j      select a plugin",
    "  PgUp PgDn        ten at once",
    "  Home End g G     the first, the last",
    "  Enter            all about the selected plugin: why it is in",
    "                   its state, and what it printed last",
    "  Esc              back; in the list: no filter, then quit",
    "  /                only plugins with this in their name or state",
    "  R S B H          restart; stop or start; roll back; hold or release",
    "  n s r c m        sort by name, state, restarts, CPU, memory;",
    "                   the same again: the other way round",
    "",
    "  q Ctrl-C         quit",
    "",
    "  The charts are the agent's last measurements, the newest on",
    "  the right. CPU is of one processor.",
];

/// Draws the model.
pub(super) fn view(model: &Model, theme: Theme, area: Rect, buffer: &mut Buffer) {
    let mut rest = area.intersection(*buffer.area());
    let columns = usize::from(rest.width);
    if rest.is_empty() {
        return;
    }
    draw(&header(model, theme, columns), take_top(&mut rest, u16::MAX), &mut rest, buffer);
    if rest.height > 1 {
        let line = take_bottom(&mut rest, 1);
        let keys = keys(model, theme, columns);
        buffer.set_line(line.x, line.y, &keys, line.width);
    }
    match model.face {
        Face::Help => {
            let mut lines = vec![rule("keys", theme, columns)];
            let help = HELP.iter().flat_map(|line| wrapped(line, columns));
            lines.extend(help.map(Line::raw));
            draw(&lines, rest, &mut rest.clone(), buffer);
        }
        Face::Detail { from } => detail(model, from, theme, rest, buffer),
        Face::List | Face::Filter | Face::Asking(_) => {
            if area.height >= EVENTS_FROM {
                let shown = events_shown(model, rest.height);
                if shown > 0 {
                    let below = take_bottom(&mut rest, shown + 1);
                    events_below(model, theme, below, buffer);
                }
            }
            list::list(model, theme, rest, buffer);
        }
    }
}

/// About the agent and its link.
fn header(model: &Model, theme: Theme, columns: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let fitting = |text: &str| shortened(&one_line(text), columns);
    if let Some(agent) = &model.agent {
        let up = timestamp(agent.started_at.as_ref())
            .map_or_else(String::new, |at| format!(", up {}", age(at, model.now)));
        let counts = counts(model);
        let whole = one_line(&format!("guest-agent {}{up}; {counts}", agent.version));
        // The counts of the plugins matter most.
        let line = if width(&whole) <= columns { &whole } else { &counts };
        lines.push(Line::styled(fitting(line), theme.heading()));
        let waiting = match agent.outbox_depth {
            0 => String::new(),
            1 => "; 1 event waits".to_owned(),
            many => format!("; {many} events wait"),
        };
        let link = format!("control plane: {}{waiting}", agent.link);
        let tone = if agent.link_connected { Tone::Good } else { Tone::Busy };
        lines.push(Line::styled(fitting(&link), theme.style(tone)));
    }
    match &model.link {
        Link::Connecting => lines.push(Line::raw(fitting("connecting to the agent"))),
        Link::Connected => {}
        Link::Lost { why, retry_at } => {
            let seconds = retry_at.as_second() - model.now.as_second();
            let retry = if seconds > 0 { format!("in {seconds}s") } else { "now".to_owned() };
            let line = format!("AGENT NOT REACHABLE, trying again {retry}: {why}");
            let style = theme.style(Tone::Bad).add_modifier(Modifier::REVERSED);
            lines.push(Line::styled(fitting(&line), style));
        }
    }
    let troubles = model.agent.iter().flat_map(|agent| &agent.troubles);
    let line = |trouble: &String| Line::styled(fitting(trouble), theme.style(Tone::Bad));
    lines.extend(troubles.take(TROUBLES_MAX).map(line));
    lines
}

/// How many plugins there are, and in which states.
fn counts(model: &Model) -> String {
    let mut states: Vec<(&str, Tone, usize)> = Vec::new();
    for plugin in &model.plugins {
        match states.iter_mut().find(|(state, ..)| *state == plugin.state) {
            Some((.., count)) => *count += 1,
            None => states.push((&plugin.state, state_tone(values::state(plugin)), 1)),
        }
    }
    // What is wrong comes first.
    states.sort_by_key(|(state, tone, count)| (*tone != Tone::Bad, Reverse(*count), *state));
    let each: Vec<_> = states.iter().map(|(state, _, count)| format!("{count} {state}")).collect();
    let counts = match model.plugins.len() {
        0 => "no plugins".to_owned(),
        1 => format!("1 plugin: {}", each.join(", ")),
        many => format!("{many} plugins: {}", each.join(", ")),
    };
    match model.plugins.iter().filter(|plugin| needs_attention(plugin)).count() {
        0 => counts,
        1 => format!("1 needs attention; {counts}"),
        many => format!("{many} need attention; {counts}"),
    }
}

/// The longest list of keys that fits, or the filter while it is written.
fn keys(model: &Model, theme: Theme, columns: usize) -> Line<'static> {
    let wordings: &[&str] = match model.face {
        Face::Filter => {
            let text = format!("filter: {}_", one_line(&model.filter));
            return Line::styled(text, theme.heading());
        }
        Face::Asking(deed) => {
            let name = model.selected().map_or("", |plugin| &plugin.name);
            return Line::styled(shortened(&deed.question(name), columns), theme.heading());
        }
        Face::List if model.notice.is_some() => {
            let notice = model.notice.as_deref().unwrap_or_default();
            return Line::styled(shortened(notice, columns), theme.heading());
        }
        Face::Help => &["any key: back"],
        Face::Detail { .. } => &["Esc back  Up/Down scroll  q quit", "Esc back  q quit"],
        Face::List => &[
            "q quit  ? help  / filter  Enter detail  R restart  S stop/start  B roll back  H hold  sort: n s r c m",
            "q quit  ? help  / filter  Enter detail  sort: n name s state r restarts c cpu m memory",
            "q quit  ? help  / filter  Enter detail  sort: n s r c m",
            "q quit  ? help  / filter  Enter detail",
            "q quit  ? help",
        ],
    };
    let fits = |text: &&&str| width(text) <= columns;
    let keys = wordings.iter().find(fits).or(wordings.last()).copied().unwrap_or_default();
    let mut line = vec![Span::styled(keys, theme.style(Tone::Quiet))];
    if matches!(model.face, Face::List) && !model.filter.is_empty() {
        let filter = format!("filter: {}  ", one_line(&model.filter));
        line.insert(0, Span::styled(filter, theme.heading()));
    }
    Line::from(line)
}

/// A line with a word in it.
fn rule(word: &str, theme: Theme, columns: usize) -> Line<'static> {
    let begin = shortened(&format!("── {word} "), columns);
    let end = "─".repeat(columns.saturating_sub(width(&begin)));
    Line::styled(begin + &end, theme.style(Tone::Quiet))
}

/// How many events are shown at this height: the list has precedence.
fn events_shown(model: &Model, height: u16) -> u16 {
    let listed = u16::try_from(model.plugins.len()).unwrap_or(u16::MAX).saturating_add(2);
    let left = height.saturating_sub(listed).max(height / 3);
    let there = u16::try_from(model.events.len()).unwrap_or(u16::MAX);
    left.saturating_sub(1).min(EVENTS_MAX).min(there)
}

fn events_below(model: &Model, theme: Theme, area: Rect, buffer: &mut Buffer) {
    let shown = usize::from(area.height.saturating_sub(1));
    let columns = usize::from(area.width);
    let last = model.events.iter().skip(model.events.len().saturating_sub(shown));
    let kinds = last.clone().map(|event| width(&events::kind(event).0));
    let kind_width = kinds.max().unwrap_or_default().min(columns / 4);
    let mut lines = vec![rule("events (UTC)", theme, columns)];
    lines.extend(last.map(|event| event_line(event, kind_width, theme, columns)));
    draw(&lines, area, &mut area.clone(), buffer);
}

/// An event; its name is padded to this width.
fn event_line(event: &Event, kind_width: usize, theme: Theme, columns: usize) -> Line<'static> {
    let at = timestamp(event.at.as_ref())
        .map_or_else(|| "-".repeat(8), |at| at.strftime("%H:%M:%S").to_string());
    let (kind, tone) = events::kind(event);
    let kind = padded(&kind, kind_width);
    let colon = if event.details.is_empty() { "" } else { ": " };
    let subject = format!("{} {}{colon}{}", event.plugin, event.revision, event.details);
    let used = at.len() + 2 + width(&kind) + 2;
    let subject = shortened(&one_line(&subject), columns.saturating_sub(used));
    Line::from(vec![
        Span::styled(at + "  ", theme.style(Tone::Quiet)),
        Span::styled(kind + "  ", theme.style(tone)),
        Span::raw(subject),
    ])
}

/// One plugin from near.
fn detail(model: &Model, from: usize, theme: Theme, area: Rect, buffer: &mut Buffer) {
    let columns = usize::from(area.width);
    let name = model.looked_at().unwrap_or_default();
    let mut lines = vec![rule(name, theme, columns)];
    if !model.plugins.iter().any(|plugin| plugin.name == name) {
        lines.push(Line::styled("this plugin was removed", theme.style(Tone::Bad)));
    }
    for line in model.detail_lines().into_iter().skip(from).take(usize::from(area.height)) {
        lines.extend(wrapped(line, columns).into_iter().map(Line::raw));
    }
    draw(&lines, area, &mut area.clone(), buffer);
}

/// A text in lines of at most so many columns.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for c in text.chars() {
        let wide = unicode_width::UnicodeWidthChar::width(c).unwrap_or_default();
        if used + wide > columns.max(2) {
            lines.push(String::new());
            used = 0;
        }
        used += wide;
        lines.last_mut().expect("it was never empty").push(c);
    }
    lines
}
