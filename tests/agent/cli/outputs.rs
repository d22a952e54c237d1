//! What each verb prints, as a person reads it: when all is well, when there is nothing, when it fails.
//! What differs from run to run is replaced.

use std::fmt::Write as _;

use insta::assert_snapshot;

use crate::harness::{Bed, orders};

/// Command lines, and what became of each.
struct Transcript<'a> {
    bed: &'a Bed,
    text: String,
}

impl<'a> Transcript<'a> {
    fn of(bed: &'a Bed) -> Self {
        Self { bed, text: String::new() }
    }

    async fn run(&mut self, arguments: &[&str]) {
        let said = self.bed.cli(arguments).await;
        let dir = self.bed.dir().display().to_string();
        let words = arguments.join(" ");
        let text = &mut self.text;
        write!(text, "$ guest-agent {words}\n{}{}", said.stdout, said.stderr).unwrap();
        if said.code != 0 {
            writeln!(text, "[exit code {}]", said.code).unwrap();
        }
        text.push('\n');
        self.text = self.text.replace(&dir, "DIR");
    }

    fn end(self) -> String {
        self.text.lines().map(|line| normal(line) + "\n").collect()
    }
}

/// A line without what the time and the machine decide: times, ages, numbers of processes, sizes.
fn normal(line: &str) -> String {
    if line.starts_with('$') || line.starts_with("[exit") {
        return line.to_owned();
    }
    let mut words = Vec::new();
    for word in line.split(' ') {
        let bare = word.trim_matches(|c: char| "(),:;".contains(c));
        let is_number =
            |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.');
        let without = |units: [&str; 5]| {
            units.iter().any(|unit| bare.strip_suffix(*unit).is_some_and(is_number))
        };
        let shown = if bare.parse::<jiff::Timestamp>().is_ok() {
            "TIME"
        } else if without(["s", "ms", "m", "h", "d"]) {
            "AGE"
        } else if without(["%", "KiB", "MiB", "GiB", "B"]) || (is_number(bare) && bare.len() > 1) {
            "N"
        } else {
            bare
        };
        words.push(if bare.is_empty() { word.to_owned() } else { word.replacen(bare, shown, 1) });
    }
    // Columns are as wide as what was replaced.
    let text = words.join(" ");
    let text = text.trim_end();
    let indent: String = text.chars().take_while(|c| *c == ' ').collect();
    indent + &text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn when_all_is_well() {
    let bed = Bed::new().await;
    let archive = bed.trouble().await;
    bed.configure(vec![orders::install("greeter", "1", &archive).order()]).await;
    bed.running("greeter", "1").await;
    bed.event(4, "greeter", "1").await;
    bed.ask("greeter", "log hello").await;
    let mut transcript = Transcript::of(&bed);
    for arguments in [
        &["status"][..],
        &["status", "greeter"],
        &["explain", "greeter"],
        &["events", "greeter"],
        &["logs", "greeter", "-n", "1"],
        &["wait", "greeter"],
        &["apply", "greeter", "--string", "level=debug", "--wait"],
        &["restart", "greeter", "--wait"],
        &["vm-event", "startup"],
        &["remove", "greeter", "--wait"],
    ] {
        transcript.run(arguments).await;
    }
    assert_snapshot!(transcript.end());
    bed.finish().await;
}

#[tokio::test]
async fn when_there_is_nothing() {
    let bed = Bed::new().await;
    let mut transcript = Transcript::of(&bed);
    for arguments in [
        &["status"][..],
        &["status", "--json"],
        &["top"],
        &["events"],
        &["events", "--json"],
        &["registry", "list"],
        &["registry", "list", "--json"],
        &["vm-event", "startup"],
        &["doctor", "--sweep"],
    ] {
        transcript.run(arguments).await;
    }
    assert_snapshot!(transcript.end());
    bed.finish().await;
}

#[tokio::test]
async fn when_it_fails() {
    let bed = Bed::new().await;
    let archive = bed.trouble().await;
    bed.configure(vec![orders::install("greeter", "1", &archive).order()]).await;
    bed.running("greeter", "1").await;
    let file = |name: &str, text: &str| {
        let path = bed.dir().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let typo = file("typo.json", "{\n  \"plugin\": { \"nmae\": \"a\" }\n}\n");
    let broken = file("broken.json", "{ \"plugin\": ");
    let absent = bed.dir().join("absent.tar.gz").display().to_string();
    let socket = bed.dir().join("absent.sock").display().to_string();
    let mut transcript = Transcript::of(&bed);
    for arguments in [
        &["stauts"][..],
        &["status", "greter"],
        &["status", "--sokcet", "x"],
        &["status", "--socket", &socket],
        &["explain", "greter"],
        &["logs", "zzz"],
        &["restart", "zzz"],
        &["remove", "greter"],
        &["apply", "greeter"],
        &["apply", "zzz", "--string", "x"],
        &["wait", "greeter", "--state", "HAPPY"],
        &["wait", "greeter", "--state", "STOPPED", "--timeout", "100ms"],
        &["wait", "zzz", "--timeout", "100ms"],
        &["events", "--since", "yesterday"],
        &["registry", "get", "zzz"],
        &["registry", "wait", "zzz", "--timeout", "100ms"],
        &["install", "-f", &absent],
        &["install", "-f", &typo],
        &["install", "-f", &broken],
        &["install", "other"],
        &["plan", "-f", &typo],
        &["pack", &absent, "-o", "x.tar.gz"],
        &["vm-event", "shutdwon"],
        &["config", "check", "--set", "plugins.probtion=1m"],
        &["config", "check", "--set", "plugins.probation=soon"],
        &["completions", "tcsh"],
    ] {
        transcript.run(arguments).await;
    }
    assert_snapshot!(transcript.end());
    bed.finish().await;
}
