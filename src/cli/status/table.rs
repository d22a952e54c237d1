//! The status as people see it: a table that fits the terminal, or one plugin in detail.

use guest_agent_proto::local::{AgentStatus, LastExit, PluginStatus};

use super::super::console::{Console, Tone};
use super::super::format::{age, bytes, one_line, shortened, timestamp};

const HEADINGS: [&str; 9] =
    ["NAME", "REVISION", "STATE", "PID", "FOR", "RESTARTS", "CPU", "MEMORY", "NOTE"];

/// Columns between two columns of the table.
const GAP: usize = 2;

/// Longest name and revision in the table; `status NAME` shows them whole.
const NAME_MAX: usize = 32;

/// All plugins, one line each, and a line about the agent.
pub(super) fn overview(
    plugins: &[PluginStatus],
    agent: Option<&AgentStatus>,
    console: &Console<'_>,
) -> String {
    let mut text = String::new();
    if plugins.is_empty() {
        text.push_str("no plugins\n");
    } else {
        let rows: Vec<[String; 9]> = plugins.iter().map(|plugin| row(plugin, console)).collect();
        let widths: [usize; 9] = std::array::from_fn(|column| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([HEADINGS[column].len()]).max().unwrap_or_default()
        });
        let headings = HEADINGS.map(str::to_owned);
        text.push_str(&line(&headings, &widths, Tone::Quiet, console));
        for (plugin, row) in plugins.iter().zip(&rows) {
            text.push_str(&line(row, &widths, tone(&plugin.state), console));
        }
    }
    if let Some(agent) = agent {
        text.push_str(&console.paint(Tone::Quiet, &about_agent(agent, console)));
        text.push('\n');
    }
    text
}

/// One plugin, one fact per line.
pub(super) fn details(plugin: &PluginStatus, console: &Console<'_>) -> String {
    let now = (console.now)();
    let ago = |time| timestamp(time).map(|time| format!("{time} ({} ago)", age(time, now)));
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let pending = plugin.pending.as_ref().map(|pending| {
        let error = if pending.error.is_empty() { "" } else { ": " };
        format!("{} {}{error}{}", pending.revision, pending.state, pending.error)
    });
    let health = plugin.health.as_ref().map(|health| {
        let word = if health.code == 0 { "healthy" } else { "unhealthy" };
        let at = timestamp(health.at.as_ref())
            .map_or_else(String::new, |at| format!(", {} ago", age(at, now)));
        let results = health.results.join("; ");
        let colon = if results.is_empty() { "" } else { ": " };
        format!("{word} (code {}{at}){colon}{results}", health.code)
    });
    let last_exit = plugin.last_exit.as_ref().map(|exit| {
        let at = ago(exit.at.as_ref()).map_or_else(String::new, |at| format!(" at {at}"));
        format!("{}{at}", exit_words(exit))
    });
    let facts = [
        ("state", Some(plugin.state.clone())),
        ("reason", some(&plugin.reason)),
        ("progress", progress(plugin)),
        ("revision", some(&plugin.revision)),
        ("pending", pending),
        ("kind", some(&[plugin.kind.as_str(), ", ", &plugin.installation].concat())),
        ("pid", plugin.pid.map(|pid| pid.to_string())),
        ("started", ago(plugin.started_at.as_ref())),
        ("restarts", Some(plugin.restarts.to_string())),
        ("last exit", last_exit),
        ("health", health),
        ("cpu", plugin.cpu_percent.map(|cpu| format!("{cpu:.1}%"))),
        ("memory", plugin.memory_bytes.map(bytes)),
        ("config hash", some(&plugin.config_hash)),
        ("address", some(&plugin.address)),
        ("installed in", some(&plugin.install_path)),
    ];
    let mut text = [plugin.name.as_str(), "\n"].concat();
    for (label, fact) in facts {
        if let Some(fact) = fact {
            let tone = if label == "state" { tone(&plugin.state) } else { Tone::Plain };
            let fact = console.paint(tone, &one_line(&fact));
            text.push_str(&["  ", &format!("{label:<13}"), " ", &fact, "\n"].concat());
        }
    }
    text
}

fn row(plugin: &PluginStatus, console: &Console<'_>) -> [String; 9] {
    let dash = || "-".to_owned();
    let started = timestamp(plugin.started_at.as_ref()).filter(|_| plugin.pid.is_some());
    [
        shortened(&one_line(&plugin.name), NAME_MAX),
        Some(shortened(&one_line(&plugin.revision), NAME_MAX))
            .filter(|revision| !revision.is_empty())
            .unwrap_or_else(dash),
        one_line(&plugin.state),
        plugin.pid.map_or_else(dash, |pid| pid.to_string()),
        started.map_or_else(dash, |at| age(at, (console.now)())),
        plugin.restarts.to_string(),
        plugin.cpu_percent.map_or_else(dash, |cpu| format!("{cpu:.1}%")),
        plugin.memory_bytes.map_or_else(dash, bytes),
        note(plugin),
    ]
}

/// The one thing about a plugin that is most worth knowing.
fn note(plugin: &PluginStatus) -> String {
    let words = if let Some(pending) = &plugin.pending {
        let what = progress(plugin).unwrap_or_else(|| pending.state.clone());
        if pending.error.is_empty() {
            format!("→ {}: {what}", pending.revision)
        } else {
            format!("→ {} failed: {}", pending.revision, pending.error)
        }
    } else if let Some(progress) = progress(plugin) {
        progress
    } else if !plugin.reason.is_empty() {
        plugin.reason.clone()
    } else {
        match (&plugin.health, &plugin.last_exit) {
            (Some(health), _) if health.code != 0 => {
                format!("unhealthy ({}): {}", health.code, health.results.join("; "))
            }
            (_, Some(exit)) if plugin.pid.is_none() => exit_words(exit),
            _ => String::new(),
        }
    };
    one_line(&words)
}

/// How far a download is, while there is one.
fn progress(plugin: &PluginStatus) -> Option<String> {
    let progress = plugin.progress.as_ref()?;
    let attempt = if progress.attempt > 1 {
        format!(", attempt {}", progress.attempt)
    } else {
        String::new()
    };
    let received = bytes(progress.received_bytes);
    Some(match progress.total_bytes {
        Some(total) if total > 0 => {
            let percent = u128::from(progress.received_bytes) * 100 / u128::from(total);
            format!("downloading {}% of {}{attempt}", percent.min(100), bytes(total))
        }
        _ => format!("downloading, {received} so far{attempt}"),
    })
}

fn exit_words(exit: &LastExit) -> String {
    match (exit.kind.as_str(), exit.code, exit.signal) {
        ("exited", Some(code), _) => format!("exited with code {code}"),
        ("signaled", _, Some(signal)) => format!("killed by signal {signal}"),
        ("oom", _, _) => "killed for want of memory".to_owned(),
        _ => "ended for an unknown reason".to_owned(),
    }
}

fn about_agent(agent: &AgentStatus, console: &Console<'_>) -> String {
    let since = timestamp(agent.started_at.as_ref())
        .map_or_else(String::new, |at| format!(" for {}", age(at, (console.now)())));
    let waiting = match agent.outbox_depth {
        0 => String::new(),
        1 => "; 1 event waits to be delivered".to_owned(),
        many => format!("; {many} events wait to be delivered"),
    };
    let link = one_line(&agent.link);
    let line = format!("agent {}{since}; control plane: {link}{waiting}", agent.version);
    shortened(&line, console.columns())
}

fn tone(state: &str) -> Tone {
    match state {
        "RUNNING" | "EXECUTION_COMPLETED" => Tone::Good,
        "INSTALLING" | "STARTING" | "STOPPING" => Tone::Busy,
        "CRASHED" | "INSTALL_FAILED" | "EXECUTION_FAILED" => Tone::Bad,
        _ => Tone::Plain,
    }
}

/// One line of the table. The last column takes what is left of the terminal, and where nothing is
/// left it is dropped, because a wrapped table is no table.
fn line(cells: &[String; 9], widths: &[usize; 9], tone: Tone, console: &Console<'_>) -> String {
    let [columns @ .., note] = cells;
    let mut text = String::new();
    let mut used = 0;
    for (index, cell) in columns.iter().enumerate() {
        let padding = " ".repeat(widths[index] - cell.chars().count() + GAP);
        let tone = if index == 2 || tone == Tone::Quiet { tone } else { Tone::Plain };
        text.push_str(&console.paint(tone, cell));
        text.push_str(&padding);
        used += widths[index] + GAP;
    }
    let left = console.columns().saturating_sub(used);
    if left > 4 {
        let tone = if tone == Tone::Quiet { tone } else { Tone::Plain };
        text.push_str(&console.paint(tone, &shortened(note, left)));
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}
