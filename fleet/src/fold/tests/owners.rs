//! Owners that are killed, stopped and doubled, while everything changes and the ledger fails.

use std::sync::Arc;
use std::time::Duration;

use guest_agent_proto::agent_controlplane::PluginEventMessage;
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::records::agent::AgentRecord;
use guest_fleet_ledger::records::configuration::{AssignmentRecord, ReleaseRecord};
use guest_fleet_ledger::records::event::{EventRecord, subject};
use guest_fleet_ledger::records::index::{
    CheckpointRecord, CursorRecord, LeaseRecord, checkpoint_key, leaf_key, lease_key,
};
use guest_fleet_ledger::records::journal::{EntryRecord, JournalRecord, OrderRecord};
use guest_fleet_ledger::records::report::{ReportRecord, ReportedPlugin};
use guest_fleet_ledger::{
    Bucket, Faults, Layered, Ledger, Log, MemoryLedger, Revision, SharedLedger, Write, bounds,
    records,
};
use prost::Message;
use prost_types::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::reader::Index;
use super::super::run;
use super::stand_in::StandIn;
use super::{START, indexed, is_right, settings};

const TTL: Duration = super::super::lease::Lease::TTL;

/// A process that folds.
struct Process {
    ledger: Arc<Layered<StandIn>>,
    task: JoinHandle<()>,
}

impl Process {
    fn start(ledger: &SharedLedger, shards: u32, settings: &super::Settings) -> Self {
        let ledger = StandIn::new(ledger.clone());
        let settings = super::Settings { shards, ..settings.clone() };
        let task = tokio::spawn(run(ledger.clone(), settings, CancellationToken::new()));
        Self { ledger, task }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Puts a record there, whatever goes wrong meanwhile.
async fn put(ledger: &dyn Ledger, bucket: Bucket, key: &str, value: Option<Vec<u8>>) {
    for _ in 0..200 {
        let Ok(found) = ledger.get(bucket, key).await else { continue };
        let expected = found.map_or(Revision::ABSENT, |found| found.revision);
        let write = Write { key: key.to_owned(), expected, value: value.clone().map(Into::into) };
        if ledger.write(bucket, vec![write]).await.is_ok() {
            return;
        }
    }
}

fn agent(id: &str, env: &str, seen: u64) -> Vec<u8> {
    let seen = i64::try_from(seen).ok().map(|seconds| Timestamp { seconds, nanos: 0 });
    AgentRecord {
        operator_labels: [("env".to_owned(), env.to_owned())].into(),
        seen,
        ..AgentRecord::new(id)
    }
    .encode_to_vec()
}

fn journal(revision: &str, state: u32, since: u64) -> Vec<u8> {
    let order = OrderRecord {
        generation: since,
        revision: revision.to_owned(),
        digest: vec![1; 32],
        since,
        state,
        ..OrderRecord::default()
    };
    let entry = EntryRecord { generation: since, order: Some(order), ..EntryRecord::default() };
    let plugins = [("log".to_owned(), entry)].into();
    JournalRecord { version: 1, plugins, ..JournalRecord::default() }.encode_to_vec()
}

fn report(revision: &str) -> Vec<u8> {
    let plugin = ReportedPlugin {
        name: "log".to_owned(),
        revision: revision.to_owned(),
        ..ReportedPlugin::default()
    };
    let architecture = "amd64".to_owned();
    ReportRecord { version: 1, architecture, plugins: vec![plugin], ..ReportRecord::default() }
        .encode_to_vec()
}

fn assignment(revision: &str, selector: &str) -> Vec<u8> {
    AssignmentRecord {
        version: 1,
        plugin: "log".to_owned(),
        revision: revision.to_owned(),
        selector: selector.to_owned(),
        ..AssignmentRecord::default()
    }
    .encode_to_vec()
}

async fn release(ledger: &dyn Ledger, revision: &str) {
    let record = ReleaseRecord {
        version: 1,
        plugin: "log".to_owned(),
        revision: revision.to_owned(),
        archives: [("any".to_owned(), Default::default())].into(),
        order: Vec::new(),
    };
    let key = format!("release/log/{revision}");
    put(ledger, Bucket::Configuration, &key, Some(record.encode_to_vec())).await;
}

/// One thing that happens in the fleet.
async fn happen(ledger: &dyn Ledger, random: &mut StdRng, now: u64) {
    let id = format!("a-{}", random.random_range(0..60));
    let pick = |random: &mut StdRng| ["1", "2", "9"][random.random_range(0..3)];
    match random.random_range(0..12) {
        0..=3 => {
            let env = ["prod", "test"][random.random_range(0..2)];
            let seen = now - random.random_range(0..40 * 86_400);
            put(ledger, Bucket::Agents, &id, Some(agent(&id, env, seen))).await;
        }
        4 => put(ledger, Bucket::Agents, &id, None).await,
        5..=7 => {
            let state = random.random_range(1..8);
            let since = now - random.random_range(0..2_000);
            let value = journal(pick(random), state, since);
            put(ledger, Bucket::Journal, &id, Some(value)).await;
        }
        8 => put(ledger, Bucket::Reports, &id, Some(report(pick(random)))).await,
        9 => put(ledger, Bucket::Reports, &id, None).await,
        10 => {
            let event = PluginEventMessage {
                plugin_name: "log".to_owned(),
                ..PluginEventMessage::default()
            };
            let record = EventRecord::of_event(None, event.encode_to_vec());
            let subject = subject(&id, "log");
            let last = ledger.last(Log::Events, &subject).await.ok().flatten();
            let last = last.map_or(0, |entry| entry.number);
            let id = random.random_range(0..u64::MAX).to_string();
            drop(
                ledger
                    .append(Log::Events, &subject, last, &id, record.encode_to_vec().into())
                    .await,
            );
        }
        _ => {
            let selector = ["all", "env = prod", "env = test"][random.random_range(0..3)];
            let name = ["assignment/x", "assignment/y"][random.random_range(0..2)];
            let value = (random.random_range(0..4) > 0).then(|| assignment(pick(random), selector));
            put(ledger, Bucket::Configuration, name, value).await;
        }
    }
}

/// Waits until the index has everything that was written before now, and is right.
async fn settled(ledger: &dyn Ledger, wall: &dyn Fn() -> Seconds) {
    let asked = wall();
    let mut last = String::new();
    for _ in 0..600 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let index = Index::open(ledger).await.ok().flatten();
        let as_of = index.and_then(|index| index.as_of());
        if as_of.is_some_and(|as_of| as_of > asked) {
            match is_right(ledger, wall()).await {
                Ok(()) => return,
                Err(problem) => last = problem,
            }
            // It says that everything is in it, and nothing changes any more.
            panic!("the index is wrong: {last}");
        }
        last = format!("as of {as_of:?}, asked at {asked:?}");
    }
    panic!("the index was not brought up to date: {last}");
}

async fn storm(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let faults =
        Faults { stale: 0.3, ambiguous: 0.1, unavailable: 0.1, latency: Duration::from_millis(40) };
    let memory = MemoryLedger::with_faults(seed, faults);
    let ledger: SharedLedger = Arc::new(memory.clone());
    let settings = settings(1);
    let shards = random.random_range(1..4);
    for revision in ["1", "2"] {
        release(&*ledger, revision).await;
    }
    let mut processes = vec![Process::start(&ledger, shards, &settings)];
    for _ in 0..random.random_range(30..150) {
        for _ in 0..random.random_range(1..6) {
            happen(&*ledger, &mut random, (settings.wall)().0).await;
        }
        match random.random_range(0..20) {
            0 if !processes.is_empty() => {
                let at = random.random_range(0..processes.len());
                drop(processes.remove(at));
            }
            1..=2 if !processes.is_empty() => {
                let at = random.random_range(0..processes.len());
                processes[at].ledger.stop(random.random_range(0..3) > 0);
            }
            3 if processes.len() < 3 => {
                processes.push(Process::start(&ledger, shards, &settings));
            }
            4 => tokio::time::sleep(2 * TTL).await,
            5 => tokio::time::sleep(Duration::from_mins(10)).await,
            _ => tokio::time::sleep(Duration::from_millis(random.random_range(0..800))).await,
        }
    }
    for process in &processes {
        process.ledger.stop(false);
    }
    processes.push(Process::start(&ledger, shards, &settings));
    memory.set_faults(Faults::default());
    memory.land_late();
    settled(&*ledger, &*settings.wall).await;
}

#[tokio::test(start_paused = true)]
async fn law_the_index_is_a_recount_after_faults_kills_stops_and_doubles() {
    let seeds = std::env::var("FLEET_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    for seed in 0..seeds.unwrap_or(4) {
        println!("seed {seed}");
        storm(seed).await;
    }
}

/// A ledger with some agents that were ordered something.
async fn filled(agents: u64) -> (SharedLedger, MemoryLedger) {
    let memory = MemoryLedger::new();
    let ledger: SharedLedger = Arc::new(memory.clone());
    release(&*ledger, "1").await;
    put(&*ledger, Bucket::Configuration, "assignment/x", Some(assignment("1", "all"))).await;
    for at in 0..agents {
        let id = format!("a-{at:05}");
        put(&*ledger, Bucket::Agents, &id, Some(agent(&id, "prod", START))).await;
        put(&*ledger, Bucket::Journal, &id, Some(journal("1", 4, START))).await;
    }
    (ledger, memory)
}

async fn owner_of(ledger: &dyn Ledger) -> String {
    let found = ledger.get(Bucket::Index, &lease_key(0)).await.expect("no fault");
    let lease = found.map(|found| LeaseRecord::decode(found.value).expect("a lease"));
    lease.map(|lease| lease.owner).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_dead_owners_lease_is_taken_over_after_its_time_and_not_before() {
    let (ledger, _) = filled(10).await;
    let settings = settings(1);
    let first = Process::start(&ledger, 1, &settings);
    settled(&*ledger, &*settings.wall).await;
    let owner = owner_of(&*ledger).await;
    let _second = Process::start(&ledger, 1, &settings);
    tokio::time::sleep(3 * TTL).await;
    assert_eq!(owner_of(&*ledger).await, owner, "the first lives");
    drop(first);
    let died = Instant::now();
    while owner_of(&*ledger).await == owner {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let waited = died.elapsed();
    assert!(waited > TTL / 2 && waited < 2 * TTL, "{waited:?}");
    settled(&*ledger, &*settings.wall).await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_ends_in_order_gives_its_lease_back() {
    let (ledger, _) = filled(3).await;
    let settings = settings(1);
    let ending = CancellationToken::new();
    let first = tokio::spawn(run(ledger.clone(), settings.clone(), ending.clone()));
    settled(&*ledger, &*settings.wall).await;
    ending.cancel();
    first.await.expect("it ends");
    assert_eq!(owner_of(&*ledger).await, "");
    let _second = Process::start(&ledger, 1, &settings);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_ne!(owner_of(&*ledger).await, "", "nobody waits");
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_was_stopped_for_long_writes_nothing_afterwards() {
    let (ledger, _) = filled(20).await;
    let settings = settings(1);
    let first = Process::start(&ledger, 1, &settings);
    settled(&*ledger, &*settings.wall).await;
    first.ledger.stop(true);
    let _second = Process::start(&ledger, 1, &settings);
    for at in 0..20 {
        let id = format!("a-{at:05}");
        put(&*ledger, Bucket::Journal, &id, Some(journal("1", 6, START + 5))).await;
    }
    tokio::time::sleep(3 * TTL).await;
    let owner = owner_of(&*ledger).await;
    settled(&*ledger, &*settings.wall).await;
    first.ledger.stop(false);
    tokio::time::sleep(3 * TTL).await;
    assert_eq!(owner_of(&*ledger).await, owner);
    settled(&*ledger, &*settings.wall).await;
}

#[tokio::test(start_paused = true)]
async fn deletions_that_the_ledger_forgot_are_found() {
    let (ledger, _) = filled(30).await;
    let settings = settings(1);
    let first = Process::start(&ledger, 1, &settings);
    settled(&*ledger, &*settings.wall).await;
    drop(first);
    for at in 0..7 {
        put(&*ledger, Bucket::Agents, &format!("a-{at:05}"), None).await;
        put(&*ledger, Bucket::Journal, &format!("a-{at:05}"), None).await;
    }
    // Others push their tombstones out.
    let keys: Vec<String> = (0..bounds::TOMBSTONES).map(|at| format!("x-{at}")).collect();
    for keys in keys.chunks(bounds::BATCH) {
        let write = |expected, value: Option<&'static [u8]>| {
            let one =
                |key: &String| Write { key: key.clone(), expected, value: value.map(Into::into) };
            keys.iter().map(one).collect::<Vec<_>>()
        };
        let made = ledger.write(Bucket::Agents, write(Revision::ABSENT, Some(b""))).await;
        let made = made.expect("no fault");
        ledger.write(Bucket::Agents, write(made, None)).await.expect("no fault");
    }
    let _second = Process::start(&ledger, 1, &settings);
    settled(&*ledger, &*settings.wall).await;
    assert_eq!(indexed(&*ledger, 100).await.expect("an index").len(), 23);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_index_is_made_anew() {
    let (ledger, _) = filled(400).await;
    let settings = settings(1);
    let first = Process::start(&ledger, 1, &settings);
    settled(&*ledger, &*settings.wall).await;
    drop(first);
    put(&*ledger, Bucket::Index, &leaf_key(0, 1), Some(b"garbage".to_vec())).await;
    let _second = Process::start(&ledger, 1, &settings);
    settled(&*ledger, &*settings.wall).await;
    let page = ledger.scan(Bucket::Index, "000/leaf/", None, 1000).await.expect("no fault");
    let live = Index::open(&*ledger).await.expect("no fault").expect("an index").leaves();
    assert_eq!(page.records.len(), live, "no leaf is left over");
}

#[tokio::test(start_paused = true)]
async fn time_alone_writes_no_row() {
    let (ledger, _) = filled(50).await;
    let settings = settings(1);
    let _first = Process::start(&ledger, 1, &settings);
    settled(&*ledger, &*settings.wall).await;
    let newest = async |prefix: &str| {
        let page = ledger.scan(Bucket::Index, prefix, None, 1000).await.expect("no fault");
        page.records.into_iter().map(|record| record.revision).max()
    };
    let (leaf, lease) = (newest("000/leaf/").await, newest("000/lease").await);
    // Orders are done, probation ends, agents go away.
    tokio::time::sleep(Duration::from_mins(40)).await;
    assert_eq!(newest("000/leaf/").await, leaf);
    assert!(newest("000/lease").await > lease);
    is_right(&*ledger, (settings.wall)()).await.expect("the counts went with the time");
    let later = (settings.wall)().plus(32 * 86_400);
    is_right(&*ledger, later).await.expect("the counts go with the time of who reads");
    let index = Index::open(&*ledger).await.expect("no fault").expect("an index");
    let counts = index.counts(later, &guest_fleet_core::time::UtcOnly);
    let archived = counts.agents.get(&guest_fleet_core::presence::Presence::Archived);
    assert_eq!(archived, Some(&50));
}

#[tokio::test(start_paused = true)]
async fn an_index_of_a_program_that_kept_no_sessions_is_read_again() {
    let (ledger, _) = filled(30).await;
    let settings = settings(1);
    let first = Process::start(&ledger, 1, &settings);
    settled(&*ledger, &*settings.wall).await;
    drop(first);
    // It followed everything and left out what it did not know.
    let id = indexed(&*ledger, 100).await.expect("an index").into_keys().next().expect("an agent");
    let found = ledger.get(Bucket::Journal, &id).await.expect("no fault");
    let (revision, mut journal) = match &found {
        Some(found) => {
            let journal: JournalRecord = records::decode(&id, &found.value).expect("it decodes");
            (found.revision, journal)
        }
        None => (Revision::ABSENT, JournalRecord { version: 1, ..JournalRecord::default() }),
    };
    journal.gateway = "g".to_owned();
    let value = Some(journal.encode_to_vec().into());
    let write = Write { key: id.clone(), expected: revision, value };
    let through = ledger.write(Bucket::Journal, vec![write]).await.expect("no fault");
    let key = checkpoint_key(0);
    let found = ledger.get(Bucket::Index, &key).await.expect("no fault").expect("a checkpoint");
    let mut older: CheckpointRecord = records::decode(&key, &found.value).expect("it decodes");
    older.offline_after = 0;
    older.journal = older.journal.map(|cursor| CursorRecord { through: through.0, ..cursor });
    put(&*ledger, Bucket::Index, &key, Some(older.encode_to_vec())).await;
    let _second = Process::start(&ledger, 1, &settings);
    settled(&*ledger, &*settings.wall).await;
    is_right(&*ledger, (settings.wall)()).await.expect("it has the session");
    let rows = indexed(&*ledger, 100).await.expect("an index");
    assert_eq!(rows[&id].session.as_ref().map(|it| it.gateway.as_str()), Some("g"));
}
