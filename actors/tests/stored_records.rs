//! What version 1 of the agent wrote, a later one reads: every record in `fixtures/records-v1`
//! still means what the text beside it says.
//!
//! A fixture is written once and never changed. New ones are added to [`samples`], and written by
//!
//! ```text
//! WRITE_NEW_FIXTURES=1 cargo test -p guest-agent-actors --test machine stored_records
//! ```
//!
//! which leaves the ones that are there alone. A text that does not fit any more means that records
//! on real machines are misread: the reader is to be mended, not the fixture. Only where the
//! meaning stayed and its rendering changed (a field was renamed, say), the text is deleted and
//! written anew.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::disallowed_methods, reason = "fixtures are files")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_agent_actors::control_plane::generations::{Asks, Newest};
use guest_agent_actors::keys::number_key;
use guest_agent_actors::model::act::{Act, HeldOrder, Hold, Left, LimitOverride, Person};
use guest_agent_actors::model::audit::{self, Asker, AuditAct, AuditEntry, AuditVerdict, Via};
use guest_agent_actors::model::deed::{Change as ByPerson, Deed, Deeds};
use guest_agent_actors::model::event::{NewEvent, StoredEvent};
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::facts::{Number, Scope, Value};
use guest_agent_actors::model::id::{
    Attempt, BootId, Endpoint, FleetGeneration, Generation, PluginName, Process, Sha256Digest,
};
use guest_agent_actors::model::origin::Origin;
use guest_agent_actors::model::runs::{Due, Mark, Marks, Outcome, Runs, Trigger};
use guest_agent_actors::model::spec::{
    Artifact, ArtifactUrl, Boot, Config, Enablement, EntryPoint, Execution, Kind, Limits,
    LocalFiles, MatchPolicy, MetricsPolicy, OneShot, Operator, PluginSpec, Rule, Rules, Source,
    Tries, Triggers,
};
use guest_agent_actors::outbox::{Gap, Waiting};
use guest_agent_actors::plugin::health_log::HealthLog;
use guest_agent_actors::plugin::operation::{Operation, Trouble};
use guest_agent_actors::plugin::restart::Restarts;
use guest_agent_actors::plugin::snapshot::Snapshot;
use guest_agent_actors::plugin::state::{
    Change, FailedAt, Newer, Next, Owed, Pause, Phase, Resume, Shutdown, Standing, State, Target,
    Then, Trial,
};
use guest_agent_actors::plugin::transition_log::TransitionLog;
use guest_agent_actors::ports::{Health, Shortfall, Unenforced, Write};
use guest_agent_actors::records::{
    InboxContent, InboxEntry, put_deeds, put_generation, read_deeds, read_generation,
};
use guest_agent_actors::registry::catalogue::ProcessRun;
use guest_agent_actors::registry::entry::{Entry, Epoch, Offer, RawOffer, Registrant};
use guest_agent_actors::registry::record::{self, Record as RegistryRecord};
use guest_agent_actors::trace::Trace;
use guest_agent_actors::wire;

/// The number under which the events of the fixtures are kept.
const EVENT_KEY: u64 = 4711;

#[test]
fn records_of_version_1_still_mean_what_they_meant() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/records-v1");
    if std::env::var("WRITE_NEW_FIXTURES").is_ok() {
        write_new(&folder);
    }
    let mut wrong = String::new();
    let stored = fixtures(&folder, "bin");
    let texts = fixtures(&folder, "txt");
    for (name, path) in &stored {
        let meant = render(name, &fs::read(path).unwrap());
        match texts.get(name).map(|path| fs::read_to_string(path).unwrap()) {
            Some(expected) if expected == meant => {}
            Some(expected) => {
                writeln!(wrong, "{name} meant:\n{expected}and now means:\n{meant}").unwrap();
            }
            None => writeln!(wrong, "{name} has no text that says what it means").unwrap(),
        }
    }
    for name in texts.keys().filter(|name| !stored.contains_key(*name)) {
        writeln!(wrong, "{name} has a text and no record").unwrap();
    }
    for (name, _) in samples() {
        if !stored.contains_key(&name) {
            writeln!(wrong, "{name} has no record").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}\nthe beginning of this file says how fixtures are added");
}

#[test]
fn every_sample_is_a_record_that_can_be_read() {
    for (name, bytes) in samples() {
        let text = render(&name, &bytes);
        assert!(!text.starts_with("unreadable"), "{name}: {text}");
    }
}

/// Writes what is not there yet.
fn write_new(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    for (name, bytes) in samples() {
        create(&folder.join(format!("{name}.bin")), &bytes);
    }
    for (name, path) in fixtures(folder, "bin") {
        let text = render(&name, &fs::read(path).unwrap());
        create(&folder.join(format!("{name}.txt")), text.as_bytes());
    }
}

/// Writes a file, unless there is one.
fn create(path: &Path, bytes: &[u8]) {
    match fs::File::create_new(path) {
        Ok(mut file) => file.write_all(bytes).unwrap(),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// The files with an extension, by name.
fn fixtures(folder: &Path, extension: &str) -> BTreeMap<String, PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let wanted = entries.filter(|path| path.extension().is_some_and(|have| have == extension));
    wanted.map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), path)).collect()
}

/// What a record means, in words. Secrets of the fixtures are part of it.
fn render(name: &str, bytes: &[u8]) -> String {
    let read = match name.split('-').next().unwrap() {
        "plugin" => {
            Snapshot::decode(bytes).map(|read| snapshot(&read)).map_err(|e| format!("{e:?}"))
        }
        "inbox" => {
            let entry = InboxEntry::decode(bytes).map_err(|e| format!("{e:?}"));
            let text = entry.map(|e| without(&format!("{e:#?}\n"), "trace", &None::<()>));
            text.map(|text| without(&text, "refused", &Vec::<u32>::new()))
        }
        "event" => Waiting::decode(&number_key(EVENT_KEY), bytes)
            .map(|read| format!("{read:#?}\ntold as {:#?}\n", read.told()))
            .map_err(|e| format!("{e:?}")),
        "audit" => AuditEntry::decode(bytes)
            .map(|read| format!("{read:#?}\n"))
            .map_err(|e| format!("{e:?}")),
        "generation" => read_generation(b"generation/web", bytes)
            .map(|read| without(&format!("{read:#?}\n"), "asks", &None::<()>))
            .map_err(|e| format!("{e:?}")),
        "deeds" => read_deeds(b"deeds/web", bytes)
            .map(|read| format!("{read:#?}\n"))
            .map_err(|e| format!("{e:?}")),
        "registry" => RegistryRecord::decode(&registry_key(name), bytes)
            .map(|read| format!("{read:#?}\n"))
            .map_err(|e| format!("{e:?}")),
        other => Err(format!("no kind of record is called {other:?}")),
    };
    read.unwrap_or_else(|reason| format!("unreadable: {reason}\n"))
}

/// The key under which a record of the registry was kept.
fn registry_key(name: &str) -> Vec<u8> {
    match name {
        "registry-entry" => b"e\0csi-node\0ebs\0i-7".to_vec(),
        "registry-life" => b"l\0storage".to_vec(),
        "registry-type" => b"t\0csi-node".to_vec(),
        _ => b"n".to_vec(),
    }
}

/// One record of each kind that the registry keeps.
fn registry() -> [(&'static str, Write); 4] {
    let plugin: PluginName = "storage".parse().unwrap();
    let raw = RawOffer {
        kind: "csi-node".to_owned(),
        name: "ebs".to_owned(),
        instance: "i-7".to_owned(),
        version: "1.2".to_owned(),
        socket: "/run/ebs.sock".to_owned(),
        options: [("zone".to_owned(), "a".to_owned())].into(),
    };
    let process = Process { pid: 4242, start_ticks: 99, boot: BootId("boot-1".into()) };
    let entry = Entry {
        offer: Offer::parse(raw, &plugin).unwrap(),
        registrant: Registrant { plugin: plugin.clone(), process: process.clone(), uid: 1000 },
        epoch: Epoch(7),
        order: 9,
        registered_at: at(1_700_000_000, 5),
        standing: guest_agent_actors::registry::entry::Standing::Unverified,
    };
    [
        ("registry-entry", record::put_entry(&entry)),
        ("registry-life", record::put_life(&plugin, &ProcessRun { process, epoch: Epoch(7) })),
        ("registry-type", record::put_kind(&entry.key().kind)),
        ("registry-sequence", record::put_sequence(12)),
    ]
}

/// Entries of the audit record.
fn audited() -> [(&'static str, AuditEntry); 5] {
    let asker =
        |who: &str, via, detail: &str| Asker { who: who.into(), via, detail: detail.into() };
    let alice = asker("alice as root (uid 0)", Via::AgentSocket, "3");
    let token = asker("token ci", Via::Http, "until 2030-01-31T12:00:00Z: freeze");
    let script = asker("root (uid 0)", Via::CommandSocket, "shutdown");
    let fleet = asker("the control plane", Via::ControlPlane, "3");
    let outdated = AuditVerdict::Refused("ignored: its fleet-generation 3 is below 4".into());
    let web = || audit::Target::Plugin("web".into());
    let (at, order) = (at(1_700_000_000, 5), AuditVerdict::Accepted(Some(Generation(9))));
    let done = AuditVerdict::Accepted(None);
    let refused = AuditVerdict::Refused("no plugin has the name \"web\"".into());
    [
        ("order", AuditEntry::new(at, &alice, AuditAct::Install, web(), order.clone())),
        ("all", AuditEntry::new(at, &token, AuditAct::Hold, audit::Target::AllPlugins, order)),
        ("event", AuditEntry::new(at, &script, AuditAct::VmEvent, audit::Target::AllPlugins, done)),
        ("refused", AuditEntry::new(at, &token, AuditAct::Restart, web(), refused)),
        ("outdated", AuditEntry::new(at, &fleet, AuditAct::Install, web(), outdated)),
    ]
}

fn snapshot(read: &Snapshot) -> String {
    // What is a source now was an artifact when the first fixtures were made.
    let mut text = format!("{read:#?}\n").replace(" source: Artifact {", " artifact: Artifact {");
    text = without(&text, "execution", &Execution::default());
    text = without(&text, "runs", &Runs::default());
    text = without(&text, "trigger", &None::<()>);
    text = without(&text, "story", &TransitionLog::default());
    text = without(&text, "operation", &None::<()>);
    text = without(&text, "health", &HealthLog::default());
    text = without_braces(&without(&text, "peak", &None::<u64>));
    text = without(&text, "crashes", &Vec::<()>::new());
    text = without(&text, "crash_reason", &"");
    text = without(&text, "unenforced", &Unenforced::default());
    text = without(&text, "local", &None::<PluginSpec>);
    text = without(&text, "apply_of", &None::<()>);
    text = without(&text, "shutdown", &Shutdown::NotTaken);
    text = without(&text, "removal_trouble", &None::<()>);
    text = without(&text, "pause", &Pause::AfterCrash);
    text = without(&text, "former", &None::<PluginSpec>);
    text = without(&text, "person", &Person::default());
    text = without(&text, "hold", &None::<()>);
    text = without(&text, "held_order", &None::<()>);
    text = without(&text, "order_digest", &None::<()>);
    text = without(&text, "limits", &None::<()>);
    text = without(&text, "taken_back", &None::<()>);
    text = without(&text, "tasks", &None::<()>);
    text = without(&text, "limiting", &None::<()>);
    let state = &read.state;
    let next = match &state.next {
        Next::Preparing { spec, .. } | Next::Ready { spec } | Next::AfterRemoval { spec } => {
            Some(spec)
        }
        Next::Nothing | Next::Failed { .. } => None,
    };
    let trial = state.trial.as_ref().map(|trial| &trial.last_good);
    let held = match &state.person.held_order {
        Some(HeldOrder::Install(spec)) => Some(spec),
        Some(HeldOrder::Remove { .. } | HeldOrder::Apply { .. }) | None => None,
    };
    for spec in [Some(&state.spec), next, trial, held].into_iter().flatten() {
        // `Debug` hides these.
        let config = spec.config.as_ref().map(Config::digest);
        let revision = &spec.revision;
        let from = match &spec.source {
            Source::Archive(artifact) => format!("url {}", artifact.url.expose()),
            Source::Local(files) => format!("local {}", files.folder),
        };
        writeln!(text, "revision {revision}: {from}, config {config:?}").unwrap();
    }
    if let Phase::Running { change: Change::Applying { config: Some(config), .. }, .. } =
        &state.phase
    {
        writeln!(text, "applying {:?}", config.digest()).unwrap();
    }
    text
}

/// `text` with the names of variants alone where no field is left of them.
fn without_braces(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        match line.strip_suffix(" {") {
            Some(name) if lines.peek().is_some_and(|next| next.trim() == "},") => {
                lines.next();
                writeln!(kept, "{name},").unwrap();
            }
            Some(_) | None => writeln!(kept, "{line}").unwrap(),
        }
    }
    kept
}

/// `text` without a field wherever it has the value that every record has which was written before
/// there was such a field.
fn without(text: &str, field: &str, default: &dyn std::fmt::Debug) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let block = format!("{field}: {default:#?},");
    let block: Vec<&str> = block.lines().collect();
    let mut kept = String::new();
    let mut at = 0;
    while at < lines.len() {
        let indent = lines[at].len() - lines[at].trim_start().len();
        let is_default = lines[at..].len() >= block.len()
            && lines[at..].iter().zip(&block).all(|(line, of)| line.get(indent..) == Some(of));
        if is_default {
            at += block.len();
        } else {
            writeln!(kept, "{}", lines[at]).unwrap();
            at += 1;
        }
    }
    kept
}

// === Samples ===

/// All records there are fixtures of, as this agent writes them.
fn samples() -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut add = |name: String, bytes: Vec<u8>| {
        assert!(all.insert(name.clone(), bytes).is_none(), "{name} is there twice");
    };
    for (phase_name, phase) in phases() {
        for (next_name, next) in nexts() {
            // What is in flight for a next revision can meet any phase; the rest where it matters.
            let of_interest = matches!(next, Next::Nothing | Next::Preparing { .. })
                || matches!(phase_name, "running" | "stopping-swap" | "removing" | "backing-off");
            if of_interest {
                let state = State { next, ..state(phase.clone()) };
                add(format!("plugin-{phase_name}-{next_name}"), plain(state).encode());
            }
        }
    }
    for (name, state) in others().into_iter().chain(locals()).chain(held()) {
        add(format!("plugin-{name}"), plain(state).encode());
    }
    let timed = Snapshot {
        last_exit_at: Some(at(1_700_000_000, 5)),
        started_at: Some(at(1_700_000_001, 999_999_999)),
        ..plain(state(running(Change::None)))
    };
    add("plugin-with-times".to_owned(), timed.encode());
    let mut story = TransitionLog::default();
    story.moved(at(1_700_000_000, 1), "running 1", "process 4242 is up");
    story.wrote("its last words");
    story.failed(at(1_700_000_002, 3), "PLUGIN_CRASHED", "killed by SIGSEGV");
    let storied = Snapshot { story, ..plain(state(Phase::Idle)) };
    add("plugin-with-story".to_owned(), storied.encode());
    let mut story = TransitionLog::default();
    for second in [1_700_000_003, 1_700_000_099] {
        story.crashed(at(second, 4), Duration::ZERO, "exited with code 3");
    }
    let crashed = Snapshot { story, ..plain(state(running(Change::None))) };
    add("plugin-with-crashes".to_owned(), crashed.encode());
    let mut story = TransitionLog::default();
    story.crashed(at(1_700_000_003, 4), Duration::from_millis(1500), "exited with code 3");
    (story.changed_at, story.failed_at) = (Some(at(1_700_000_001, 5)), Some(at(1_700_000_100, 6)));
    let changed = Snapshot { story, ..plain(state(running(Change::None))) };
    add("plugin-with-a-change".to_owned(), changed.encode());
    let mut story = TransitionLog::default();
    story.health.begin(Some(at(1_700_000_000, 1)));
    let sick = Health { code: 7, results: vec!["disk full".to_owned(), "no net".to_owned()] };
    let _event = story.health.heard(sick.clone(), at(1_700_000_010, 2));
    let unhealthy = Snapshot { story: story.clone(), ..plain(state(running(Change::None))) };
    add("plugin-unhealthy".to_owned(), unhealthy.encode());
    let _event = story.health.heard(Health::default(), at(1_700_000_020, 3));
    let _no_event = story.health.heard(sick, at(1_700_000_030, 4));
    let flaps = Snapshot { story, ..plain(state(running(Change::None))) };
    add("plugin-unhealthy-without-an-event".to_owned(), flaps.encode());
    let left = Left { revision: "3".parse().unwrap(), by: "root: it is slow".into() };
    let stopped = Some("root: maintenance".into());
    let person = Person { stopped, left: Some(left), ..Person::default() };
    let former = Some(spec("1", None));
    let held = State { person, former, ..state(Phase::Disabled { reason: "stopped".into() }) };
    add("plugin-stopped-and-rolled-back".to_owned(), plain(held).encode());
    let person = Person { limits: Some(limit_override()), ..Person::default() };
    let limiting = Some(Attempt(23));
    let limited = State { person, limiting, ..state(running(Change::None)) };
    add("plugin-limited".to_owned(), plain(limited).encode());
    let ordered = Arc::new(PluginSpec {
        order_digest: Some(Sha256Digest::of(b"the order")),
        ..PluginSpec::clone(&spec("2", None))
    });
    let taken =
        State { spec: ordered, former: Some(spec("1", None)), ..state(running(Change::None)) };
    add("plugin-with-order-digest".to_owned(), plain(taken).encode());
    let newest = Newest {
        generation: FleetGeneration::new(7).unwrap(),
        body: Sha256Digest::of(b"the order"),
        order: Generation(17),
        asks: None,
    };
    let web: PluginName = "web".parse().unwrap();
    let config = Some(Sha256Digest::of(b"the configuration"));
    for (name, asks) in [
        ("generation", None),
        ("generation-of-removal", Some(Asks::Removal)),
        ("generation-of-config", Some(Asks::Config(config))),
        ("generation-of-no-config", Some(Asks::Config(None))),
    ] {
        add(name.to_owned(), put(put_generation(&web, &Newest { asks, ..newest })));
    }
    add("deeds".to_owned(), put(put_deeds(&web, &deeds(config))));
    let mut story = TransitionLog::default();
    story.unenforced.push(Shortfall::new("memory limit", "no controller", "enable it"));
    let short = Snapshot { story, ..plain(state(running(Change::None))) };
    add("plugin-with-unenforced".to_owned(), short.encode());
    let parent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
    let trace = Arc::new(Trace::of_message("message-1", parent, at(1_700_000_000, 7)));
    let mut operation = Operation::new(trace.clone(), Some(Generation(9)), "2");
    operation.trouble = Some(Trouble { revision: "2".into(), why: "it did not start".into() });
    let story = TransitionLog { operation: Some(operation), ..TransitionLog::default() };
    let busy = Snapshot { story, ..plain(state(Phase::Idle)) };
    add("plugin-with-errand".to_owned(), busy.encode());
    let own = Arc::new(Trace::of_own("restart", "a", at(1_700_000_001, 8)));
    let story = TransitionLog {
        operation: Some(Operation::new(own, None, "1")),
        ..TransitionLog::default()
    };
    let returning = Snapshot { story, ..plain(state(Phase::Idle)) };
    add("plugin-with-errand-of-its-own".to_owned(), returning.encode());
    let traced = InboxEntry {
        first: Generation(9),
        content: InboxContent::Restart("a".parse().unwrap()),
        origin: Origin::Local,
        trace: Some(trace),
        refused: Vec::new(),
    };
    for (name, entry) in audited() {
        add(format!("audit-{name}"), entry.encode());
    }
    add("inbox-traced".to_owned(), traced.encode());
    let refused = InboxEntry {
        content: InboxContent::Configure(vec![10, 0, 10, 0]),
        refused: vec![1],
        ..traced
    };
    add("inbox-with-refused".to_owned(), refused.encode());
    for (name, content, origin) in [
        ("control-plane", InboxContent::Configure(vec![10, 0, 255]), Origin::ControlPlane),
        ("local", InboxContent::Configure(vec![10, 0]), Origin::Local),
        ("restart", InboxContent::Restart("a".parse().unwrap()), Origin::Local),
        (
            "stop",
            InboxContent::Asked("a".parse().unwrap(), Act::Stop("root".into())),
            Origin::Local,
        ),
        ("start", InboxContent::Asked("a".parse().unwrap(), Act::Start), Origin::Local),
        (
            "rollback",
            InboxContent::Asked("a".parse().unwrap(), Act::Rollback("root".into())),
            Origin::Local,
        ),
        ("hold", InboxContent::Asked("a".parse().unwrap(), Act::Hold(hold())), Origin::Local),
        ("hold-of-all", InboxContent::AskedOfAll(Act::Hold(hold())), Origin::Local),
        ("release-of-all", InboxContent::AskedOfAll(Act::Release), Origin::Local),
        ("release", InboxContent::Asked("a".parse().unwrap(), Act::Release), Origin::Local),
        (
            "dismiss",
            InboxContent::Asked(
                "a".parse().unwrap(),
                Act::Dismiss { by: "root: known".into(), revision: "2".parse().unwrap() },
            ),
            Origin::Local,
        ),
        (
            "limit",
            InboxContent::Asked("a".parse().unwrap(), Act::Limit(Some(limit_override()))),
            Origin::Local,
        ),
        (
            "limit-as-ordered",
            InboxContent::Asked("a".parse().unwrap(), Act::Limit(None)),
            Origin::Local,
        ),
    ] {
        let (first, refused) = (Generation(u64::MAX - 1), Vec::new());
        let entry = InboxEntry { first, content, origin, trace: None, refused };
        add(format!("inbox-{name}"), entry.encode());
    }
    for (name, write) in registry() {
        match write {
            Write::Put { key, value, .. } if key == registry_key(name) => {
                add(name.to_owned(), value);
            }
            other => panic!("{name} is kept elsewhere: {other:?}"),
        }
    }
    for number in (1..=15).chain([1001, 1002]) {
        let kind = wire::event_kind(number).unwrap();
        let recorded = event(number, "in words, ünïcode too");
        add(format!("event-{number:02}-{kind:?}"), recorded.encode());
    }
    add("event-without-details".to_owned(), event(4, "").encode());
    for (name, sent) in [("gap", false), ("gap-sent", true)] {
        let gap =
            Gap { events: 38, elsewhere: 2, from: at(1_700_000_000, 1), to: at(1_700_000_060, 2) };
        let waiting = Waiting { recorded: event(7, ""), gap: Some(gap), sent };
        add(format!("event-{name}"), waiting.encode());
    }
    all
}

fn at(seconds: u64, nanos: u32) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos)
}

/// The value of a record.
fn put(write: Write) -> Vec<u8> {
    let Write::Put { value, .. } = write else { unreachable!("it is put") };
    value
}

/// One deed of each kind; what was done with the configuration twice.
fn deeds(config: Option<Sha256Digest>) -> Deeds {
    let changes = [
        ByPerson::Removed,
        ByPerson::Installed("2".parse().unwrap()),
        ByPerson::RolledBack,
        ByPerson::Configured(config),
        ByPerson::Configured(None),
        ByPerson::Stopped,
    ];
    let deed = |(change, second)| {
        let at = (second != 3).then(|| at(1_700_000_000 + second, 5));
        Deed { change, by: format!("alice as root (uid 0): {second}").into(), at }
    };
    changes.into_iter().zip(1u64..).map(deed).collect()
}

fn event(number: i32, details: &str) -> StoredEvent {
    let kind = wire::event_kind(number).unwrap();
    let event = NewEvent::new(kind, "a", "1", at(1_700_000_000, 123_456_789), details);
    StoredEvent { seq: EVENT_KEY, id: "7b0f52c5-5f5b-4f5e-9a3d-0a5a5a5a5a5a".into(), event }
}

fn spec(revision: &str, config: Option<Config>) -> Arc<PluginSpec> {
    Arc::new(PluginSpec {
        name: "a".parse().unwrap(),
        revision: revision.parse().unwrap(),
        source: Source::Archive(Artifact {
            url: ArtifactUrl::new(&format!("https://store.example/a-{revision}.tgz?signature=s")),
            sha256: Sha256Digest::of(revision.as_bytes()),
        }),
        entry_point: EntryPoint::parse("bin/plugin").unwrap(),
        arguments: vec!["--verbose".to_owned(), String::new()],
        limits: Limits { memory_bytes: Some(1 << 40), cpu_percent: Some(0), tasks: None },
        download: Tries { attempts: 5, timeout: Duration::from_millis(60_500) },
        start: Tries { attempts: 3, timeout: Duration::from_secs(30) },
        stop_timeout: Duration::from_secs(31),
        metrics: MetricsPolicy { interval: Duration::from_secs(10), points: 60 },
        backoff_factor: 2,
        config,
        execution: Execution::default(),
        order_digest: None,
    })
}

fn local_spec(revision: &str) -> Arc<PluginSpec> {
    let sha256 = Sha256Digest::of(revision.as_bytes());
    let folder = "/usr/lib/guest-agent/plugins/a".into();
    Arc::new(PluginSpec {
        source: Source::Local(LocalFiles { folder, sha256 }),
        entry_point: EntryPoint::parse_local("/usr/sbin/a").unwrap(),
        ..PluginSpec::clone(&spec(revision, None))
    })
}

fn text(text: &str) -> Option<Config> {
    Some(Config::Text(text.into()))
}

fn process() -> Process {
    Process { pid: 4242, start_ticks: 1 << 40, boot: BootId("boot".into()) }
}

fn plain(state: State) -> Snapshot {
    Snapshot::of(state)
}

fn state(phase: Phase) -> State {
    State {
        name: "a".parse().unwrap(),
        generation: Generation(17),
        spec: spec("1", text("configuration")),
        phase,
        next: Next::Nothing,
        trial: None,
        standing: Standing::Unproven,
        owed: Owed::default(),
        apply_of: None,
        attempt: Attempt(23),
        restarts: Restarts { total: 9, in_a_row: 2 },
        last_exit: None,
        runs: Runs::default(),
        local: None,
        shutdown: Shutdown::NotTaken,
        former: None,
        person: Person::default(),
        limiting: None,
        removal_trouble: None,
    }
}

/// Plugins that came with the machine, and what a control plane put above them.
fn locals() -> Vec<(&'static str, State)> {
    let local = Some(local_spec("image-1"));
    let runs = || state(running(Change::None));
    let trial = Some(Trial { slices_left: 4, ..Trial::against(local_spec("image-1")) });
    let next = Next::Preparing { spec: spec("2", None), attempt: Attempt(23) };
    vec![
        ("local", State { spec: local_spec("image-1"), local: local.clone(), ..runs() }),
        ("local-below", State { local: local.clone(), ..runs() }),
        ("local-on-trial-above", State { local: local.clone(), trial, ..runs() }),
        ("local-next-dynamic", State { spec: local_spec("image-1"), local, next, ..runs() }),
    ]
}

fn hold() -> Hold {
    let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    Hold { by: "root: freeze".into(), since: at(1_700_000_000), until: Some(at(1_700_003_600)) }
}

fn limit_override() -> LimitOverride {
    let limits = Limits { memory_bytes: Some(96 << 20), cpu_percent: None, tasks: Some(200) };
    LimitOverride { limits, by: "root: backfill".into(), since: at(1_700_000_000, 5) }
}

/// Plugins that a person holds.
fn held() -> Vec<(&'static str, State)> {
    let of = || "1".parse().unwrap();
    let with = |phase, held_order| {
        let hold = Some(Hold { until: None, ..hold() });
        State { person: Person { hold, held_order, ..Person::default() }, ..state(phase) }
    };
    let waits = |order| with(running(Change::None), Some(order));
    let free = Person { hold: Some(hold()), ..Person::default() };
    vec![
        ("held", State { person: free, ..state(running(Change::None)) }),
        ("held-install", waits(HeldOrder::Install(spec("2", text("new"))))),
        ("held-remove", waits(HeldOrder::Remove { of: of() })),
        ("held-apply", waits(HeldOrder::Apply { config: text("new"), of: of() })),
        ("held-apply-of-nothing", waits(HeldOrder::Apply { config: None, of: of() })),
        ("held-fresh", with(Phase::Held, Some(HeldOrder::Install(spec("1", None))))),
    ]
}

fn running(change: Change) -> Phase {
    Phase::Running { process: process(), endpoint: Endpoint::unix("/run/a.sock"), change }
}

fn stopping(then: Then) -> Phase {
    let endpoint = Some(Endpoint::unix("/run/a.sock"));
    let target = Target { process: Some(process()), endpoint };
    Phase::Stopping { attempt: Attempt(23), target, then }
}

fn phases() -> Vec<(&'static str, Phase)> {
    let (attempt, reason) = (Attempt(23), Arc::<str>::from("a reason"));
    let applying =
        |config, answers| running(Change::Applying { attempt, config, answers, newer: None });
    let newer = Newer { config: text("newest"), limits: Due::Yes };
    let in_turn = running(Change::Applying {
        attempt,
        config: text("new"),
        answers: Owed::default(),
        newer: Some(newer),
    });
    let process = Some(process());
    let of_unknown = Target { process: None, endpoint: None };
    vec![
        ("installing", Phase::Installing { attempt }),
        ("install-failed", Phase::InstallFailed { reason: reason.clone() }),
        ("starting", Phase::Starting { attempt, tries: 1, process: None }),
        ("starting-process", Phase::Starting { attempt, tries: 3, process }),
        ("pausing", Phase::Pausing { tries: 2, reason: reason.clone() }),
        ("running", running(Change::None)),
        ("applying-for-apply", applying(text("new"), Owed::APPLY)),
        ("applying-for-install", applying(Some(Config::Struct([10, 0].into())), Owed::INSTALL)),
        ("applying-with-a-newer-order", in_turn),
        ("applying-nothing", applying(None, Owed::APPLY)),
        ("limiting", running(Change::Limiting { attempt, config: text("new") })),
        ("backing-off", Phase::BackingOff { reason: reason.clone(), pause: Pause::AfterCrash }),
        ("stopping-start", stopping(Then::Start)),
        ("stopping-swap", stopping(Then::Swap)),
        ("stopping-return", stopping(Then::Return { reason: reason.clone() })),
        ("stopping-back-off", stopping(Then::BackOff { reason: reason.clone() })),
        ("stopping-rest", stopping(Then::Rest { reason: reason.clone() })),
        ("stopping-remove", stopping(Then::Remove)),
        ("stopping-unknown", Phase::Stopping { attempt, target: of_unknown, then: Then::Remove }),
        ("stopped-start", Phase::Stopped { then: Resume::Start }),
        ("stopped-swap", Phase::Stopped { then: Resume::Swap }),
        ("executing", Phase::Executing { process: self::process(), slices_left: 3 }),
        ("idle", Phase::Idle),
        ("disabled", Phase::Disabled { reason: reason.clone() }),
        ("stopping-fail", stopping(Then::Fail { reason: reason.clone() })),
        ("stopping-disable", stopping(Then::Disable { reason: reason.clone() })),
        ("crashed", Phase::Crashed { reason }),
        ("removing", Phase::Removing { attempt, failures: 4 }),
        ("gone", Phase::Gone),
    ]
}

fn nexts() -> Vec<(&'static str, Next)> {
    let next = spec("2", Some(Config::Struct([1, 2, 3].into())));
    let failed = |at| Next::failed("2".parse().unwrap(), at, "another reason".into());
    let dismissed = Next::Failed {
        revision: "2".parse().unwrap(),
        at: FailedAt::Run,
        reason: "another reason".into(),
        dismissed: Some("root: known".into()),
    };
    vec![
        ("next-nothing", Next::Nothing),
        ("next-preparing", Next::Preparing { spec: next.clone(), attempt: Attempt(23) }),
        ("next-ready", Next::Ready { spec: next.clone() }),
        ("next-after-removal", Next::AfterRemoval { spec: next }),
        ("next-failed-install", failed(FailedAt::Install)),
        ("next-failed-run", failed(FailedAt::Run)),
        ("next-dismissed", dismissed),
    ]
}

/// An execution model with everything in it.
fn execution() -> Execution {
    let number = |number| Value::Number(Number::new(number).unwrap());
    let fields = [("key".into(), Value::List(vec![Value::Null, number(-0.5)]))];
    let rule = |scope, operator, value| Rule { scope, attribute: "x".into(), operator, value };
    let triggers =
        Triggers { startup: true, firstboot: true, interval: Some(Duration::from_millis(90_500)) };
    Execution {
        kind: Kind::OneShot(OneShot { triggers, timeout: Duration::from_secs(86_400) }),
        rules: Arc::new(Rules {
            on_default: Enablement::Disabled,
            on_match: Enablement::Enabled,
            policy: MatchPolicy::Any,
            all: vec![
                rule(Scope::Os, Operator::Equal, Value::text("text")),
                rule(Scope::Instance, Operator::NotEqual, Value::Bool(true)),
                rule(Scope::Metadata, Operator::Contains, Value::Struct(fields.into())),
            ],
        }),
        boot: Boot::Critical,
    }
}

/// What does not depend on the phase.
fn others() -> Vec<(&'static str, State)> {
    let runs = || state(running(Change::None));
    let exited = |cause| State { last_exit: Some(cause), ..runs() };
    let trial = Some(Trial { slices_left: 4, ..Trial::against(spec("0", None)) });
    let mut bare = PluginSpec::clone(&spec("1", None));
    (bare.limits, bare.arguments) = (Limits::default(), Vec::new());
    let mut modelled = PluginSpec::clone(&spec("1", None));
    modelled.execution = execution();
    let marks = Marks {
        startup: Mark::Of(BootId("boot".into())),
        firstboot: Mark::Counted,
        interval: Mark::Of(u64::MAX),
    };
    let last = Outcome::Failed { reason: "a reason".into() };
    let ran = Runs { marks, total: 8, unfinished: Due::Yes, last, trigger: None };
    let completed = Runs { last: Outcome::Completed, ..Runs::default() };
    let ended = Phase::BackingOff { reason: "a reason".into(), pause: Pause::AfterShutdown };
    vec![
        ("took-shutdown", State { shutdown: Shutdown::Taken, ..runs() }),
        ("ended-with-machine", state(ended)),
        (
            "not-removed-yet",
            State {
                removal_trouble: Some("a reason".into()),
                ..state(Phase::Removing { attempt: Attempt(23), failures: 3 })
            },
        ),
        ("with-execution-model", State { spec: Arc::new(modelled), ..state(Phase::Idle) }),
        ("ran", State { runs: ran, ..state(Phase::Idle) }),
        ("completed", State { runs: completed, ..state(Phase::Idle) }),
        ("on-trial", State { trial, ..runs() }),
        ("proven", State { standing: Standing::Proven, ..runs() }),
        ("owes-install", State { owed: Owed { install: Due::Yes, apply: Due::No }, ..runs() }),
        ("owes-apply", State { owed: Owed { install: Due::No, apply: Due::Yes }, ..runs() }),
        (
            "owes-apply-of-another",
            State {
                owed: Owed { install: Due::Yes, apply: Due::Yes },
                apply_of: Some("0".parse().unwrap()),
                ..runs()
            },
        ),
        ("exited", exited(ExitCause::Exited(-1))),
        ("signaled", exited(ExitCause::Signaled(9))),
        ("out-of-memory", exited(ExitCause::OutOfMemory { peak: None })),
        ("over-memory-limit", exited(ExitCause::OverMemoryLimit { peak: None })),
        ("out-of-memory-with-peak", exited(ExitCause::OutOfMemory { peak: Some(64 << 20) })),
        (
            "over-memory-limit-with-peak",
            exited(ExitCause::OverMemoryLimit { peak: Some(65 << 20) }),
        ),
        ("exit-unknown", exited(ExitCause::Unknown)),
        ("bare-spec", State { spec: Arc::new(bare), ..runs() }),
        ("ran-for-install", ran_for(Trigger::Install)),
        ("ran-for-startup", ran_for(Trigger::Startup)),
        ("ran-for-firstboot", ran_for(Trigger::FirstBoot)),
        ("ran-for-interval", ran_for(Trigger::Interval)),
        ("ran-for-rule", ran_for(Trigger::Rule)),
        ("ran-for-person", ran_for(Trigger::Person)),
    ]
}

fn ran_for(trigger: Trigger) -> State {
    let runs = Runs { total: 1, trigger: Some(trigger), ..Runs::default() };
    State { runs, ..state(Phase::Idle) }
}
