//! The list of plugins.

use guest_agent_proto::local::PluginStatus;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

use super::super::super::console::Tone;
use super::super::super::format::{
    age, bytes, fitting, one_line, padded, shortened, timestamp, width,
};
use super::super::canvas::{Theme, draw};
use super::super::model::{Link, Model, Order, Way};
use super::super::spark::spark;
use crate::display::{plugin_tone, remark};

/// Columns of a chart.
const CHART: usize = 10;

/// Blanks between two columns.
const GAP: usize = 2;

/// Least room in which a note is worth reading.
const NOTE_MIN: usize = 16;

/// A chart whose values are all below this is flat: percent of a processor, and bytes.
const CPU_LEAST: f64 = 5.0;
const MEMORY_LEAST: f64 = 1_048_576.0;

const HEADINGS: [&str; 9] =
    ["NAME", "STATE", "REVISION", "FOR", "RESTARTS", "CPU", "", "MEMORY", ""];
const STATE: usize = 1;
const CHARTS: [usize; 2] = [6, 8];
/// Numbers stand on the right.
const RIGHT: [usize; 4] = [3, 4, 5, 7];

/// Columns that a narrow terminal does without, the least missed first.
const EXPENDABLE: [usize; 7] = [3, 8, 4, 2, 6, 7, 5];

/// Draws as much of the list as there is room for, the selected plugin always among it.
pub(super) fn list(model: &Model, theme: Theme, area: Rect, buffer: &mut Buffer) {
    let columns = usize::from(area.width);
    let visible = model.visible();
    let mut lines = Vec::new();
    let rows: Vec<[String; HEADINGS.len()]> =
        visible.iter().map(|plugin| cells(plugin, model, columns)).collect();
    let widths: Vec<usize> = (0..HEADINGS.len())
        .map(|column| {
            let cells = rows.iter().map(|row| width(&row[column]));
            cells.chain([width(&heading(column, model))]).max().unwrap_or_default()
        })
        .collect();
    let shown = fitting(&widths, GAP, columns, &EXPENDABLE);
    let used: usize = shown.iter().map(|column| widths[*column] + GAP).sum();
    let note_room = columns.saturating_sub(used);
    lines.push(headings(&shown, &widths, note_room, model, theme));
    if visible.is_empty() {
        let words = match (&model.link, model.plugins.is_empty()) {
            (Link::Connecting, _) => "",
            (_, true) => "no plugins; `guest-agent install` brings the first",
            (_, false) => "no plugin has this in its name or state; Esc shows all",
        };
        lines.push(Line::raw(shortened(words, columns)));
    }
    let selected = model.selection();
    // The last row shows the note of the selected plugin, if its line has no room for the note.
    let note = selected.map(|at| remark(visible[at], model.now)).filter(|note| !note.is_empty());
    let below = note.filter(|_| note_room < NOTE_MIN);
    let room = usize::from(area.height).saturating_sub(1 + usize::from(below.is_some()));
    let first = selected.unwrap_or_default().saturating_sub(room / 2);
    let first = first.min(rows.len().saturating_sub(room));
    let lost = !matches!(model.link, Link::Connected);
    for (at, row) in rows.iter().enumerate().skip(first).take(room) {
        let plugin = visible[at];
        let mut spans = Vec::new();
        for column in &shown {
            let tone = match *column {
                // The shown data may be old.
                _ if lost => Tone::Quiet,
                // Reversed colours would make dimmed text stand out.
                chart if Some(at) == selected && CHARTS.contains(&chart) => Tone::Plain,
                STATE => plugin_tone(plugin),
                chart if CHARTS.contains(&chart) => Tone::Quiet,
                _ => Tone::Plain,
            };
            let cell = placed(*column, &row[*column], widths[*column]);
            spans.push(Span::styled(cell, theme.style(tone)));
            spans.push(Span::raw(" ".repeat(GAP)));
        }
        if note_room >= NOTE_MIN {
            let note = shortened(&remark(plugin, model.now), note_room);
            let tone = if Some(at) == selected { Tone::Plain } else { Tone::Quiet };
            spans.push(Span::styled(note, theme.style(tone)));
        }
        let mut line = Line::from(spans);
        if Some(at) == selected {
            let rest = columns.saturating_sub(line.width());
            line.push_span(Span::raw(" ".repeat(rest)));
            line = line.patch_style(Style::new().add_modifier(Modifier::REVERSED));
        }
        lines.push(line);
    }
    if let Some(note) = below {
        let name = selected.map(|at| one_line(&visible[at].name)).unwrap_or_default();
        let note = shortened(&format!("{name}: {note}"), columns);
        lines.push(Line::styled(note, theme.style(Tone::Busy)));
    }
    draw(&lines, area, &mut area.clone(), buffer);
}

fn headings(
    shown: &[usize],
    widths: &[usize],
    note_room: usize,
    model: &Model,
    theme: Theme,
) -> Line<'static> {
    let mut text = String::new();
    for column in shown {
        text.push_str(&placed(*column, &heading(*column, model), widths[*column]));
        text.push_str(&" ".repeat(GAP));
    }
    if note_room >= NOTE_MIN {
        text.push_str("NOTE");
    }
    Line::styled(text, theme.heading())
}

/// The heading of a column, marked when the list is sorted by it.
fn heading(column: usize, model: &Model) -> String {
    let sorted = match model.order {
        Order::Name => 0,
        Order::State => STATE,
        Order::Restarts => 4,
        Order::Cpu => 5,
        Order::Memory => 7,
    };
    let mark = match model.way {
        _ if sorted != column => "",
        Way::Usual => "▾",
        Way::Reversed => "▴",
    };
    [HEADINGS[column], mark].concat()
}

fn placed(column: usize, cell: &str, wide: usize) -> String {
    let padding = " ".repeat(wide.saturating_sub(width(cell)));
    if RIGHT.contains(&column) { padding + cell } else { padded(cell, wide) }
}

fn cells(plugin: &PluginStatus, model: &Model, columns: usize) -> [String; HEADINGS.len()] {
    let dash = || "-".to_owned();
    // Names and revisions can be long; each gets a third of the terminal at most.
    let most = (columns / 3).max(4);
    let started = timestamp(plugin.started_at.as_ref()).filter(|_| plugin.pid.is_some());
    let revision = match &plugin.pending {
        Some(pending) if pending.error.is_empty() => {
            let from = if plugin.revision.is_empty() { "" } else { " → " };
            [plugin.revision.as_str(), from, pending.revision.as_str()].concat()
        }
        Some(_) | None => plugin.revision.clone(),
    };
    let revision = shortened(&one_line(&revision), most);
    let chart = |values: Vec<f64>, least| {
        if plugin.pid.is_some() { spark(&values, CHART, least) } else { String::new() }
    };
    let cpu = plugin.usage.iter().map(|usage| usage.cpu_percent).collect();
    // The precision of a float is enough for a chart.
    #[expect(clippy::cast_precision_loss, reason = "a chart of eight steps")]
    let memory = plugin.usage.iter().map(|usage| usage.memory_bytes as f64).collect();
    [
        shortened(&one_line(&plugin.name), most),
        one_line(&plugin.state),
        if revision.is_empty() { dash() } else { revision },
        started.map_or_else(dash, |at| age(at, model.now)),
        plugin.restarts.to_string(),
        plugin.cpu_percent.map_or_else(dash, |cpu| format!("{cpu:.1}%")),
        chart(cpu, CPU_LEAST),
        plugin.memory_bytes.map_or_else(dash, bytes),
        chart(memory, MEMORY_LEAST),
    ]
}
