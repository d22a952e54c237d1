//! The verb `events`: entries, filters, following, notices.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_agent_proto::agent_controlplane::PluginEventMessage;
use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_fleet_core::notice::Kind;
use guest_fleet_core::time::UtcOnly;
use guest_fleet_ledger::records::Numbered;
use guest_fleet_ledger::records::agent::AgentRecord;
use guest_fleet_ledger::records::event::{EventRecord, NoticePart, notice_subject, subject};
use guest_fleet_ledger::{Bucket, Faults, Ledger, Log, bounds};
use guest_fleet_server::notices;
use insta::assert_snapshot;
use prost::Message;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::super::context::{Caller, Context, Output};
use super::super::failure::Exit;
use super::rollouts::two_releases;
use super::{MemoryLedger, now, parsed, ran, runtime, shown};

fn append(ledger: &MemoryLedger, (agent, plugin): (&str, &str), ago: i64, record: EventRecord) {
    let seconds = now().as_second() - ago;
    let received = Some(prost_types::Timestamp { seconds, nanos: 0 });
    let record = EventRecord { received, ..record };
    let subject = match record.notice {
        Some(_) => notice_subject(agent, plugin),
        None => subject(agent, plugin),
    };
    let appending = async {
        let last = ledger.last(Log::Events, &subject).await.expect("no fault");
        let last = last.map_or(0, |last| last.number);
        let id = format!("id-{}", last + 1);
        let value = record.encode_to_vec().into();
        ledger.append(Log::Events, &subject, last, &id, value).await.expect("no fault");
    };
    runtime().block_on(appending);
}

fn event(ledger: &MemoryLedger, of: (&str, &str), ago: i64, kind: PluginEventType, details: &str) {
    let event = PluginEventMessage {
        plugin_name: of.1.to_owned(),
        revision_id: "1.2".to_owned(),
        event_type: kind.into(),
        event_details: Some(details.into()),
        ..PluginEventMessage::default()
    };
    append(ledger, of, ago, EventRecord::of_event(None, event.encode_to_vec()));
}

fn notice(ledger: &MemoryLedger, of: (&str, &str), ago: i64, kind: Kind, plugin: &str) {
    let part = NoticePart {
        kind: kind.number(),
        plugin: plugin.to_owned(),
        text: "it happened".to_owned(),
        fix: "do something".to_owned(),
        ..NoticePart::default()
    };
    append(ledger, of, ago, EventRecord::of_notice(None, part));
}

fn fleet() -> MemoryLedger {
    let ledger = MemoryLedger::new();
    for id in ["web-01", "web-02"] {
        ledger.put(Bucket::Agents, id, AgentRecord::new(id).encode_to_vec());
    }
    let (monitor, db) = (("web-01", "monitor"), ("web-02", "db"));
    event(&ledger, monitor, 7200, PluginEventType::PluginStarted, "");
    event(&ledger, monitor, 600, PluginEventType::PluginCrashed, "exited with code 3\nlast words");
    event(&ledger, db, 500, PluginEventType::PluginInstalled, "");
    notice(&ledger, ("", "monitor-prod"), 400, Kind::RolloutHalted, "monitor");
    notice(&ledger, ("web-01", ""), 300, Kind::AgentOffline, "");
    notice(&ledger, ("", ""), 200, Kind::AgentConnected, "");
    append(&ledger, ("web-01", "torn"), 100, EventRecord::of_event(None, vec![0xff]));
    ledger
}

#[test]
fn events_of_plugins_and_of_the_fleet_are_one_list() {
    let ledger = fleet();
    assert_snapshot!(shown(&["events"], &ran(&ledger, &["events"])));
    let words = ["events", "web-01", "--json"];
    assert_snapshot!(shown(&words, &ran(&ledger, &words)));
}

#[track_caller]
fn ids(ledger: &MemoryLedger, words: &[&str]) -> Vec<String> {
    let words: Vec<&str> = ["events"].iter().chain(words).chain(&["--json"]).copied().collect();
    let out = ran(ledger, &words).out;
    let lines = out.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let kind = |line: &Value| match line["kind"].as_str() {
        Some("") | None => line["type"].as_str().unwrap_or_default().to_owned(),
        Some(kind) => kind.to_owned(),
    };
    lines.map(|line| kind(&line)).collect()
}

#[test]
fn filters_choose_by_agent_plugin_kind_time_and_number() {
    let ledger = fleet();
    let started = "PLUGIN_STARTED";
    let crashed = "PLUGIN_CRASHED";
    assert_eq!(ids(&ledger, &["web-02"]), ["PLUGIN_INSTALLED"]);
    assert_eq!(ids(&ledger, &["--plugin", "monitor"]), [started, crashed, "ROLLOUT_HALTED"]);
    assert_eq!(ids(&ledger, &["web-01", "--plugin", "monitor"]), [started, crashed]);
    let kinds = ["--kind", "plugin_crashed", "--kind", "AGENT_OFFLINE"];
    assert_eq!(ids(&ledger, &kinds), [crashed, "AGENT_OFFLINE", "unreadable"]);
    assert_eq!(ids(&ledger, &["--since", "7m", "--limit", "2"]), ["AGENT_CONNECTED", "unreadable"]);
    let since = (now() - jiff::Span::new().hours(1)).to_string();
    assert_eq!(
        ids(&ledger, &["--since", &since, "--plugin", "monitor"]),
        [crashed, "ROLLOUT_HALTED"]
    );
    let quiet = ran(&ledger, &["events", "web-02", "--plugin", "monitor"]);
    assert_eq!(
        (quiet.exit, quiet.out.as_str(), quiet.err.as_str()),
        (Exit::Done, "", "no events\n")
    );
    let absent = ran(&ledger, &["events", "nobody"]);
    assert_eq!(absent.exit, Exit::Failed);
    assert!(absent.err.contains("there is no agent nobody"), "{}", absent.err);
}

/// Looks for notices for half a minute.
fn look(ledger: &MemoryLedger) {
    let shared = Arc::new(ledger.clone());
    let looking = notices::run(shared, notices::Settings::default(), CancellationToken::new());
    let looking = async { tokio::time::timeout(Duration::from_secs(30), looking).await };
    let ended = runtime().block_on(looking);
    assert!(ended.is_err(), "it goes on");
}

#[test]
fn decisions_about_a_rollout_are_noticed_with_their_words() {
    let ledger = two_releases();
    look(&ledger);
    let create =
        ["rollout", "create", "spring", "--assignment", "monitor-prod", "--to", "1.3", "--draft"];
    for words in [
        &create[..],
        &["rollout", "start", "spring"],
        &["rollout", "halt", "spring", "--reason", "TICKET-4"],
        &["rollout", "resume", "spring", "--reason", "it was the disk"],
        &["rollout", "pause", "spring"],
        &["rollout", "abort", "spring"],
    ] {
        let ran = ran(&ledger, words);
        assert_eq!(ran.exit, Exit::Done, "{words:?}: {}", ran.err);
    }
    look(&ledger);
    let kinds = ids(&ledger, &["--plugin", "monitor"]);
    assert_eq!(kinds, ["ROLLOUT_BEGAN", "ROLLOUT_HALTED", "ROLLOUT_RESUMED", "ROLLOUT_ABORTED"]);
    let out = ran(&ledger, &["events", "--kind", "ROLLOUT_HALTED"]).out;
    let (_, line) = out.split_once("  ").expect("a time");
    assert_snapshot!(line.trim_end());
}

#[test]
fn events_that_the_ledger_does_not_keep_are_remarked() {
    let ledger = MemoryLedger::new();
    for _ in 0..bounds::ENTRIES + 7 {
        event(&ledger, ("web-01", "monitor"), 60, PluginEventType::PluginCrashed, "");
    }
    let found = ran(&ledger, &["events"]);
    assert_eq!(found.out.lines().count(), 200);
    assert_eq!(
        found.err,
        "older events of 1 plugin are gone: the ledger keeps 200 of each, for 7 days\n"
    );
}

/// An output that is read while it is written.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<u8>>>);

impl Seen {
    fn take(&self) -> Vec<(String, Value, Value)> {
        let out = std::mem::take(&mut *self.0.lock().expect("no panic"));
        let text = String::from_utf8(out).expect("text");
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let parts = |line: Value| {
            let kind = line["type"].as_str().expect("a type").to_owned();
            (kind, line["number"].clone(), line["from"].clone())
        };
        lines.map(parts).collect()
    }
}

impl Write for Seen {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_follower_sees_what_comes_and_the_gaps_in_it() {
    let (ledger, seen) = (MemoryLedger::new(), Seen::default());
    let arguments = parsed(&["events", "--follow", "--json"]);
    let (mut out, mut err) = (seen.clone(), Vec::new());
    let mut context = Context {
        ledger: &ledger,
        out: &mut out,
        remarks: &mut err,
        input: &mut std::io::empty(),
        output: Output::Json,
        caller: Caller::default(),
        now: now(),
        zones: &UtcOnly,
    };
    let pause = || tokio::time::sleep(Duration::from_secs(40));
    let append = async |count: u64| {
        let subject = subject("web-01", "monitor");
        for _ in 0..count {
            let last = ledger.last(Log::Events, &subject).await.expect("no fault");
            let last = last.map_or(0, |last| last.number);
            let record = EventRecord::of_event(None, Vec::new());
            let (id, value) = (format!("id-{last}"), record.encode_to_vec().into());
            ledger.append(Log::Events, &subject, last, &id, value).await.expect("no fault");
        }
    };
    let event = |number: u64| ("event".to_owned(), number.into(), Value::Null);
    let driving = async {
        append(2).await;
        pause().await;
        assert_eq!(seen.take(), [event(1), event(2)]);
        // The ledger is away for a while.
        ledger.set_faults(Faults { unavailable: 1.0, ..Faults::default() });
        pause().await;
        ledger.set_faults(Faults::default());
        append(bounds::ENTRIES + 5).await;
        pause().await;
        let found = seen.take();
        assert_eq!(found[..2], [("gap".to_owned(), 8.into(), 3.into()), event(8)]);
        assert_eq!(found.len(), 201);
    };
    tokio::select! {
        ended = super::super::run(&arguments.verb, &mut context) => panic!("{ended:?}"),
        () = driving => {}
    }
    let err = String::from_utf8(err).expect("text");
    assert_eq!(err.matches("it is asked again").count(), 1, "{err}");
}
