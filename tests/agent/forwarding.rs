//! Logs of plugins elsewhere: in a journal and at a collector, whatever becomes of the agent and of
//! them.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use nix::sys::signal::Signal;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{
    LogsService, LogsServiceServer,
};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use tokio::net::{UnixDatagram, UnixListener};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use crate::harness::{Archive, ArchiveSpec, Bed, orders, plugins, signal};

/// Most lines that come again after an agent was killed, as `docs/operations.md` states.
const REPEATED_MAX: usize = 512;

/// The fields of an entry of the journal.
type Entry = BTreeMap<String, Vec<u8>>;

/// The attributes of a record or of its sender.
type Attributes = BTreeMap<String, String>;

/// A script that ends as the echo plugin. It may `await` a file.
async fn talker(bed: &Bed, archive: &str, script: &str) -> Archive {
    let echo = plugins::program("echo_plugin");
    let script = format!(
        "await() {{ while [ ! -e \"$GUEST_AGENT_STATE_DIR/$1\" ]; do sleep 0.02; done; }}\n\
         {script}\nexec '{}' \"$@\"",
        echo.display()
    );
    bed.archive(archive, ArchiveSpec::script(&script)).await
}

/// Lets the script of a plugin go on that waits for a file.
fn go_on(bed: &Bed, plugin: &str, file: &str) {
    std::fs::write(bed.plugin_state(plugin).join(file), "").unwrap();
}

/// A journal: the fields of each entry.
struct Journal {
    entries: Arc<Mutex<Vec<Entry>>>,
    reader: JoinHandle<()>,
}

// === impl Journal ===

impl Journal {
    fn listen(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        let entries = Arc::<Mutex<Vec<_>>>::default();
        let kept = entries.clone();
        let reader = tokio::spawn(async move {
            let mut buffer = vec![0; 256 * 1024];
            loop {
                let length = socket.recv(&mut buffer).await.unwrap();
                let entry = fields(&buffer[..length]);
                kept.lock().unwrap().push(entry);
            }
        });
        Self { entries, reader }
    }

    fn all(&self) -> Vec<Entry> {
        self.entries.lock().unwrap().clone()
    }

    /// Waits for the entry with a message.
    async fn entry(&self, bed: &Bed, message: &[u8]) -> Entry {
        let what = format!("the entry {:?}", String::from_utf8_lossy(message));
        bed.until(&what, async || self.all().into_iter().find(|it| it["MESSAGE"] == message)).await
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// The fields of an entry, by the protocol as systemd documents it.
fn fields(mut entry: &[u8]) -> Entry {
    let mut fields = BTreeMap::new();
    while !entry.is_empty() {
        let end = entry.iter().position(|byte| *byte == b'\n').expect("a whole line");
        let (line, rest) = (&entry[..end], &entry[end + 1..]);
        let (name, value) = match line.iter().position(|byte| *byte == b'=') {
            Some(at) => {
                entry = rest;
                (&line[..at], line[at + 1..].to_vec())
            }
            None => {
                let (length, rest) = rest.split_at(8);
                let length = u64::from_le_bytes(length.try_into().unwrap());
                let (value, rest) = rest.split_at(usize::try_from(length).unwrap());
                assert_eq!(rest[0], b'\n', "a value ends with a line feed");
                entry = &rest[1..];
                (line, value.to_vec())
            }
        };
        let before = fields.insert(String::from_utf8(name.to_vec()).unwrap(), value);
        assert_eq!(before, None, "a field comes once");
    }
    fields
}

fn text(entry: &Entry, field: &str) -> String {
    entry.get(field).map(|it| String::from_utf8_lossy(it).into_owned()).unwrap_or_default()
}

/// A collector on a unix socket.
#[derive(Clone, Default)]
struct Collector {
    /// The attributes of the sender, and the record.
    records: Arc<Mutex<Vec<(Attributes, LogRecord)>>>,
    /// How many records of the next message it rejects.
    rejects: Arc<Mutex<i64>>,
}

#[tonic::async_trait]
impl LogsService for Collector {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        let token = request.metadata().get("authorization");
        if token.is_none_or(|token| token != "Bearer secret") {
            return Err(Status::unauthenticated("no token"));
        }
        let rejected_log_records = std::mem::take(&mut *self.rejects.lock().unwrap());
        for resource in request.into_inner().resource_logs {
            let who = plain(&resource.resource.unwrap_or_default().attributes);
            for scope in resource.scope_logs {
                assert_eq!(scope.scope.unwrap().name, "guest-agent");
                let records = scope.log_records.into_iter().map(|record| (who.clone(), record));
                self.records.lock().unwrap().extend(records);
            }
        }
        let error_message = "too old".to_owned();
        let partial_success = (rejected_log_records > 0)
            .then_some(ExportLogsPartialSuccess { rejected_log_records, error_message });
        Ok(Response::new(ExportLogsServiceResponse { partial_success }))
    }
}

fn shown(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        _ => String::new(),
    }
}

fn plain(attributes: &[KeyValue]) -> Attributes {
    attributes.iter().map(|it| (it.key.clone(), shown(it.value.as_ref()))).collect()
}

// === impl Collector ===

impl Collector {
    fn listen(&self, path: &Path) -> JoinHandle<()> {
        drop(std::fs::remove_file(path));
        let listener = UnixListenerStream::new(UnixListener::bind(path).unwrap());
        let server = tonic::transport::Server::builder();
        let server = server.clone().add_service(LogsServiceServer::new(self.clone()));
        tokio::spawn(async move { server.serve_with_incoming(listener).await.unwrap() })
    }

    /// The lines of a plugin, with their attributes.
    fn lines(&self, plugin: &str) -> Vec<(String, Attributes)> {
        let records = self.records.lock().unwrap();
        let all = records
            .iter()
            .map(|(_, record)| (shown(record.body.as_ref()), plain(&record.attributes)));
        all.filter(|(_, attributes)| attributes["guest_agent.plugin"] == plugin).collect()
    }

    async fn line(&self, bed: &Bed, plugin: &str, text: &str) -> Attributes {
        let found = async || {
            let lines = self.lines(plugin).into_iter();
            lines.rev().find(|(line, _)| line == text).map(|(_, attributes)| attributes)
        };
        bed.until(&format!("the line {text:?} of {plugin}"), found).await
    }
}

/// A bed whose agent forwards to a collector at `otlp.sock`, which wants a token.
async fn bed(setting: &str) -> (Bed, PathBuf) {
    let mut bed = Bed::builder().set(setting).build().await;
    let socket = bed.dir().join("otlp.sock");
    let headers = bed.dir().join("headers");
    std::fs::write(&headers, "authorization: Bearer secret\n").unwrap();
    bed.set(format!("telemetry.otlp_endpoint=unix:{}", socket.display()));
    bed.set(format!("telemetry.otlp_headers_file={}", headers.display()));
    bed.set("telemetry.traces=false");
    bed.set("telemetry.metrics=false");
    bed.set("plugins.log_to=[\"otlp\"]");
    (bed, socket)
}

#[tokio::test]
async fn lines_reach_the_journal_with_the_plugin_and_the_revision_that_wrote_them() {
    let mut bed = Bed::builder().build().await;
    let socket = bed.dir().join("journal.sock");
    bed.set(format!("plugins.log_journal_socket={}", socket.display()));
    let journal = Journal::listen(&socket);
    bed.start_agent().await;
    let first = talker(&bed, "first.tar", "echo from the first >&2").await;
    let hostile = "printf '\\033]0;x\\007\\000\\377PRIORITY=0\\nfrom the second\\n'";
    let second = talker(&bed, "second.tar", hostile).await;
    bed.configure(vec![
        orders::install("a", "1", &first).order(),
        orders::install("b", "7", &first).order(),
    ])
    .await;
    bed.running("a", "1").await;
    bed.running("b", "7").await;
    assert!(journal.all().is_empty(), "nothing is forwarded that nobody wants");
    let path = bed.dir().join("agent.toml");
    let mut file = std::fs::File::options().append(true).open(path).unwrap();
    file.write_all(b"[plugins]\nlog_to = [\"journald\"]\n").unwrap();
    signal(bed.agent_pid(), Signal::SIGHUP);

    let entry = journal.entry(&bed, b"from the first").await;
    let plugin = text(&entry, "GUEST_AGENT_PLUGIN");
    assert_eq!(text(&entry, "SYSLOG_IDENTIFIER"), plugin);
    assert_eq!(text(&entry, "GUEST_AGENT_REVISION"), if plugin == "a" { "1" } else { "7" });
    assert_eq!((&*text(&entry, "PRIORITY"), &*text(&entry, "GUEST_AGENT_INSTANCE")), ("6", "test"));
    let at: jiff::Timestamp = text(&entry, "GUEST_AGENT_TIME").parse().unwrap();
    assert!((jiff::Timestamp::now() - at).get_seconds() < 600, "{at}");
    bed.configure(vec![orders::install("a", "2", &second).order()]).await;
    let entry = journal.entry(&bed, b"from the second").await;
    assert_eq!(
        (&*text(&entry, "GUEST_AGENT_PLUGIN"), &*text(&entry, "GUEST_AGENT_REVISION")),
        ("a", "2")
    );
    let entry = journal.entry(&bed, b"\x1b]0;x\x07\0\xffPRIORITY=0").await;
    assert_eq!(text(&entry, "PRIORITY"), "6", "what is printed sets no field");
    let of_first = |plugin: &str| {
        let all = journal.all().into_iter();
        all.filter(|it| {
            it["MESSAGE"] == b"from the first" && text(it, "GUEST_AGENT_PLUGIN") == plugin
        })
        .count()
    };
    assert_eq!((of_first("a"), of_first("b")), (1, 1), "once each");
    bed.finish_after(async |bed| {
        assert_eq!(crate::harness::listing(&bed.dir().join("log/plugins")), [] as [PathBuf; 0]);
    })
    .await;
}

#[tokio::test]
async fn agents_that_are_killed_lose_no_line_and_repeat_a_bounded_number() {
    const LAST: usize = 6000;
    let (mut bed, socket) = bed("plugins.log_max_bytes=10485760").await;
    let collector = Collector::default();
    let _server = collector.listen(&socket);
    bed.start_agent().await;
    let script = format!(
        "(await go; i=0; while [ $i -lt {LAST} ]; do echo \"line $i\"; i=$((i+1));\n\
         [ $((i % 100)) = 0 ] && sleep 0.02; done) &"
    );
    let archive = talker(&bed, "p.tar", &script).await;
    bed.configure(vec![
        orders::install("p", "1", &archive).order(),
        orders::install("q", "3", &archive).order(),
    ])
    .await;
    bed.running("p", "1").await;
    bed.running("q", "3").await;
    go_on(&bed, "p", "go");
    go_on(&bed, "q", "go");
    let mut kills = 0;
    for share in [1, 2, 3] {
        bed.until("a part arrived", async || {
            (collector.lines("p").len() >= share * LAST / 5).then_some(())
        })
        .await;
        bed.kill_agent_only().await;
        kills += 1;
        bed.start_agent().await;
    }
    let last = format!("line {}", LAST - 1);
    for (plugin, revision) in [("p", "1"), ("q", "3")] {
        let attributes = collector.line(&bed, plugin, &last).await;
        assert_eq!(attributes["guest_agent.revision"], revision);
        let lines = collector.lines(plugin);
        assert!(lines.iter().all(|(_, it)| !it.contains_key("guest_agent.missing_bytes")));
        let numbers = lines.iter().filter_map(|(line, _)| line.strip_prefix("line ")?.parse().ok());
        let numbers: Vec<usize> = numbers.collect();
        // In order, but for the repetitions: each goes back by less than a message.
        let mut next = 0;
        for number in &numbers {
            assert!(*number <= next && *number + REPEATED_MAX >= next, "{number} after {next}");
            next = number + 1;
        }
        assert_eq!(next, LAST);
        assert!(numbers.len() <= LAST + kills * REPEATED_MAX, "{} lines", numbers.len());
    }
    let (who, record) = collector.records.lock().unwrap()[0].clone();
    assert_eq!((&*who["service.name"], &*who["host.id"]), ("guest-agent", "test"));
    assert!(record.time_unix_nano > 0 && record.observed_time_unix_nano >= record.time_unix_nano);
    bed.finish().await;
}

#[tokio::test]
async fn a_collector_that_was_away_is_told_what_is_missing() {
    let (mut bed, socket) = bed("plugins.log_max_bytes=65536").await;
    bed.start_agent().await;
    let script = "echo first; (await go; seq 100000 140000) &";
    let archive = talker(&bed, "p.tar", script).await;
    bed.configure(vec![orders::install("p", "1", &archive).order()]).await;
    bed.running("p", "1").await;
    let trouble = bed
        .until("the agent says that nothing arrives", async || {
            let agent = bed.try_status().await.ok()?.agent?;
            agent.troubles.into_iter().find(|it| it.contains("do not reach otlp"))
        })
        .await;
    assert!(trouble.contains("telemetry.otlp_endpoint"), "{trouble}");
    let doctor = bed.cli(&["doctor"]).await;
    assert!(doctor.stdout.contains("the logs of plugins do not reach otlp"), "{doctor:?}");
    go_on(&bed, "p", "go");
    bed.until("the log was cut", async || {
        let output = bed.plugin_output("p");
        (!output.contains("first") && output.contains("\n140000\n")).then_some(())
    })
    .await;
    let collector = Collector::default();
    *collector.rejects.lock().unwrap() = 2;
    let server = collector.listen(&socket);
    collector.line(&bed, "p", "140000").await;
    let lines = collector.lines("p");
    let told: Vec<_> =
        lines.iter().filter(|(_, it)| it.contains_key("guest_agent.missing_bytes")).collect();
    let [(text, attributes)] = told.as_slice() else { panic!("{told:?}") };
    let bytes: u64 = attributes["guest_agent.missing_bytes"].parse().unwrap();
    assert_eq!(*text, format!("{bytes} bytes of this log were cut before they were forwarded"));
    // What came, and what is said to be missing, is what was printed.
    let came: usize = lines.iter().filter(|it| it.0 != *text).map(|(line, _)| line.len() + 1).sum();
    let greeting = lines.iter().any(|(line, _)| line.contains("my files are in"));
    let printed = "first\n".len() + 40_001 * "100000\n".len();
    let whole = usize::try_from(bytes).unwrap() + came;
    assert!(whole >= printed && (greeting || whole < printed + 1000), "{whole} of {printed}");
    bed.until("refused lines are told", async || {
        let log = bed.log();
        (log.contains("lines of plugins' logs are refused") && log.contains("too old"))
            .then_some(())
    })
    .await;
    assert!(bed.log().contains("the logs of plugins are forwarded again"));
    bed.until("no trouble is left", async || {
        bed.try_status().await.ok()?.agent?.troubles.is_empty().then_some(())
    })
    .await;
    // It restarts, and gets what comes then.
    server.abort();
    let _server = collector.listen(&socket);
    let again = talker(&bed, "again.tar", "echo again").await;
    bed.configure(vec![orders::install("p", "2", &again).order()]).await;
    assert_eq!(collector.line(&bed, "p", "again").await["guest_agent.revision"], "2");
    bed.finish().await;
}
