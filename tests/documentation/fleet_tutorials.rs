//! What the tutorials of a fleet tell people to do works, as it stands there, and prints what they show.

use std::path::PathBuf;

use crate::walkthrough::{Reader, blocks};
use crate::{fleet_program, nats_server, pages};

/// The programs that a reader has installed.
fn programs() -> [PathBuf; 2] {
    [PathBuf::from(env!("CARGO_BIN_EXE_guest-agent")), fleet_program::path()]
}

#[track_caller]
fn follow(page: &str, name: &str, programs: &[PathBuf]) {
    let text = pages::text(page);
    for block in blocks(&text) {
        assert_ne!(block.language, "text", "{page} shows output that is not compared: {block:?}");
    }
    let ran = Reader::new(name, programs).follow(&text);
    assert!(ran > 8, "only {ran} blocks of {page} were run");
}

/// The commands of a text, one line each, without comments.
fn commands(text: &str) -> Vec<String> {
    let blocks = blocks(text).into_iter().filter(|block| block.language == "sh");
    let joined = blocks.map(|block| block.text.replace("\\\n", " ")).collect::<String>();
    let lines = joined.lines().map(|line| line.split(" #").next().unwrap_or_default());
    let lines = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|line| !line.is_empty()).collect()
}

#[test]
fn the_readme_shows_commands_of_the_tutorial() {
    let readme = pages::text("README.md");
    let section = readme.split("\n## A fleet\n").nth(1).expect("the section");
    let shown = commands(section.split("\n## ").next().expect("its text"));
    assert!(shown.len() > 6, "{shown:?}");
    let known = commands(&pages::text("docs/fleet-on-one-machine.md"));
    for command in shown {
        assert!(known.contains(&command), "not in the tutorial: {command}");
    }
}

#[test]
fn every_state_of_explain_has_its_words() {
    let source = pages::text("fleet/core/src/fold/word.rs");
    let words =
        source.split("pub enum Word {").nth(1).and_then(|rest| rest.split("\n    }").next());
    let page = pages::text("docs/fleet-operations.md");
    let mut found = 0;
    for (_, name) in words.expect("the states").lines().filter_map(|line| line.split_once(" = ")) {
        let name = name.trim_matches(['"', ',']);
        assert!(
            page.contains(&format!("\n| `{name}` | ")),
            "docs/fleet-operations.md has no {name}"
        );
        found += 1;
    }
    assert!(found > 15, "only {found} states were found");
}

#[test]
fn a_fleet_runs_on_one_machine_as_it_is_written() {
    follow("docs/fleet-on-one-machine.md", "one", &programs());
}

#[test]
#[ignore = "takes minutes: `tests/run soak pages`"]
fn a_fleet_runs_on_nats_as_it_is_written() {
    let Some(nats) = nats_server::program() else { return };
    let [agent, fleet] = programs();
    follow("docs/fleet-moves-to-nats.md", "nats", &[agent, fleet, nats]);
}
