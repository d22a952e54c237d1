//! Every alert says what somebody needs who is woken by it, and its runbook is a section of the book.

use crate::pages;

#[path = "../alerts/rules.rs"]
mod rules;

/// Alerts that fire at once, and why a blip cannot fire them.
const AT_ONCE: [(&str, &str); 2] = [
    ("GuestAgentRestarting", "it looks at half an hour"),
    ("GuestAgentPluginOutOfMemory", "it is about what happened, for half an hour"),
];

const RUNBOOK: &str = "docs/runbook.md";

/// Where the repository shows the pages of the book: the book itself is published nowhere yet.
fn runbook_url() -> String {
    let manifest: toml::Table = pages::text("Cargo.toml").parse().expect("TOML");
    let repository = manifest["workspace"]["package"]["repository"].as_str().expect("a URL");
    format!("{repository}/blob/main/{RUNBOOK}")
}

#[test]
fn every_alert_says_how_bad_it_is_what_is_wrong_and_what_helps() {
    let alerts = rules::all();
    assert!(alerts.len() >= 20, "alerts are found");
    for alert in alerts {
        let name = &alert.name;
        assert!(name.starts_with("GuestAgent"), "{name}");
        assert!(!alert.expression.is_empty(), "{name} has no expression");
        assert!(["critical", "warning", "info"].contains(&&*alert.severity), "{name}");
        let is_at_once = AT_ONCE.iter().any(|(known, _)| known == name);
        let lasts = alert.lasts.trim_end_matches(char::is_alphabetic);
        let lasts: u32 = lasts.parse().unwrap_or_else(|_| panic!("{name} lasts {}", alert.lasts));
        assert_eq!(lasts == 0, is_at_once, "{name}: a blip must not fire it, or say why it cannot");
        assert!(!alert.summary.is_empty() && !alert.summary.ends_with('.'), "{name}");
        assert!(alert.description.ends_with('.'), "{name}: sentences");
        assert!(alert.description.contains('`'), "{name}: no command that helps");
    }
}

#[test]
fn every_alert_has_a_section_of_the_runbook_and_every_section_an_alert() {
    let page = pages::text(RUNBOOK);
    let names: Vec<String> = rules::all().into_iter().map(|alert| alert.name).collect();
    let sections: Vec<&str> =
        pages::headings(&page).into_iter().filter(|it| it.starts_with("GuestAgent")).collect();
    assert_eq!(sections, names, "the sections of {RUNBOOK}, in the order of the alerts");
    let anchors = pages::anchors(&page);
    for alert in rules::all() {
        let (url, anchor) = alert.runbook.split_once('#').expect("an anchor");
        assert_eq!(url, runbook_url(), "{}", alert.name);
        assert!(anchors.iter().any(|known| known == anchor), "{}: no #{anchor}", alert.name);
        assert_eq!(anchor, alert.name.to_lowercase());
    }
}

/// What somebody looks for in a section, in this order.
const PARTS: [&str; 4] = ["**Means:**", "**Look at:**", "**Do:**", "**Clears:**"];

#[test]
fn every_section_of_the_runbook_says_what_it_means_what_to_do_and_when_it_is_over() {
    let page = pages::text(RUNBOOK);
    for section in page.split("\n## GuestAgent").skip(1) {
        let section = section.split("\n## ").next().unwrap_or(section);
        let places = PARTS.map(|part| section.find(part));
        let name = section.lines().next().unwrap_or_default();
        assert!(places.iter().all(Option::is_some), "GuestAgent{name} lacks one of {PARTS:?}");
        assert!(places.is_sorted(), "GuestAgent{name}: not in the order {PARTS:?}");
    }
}
