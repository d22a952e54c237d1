//! The lanes of `tests/run`: the table of their parts, and what is recorded of a part that passed.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::pages;

const TABLE: &str = "docs/development.md";

/// The parts that `tests/run` knows, as the table names them: `LANE PART`.
fn parts() -> BTreeSet<String> {
    let script = fs::read_to_string(pages::root().join("tests/run")).expect("a script");
    let parts_of = |lane: &str| {
        let begin = format!("\n{lane}=(");
        let (_, rest) = script.split_once(&begin).expect("the parts of a lane");
        let (parts, _) = rest.split_once(')').expect("their end");
        parts.split(' ').map(|part| format!("{lane} {part}")).collect::<Vec<_>>()
    };
    ["soak", "ship"].into_iter().flat_map(parts_of).collect()
}

/// A page whose rows that begin so have this in their last column.
fn with_record(page: &str, row: &str, record: &str) -> String {
    let with = |line: &str| {
        let columns = line.strip_suffix(" |").filter(|line| line.starts_with(row));
        let before = columns.and_then(|columns| columns.rsplit_once("| "));
        before.map_or_else(|| line.to_owned(), |(before, _)| format!("{before}| {record} |"))
    };
    page.lines().map(|line| with(line) + "\n").collect()
}

fn run(folder: &Path, program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder);
    // Nothing of this user's, and an author of its own.
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "a test").env(format!("GIT_{who}_EMAIL"), "a@test");
    }
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// A checkout with what `tests/tools/record` reads.
struct Checkout(tempfile::TempDir);

impl Checkout {
    fn new() -> Self {
        let checkout = Self(tempfile::tempdir().expect("a folder"));
        let root = pages::root();
        for file in ["tests/tools/record", TABLE, "Cargo.toml", "fleet/program/Cargo.toml"] {
            checkout.write(file, &fs::read_to_string(root.join(file)).expect("a file"));
        }
        checkout.write("packaging/guest-agent.toml", "");
        checkout.write("src/main.rs", "");
        run(checkout.path(), "git", &["init", "--quiet"]);
        checkout.commit();
        checkout
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.path().join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("it is made");
        fs::write(path, text).expect("it is written");
    }

    fn commit(&self) {
        run(self.path(), "git", &["add", "--all"]);
        run(self.path(), "git", &["commit", "--quiet", "--message", "a change"]);
    }

    fn record(&self, arguments: &[&str]) -> String {
        let script = ["tests/tools/record"];
        run(self.path(), "bash", &[&script, arguments].concat())
    }

    /// The parts that are stale, as the table names them.
    fn stale(&self) -> BTreeSet<String> {
        let said = self.record(&["stale"]);
        let of = |line: &str| {
            let (lane, rest) = line.split_once(" STALE: ").expect("a lane");
            let (part, _) = rest.split_once(':').expect("a part");
            format!("{} {part}", lane.to_lowercase())
        };
        said.lines().map(of).collect()
    }
}

#[test]
fn the_table_of_parts_has_all_of_them() {
    let table = fs::read_to_string(pages::root().join(TABLE)).expect("a page");
    let row = |line: &str| {
        let (part, _) = line.strip_prefix("| `")?.split_once("` |")?;
        let (lane, _) = part.split_once(' ')?;
        ["soak", "ship"].contains(&lane).then(|| part.to_owned())
    };
    assert_eq!(table.lines().filter_map(row).collect::<BTreeSet<_>>(), parts());
}

#[test]
fn a_part_is_fresh_from_its_record_until_its_inputs_change_or_a_month_passes() {
    let checkout = Checkout::new();
    let table = fs::read_to_string(checkout.path().join(TABLE)).expect("a page");
    // Whatever is recorded of this project.
    checkout.write(TABLE, &with_record(&table, "| `s", "never"));
    assert_eq!(checkout.stale(), parts());
    for part in parts() {
        checkout.record(&[&["passed"], &*part.split(' ').collect::<Vec<_>>()].concat());
    }
    assert_eq!(checkout.stale(), BTreeSet::new());

    checkout.write("src/main.rs", "fn main() {}");
    assert!(checkout.record(&["passed", "soak", "leak"]).starts_with("not recorded"));
    assert_eq!(checkout.stale(), BTreeSet::new());
    checkout.write("packaging/guest-agent.toml", "[agent]");
    let ships =
        || parts().into_iter().filter(|part| part.starts_with("ship")).collect::<BTreeSet<_>>();
    assert_eq!(checkout.stale(), ships());
    checkout.commit();
    checkout.record(&["passed", "ship", "deb"]);
    let mut others = ships();
    others.remove("ship deb");
    assert_eq!(checkout.stale(), others);

    let table = fs::read_to_string(checkout.path().join(TABLE)).expect("a page");
    checkout.write(TABLE, &with_record(&table, "| `soak leak`", "01234567 2026-01-01"));
    others.insert("soak leak".to_owned());
    assert_eq!(checkout.stale(), others);
}
