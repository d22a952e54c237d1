//! What the store has lost, and whether it works.

use std::path::Path;

use super::check::{Agent, Finding, Host, Severity};

/// Records that are named in the text; `--json` has them all.
const NAMED: usize = 3;

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let Agent::Answers { itself, .. } = host.agent else {
        return damaged_below(&host.config.agent.state_dir).iter().map(|p| set_aside(p)).collect();
    };
    let mut findings = Vec::new();
    if !itself.store_trouble.is_empty() {
        findings.push(Finding::new(
            Severity::Error,
            "the store cannot be read or written",
            itself.store_trouble.as_str(),
            "free space on the file system of state_dir, and check that it is writable; the agent \
             continues with the data in memory and tries again by itself, but no new data is \
             durable",
        ));
    }
    findings.extend(itself.stores.iter().map(|path| set_aside(path)));
    findings.extend(itself.left_plugins.iter().map(|left| {
        let name = &left.name;
        Finding::new(
            Severity::Warning,
            format!("the plugin {name} of a lost store is not adopted, so nothing supervises it"),
            left.reason.as_str(),
            format!(
                "order it again, or end its processes and delete its files and data: guest-agent \
                 doctor --forget {name}"
            ),
        )
    }));
    let count = itself.records.len();
    if count > 0 {
        let named = itself.records.iter().rev().take(NAMED);
        let named: Vec<String> =
            named.map(|lost| format!("{} {}: {}", lost.table, lost.key, lost.reason)).collect();
        let more = if count > NAMED { "; and older ones" } else { "" };
        let what = match count {
            1 => "1 record of the store was set aside".to_owned(),
            _ => format!("{count} records of the store were set aside"),
        };
        findings.push(Finding::new(
            Severity::Warning,
            what,
            format!("{}{more}", named.join("; ")),
            "give the orders of those records again; `guest-agent doctor --json` lists them, and \
             `guest-agent doctor --clear-quarantine` deletes them",
        ));
    }
    findings
}

fn set_aside(path: &str) -> Finding {
    Finding::new(
        Severity::Warning,
        format!("a store was damaged or lost; {path} is what is left of it"),
        "the agent began with an empty one, adopted the plugins whose records stand beside their \
         revisions, and keeps the files of others; orders and events of before are gone",
        format!(
            "order again what has changed since; when it is not needed any more, `rm -r {path}`"
        ),
    )
}

/// The stores that were set aside, of any instance.
fn damaged_below(state_dir: &Path) -> Vec<String> {
    let names = |dir: &Path| -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.take(1000).map(|entry| entry.path()).collect()
    };
    let is_damaged = |path: &std::path::PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("store.damaged-"))
    };
    let found =
        names(state_dir).into_iter().flat_map(|instance| names(&instance)).filter(is_damaged);
    let mut found: Vec<String> = found.map(|path| path.to_string_lossy().into_owned()).collect();
    found.sort();
    found
}
