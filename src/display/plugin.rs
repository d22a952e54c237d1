//! A plugin, and the agent, in a few words.

use guest_agent_proto::local::{AgentStatus, ExitKind, Hold, LastExit, Limits, PluginStatus};
use jiff::Timestamp;

use super::{age, bytes, one_line, timestamp, values};

/// The most important fact about a plugin; empty when nothing is worth a note.
pub(crate) fn note(plugin: &PluginStatus) -> String {
    let pending = plugin.pending.as_ref().filter(|pending| pending.dismissed_by.is_empty());
    let words = if let Some(pending) = pending {
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
            (_, Some(last)) if plugin.pid.is_none() => exit(last),
            _ => String::new(),
        }
    };
    one_line(&words)
}

/// The progress of a download, while one is under way.
pub(crate) fn progress(plugin: &PluginStatus) -> Option<String> {
    let progress = plugin.progress.as_ref()?;
    if !progress.held_up.is_empty() {
        return Some(format!("held up: {}", progress.held_up));
    }
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

/// Who makes its orders wait, for how long, and which order does.
pub(crate) fn hold(hold: &Hold, now: Timestamp) -> String {
    let until = timestamp(hold.until.as_ref()).map(|until| format!(", {} more", age(now, until)));
    let waits = Some(one_line(&hold.waits)).filter(|waits| !waits.is_empty());
    let waits = waits.map(|waits| format!("; {waits} waits"));
    let (until, waits) = (until.unwrap_or_default(), waits.unwrap_or_default());
    format!("by {}{until}{waits}", one_line(&hold.by))
}

/// The state of the pending revision, if there is one.
pub(crate) fn pending(plugin: &PluginStatus) -> Option<String> {
    let pending = plugin.pending.as_ref()?;
    let error = if pending.error.is_empty() { "" } else { ": " };
    let dismissed = match &*pending.dismissed_by {
        "" => String::new(),
        by => format!(" (dismissed by {by})"),
    };
    Some(format!("{} {}{dismissed}{error}{}", pending.revision, pending.state, pending.error))
}

/// The memory of a plugin, with what the figure counts and how much is resident.
pub(crate) fn memory(plugin: &PluginStatus) -> Option<String> {
    let used = bytes(plugin.memory_bytes?);
    Some(match (plugin.memory_basis.as_str(), plugin.resident_bytes) {
        ("working_set", Some(resident)) => {
            format!("{used} working set, {} resident", bytes(resident))
        }
        ("resident", _) => {
            format!("{used} resident; it has no control group, so its working set is not known")
        }
        // An agent of before, or a later one that counts in another way.
        _ => used,
    })
}

/// Why the last run of a one-shot plugin began; `None` before the first, and for a daemon.
pub(crate) fn ran_for(plugin: &PluginStatus) -> Option<String> {
    let why = match plugin.trigger.as_str() {
        "" => return None,
        "install" => "an order installed or changed it",
        "startup" => "the machine started",
        "firstboot" => "the machine is a new instance",
        "interval" => "its interval was over",
        "rule" => "its rules began to hold",
        "run" => "a person asked for it",
        // One of a later agent.
        other => return Some(other.to_owned()),
    };
    Some(format!("{}, because {why}", plugin.trigger))
}

/// The limits of a plugin; `None` where it has none.
pub(crate) fn limits(limits: &Limits) -> Option<String> {
    let Limits { memory_bytes, cpu_percent, tasks } = *limits;
    let limits = [
        memory_bytes.map(|most| format!("memory {}", bytes(most))),
        cpu_percent.map(|most| format!("CPU {most}% of a core")),
        tasks.map(|most| format!("tasks {most}")),
    ];
    let limits = limits.into_iter().flatten().collect::<Vec<_>>().join(", ");
    Some(limits).filter(|limits| !limits.is_empty())
}

/// The limits that a person gave over the limits of orders, and who did.
pub(crate) fn limit_override(plugin: &PluginStatus) -> Option<String> {
    let own = plugin.limit_override.as_ref()?;
    let given = limits(&own.limits.unwrap_or_default())?;
    Some(format!("{given}, by {}, until `guest-agent limit {} --reset`", own.by, plugin.name))
}

/// The last health check of a plugin, if there was one.
pub(crate) fn health(plugin: &PluginStatus, now: Timestamp) -> Option<String> {
    let health = plugin.health.as_ref()?;
    let word = if health.code == 0 { "healthy" } else { "unhealthy" };
    let at = timestamp(health.at.as_ref())
        .map_or_else(String::new, |at| format!(", {} ago", age(at, now)));
    let results = health.results.join("; ");
    let colon = if results.is_empty() { "" } else { ": " };
    Some(format!("{word} (code {}{at}){colon}{results}", health.code))
}

/// How a process ended.
pub(crate) fn exit(exit: &LastExit) -> String {
    match (values::exit_kind(exit), exit.code, exit.signal) {
        (ExitKind::Exited, Some(code), _) => format!("exited with code {code}"),
        (ExitKind::Signaled, _, Some(signal)) => format!("killed by signal {signal}"),
        (ExitKind::OutOfMemory, _, _) if exit.detail.is_empty() => {
            "killed because memory ran out".to_owned()
        }
        (ExitKind::OutOfMemory, _, _) => exit.detail.clone(),
        (ExitKind::Exited | ExitKind::Signaled | ExitKind::Unknown | ExitKind::Unspecified, ..) => {
            "ended for an unknown reason".to_owned()
        }
    }
}

/// How long the trial of its revision still lasts as things stand; `None` while no revision on trial
/// runs.
pub(crate) fn trial_left(plugin: &PluginStatus, now: Timestamp) -> Option<String> {
    let ends = timestamp(plugin.trial_ends.as_ref()).filter(|_| plugin.on_trial)?;
    Some(age(now, ends))
}

/// The version of the agent, and whether the control plane is connected.
pub(crate) fn agent_line(agent: &AgentStatus, now: Timestamp) -> String {
    let since = timestamp(agent.started_at.as_ref())
        .map_or_else(String::new, |at| format!(" for {}", age(at, now)));
    let waiting = match agent.outbox_depth {
        0 => String::new(),
        1 => "; 1 event waits to be delivered".to_owned(),
        many => format!("; {many} events wait to be delivered"),
    };
    let link = one_line(&agent.link);
    let held =
        agent.hold.as_ref().map(|held| format!("; all plugins are held {}", hold(held, now)));
    let held = held.unwrap_or_default();
    format!("agent {}{since}; control plane: {link}{waiting}{held}", agent.version)
}
