//! The examples for Vector and Grafana Alloy: the tools themselves validate them where they are
//! installed. Everywhere, their parts refer to parts that there are, and the places and names in them
//! are those of the agent.

use std::collections::BTreeSet;
use std::process::Command;

use crate::pages;

const VECTOR: &str = "config/examples/vector.toml";
const ALLOY: &str = "config/examples/config.alloy";

/// What both have to name: where the logs are, and what forwarded lines are called.
fn places() -> [String; 2] {
    // The file shows the defaults, which a test of the configuration holds it to.
    let defaults: toml::Table = pages::text("config/guest-agent.toml").parse().expect("TOML");
    let logs = defaults["agent"]["log_dir"].as_str().expect("a folder");
    [format!("{logs}/plugins/*.log"), "guest_agent.plugin".to_owned()]
}

/// Whether a tool is installed, and no other program of its name.
fn is_here(tool: &str) -> bool {
    let version = Command::new(tool).arg("--version").output();
    let is = version.is_ok_and(|it| String::from_utf8_lossy(&it.stdout).starts_with(tool));
    if !is {
        println!("SKIPPED: {tool} is not here");
    }
    is
}

#[track_caller]
fn passes(tool: &str, arguments: &[&str]) {
    let ran = Command::new(tool).args(arguments).current_dir(pages::root()).output().expect(tool);
    let said = [ran.stdout, ran.stderr].concat();
    assert!(ran.status.success(), "{tool} {arguments:?}: {}", String::from_utf8_lossy(&said));
}

#[test]
fn vector_validates_its_example() {
    if is_here("vector") {
        passes("vector", &["validate", "--no-environment", VECTOR]);
    }
}

#[test]
fn alloy_validates_its_example() {
    if is_here("alloy") {
        passes("alloy", &["fmt", "--test", ALLOY]);
        passes("alloy", &["validate", ALLOY]);
    }
}

#[test]
fn the_parts_of_the_example_for_vector_fit_together() {
    let text = pages::text(VECTOR);
    let config: toml::Table = toml::from_str(&text).expect("TOML");
    let parts = |kind: &str| {
        let of = config[kind].as_table().expect("a table").clone();
        of.into_iter().map(|(name, part)| (name, part.as_table().expect("a table").clone()))
    };
    let outputs: BTreeSet<String> = parts("sources")
        .map(|(name, part)| match part["type"].as_str() {
            Some("opentelemetry") => format!("{name}.logs"),
            _ => name,
        })
        .chain(parts("transforms").map(|(name, _)| name))
        .collect();
    let mut used = BTreeSet::new();
    for (name, part) in parts("transforms").chain(parts("sinks")) {
        for input in part["inputs"].as_array().expect("inputs") {
            let input = input.as_str().expect("a name");
            assert!(outputs.contains(input), "{name} takes from {input}, which is nothing");
            used.insert(input.to_owned());
        }
    }
    assert_eq!(used, outputs, "every part is taken from");
    assert!(places().iter().all(|place| text.contains(place)), "{:?}", places());
}

#[test]
fn the_parts_of_the_example_for_alloy_fit_together() {
    let text = pages::text(ALLOY);
    let code: Vec<&str> = text.lines().filter(|line| !line.starts_with("//")).collect();
    let mut depth = 0_u32;
    let mut parts = BTreeSet::new();
    for line in &code {
        // As `alloy fmt` has it: a tab for each block.
        let tabs = line.chars().take_while(|it| *it == '\t').count();
        depth -= u32::from(line.trim() == "}");
        assert!(line.is_empty() || tabs == usize::try_from(depth).expect("small"), "{line:?}");
        if depth == 0
            && let Some((kind, rest)) = line.split_once(" \"")
        {
            let label = rest.strip_suffix("\" {").unwrap_or_else(|| panic!("no block: {line}"));
            parts.insert(format!("{kind}.{label}"));
        }
        depth += u32::from(line.ends_with('{'));
        assert_eq!(line.matches('"').count() % 2, 0, "{line:?}");
    }
    assert_eq!(depth, 0, "every block ends");
    let mut used = BTreeSet::new();
    for word in code.iter().flat_map(|line| line.split([' ', '[', ']', ',', '\t'])) {
        let exports = [".receiver", ".input", ".targets", ".output"];
        if let Some(part) = exports.iter().find_map(|export| word.strip_suffix(export)) {
            assert!(parts.contains(part), "{word} is an output of nothing");
            used.insert(part.to_owned());
        }
    }
    let begins = |part: &str| {
        ["otelcol.receiver.", "loki.source.", "prometheus.scrape."]
            .iter()
            .any(|kind| part.starts_with(kind))
    };
    let idle: Vec<_> = parts.iter().filter(|it| !used.contains(*it) && !begins(it)).collect();
    assert!(idle.is_empty(), "nothing goes through {idle:?}");
    assert!(places().iter().all(|place| text.contains(place)), "{:?}", places());
}
