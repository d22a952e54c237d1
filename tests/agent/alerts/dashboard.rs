//! The queries of `config/grafana-dashboard.json`, as Grafana sends them.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::recording::JOB;

/// The values that Grafana puts in the place of its variables: everything is chosen, and the interval is four
/// scrapes.
const VARIABLES: [(&str, &str); 4] =
    [("$__rate_interval", "2m"), ("$job", JOB), ("$instance", ".*"), ("$plugin", ".*")];

/// All queries of the dashboard: of its panels, and of the lists at its top.
pub(super) fn queries() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/grafana-dashboard.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let targets = panel["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
        assert!(panel["type"] == "row" || !targets.is_empty(), "a panel without a query: {panel}");
        found.extend(targets.iter().map(|it| it["expr"].as_str().unwrap().to_owned()));
    }
    for list in dashboard["templating"]["list"].as_array().unwrap() {
        let query = list["query"].as_str().unwrap();
        if let Some(inside) = query.strip_prefix("label_values(") {
            let (series, label) = inside.trim_end_matches(')').rsplit_once(", ").unwrap();
            // An instance without the label has an empty one.
            found.push(format!("count by ({label}) ({series})"));
        }
    }
    assert!(found.len() > 30, "queries are found");
    found.into_iter().map(|query| filled(&query)).collect::<BTreeSet<_>>().into_iter().collect()
}

fn filled(query: &str) -> String {
    let filled =
        VARIABLES.iter().fold(query.to_owned(), |it, (name, value)| it.replace(name, value));
    assert!(!filled.contains('$'), "a variable that is not known: {query}");
    filled
}
