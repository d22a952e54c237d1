//! What each verb prints, as a person reads it: when all is well, when there is nothing, when it
//! fails. What differs from run to run is replaced.

use std::fmt::Write as _;

use insta::assert_snapshot;

use super::plugin_folder;
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

/// A line without what the time and the machine decide: times, ages, numbers of processes, sizes,
/// digests.
fn normal(line: &str) -> String {
    if line.starts_with('$') || line.starts_with("[exit") {
        return line.to_owned();
    }
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let bare = word.trim_matches(|c: char| "(),:;".contains(c));
        let before = words.last().map_or("", String::as_str);
        let shown = match bare {
            "" => "",
            // Where in a file a mistake is: that is the same every time.
            place if before == "column" => place,
            "B" | "KiB" | "MiB" | "GiB" if before == "N" => "UNIT",
            time if time.parse::<jiff::Timestamp>().is_ok() => "TIME",
            age if measures(age, &["s", "ms", "m", "h", "d"]) => "AGE",
            count if measures(count, &["%", "KiB", "MiB", "GiB", "B"]) => "N",
            // Numbers of restarts and of orders are small, and the same every time.
            count if count.len() > 1 && measures(count, &[""]) => "N",
            digest if digest.len() == 64 && digest.bytes().all(|c| c.is_ascii_hexdigit()) => {
                "DIGEST"
            }
            // The server of archives has another port each time.
            url if url.starts_with("http://127.0.0.1:") => "URL",
            other => other,
        };
        words.push(word.replacen(bare, shown, 1));
    }
    // Columns are as wide as what was replaced.
    let indent: String = line.chars().take_while(|c| *c == ' ').collect();
    let line = (indent + &words.join(" ")).trim_end().to_owned();
    // What is known of memory depends on whether the machine has control groups for plugins.
    match line.split_once("memory N UNIT ") {
        Some((before, "working set, N UNIT resident" | WITHOUT_GROUPS)) => {
            format!("{before}memory N UNIT, and what that counts")
        }
        _ => line,
    }
}

const WITHOUT_GROUPS: &str = "resident; it has no control group, so its working set is not known";

/// Whether a word is a number with one of these units.
fn measures(word: &str, units: &[&str]) -> bool {
    let is_number =
        |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.');
    units.iter().any(|unit| word.strip_suffix(unit).is_some_and(is_number))
}

/// Waits until the agent knows of the link; the control plane does a moment before.
async fn linked(bed: &Bed) {
    bed.until("the agent says that the link is up", async || {
        bed.try_status().await.ok()?.agent?.link_connected.then_some(())
    })
    .await;
}

/// Waits until all events of a running plugin are delivered.
async fn delivered(bed: &Bed, plugin: &str) {
    bed.until("all events are delivered", async || {
        let events = bed.cli(&["events", plugin, "--json"]).await.ok();
        let is_delivered = |line: &str| super::json(line)["delivered"] == true;
        (events.contains("PLUGIN_INSTALLED") && events.lines().all(is_delivered)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn when_all_is_well() {
    let bed = Bed::new().await;
    let archive = bed.trouble().await;
    let order = orders::install("greeter", "1", &archive);
    let order = order.manifest(|manifest| manifest.metrics_interval = orders::seconds(1.0));
    bed.configure(vec![order.order()]).await;
    bed.status_where("greeter", "it was measured and asked how it is", |it| {
        it.cpu_percent.is_some() && it.health.is_some()
    })
    .await;
    delivered(&bed, "greeter").await;
    bed.ask("greeter", "log hello").await;
    let folder = plugin_folder(&bed, "backup", "echo_plugin").display().to_string();
    let packed = bed.dir().join("backup.tar.gz").display().to_string();
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
        &["pack", &folder, "-o", &packed, "--revision", "7"],
        &["plan", "-f", &packed],
        &["install", "-f", &packed, "--wait"],
        &["plan", "-f", &packed],
    ] {
        transcript.run(arguments).await;
    }
    assert_snapshot!(transcript.end());
    bed.finish().await;
}

#[tokio::test]
async fn when_there_is_nothing() {
    let bed = Bed::new().await;
    linked(&bed).await;
    let mut transcript = Transcript::of(&bed);
    for arguments in [
        &["status"][..],
        &["status", "--json=array"],
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
