//! Tests of the command line over a ledger in memory: what is printed, and what is written.

mod agents;
mod documents;
mod events;
mod gateways;
mod health;
mod indexed;
mod rollouts;
mod secrets;
mod standing;
mod tokens;

use std::fmt::Write;

use clap::{CommandFactory, Parser};
use guest_fleet_core::time::UtcOnly;
use guest_fleet_ledger::records::configuration::HoldRecord;
use guest_fleet_ledger::{Bucket, Fate, Faults, MemoryLedger};
use insta::assert_snapshot;
use jiff::Timestamp;

use super::Verb;
use super::context::{Caller, Context, Output};
use super::failure::{Exit, Failure};

const DIGEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

#[derive(Parser)]
#[command(name = "guest-fleet")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    #[arg(long, global = true)]
    json: bool,
}

/// What became of a command.
struct Ran {
    exit: Exit,
    out: String,
    err: String,
}

/// The time at which commands run: a Thursday.
fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().expect("a time")
}

fn ran(ledger: &MemoryLedger, words: &[&str]) -> Ran {
    ran_with(ledger, words, "")
}

fn parsed(words: &[&str]) -> Arguments {
    let words = ["guest-fleet"].iter().chain(words);
    Arguments::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime")
}

/// How a command ended, and what it printed.
async fn run(
    ledger: &MemoryLedger,
    arguments: &Arguments,
    input: &str,
) -> (Result<Exit, Failure>, String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut context = Context {
        ledger,
        out: &mut out,
        remarks: &mut err,
        input: &mut input.as_bytes(),
        output: if arguments.json { Output::Json } else { Output::Text },
        caller: Caller { who: "alice@ops".to_owned(), from: "a test".to_owned() },
        now: now(),
        zones: &UtcOnly,
    };
    let result = super::run(&arguments.verb, &mut context).await;
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (result, text(out), text(err))
}

/// Runs a command with this standard input.
fn ran_with(ledger: &MemoryLedger, words: &[&str], input: &str) -> Ran {
    let arguments = parsed(words);
    let (result, out, mut err) = runtime().block_on(run(ledger, &arguments, input));
    let exit = result.unwrap_or_else(|failure| {
        err.push_str(&failure.text());
        failure.exit
    });
    if arguments.json {
        documents::check(&arguments.verb, &out);
    }
    Ran { exit, out, err }
}

fn declarations() -> String {
    format!(
        r#"
[[release]]
plugin = "monitor"
revision = "1.2"
entry_point = "bin/monitor"
config = "token = SECRET"
archives.amd64 = {{ sha256 = "{DIGEST}" }}
archives.arm64 = {{ sha256 = "{DIGEST}", url = "https://e.org/m?sig=SECRET" }}

[[assignment]]
name = "monitor-prod"
plugin = "monitor"
revision = "1.2"
select = "env = prod"

[[hold]]
name = "freeze"
select = "env = prod"
plugins = ["monitor"]
reason = "end of the year"
until = "2026-01-02T00:00:00Z"

[[window]]
name = "nights"
select = "env = prod"
days = ["thu", "fri"]
from = "22:00"
to = "04:00"
zone = "UTC"
"#
    )
}

/// A ledger in which that was applied.
fn applied() -> MemoryLedger {
    let ledger = MemoryLedger::short_pages();
    let ran = ran_with(&ledger, &["apply", "-f", "-"], &declarations());
    assert_eq!((ran.exit, ran.err.as_str()), (Exit::Done, ""));
    ledger
}

/// The command, what it printed and how it ended.
fn shown(words: &[&str], ran: &Ran) -> String {
    let code = ran.exit.code();
    assert!(!ran.out.contains("SECRET") && !ran.err.contains("SECRET"), "{}{}", ran.out, ran.err);
    format!("$ guest-fleet {}\n{}{}[{code}]\n", words.join(" "), ran.out, ran.err)
}

#[test]
fn what_is_applied_is_shown_and_applied_twice_changes_nothing() {
    let ledger = MemoryLedger::short_pages();
    let mut all = String::new();
    let dry = ["apply", "-f", "-", "--dry-run"];
    all.push_str(&shown(&dry, &ran_with(&ledger, &dry, &declarations())));
    assert_eq!(ledger.writes(), 0, "a look writes nothing");
    let words = ["apply", "-f", "-", "--reason", "TICKET-7"];
    all.push_str(&shown(&words, &ran_with(&ledger, &words, &declarations())));
    assert_eq!(ledger.writes(), 1);
    all.push_str(&shown(&words, &ran_with(&ledger, &words, &declarations())));
    assert_eq!(ledger.writes(), 1, "the second time writes nothing");
    for words in
        [vec!["releases"], vec!["assignments"], vec!["holds"], vec!["windows"], vec!["audit"]]
    {
        all.push_str(&shown(&words, &ran(&ledger, &words)));
    }
    assert_snapshot!(all);
}

#[test]
fn applies_at_the_same_time_all_count() {
    let ledger = MemoryLedger::short_pages();
    let arguments = parsed(&["apply", "-f", "-"]);
    let hold = |name: &str| {
        format!("[[hold]]\nname = \"{name}\"\nselect = \"all\"\nreason = \"by {name}\"\n")
    };
    let (a, b) = (hold("a"), hold("b"));
    let (first, second) = runtime().block_on(async {
        tokio::join!(run(&ledger, &arguments, &a), run(&ledger, &arguments, &b))
    });
    assert_eq!((first.0, second.0), (Ok(Exit::Done), Ok(Exit::Done)));
    let both = [first.1, second.1].concat();
    assert!(both.contains("(audit 1)") && both.contains("(audit 2)"), "{both}");
    let whole = ran_with(&ledger, &["diff", "-f", "-"], &[a, b].concat());
    assert_eq!((whole.exit, whole.out.as_str()), (Exit::Done, ""));
}

#[test]
fn only_prune_deletes_and_only_when_it_is_confirmed() {
    let ledger = applied();
    let rest = "[[hold]]\nname = \"freeze\"\nselect = \"all\"\nreason = \"longer\"\n";
    let mut all = String::new();
    let mut step = |words: &[&str], input: &str| {
        all.push_str(&shown(words, &ran_with(&ledger, words, input)));
    };
    step(&["hold", "incident", "--select", "all", "--reason", "TICKET-8"], "");
    step(&["diff", "-f", "-"], rest);
    step(&["apply", "-f", "-"], rest);
    step(&["apply", "-f", "-", "--prune"], rest);
    step(&["apply", "-f", "-", "--prune", "--yes"], "");
    step(&["apply", "-f", "-", "--prune", "--yes"], rest);
    step(&["diff", "-f", "-"], rest);
    step(&["holds"], "");
    assert_snapshot!(all);
}

#[test]
fn holds_are_set_and_ended_by_hand() {
    let ledger = applied();
    let mut all = String::new();
    let mut step = |words: &[&str]| all.push_str(&shown(words, &ran(&ledger, words)));
    step(&[
        "hold",
        "db",
        "--select",
        "role = db",
        "--plugin",
        "monitor",
        "--reason",
        "moving",
        "--for",
        "36h",
    ]);
    step(&[
        "hold",
        "db",
        "--select",
        "role = db",
        "--plugin",
        "monitor",
        "--reason",
        "moving",
        "--for",
        "36h",
    ]);
    step(&[
        "hold",
        "db",
        "--select",
        "role = db",
        "--reason",
        "moving",
        "--until",
        "2030-01-01T00:00:00Z",
    ]);
    step(&["hold", "freeze", "--select", "all", "--reason", "mine"]);
    step(&["hold", "x", "--select", "self.a = b", "--reason", "r"]);
    step(&["hold", "X", "--select", "all", "--reason", "r"]);
    step(&["hold", "x", "--select", "a ==", "--reason", "r"]);
    step(&["hold", "x", "--select", "all", "--reason", " "]);
    step(&["hold", "x", "--select", "all", "--reason", "r", "--until", "2020-01-01T00:00:00Z"]);
    step(&["release", "db", "--reason", "moved"]);
    step(&["release", "freeze"]);
    step(&["release", "nobody"]);
    step(&["audit", "--limit", "2"]);
    assert_snapshot!(all);
    let verdict = ran(&ledger, &["audit", "verify"]);
    assert!(verdict.out.starts_with("5 entries checked, head 5:"), "{}", verdict.out);
    let head = verdict.out.trim_end().rsplit(' ').next().expect("a head").to_owned();
    assert_eq!(ran(&ledger, &["audit", "verify", "--against", &head]).exit, Exit::Done);
    let longer = head.replacen("5:", "6:", 1);
    let cut = ran(&ledger, &["audit", "verify", "--against", &longer]);
    assert!(cut.exit == Exit::Failed && cut.err.contains("entries at the end are gone"));
}

#[test]
fn a_retry_raises_the_attempt_and_applying_keeps_it() {
    let ledger = applied();
    let raised = ran(&ledger, &["retry", "monitor-prod"]);
    assert_eq!(raised.exit, Exit::Done);
    assert!(raised.out.contains("monitor 1.2 on env = prod, attempt 1"), "{}", raised.out);
    ledger.script([Fate::Happened]);
    assert!(ran(&ledger, &["retry", "monitor-prod"]).out.contains("attempt 2"));
    let again = ran_with(&ledger, &["apply", "-f", "-"], &declarations());
    assert_eq!(again.out, "0 changes, 4 unchanged\n");
    assert!(ran(&ledger, &["assignments"]).out.contains("  2 "), "the attempt is 2");
    let missing = ran(&ledger, &["retry", "x"]);
    assert_eq!(
        missing.err,
        "guest-fleet: there is no assignment x\ntry: `guest-fleet assignments` lists them\n"
    );
}

#[test]
fn all_problems_are_told_at_once() {
    let ledger = MemoryLedger::short_pages();
    let text =
        "[[hold]]\nname = \"X\"\nselct = \"all\"\nreason = \"r\"\n[[window]]\nname = \"w\"\n";
    let words = ["apply", "-f", "-"];
    assert_snapshot!(shown(&words, &ran_with(&ledger, &words, text)));
    let found = ran_with(&ledger, &["apply", "-f", "-", "--json"], text);
    let document: serde_json::Value = serde_json::from_str(&found.out).expect("a document");
    assert_eq!(document["problems"][0]["line"], 1);
    assert_eq!(document["problems"].as_array().map(Vec::len), Some(8));
    assert_eq!(ledger.writes(), 0);
}

#[test]
fn an_export_applied_elsewhere_and_exported_is_the_same() {
    let ledger = applied();
    let text = ran(&ledger, &["export"]).out;
    let unchanged = ran_with(&ledger, &["diff", "-f", "-"], &text);
    assert_eq!((unchanged.exit, unchanged.out.as_str()), (Exit::Done, ""));
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("fleet");
    let path = path.to_str().expect("text");
    assert_eq!(ran(&ledger, &["export", "-o", path]).exit, Exit::Done);
    let other = MemoryLedger::short_pages();
    assert_eq!(ran(&other, &["apply", "-f", path]).exit, Exit::Done);
    assert_eq!(ran(&other, &["export"]).out, text);
}

#[test]
fn failures_have_the_exit_code_of_their_kind() {
    let ledger = applied();
    let missing = ran(&ledger, &["apply", "-f", "/nowhere"]);
    assert_eq!(missing.exit, Exit::Failed);
    assert!(missing.err.contains("failed to read `/nowhere`"), "{}", missing.err);
    assert_eq!(ran(&ledger, &["hold", "x", "--select", "a ==", "--reason", "r"]).exit, Exit::Usage);
    ledger.script([Fate::Lost; 5]);
    assert_eq!(ran(&ledger, &["retry", "monitor-prod"]).exit, Exit::TimedOut);
    ledger.script([Fate::Conflict; 5]);
    assert_eq!(ran(&ledger, &["retry", "monitor-prod"]).exit, Exit::Failed);
    ledger.set_faults(Faults { unavailable: 1.0, ..Faults::default() });
    for words in [&["releases"][..], &["agents"], &["audit"], &["retry", "monitor-prod"]] {
        let ran = ran(&ledger, words);
        assert_eq!(ran.exit, Exit::Unreachable, "{words:?}");
        assert!(ran.err.contains("it cannot be reached"), "{}", ran.err);
    }
}

#[test]
fn a_record_that_cannot_be_read_is_named_and_can_be_replaced_or_ended() {
    let ledger = applied();
    ledger.put(Bucket::Configuration, "hold/freeze", vec![0xff]);
    let listed = ran(&ledger, &["holds"]);
    assert!(listed.err.contains("the record `hold/freeze` is damaged"), "{}", listed.err);
    let again = ran_with(&ledger, &["apply", "-f", "-"], &declarations());
    assert!(again.out.contains("~ hold freeze: a record that cannot be read ->"), "{}", again.out);
    ledger.put(Bucket::Configuration, "hold/freeze", vec![0xff]);
    assert_eq!(ran(&ledger, &["release", "freeze"]).exit, Exit::Done);
    assert_eq!(ledger.peek(Bucket::Configuration, "hold/freeze"), None);
    let newer = HoldRecord { version: 2, ..HoldRecord::default() };
    ledger.put(Bucket::Configuration, "hold/freeze", prost::Message::encode_to_vec(&newer));
    let refused = ran_with(&ledger, &["apply", "-f", "-"], &declarations());
    assert!(refused.err.contains("use the newer program"), "{}", refused.err);
}

#[test]
fn every_verb_explains_itself_and_its_examples_can_be_parsed() {
    let mut all = String::new();
    for verb in Arguments::command().get_subcommands_mut() {
        let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.starts_with("Examples:\n"), "{}: {help}", verb.get_name());
        for example in help.lines().filter(|line| line.contains("guest-fleet ")) {
            let words = example.split('>').next().unwrap_or_default().split_whitespace();
            let parsed = Arguments::command().try_get_matches_from(words);
            assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
        }
        let text = verb.render_help();
        write!(all, "=== {}\n{text}\n", verb.get_name()).unwrap();
    }
    assert_snapshot!(all);
}
