//! Deliveries to a real receiver on loopback, that behaves well and badly.

use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;
use std::time::Duration;

use guest_agent_proto::agent_controlplane::PluginEventMessage;
use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_agent_serve_kit::lock::lock;
use guest_fleet_ledger::records::event::{EventRecord, subject};
use guest_fleet_ledger::{Ledger, Log, MemoryLedger};
use prost::Message as _;
use ring::hmac;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;
mod refusals;

use crate::net::outbound::Target;
use crate::telemetry::figures::Figures;

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const LONG: Duration = Duration::from_secs(60);
const OK: &str = "HTTP/1.1 204 No\r\n\r\n";

/// A request that a receiver got.
#[derive(Clone, Debug)]
struct Got {
    signature: String,
    timestamp: String,
    body: String,
}

/// The answer to a document.
type Rule = Box<dyn Fn(&str) -> String + Send>;

/// A receiver that answers every request by its rule; nothing where the answer is empty.
struct Receiver {
    url: String,
    rule: Arc<Mutex<Rule>>,
    got: Arc<Mutex<Vec<Got>>>,
    task: JoinHandle<()>,
}

impl Receiver {
    async fn start(answer: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let url = format!("http://{}/hook", listener.local_addr().expect("an address"));
        let answer = answer.to_owned();
        let rule: Rule = Box::new(move |_| answer.clone());
        let rule = Arc::new(Mutex::new(rule));
        let got: Arc<Mutex<Vec<Got>>> = Arc::default();
        let (answers, all) = (rule.clone(), got.clone());
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answers, all) = (answers.clone(), all.clone());
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    let Some(got) = request(&mut stream).await else { return };
                    let answer = lock(&answers)(&got.body);
                    lock(&all).push(got);
                    if answer.is_empty() {
                        return std::future::pending().await;
                    }
                    drop(stream.write_all(answer.as_bytes()).await);
                    if answer.contains("transfer-encoding") {
                        // A body without end.
                        while stream.write_all(b"1\r\nx\r\n").await.is_ok() {}
                    }
                });
            }
        });
        Self { url, rule, got, task }
    }

    fn answers(&self, answer: &str) {
        let answer = answer.to_owned();
        self.answers_by(move |_| answer.clone());
    }

    fn answers_by(&self, rule: impl Fn(&str) -> String + Send + 'static) {
        *lock(&self.rule) = Box::new(rule);
    }

    fn got(&self) -> Vec<Got> {
        lock(&self.got).clone()
    }

    /// The entries of all requests so far.
    fn entries(&self) -> Vec<Value> {
        let documents = self
            .got()
            .into_iter()
            .map(|got| serde_json::from_str::<Value>(&got.body).expect("JSON")["entries"].clone());
        documents.flat_map(|entries| entries.as_array().expect("a list").clone()).collect()
    }

    fn webhook(&self, folder: &tempfile::TempDir, name: &str) -> Webhook {
        webhook(folder, name, &self.url)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn request(stream: &mut BufReader<tokio::net::TcpStream>) -> Option<Got> {
    let (mut length, mut signature, mut timestamp) = (0, String::new(), String::new());
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        match line.split_once(": ") {
            Some(("content-length", value)) => length = value.parse().ok()?,
            Some(("guest-fleet-signature", value)) => signature = value.to_owned(),
            Some(("guest-fleet-timestamp", value)) => timestamp = value.to_owned(),
            _ if line.is_empty() => break,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Got { signature, timestamp, body: String::from_utf8(body).ok()? })
}

fn webhook(folder: &tempfile::TempDir, name: &str, url: &str) -> Webhook {
    let secret = folder.path().join("secret");
    std::fs::write(&secret, SECRET).expect("written");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).expect("a mode");
    Webhook {
        name: name.to_owned(),
        target: Target::parse_or_local(url).expect("a URL"),
        secret,
        events: std::collections::BTreeSet::new(),
        notices: std::collections::BTreeSet::new(),
        plugins: std::collections::BTreeSet::new(),
        ca: None,
    }
}

/// Short waits.
const FAST: Timings = Timings {
    lease: Duration::from_millis(1500),
    poll: Duration::from_millis(20),
    first_pause: Duration::from_millis(20),
    longest_pause: Duration::from_millis(100),
};

fn shared(ledger: &MemoryLedger) -> Webhooks {
    Webhooks {
        ledger: Arc::new(ledger.clone()),
        allowed: Arc::from([]),
        figures: Arc::default(),
        timings: FAST,
    }
}

/// A process that delivers, until it is killed.
struct Running {
    task: JoinHandle<()>,
    ending: CancellationToken,
    figures: Arc<Figures>,
}

impl Running {
    fn start(ledger: &MemoryLedger, webhooks: Vec<Webhook>) -> Self {
        let (shared, ending) = (shared(ledger), CancellationToken::new());
        let figures = shared.figures.clone();
        let task = tokio::spawn(shared.run(webhooks, ending.clone()));
        Self { task, ending, figures }
    }

    /// Nothing of it runs any more; nothing is given back.
    async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.is_err_and(|error| error.is_cancelled()));
    }

    async fn stop(self) {
        self.ending.cancel();
        tokio::time::timeout(LONG, self.task).await.expect("it stops").expect("it does not panic");
    }
}

async fn append(ledger: &MemoryLedger, plugin: &str, number: u64) {
    append_at(ledger, plugin, number, std::time::SystemTime::now()).await;
}

async fn append_at(
    ledger: &MemoryLedger,
    plugin: &str,
    number: u64,
    received: std::time::SystemTime,
) {
    let event = PluginEventMessage {
        plugin_name: plugin.to_owned(),
        event_type: PluginEventType::PluginCrashed.into(),
        event_details: Some(format!("{plugin} {number}").into_bytes()),
        ..PluginEventMessage::default()
    };
    let record = EventRecord::of_event(Some(received.into()), event.encode_to_vec());
    let (subject, id) = (subject("zone/a", plugin), format!("{plugin}-{number}"));
    let value = record.encode_to_vec().into();
    ledger.append(Log::Events, &subject, number - 1, &id, value).await.expect("appended");
}

/// Waits until something is so.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Waits until a webhook has a cursor: events that come from then on are delivered.
async fn has_begun(running: &Running, name: &str) {
    until("it delivers", || running.figures.now().webhooks.get(name).is_some_and(|it| it.is_ours))
        .await;
}

#[tokio::test]
async fn events_come_signed_and_in_order() {
    let (folder, ledger) = (tempfile::tempdir().expect("a directory"), MemoryLedger::new());
    let receiver = Receiver::start(OK).await;
    let before = std::time::SystemTime::now() - Duration::from_secs(10);
    append_at(&ledger, "old", 1, before).await;
    let running = Running::start(&ledger, vec![receiver.webhook(&folder, "pager")]);
    has_begun(&running, "pager").await;
    for number in 1..=30 {
        append(&ledger, "web", number).await;
        append(&ledger, "db", number).await;
    }
    until("all came", || receiver.entries().len() >= 60).await;
    let entries = receiver.entries();
    assert_eq!(entries.len(), 60, "nothing comes twice without a reason, and nothing of before");
    for plugin in ["web", "db"] {
        let of = entries.iter().filter(|entry| entry["plugin"] == plugin);
        let numbers: Vec<_> = of.map(|entry| entry["number"].as_u64().expect("one")).collect();
        assert_eq!(numbers, (1..=30).collect::<Vec<_>>());
    }
    let first = &entries[0];
    assert_eq!((&first["type"], &first["agent"]), (&"event".into(), &"zone/a".into()));
    assert_eq!(first["event"]["type"], "PLUGIN_CRASHED");
    assert_eq!(first["event"]["details"], "web 1");
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    for got in receiver.got() {
        let signed = hmac::sign(&key, format!("{}.{}", got.timestamp, got.body).as_bytes());
        assert_eq!(
            got.signature,
            format!("v1={}", data_encoding::HEXLOWER.encode(signed.as_ref()))
        );
    }
    until("all are counted", || running.figures.now().webhooks["pager"].delivered == 60).await;
    running.stop().await;
}

#[tokio::test]
async fn every_event_comes_although_the_deliverer_is_killed_again_and_again() {
    let (folder, ledger) = (tempfile::tempdir().expect("a directory"), MemoryLedger::new());
    let receiver = Receiver::start(OK).await;
    let webhook = receiver.webhook(&folder, "pager");
    let mut running = Running::start(&ledger, vec![webhook.clone()]);
    has_begun(&running, "pager").await;
    let mut number = 0;
    for round in 0..4 {
        // The receiver has it, and its answer is lost with the process.
        receiver.answers(if round % 2 == 0 { "" } else { OK });
        let before = receiver.got().len();
        for _ in 0..5 {
            number += 1;
            append(&ledger, "web", number).await;
        }
        until("something came", || receiver.got().len() > before).await;
        running.kill().await;
        receiver.answers(OK);
        running = Running::start(&ledger, vec![webhook.clone()]);
    }
    let came = || {
        let mut numbers: Vec<_> =
            receiver.entries().iter().filter_map(|entry| entry["number"].as_u64()).collect();
        // Entries come again from the first one that was not known to be taken.
        let mut highest = 0;
        numbers.retain(|number| {
            assert!(*number <= highest + 1, "{number} came after {highest}");
            let is_new = *number > highest;
            highest = highest.max(*number);
            is_new
        });
        numbers
    };
    until("all came", || came().len() == 20).await;
    assert!(receiver.entries().iter().all(|entry| entry["type"] == "event"), "no gap is reported");
    running.stop().await;
}

#[tokio::test]
async fn a_receiver_that_answers_badly_gets_the_same_again_and_leads_nowhere() {
    let (folder, ledger) = (tempfile::tempdir().expect("a directory"), MemoryLedger::new());
    let elsewhere = Receiver::start(OK).await;
    let redirect =
        format!("HTTP/1.1 307 Go\r\nlocation: {}\r\ncontent-length: 0\r\n\r\n", elsewhere.url);
    let receiver = Receiver::start(&redirect).await;
    let running = Running::start(&ledger, vec![receiver.webhook(&folder, "pager")]);
    has_begun(&running, "pager").await;
    append(&ledger, "web", 1).await;
    let failures = || running.figures.now().webhooks["pager"].failures;
    let long_head = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "a".repeat(1 << 20));
    for bad in [
        redirect.as_str(),
        "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        "garbage\r\n\r\n",
        &long_head,
    ] {
        receiver.answers(bad);
        let before = failures();
        until("it failed twice more", || failures() >= before + 2).await;
    }
    // Slower than the deadline; a lease is kept meanwhile.
    receiver.answers("");
    let before = failures();
    until("it took too long", || failures() > before).await;
    assert!(running.figures.now().webhooks["pager"].waiting_since.is_some());
    // The status is what counts.
    receiver.answers("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
    until("it is taken", || running.figures.now().webhooks["pager"].delivered == 1).await;
    until("nothing waits", || running.figures.now().webhooks["pager"].waiting_since.is_none())
        .await;
    assert!(receiver.entries().iter().all(|entry| entry["number"] == 1));
    assert!(elsewhere.got().is_empty(), "the redirection was followed");
    running.stop().await;
}

#[tokio::test]
async fn a_receiver_that_is_away_holds_up_no_other() {
    let (folder, ledger) = (tempfile::tempdir().expect("a directory"), MemoryLedger::new());
    let receiver = Receiver::start(OK).await;
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let away = format!("http://{}/", closed.local_addr().expect("an address"));
    drop(closed);
    let webhooks = vec![
        webhook(&folder, "away", &away),
        webhook(&folder, "metadata", "https://169.254.169.254/latest"),
        webhook(&folder, "plain", "http://192.0.2.1/"),
        receiver.webhook(&folder, "good"),
    ];
    let running = Running::start(&ledger, webhooks);
    for name in ["away", "metadata", "plain", "good"] {
        has_begun(&running, name).await;
    }
    append(&ledger, "web", 1).await;
    until("the good one has it", || receiver.entries().len() == 1).await;
    for name in ["away", "metadata", "plain"] {
        until(name, || running.figures.now().webhooks[name].failures >= 2).await;
        assert_eq!(running.figures.now().webhooks[name].delivered, 0);
    }
    running.stop().await;
}

#[tokio::test]
async fn what_the_log_did_not_keep_is_told_as_a_gap() {
    let (folder, ledger) = (tempfile::tempdir().expect("a directory"), MemoryLedger::new());
    let receiver = Receiver::start(OK).await;
    let webhook = receiver.webhook(&folder, "pager");
    let running = Running::start(&ledger, vec![webhook.clone()]);
    has_begun(&running, "pager").await;
    append(&ledger, "web", 1).await;
    append(&ledger, "quiet", 1).await;
    until("both came", || receiver.entries().len() == 2).await;
    until("both are known", || running.figures.now().webhooks["pager"].delivered == 2).await;
    running.stop().await;
    for number in 2..=250 {
        append(&ledger, "web", number).await;
    }
    append(&ledger, "quiet", 2).await;
    let running = Running::start(&ledger, vec![webhook]);
    until("all came", || receiver.entries().iter().any(|it| it["id"] == "quiet-2")).await;
    let entries = receiver.entries();
    let gaps: Vec<_> = entries.iter().filter(|entry| entry["type"] == "gap").collect();
    let expected = serde_json::json!({
        "type": "gap", "agent": "zone/a", "plugin": "web", "from": null, "to": 51,
    });
    assert_eq!(gaps, [&expected]);
    let numbers = entries.iter().filter(|it| it["type"] == "event" && it["plugin"] == "web");
    let numbers: Vec<_> = numbers.filter_map(|entry| entry["number"].as_u64()).collect();
    assert_eq!(numbers, std::iter::once(1).chain(51..=250).collect::<Vec<_>>());
    until("it is counted", || running.figures.now().webhooks["pager"].lost > 0).await;
    running.stop().await;
}

#[tokio::test]
async fn one_of_two_processes_delivers_and_the_other_takes_over() {
    let (folder, ledger) = (tempfile::tempdir().expect("a directory"), MemoryLedger::new());
    let receiver = Receiver::start(OK).await;
    let webhook = receiver.webhook(&folder, "pager");
    let first = Running::start(&ledger, vec![webhook.clone()]);
    has_begun(&first, "pager").await;
    let second = Running::start(&ledger, vec![webhook]);
    append(&ledger, "web", 1).await;
    until("it came", || first.figures.now().webhooks["pager"].delivered == 1).await;
    assert!(!second.figures.now().webhooks["pager"].is_ours);
    first.stop().await;
    has_begun(&second, "pager").await;
    append(&ledger, "web", 2).await;
    until("it came", || second.figures.now().webhooks["pager"].delivered == 1).await;
    let numbers: Vec<_> =
        receiver.entries().iter().filter_map(|entry| entry["number"].as_u64()).collect();
    assert_eq!(numbers, [1, 2], "a process that stops leaves nothing to come again");
    second.stop().await;
}
