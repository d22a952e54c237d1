//! Other files that follow the catalogue: the reference, the dashboard and the alerts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::*;

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The reference page, from the catalogue alone.
fn reference() -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         <!-- Made from src/observe/metrics/catalogue.rs: UPDATE_GENERATED=1 cargo test --workspace --lib \
         metrics::tests::files -->\n\n\
         `/metrics` on `api.http_listen` is in the OpenMetrics text format for clients that accept it, and in \
         Prometheus' text format 0.0.4 for all others. Counters begin anew with every start of the agent. What is \
         not known is absent. At most 2000 plugins are shown.\n\n\
         | metric | type | labels | what it says | when it looks bad |\n|---|---|---|---|---|\n",
    );
    page.extend(METRICS.iter().map(|metric| metric.row()));
    page
}

/// The names of metrics in an expression.
fn queried(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    let is_metric = |word: &&str| word.starts_with("guest_agent_") || word.starts_with("process_");
    words.filter(is_metric).map(str::to_owned).collect()
}

#[track_caller]
fn check(of: &str, expressions: &[String], least: usize) {
    let known: BTreeSet<String> = METRICS.iter().flat_map(|metric| metric.samples()).collect();
    assert!(expressions.len() >= least, "{of}: only {} expressions", expressions.len());
    for expression in expressions {
        let queried = queried(expression);
        // Series that Prometheus itself makes.
        let of_its_own = ["up{", "ALERTS{"].iter().any(|series| expression.contains(series));
        assert!(!queried.is_empty() || of_its_own, "{of}: {expression}");
        for name in queried {
            assert!(
                known.contains(&name),
                "{of} asks for {name}, which there is not: {expression}"
            );
        }
    }
}

/// All values of this key, at any depth.
fn values_of(document: &serde_json::Value, key: &str, found: &mut Vec<String>) {
    match document {
        serde_json::Value::Object(map) => {
            for (name, value) in map {
                match value.as_str() {
                    Some(text) if name == key => found.push(text.to_owned()),
                    _ => values_of(value, key, found),
                }
            }
        }
        serde_json::Value::Array(items) => {
            items.iter().for_each(|item| values_of(item, key, found));
        }
        _ => {}
    }
}

#[test]
fn the_reference_is_what_the_catalogue_says() {
    let name = "docs/reference/metrics.md";
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::create_dir_all(path("docs/reference")).expect("a folder");
        std::fs::write(path(name), reference()).expect("written");
    }
    let hint = "UPDATE_GENERATED=1 cargo test --workspace --lib metrics::tests::files writes it";
    assert!(read(name) == reference(), "{name} is not what the catalogue says; {hint}");
}

#[test]
fn names_keep_the_conventions_and_texts_fit_a_table() {
    let mut names = BTreeSet::new();
    for metric in METRICS {
        for name in metric.samples() {
            assert!(
                name.bytes().all(|c| c.is_ascii_lowercase() || c == b'_' || c.is_ascii_digit())
            );
            assert!(names.insert(name.clone()), "{name} stands twice");
        }
        assert!(!metric.name.ends_with("_total"), "{}: its kind appends that", metric.name);
        for text in [metric.help, metric.then] {
            assert!(text.ends_with('.') && !text.contains(['|', '\n', '\\']), "{text}");
        }
    }
}

#[test]
fn the_dashboard_asks_only_for_metrics_that_there_are() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&read("config/grafana-dashboard.json")).expect("JSON");
    let mut expressions = Vec::new();
    values_of(&dashboard, "expr", &mut expressions);
    values_of(&dashboard["templating"], "query", &mut expressions);
    expressions.retain(|expression| expression != "prometheus");
    check("the dashboard", &expressions, 20);
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        assert!(ids.insert(panel["id"].as_u64()), "two panels have the id {}", panel["id"]);
    }
}

#[test]
fn the_alerts_ask_only_for_metrics_that_there_are() {
    let rules = read("config/prometheus-alerts.yml");
    let value = |key: &str| -> Vec<String> {
        let lines = rules.lines().filter_map(|line| line.trim().strip_prefix(key));
        lines.map(|line| line.trim().to_owned()).collect()
    };
    let alerts = value("- alert:");
    check("the alerts", &value("expr:"), 5);
    assert_eq!(value("expr:").len(), alerts.len(), "every alert has one expression, on one line");
}
