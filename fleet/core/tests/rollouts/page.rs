//! What is made of all this in the book: parts of pages between two markers.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::runs::{Bad, FLEETS, bad, good, halted, runs, within};

/// Compares a part of a page with what it should be, or writes it where `UPDATE_GENERATED` is set.
#[track_caller]
pub(crate) fn is_up_to_date(page: &str, part: &str, fresh: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let written = std::fs::read_to_string(&path).expect("the page can be read");
    let head = format!("<!-- made by fleet/core/tests/rollouts: {part} -->\n");
    let start = written.find(&head).unwrap_or_else(|| panic!("{page} has no {head:?}"));
    let start = start + head.len();
    let tail = "<!-- end -->\n";
    let end = start + written[start..].find(tail).unwrap_or_else(|| panic!("no {tail:?}"));
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        let mut right = written;
        right.replace_range(start..end, fresh);
        std::fs::write(&path, right).expect("the page can be written");
        return;
    }
    assert!(
        &written[start..end] == fresh,
        "{part} in docs/{page} is out of date; \
         `UPDATE_GENERATED=1 cargo test --workspace --test rollouts` writes it:\n{fresh}"
    );
}

fn thousands(number: u32) -> String {
    match number {
        0..1_000 => number.to_string(),
        _ => format!("{},{:03}", number / 1_000, number % 1_000),
    }
}

fn percent(share: f64) -> String {
    let text = format!("{share:.1} %");
    text.replace(".0 %", " %")
}

/// How many rollouts each cell is made from.
fn runs_text() -> String {
    let all = FLEETS.map(|fleet| {
        let [three, more] = [30_000, 100_000].map(|share| runs(fleet, share));
        format!("{three} and {more} of {}", thousands(fleet.targets))
    });
    format!("Run were, of releases that are bad on 3 % and on more: {} agents.", all.join("; "))
}

fn good_table() -> String {
    let mut table =
        "| agents | rollouts | halted | halted, with an outage |\n|---|---|---|---|\n".to_owned();
    for fleet in FLEETS {
        let [calm, outage] = [false, true].map(|outage| percent(halted(&good(fleet, outage))));
        let agents = thousands(fleet.targets);
        writeln!(table, "| {agents} | {} | {calm} | {outage} |", fleet.good).expect("it is text");
    }
    table
}

fn bad_table(how: Bad) -> String {
    let mut table =
        "| agents | bad on 3 % | bad on 10 % | bad on half |\n|---|---|---|---|\n".to_owned();
    for fleet in FLEETS {
        let cells = [30_000, 100_000, 500_000].map(|share| {
            let runs = bad(fleet, how, share);
            let touched = |share| thousands(within(&runs, share, |run| run.touched));
            let failed = thousands(within(&runs, 50, |run| run.failed));
            let halted = percent(halted(&runs));
            format!("{halted}; {} ({}); {failed}", touched(50), touched(95))
        });
        let (agents, cells) = (thousands(fleet.targets), cells.join(" | "));
        writeln!(table, "| {agents} | {cells} |").expect("it is text");
    }
    table
}

#[test]
fn the_page_shows_what_the_gate_does() {
    let parts = [
        ("good releases", good_table()),
        ("how many", runs_text() + "\n"),
        ("installations that fail", bad_table(Bad::Install)),
        ("plugins that crash", bad_table(Bad::Crash)),
        ("machines that are lost", bad_table(Bad::Lose)),
    ];
    for (part, table) in parts {
        is_up_to_date("fleet-gate.md", part, &format!("\n{table}\n"));
    }
}
