//! Every alert says what somebody needs who is woken by it, and its runbook is a section of the book.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::pages;

#[path = "../alerts/rules.rs"]
mod rules;

/// A file of alerts, and what belongs to it.
struct Set {
    file: &'static str,
    /// The prefix of the names of its alerts.
    prefix: &'static str,
    /// The page with a section for each.
    runbook: &'static str,
    /// The dashboard that shows its alerts, where there is one.
    dashboard: Option<&'static str>,
    /// The page with all metrics that there are.
    metrics: &'static str,
    /// Alerts that fire at once, and why a blip cannot fire them.
    at_once: &'static [(&'static str, &'static str)],
}

const SETS: [Set; 2] = [
    Set {
        file: "config/prometheus-alerts.yml",
        prefix: "GuestAgent",
        runbook: "docs/runbook.md",
        dashboard: Some("config/grafana-dashboard.json"),
        metrics: "docs/reference/metrics.md",
        at_once: &[
            ("GuestAgentRestarting", "it looks at half an hour"),
            ("GuestAgentPluginOutOfMemory", "it is about what happened, for half an hour"),
        ],
    },
    Set {
        file: "config/prometheus-fleet-alerts.yml",
        prefix: "GuestFleet",
        runbook: "docs/fleet-runbook.md",
        dashboard: None,
        metrics: "docs/reference/fleet-metrics.md",
        at_once: &[
            ("GuestFleetRestarting", "it looks at half an hour"),
            ("GuestFleetLedgerDamaged", "a record does not mend itself"),
            ("GuestFleetWebhookLost", "it is about what happened, for an hour"),
        ],
    },
];

/// Where the repository shows the pages of the book: the book itself is published nowhere yet.
fn runbook_url(set: &Set) -> String {
    let manifest: toml::Table = pages::text("Cargo.toml").parse().expect("TOML");
    let repository = manifest["workspace"]["package"]["repository"].as_str().expect("a URL");
    format!("{repository}/blob/main/{}", set.runbook)
}

#[test]
fn every_alert_says_how_bad_it_is_what_is_wrong_and_what_helps() {
    for set in SETS {
        let alerts = rules::all(set.file);
        assert!(alerts.len() >= 20, "alerts are found");
        for alert in alerts {
            let name = &alert.name;
            assert!(name.starts_with(set.prefix), "{name}");
            assert!(!alert.expression.is_empty(), "{name} has no expression");
            assert!(["critical", "warning", "info"].contains(&&*alert.severity), "{name}");
            let is_at_once = set.at_once.iter().any(|(known, _)| known == name);
            let lasts = alert.lasts.trim_end_matches(char::is_alphabetic);
            let lasts: u32 =
                lasts.parse().unwrap_or_else(|_| panic!("{name} lasts {}", alert.lasts));
            let is_blip = "a blip must not fire it, or say why it cannot";
            assert_eq!(lasts == 0, is_at_once, "{name}: {is_blip}");
            assert!(!alert.summary.is_empty() && !alert.summary.ends_with('.'), "{name}");
            assert!(alert.description.ends_with('.'), "{name}: sentences");
            assert!(alert.description.contains('`'), "{name}: no command that helps");
        }
    }
}

#[test]
fn every_alert_has_a_section_of_the_runbook_and_every_section_an_alert() {
    for set in SETS {
        let page = pages::text(set.runbook);
        let alerts = rules::all(set.file);
        let names: Vec<&str> = alerts.iter().map(|alert| &*alert.name).collect();
        let headings = pages::headings(&page);
        let sections: Vec<&str> =
            headings.into_iter().filter(|it| it.starts_with(set.prefix)).collect();
        assert_eq!(sections, names, "the sections of {}, in the order of the alerts", set.runbook);
        let anchors = pages::anchors(&page);
        for alert in &alerts {
            let (url, anchor) = alert.runbook.split_once('#').expect("an anchor");
            assert_eq!(url, runbook_url(&set), "{}", alert.name);
            assert!(anchors.iter().any(|known| known == anchor), "{}: no #{anchor}", alert.name);
            assert_eq!(anchor, alert.name.to_lowercase());
        }
    }
}

/// The parts that a section has, in this order.
const PARTS: [&str; 4] = ["**Means:**", "**Look at:**", "**Do:**", "**Clears:**"];

#[test]
fn every_section_of_the_runbook_says_what_it_means_what_to_do_and_when_it_is_over() {
    for Set { runbook, prefix, .. } in SETS {
        let page = pages::text(runbook);
        for section in page.split(&format!("\n## {prefix}")).skip(1) {
            let section = section.split("\n## ").next().unwrap_or(section);
            let places = PARTS.map(|part| section.find(part));
            let name = section.lines().next().unwrap_or_default();
            assert!(places.iter().all(Option::is_some), "{prefix}{name} lacks one of {PARTS:?}");
            assert!(places.is_sorted(), "{prefix}{name}: not in the order {PARTS:?}");
        }
    }
}

/// All expressions of a dashboard, also of its lists.
fn expressions(document: &Value) -> Vec<String> {
    match document {
        Value::Object(map) => {
            let own = ["expr", "query"].into_iter().filter_map(|key| map.get(key)?.as_str());
            own.map(str::to_owned).chain(map.values().flat_map(expressions)).collect()
        }
        Value::Array(items) => items.iter().flat_map(expressions).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn alerts_and_dashboards_name_metrics_that_there_are() {
    for set in SETS {
        let page = pages::text(set.metrics);
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        let mut known = BTreeSet::new();
        for (name, rest) in rows {
            known.insert(name.to_owned());
            if rest.starts_with(" | histogram") {
                known.extend(["bucket", "sum", "count"].map(|part| format!("{name}_{part}")));
            }
        }
        assert!(known.len() > 30, "metrics are found in {}", set.metrics);
        let dashboard = set.dashboard.map(pages::text);
        let dashboard: Option<Value> = dashboard.map(|text| text.parse().expect("JSON"));
        let shown = dashboard.as_ref().map(expressions).unwrap_or_default();
        let alerts = rules::all(set.file).into_iter().map(|alert| alert.expression);
        let mut asked = 0;
        for expression in alerts.chain(shown) {
            let of_word = |c: char| !c.is_ascii_alphanumeric() && c != '_';
            let words = expression.split(of_word);
            let named =
                words.filter(|word| word.starts_with("guest_") || word.starts_with("process_"));
            for name in named {
                assert!(known.contains(name), "{}: there is no {name}: {expression}", set.metrics);
                asked += 1;
            }
        }
        assert!(asked > 30, "{}: only {asked} metrics are asked for", set.file);
    }
}

/// The programs, and the pages with all commands that there are.
const PROGRAMS: [(&str, &str); 2] =
    [("guest-agent", "docs/reference/cli.md"), ("guest-fleet", "docs/reference/fleet-cli.md")];

/// Fails where a command names a verb or an option that its program does not have.
fn check_command(at: &str, code: &str, program: &str, reference: &str) {
    let known = pages::headings(reference);
    let mut words = code.split_whitespace().skip(1);
    let is_verb = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase());
    let Some(verb) = words.next().filter(is_verb) else { return };
    assert!(known.contains(&verb), "{at}: there is no `{program} {verb}`: `{code}`");
    let has_verbs_below = known.iter().any(|it| it.starts_with(&format!("{verb} ")));
    if let Some(below) = words.clone().next().filter(|it| has_verbs_below && is_verb(it)) {
        let whole = format!("{verb} {below}");
        // The name of an agent may stand there as well, and names are written in capitals.
        assert!(known.contains(&&*whole), "{at}: there is no `{program} {whole}`: `{code}`");
    }
    for option in words.take_while(|word| *word != "|").filter(|word| word.starts_with("--")) {
        assert!(reference.contains(option), "{at}: there is no {option}: `{code}`");
    }
}

#[test]
fn runbooks_name_commands_that_there_are() {
    let references = PROGRAMS.map(|(program, page)| (program, pages::text(page)));
    for Set { file, runbook, .. } in SETS {
        let help = rules::all(file).into_iter().map(|alert| alert.description);
        let text = help.chain([pages::text(runbook)]).collect::<Vec<_>>().join("\n");
        let mut named = 0;
        for code in text.split('`').skip(1).step_by(2) {
            let code = code.trim_start_matches("sudo -u guest-fleet ");
            for (program, reference) in &references {
                if code.split_whitespace().next() == Some(*program) {
                    check_command(runbook, code, program, reference);
                    named += 1;
                }
            }
        }
        assert!(named > 15, "{runbook}: only {named} commands are found");
    }
}
