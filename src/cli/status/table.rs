//! The status as people see it: a table that fits the terminal, or one plugin in detail.

use guest_agent_proto::local::{AgentStatus, ExplainResponse, Limits, PluginStatus, VerdictLevel};
use jiff::Timestamp;

use super::super::console::{Console, Tone};
use super::super::format::{
    age, bytes, fitting, not_enforced, one_line, second, shortened, timestamp, width,
};
use crate::display::values::Named;
use crate::display::{self, plugin_tone};

const HEADINGS: [&str; 8] =
    ["NAME", "REVISION", "STATE", "PID", "FOR", "RESTARTS", "CPU", "MEMORY"];

/// The column that is coloured.
const STATE: usize = 2;

/// Columns that a narrow terminal does without, the least missed first.
const EXPENDABLE: [usize; 6] = [5, 6, 7, 4, 3, 1];

/// Blanks between two columns.
const GAP: usize = 2;

/// All plugins, one line each, and a line about the agent.
pub(crate) fn overview(
    plugins: &[&PluginStatus],
    agent: Option<&AgentStatus>,
    console: &Console<'_>,
) -> String {
    let mut text = String::new();
    if plugins.is_empty() {
        text.push_str("no plugins\n");
    } else {
        let rows: Vec<Row> = plugins.iter().map(|plugin| Row::new(plugin, console)).collect();
        let layout = Layout::new(&rows, console.width);
        layout.headings(&mut text, console);
        for row in &rows {
            layout.row(row, &mut text, console);
        }
    }
    if let Some(attention) = display::attention(plugins) {
        let line = format!("{attention}; see `guest-agent doctor`");
        let line = shortened(&line, console.width.unwrap_or(usize::MAX));
        text.push_str(&[&console.paint(Tone::Bad, &line), "\n"].concat());
    }
    if let Some(agent) = agent {
        let line = display::agent_line(agent, (console.now)());
        text.push_str(
            &console.paint(Tone::Quiet, &shortened(&line, console.width.unwrap_or(usize::MAX))),
        );
        text.push('\n');
        for trouble in &agent.troubles {
            let line = format!("{}; see `guest-agent doctor`", one_line(trouble));
            let line = shortened(&line, console.width.unwrap_or(usize::MAX));
            text.push_str(&console.paint(Tone::Bad, &line));
            text.push('\n');
        }
    }
    text
}

/// One plugin, one fact per line.
pub(crate) fn details(plugin: &PluginStatus, console: &Console<'_>) -> String {
    let now = (console.now)();
    let ago = |time| {
        let time = timestamp(time)?;
        Some(format!("{} ({} ago)", second(time), age(time, now)))
    };
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let last_exit = plugin.last_exit.as_ref().map(|exit| {
        let at = ago(exit.at.as_ref()).map_or_else(String::new, |at| format!(" at {at}"));
        format!("{}{at}", display::exit(exit))
    });
    let verdict = Some(display::level(plugin)).filter(|level| *level != VerdictLevel::Unspecified);
    let verdict = verdict.map(|level| match display::sentence(plugin, now) {
        sentence if sentence.is_empty() => level.name().to_owned(),
        sentence => format!("{}: {sentence}", level.name()),
    });
    let help = plugin.verdict.as_ref().and_then(|verdict| some(&verdict.help));
    let facts = [
        ("verdict", verdict),
        ("see", help),
        ("state", Some(plugin.state.clone())),
        ("reason", some(&plugin.reason)),
        ("held", plugin.hold.as_ref().map(|hold| display::hold(hold, now))),
        ("progress", display::progress(plugin)),
        ("revision", some(&plugin.revision)),
        ("pending", display::pending(plugin)),
        ("kind", some(&[plugin.kind.as_str(), ", ", &plugin.installation].concat())),
        ("pid", plugin.pid.map(|pid| pid.to_string())),
        ("started", ago(plugin.started_at.as_ref())),
        ("restarts", Some(plugin.restarts.to_string())),
        ("last run for", display::ran_for(plugin)),
        ("last exit", last_exit),
        ("health", display::health(plugin, now)),
        ("cpu", plugin.cpu_percent.map(|cpu| format!("{cpu:.1}%"))),
        ("memory", display::memory(plugin)),
        ("config hash", some(&plugin.config_hash)),
        ("address", some(&plugin.address)),
        ("installed in", some(&plugin.install_path)),
    ];
    let tone = |label| match label {
        "verdict" | "state" => plugin_tone(plugin),
        _ => Tone::Plain,
    };
    let facts = facts.into_iter().map(|(label, fact)| (label, tone(label), fact));
    let missing = plugin.not_enforced.iter();
    let missing = missing.map(|it| ("not enforced", Tone::Bad, Some(not_enforced(it))));
    [&plugin.name, "\n", &lines(facts.chain(missing), console)].concat()
}

/// One line for each fact that there is, with its label in front.
fn lines<'f>(
    facts: impl IntoIterator<Item = (&'f str, Tone, Option<String>)>,
    console: &Console<'_>,
) -> String {
    let mut text = String::new();
    for (label, tone, fact) in facts {
        if let Some(fact) = fact {
            let (label, fact) = (format!("  {label:<13} "), console.paint(tone, &one_line(&fact)));
            text.push_str(&[&label, fact.as_str(), "\n"].concat());
        }
    }
    text
}

/// What a plugin runs by, and what it waits for: below its details.
pub(crate) fn effective(answer: &ExplainResponse, console: &Console<'_>) -> String {
    let Some(order) = &answer.order else { return String::new() };
    let status = answer.status.clone().unwrap_or_default();
    let now = (console.now)();
    let some = |text: &str| Some(one_line(text)).filter(|text| !text.is_empty());
    let arguments = order.arguments.iter().map(|argument| one_line(argument)).collect::<Vec<_>>();
    let held = if status.not_enforced.is_empty() { "enforced" } else { "not all enforced" };
    let ordered = Limits {
        memory_bytes: order.memory_limit_bytes,
        cpu_percent: order.cpu_limit_percent,
        tasks: None,
    };
    // An agent of an older version says no more than the order does.
    let limits = display::limits(&status.limits.unwrap_or(ordered));
    let limits = limits.map_or_else(|| "none".to_owned(), |limits| format!("{limits} ({held})"));
    let mut facts = vec![
        ("source", some(&order.source)),
        ("sha256", some(&order.sha256)),
        ("signed by", some(&order.signed_by).or_else(|| Some("nobody".to_owned()))),
        ("entry point", some(&order.entry_point)),
        ("arguments", some(&arguments.join(" "))),
        ("limits", Some(limits)),
        ("limited", display::limit_override(&status)),
        (
            "ordered",
            status.limit_override.as_ref().map(|_| {
                let ordered = display::limits(&ordered).unwrap_or_else(|| "no limits".to_owned());
                format!("{ordered}; the limits above count in their place")
            }),
        ),
        ("on trial", on_trial(&status, now)),
        ("rollback to", some(&status.rollback_to)),
        ("rolled back", some(&status.rolled_back)),
    ];
    let waits = answer.waits.iter().map(|wait| ("waits for", Some(display::wait_line(wait, now))));
    facts.extend(waits);
    let mut text =
        lines(facts.into_iter().map(|(label, fact)| (label, Tone::Plain, fact)), console);
    if let Some(config) = &order.config {
        text.push_str("  configuration\n");
        for line in config.lines() {
            text.push_str(&["    ", &one_line(line), "\n"].concat());
        }
    }
    text
}

/// The trial of a revision, how long it lasts, and how it may end.
fn on_trial(plugin: &PluginStatus, now: Timestamp) -> Option<String> {
    let left = display::trial_left(plugin, now).map(|left| format!("for {left}; "));
    let left = left.unwrap_or_default();
    plugin.on_trial.then(|| format!("{left}the agent returns if it fails"))
}

/// One plugin in the table.
struct Row {
    cells: [String; HEADINGS.len()],
    tone: Tone,
    note: String,
}

/// Which columns there are, and how wide.
struct Layout {
    /// Index and width of each column that is shown.
    columns: Vec<(usize, usize)>,
    /// The columns that the terminal leaves for a note on the same line; `None` without a terminal,
    /// which means no limit.
    left: Option<usize>,
}

// === impl Row ===

impl Row {
    fn new(plugin: &PluginStatus, console: &Console<'_>) -> Self {
        let dash = || "-".to_owned();
        let started = timestamp(plugin.started_at.as_ref()).filter(|_| plugin.pid.is_some());
        // Names and revisions can be long; on a terminal each gets a third of it at most.
        let most = console.width.map_or(usize::MAX, |width| width / 3);
        let revision = shortened(&one_line(&plugin.revision), most);
        let cells = [
            shortened(&one_line(&plugin.name), most),
            if revision.is_empty() { dash() } else { revision },
            one_line(&plugin.state),
            plugin.pid.map_or_else(dash, |pid| pid.to_string()),
            started.map_or_else(dash, |at| age(at, (console.now)())),
            plugin.restarts.to_string(),
            plugin.cpu_percent.map_or_else(dash, |cpu| format!("{cpu:.1}%")),
            plugin.memory_bytes.map_or_else(dash, bytes),
        ];
        let note = display::remark(plugin, (console.now)());
        Self { cells, tone: plugin_tone(plugin), note }
    }
}

// === impl Layout ===

impl Layout {
    fn new(rows: &[Row], terminal: Option<usize>) -> Self {
        let width_of = |column: usize| {
            let cells = rows.iter().map(|row| width(&row.cells[column]));
            cells.chain([HEADINGS[column].len()]).max().unwrap_or_default()
        };
        let widths = std::array::from_fn::<_, { HEADINGS.len() }, _>(width_of);
        let shown = fitting(&widths, GAP, terminal.unwrap_or(usize::MAX), &EXPENDABLE);
        let columns: Vec<_> = shown.into_iter().map(|column| (column, widths[column])).collect();
        let used: usize = columns.iter().map(|(_, width)| width + GAP).sum();
        let left = terminal.map(|terminal| terminal.saturating_sub(used));
        Self { columns, left }
    }

    fn headings(&self, text: &mut String, console: &Console<'_>) {
        let mut line = String::new();
        for (column, width) in &self.columns {
            let heading = HEADINGS[*column];
            line.push_str(heading);
            line.push_str(&" ".repeat(width + GAP - heading.len()));
        }
        if self.left.is_none_or(|left| left >= "NOTE".len()) {
            line.push_str("NOTE");
        }
        text.push_str(&console.paint(Tone::Quiet, line.trim_end()));
        text.push('\n');
    }

    /// One plugin. A note that does not fit beside it stands below it.
    fn row(&self, row: &Row, text: &mut String, console: &Console<'_>) {
        let start = text.len();
        for (column, columns) in &self.columns {
            let cell = &row.cells[*column];
            let tone = if *column == STATE { row.tone } else { Tone::Plain };
            text.push_str(&console.paint(tone, cell));
            let blanks = (*columns + GAP).saturating_sub(width(cell));
            text.push_str(&" ".repeat(blanks));
        }
        let fits = self.left.is_none_or(|left| width(&row.note) <= left);
        if fits {
            text.push_str(&row.note);
        }
        let end = start + text[start..].trim_end().len();
        text.truncate(end);
        text.push('\n');
        if !fits {
            text.push_str("    ");
            text.push_str(&shortened(&row.note, console.columns().saturating_sub(4)));
            text.push('\n');
        }
    }
}
