use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use guest_agent_actors::model::id::Sha256Digest;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

use super::*;

/// How many torn stores the test opens.
const ROUNDS: usize = 60;

/// How often the test kills an opening.
const KILLED_OPENINGS: usize = 20;

/// Tells the helper test which store to write to.
const CHILD_DIR: &str = "GUEST_AGENT_TEST_STORE";

/// A state directory with a lock, and the place of a store in it.
struct Home {
    dir: TempDir,
    lock: StateLock,
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let lock = StateLock::acquire(dir.path()).unwrap();
        Self { dir, lock }
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    async fn open(&self) -> Opened {
        open(&self.lock, &self.store()).await.unwrap()
    }

    async fn storage(&self) -> SledStorage {
        self.open().await.storage
    }
}

fn put(table: Table, key: &str, value: &str) -> Write {
    Write::Put { table, key: key.into(), value: value.into() }
}

fn delete(table: Table, key: &str) -> Write {
    Write::Delete { table, key: key.into() }
}

fn pair(key: &str, value: &str) -> (Vec<u8>, Vec<u8>) {
    (key.into(), value.into())
}

#[tokio::test]
async fn what_was_committed_is_there_after_opening_again_in_key_order() {
    let home = Home::new();
    let opened = home.open().await;
    assert_eq!(opened.fate, StoreFate::Fresh);
    let writes = vec![
        put(Table::Plugins, "b", "2"),
        put(Table::Plugins, "a", "1"),
        put(Table::Outbox, "a", "other table"),
    ];
    opened.storage.commit(writes, Durability::Durable).await.unwrap();
    let writes = vec![put(Table::Plugins, "c", "3"), delete(Table::Plugins, "b")];
    opened.storage.commit(writes, Durability::Durable).await.unwrap();
    opened.storage.close().await.unwrap();

    let opened = home.open().await;
    assert_eq!(opened.fate, StoreFate::Existing);
    let plugins = opened.storage.load(Table::Plugins).await.unwrap();
    assert_eq!(plugins, [pair("a", "1"), pair("c", "3")]);
    assert_eq!(opened.storage.load(Table::Outbox).await.unwrap(), [pair("a", "other table")]);
    assert_eq!(opened.storage.load(Table::Inbox).await.unwrap(), []);
}

#[tokio::test]
async fn lazy_writes_are_read_at_once_and_kept_by_a_close() {
    let home = Home::new();
    let storage = home.storage().await;
    storage.commit(vec![put(Table::History, "h", "1")], Durability::Lazy).await.unwrap();
    assert_eq!(storage.load(Table::History).await.unwrap(), [pair("h", "1")]);
    storage.close().await.unwrap();
    assert_eq!(home.storage().await.load(Table::History).await.unwrap(), [pair("h", "1")]);
}

#[tokio::test]
async fn a_dropped_store_can_be_opened_again() {
    let home = Home::new();
    for n in 0..5 {
        let storage = home.storage().await;
        assert_eq!(storage.load(Table::Facts).await.unwrap().len(), n);
        let key = n.to_string();
        storage.commit(vec![put(Table::Facts, &key, "x")], Durability::Lazy).await.unwrap();
    }
}

#[tokio::test]
async fn the_directory_is_the_owners_alone() {
    let home = Home::new();
    fs::create_dir(home.store()).unwrap();
    fs::set_permissions(home.store(), fs::Permissions::from_mode(0o755)).unwrap();
    let _storage = home.storage().await;
    assert_eq!(fs::metadata(home.store()).unwrap().permissions().mode() & 0o777, 0o700);
}

#[tokio::test]
async fn records_that_do_not_check_out_are_set_aside_and_the_others_load() {
    let home = Home::new();
    let storage = home.storage().await;
    let writes = vec![put(Table::Plugins, "a", "1"), put(Table::Plugins, "c", "3")];
    storage.commit(writes, Durability::Durable).await.unwrap();
    storage
        .worker
        .ask("write", |engine| {
            engine.put_raw(Table::Plugins, b"b", b"garbage");
            engine.put_raw(Table::Plugins, b"d", &[7; 100]);
            Ok(())
        })
        .await
        .unwrap();

    let expected = [pair("a", "1"), pair("c", "3")];
    assert_eq!(storage.load(Table::Plugins).await.unwrap(), expected);
    assert_eq!(storage.set_aside_count().await.unwrap(), 2);
    storage.close().await.unwrap();

    let storage = home.storage().await;
    assert_eq!(storage.load(Table::Plugins).await.unwrap(), expected);
    let aside = storage.quarantined().await.unwrap();
    let what: Vec<_> = aside.iter().map(|r| (r.table, &r.key[..], r.reason.as_str())).collect();
    assert_eq!(
        what,
        [
            (
                Table::Plugins,
                &b"b"[..],
                "damaged on disk: the record is 7 bytes long, shorter than its header"
            ),
            (Table::Plugins, &b"d"[..], "damaged on disk: the record has the unknown format 7"),
        ]
    );
}

#[tokio::test]
async fn the_reader_can_set_a_record_aside() {
    let home = Home::new();
    let storage = home.storage().await;
    let writes = vec![put(Table::Inbox, "1", "?"), put(Table::Inbox, "2", "fine")];
    storage.commit(writes, Durability::Durable).await.unwrap();
    storage.set_aside(Table::Inbox, b"1".to_vec(), "no such field".to_owned()).await.unwrap();
    storage.set_aside(Table::Inbox, b"absent".to_vec(), "x".to_owned()).await.unwrap();
    assert_eq!(storage.load(Table::Inbox).await.unwrap(), [pair("2", "fine")]);
    let aside = storage.quarantined().await.unwrap();
    assert_eq!(aside.len(), 1);
    assert_eq!(aside[0].reason, "no such field");
    assert!(aside[0].at.elapsed().unwrap() < Duration::from_secs(60));
}

#[tokio::test]
async fn what_was_set_aside_can_be_forgotten_and_its_number_is_not_used_again() {
    let home = Home::new();
    let storage = home.storage().await;
    let mut numbers = Vec::new();
    for round in 1..=3 {
        let writes = vec![put(Table::Inbox, "1", "?"), put(Table::Facts, "2", "?")];
        storage.commit(writes, Durability::Durable).await.unwrap();
        for (table, key) in [(Table::Inbox, "1"), (Table::Facts, "2")] {
            storage.set_aside(table, key.into(), "odd".to_owned()).await.unwrap();
        }
        let losses = storage.losses().await.unwrap();
        numbers.extend(losses.records.iter().map(|record| record.number));
        assert_eq!(storage.health().borrow().records, 2, "round {round}");
        assert_eq!(storage.clear_quarantine().await.unwrap(), 2);
        assert_eq!(storage.losses().await.unwrap().records, []);
        assert_eq!(storage.health().borrow().records, 0);
    }
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    storage.close().await.unwrap();
    let storage = home.storage().await;
    assert_eq!(storage.losses().await.unwrap(), Losses::default());
}

#[tokio::test]
async fn the_quarantine_keeps_the_newest_thousand() {
    let home = Home::new();
    let storage = home.storage().await;
    storage
        .worker
        .ask("write", |engine| {
            for n in 0..1_005u32 {
                engine.put_raw(Table::History, &n.to_be_bytes(), b"bad");
            }
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(storage.load(Table::History).await.unwrap(), []);
    assert_eq!(storage.set_aside_count().await.unwrap(), 1_005);
    let aside = storage.quarantined().await.unwrap();
    assert_eq!(aside.len(), 1_000);
    assert_eq!(aside[0].key, 5u32.to_be_bytes());
}

#[tokio::test]
async fn a_store_that_fell_back_to_an_earlier_state_is_set_aside() {
    let home = Home::new();
    let storage = home.storage().await;
    storage.commit(vec![put(Table::Facts, "k", "1")], Durability::Durable).await.unwrap();
    storage.close().await.unwrap();
    let earlier = home.dir.path().join("earlier");
    copy_tree(&home.store(), &earlier);
    home.storage().await.close().await.unwrap();
    // The files of the database are those of the earlier opening; only the generation is newer.
    fs::copy(home.store().join("generation"), earlier.join("generation")).unwrap();
    fs::remove_dir_all(home.store()).unwrap();
    fs::rename(&earlier, home.store()).unwrap();

    let opened = home.open().await;
    let StoreFate::SetAside { moved_to, reason } = opened.fate else {
        panic!("expected it to be set aside, got {:?}", opened.fate)
    };
    assert_eq!(moved_to, home.dir.path().join("store.damaged-1"));
    assert!(reason.contains("fell back"), "{reason}");
    assert!(moved_to.join("db").exists());
    assert_eq!(opened.storage.load(Table::Facts).await.unwrap(), []);
}

/// As a kill leaves the store of an agent that just began: its files are copied while it is open.
async fn young_and_killed(home: &Home) -> (PathBuf, Vec<(Vec<u8>, Vec<u8>)>) {
    let killed = home.dir.path().join("killed");
    let storage = home.storage().await;
    for n in 0..12 {
        let write = vec![put(Table::Facts, &format!("{n:02}"), "x")];
        storage.commit(write, Durability::Durable).await.unwrap();
    }
    copy_tree(&home.store(), &killed);
    let written = storage.load(Table::Facts).await.unwrap();
    storage.close().await.unwrap();
    fs::remove_dir_all(home.store()).unwrap();
    (killed, written)
}

#[tokio::test]
async fn a_young_store_whose_database_is_cut_anywhere_loses_nothing_in_silence() {
    const CUTS: usize = 40;
    let home = Home::new();
    let (killed, written) = young_and_killed(&home).await;
    let used = fs::read(killed.join("db")).unwrap().iter().rposition(|byte| *byte != 0).unwrap();
    let (mut kept, mut aside) = (0, 0);
    for cut in (0..=CUTS).map(|n| used * n / CUTS + 1) {
        copy_tree(&killed, &home.store());
        let db = fs::File::options().write(true).open(home.store().join("db")).unwrap();
        db.set_len(cut as u64).unwrap();
        let opened = home.open().await;
        let found = opened.storage.load(Table::Facts).await.unwrap();
        match &opened.fate {
            StoreFate::Existing if found == written => kept += 1,
            StoreFate::SetAside { .. } => aside += 1,
            fate => panic!("cut to {cut} of {used}: {} records, {fate:?}", found.len()),
        }
        opened.storage.close().await.unwrap();
        fs::remove_dir_all(home.store()).unwrap();
    }
    assert!(kept > 0 && aside > 0, "{kept} kept, {aside} set aside");
}

/// A power loss may leave an old mark, which does not contradict a database without records.
#[tokio::test]
async fn a_store_without_a_record_is_a_loss_where_there_are_traces_of_one() {
    let home = Home::new();
    home.storage().await.close().await.unwrap();
    assert_eq!(home.open().await.fate, StoreFate::Existing);
    let traces = || Some("are files of plugins".to_owned());
    let opened = open_beside(&home.lock, &home.store(), traces()).await.unwrap();
    let StoreFate::Lost { noted_in, .. } = &opened.fate else { panic!("{opened:?}") };
    assert!(noted_in.ends_with("store.damaged-1"), "{}", noted_in.display());
    assert_eq!(opened.storage.losses().await.unwrap().stores.len(), 1);
    opened.storage.commit(vec![put(Table::Facts, "a", "b")], Durability::Durable).await.unwrap();
    opened.storage.close().await.unwrap();
    let opened = open_beside(&home.lock, &home.store(), traces()).await.unwrap();
    assert_eq!(opened.fate, StoreFate::Existing, "a store with records is not empty");
    assert_eq!(opened.storage.losses().await.unwrap().stores.len(), 1);
}

#[tokio::test]
async fn an_emptied_database_file_is_noticed() {
    let home = Home::new();
    home.storage().await.close().await.unwrap();
    for name in fs::read_dir(home.store()).unwrap().map(|e| e.unwrap().file_name()) {
        if name.to_string_lossy().starts_with("snap.") || name == "db" {
            fs::remove_file(home.store().join(name)).unwrap();
        }
    }
    assert!(matches!(home.open().await.fate, StoreFate::SetAside { .. }));
}

#[tokio::test]
async fn a_snapshot_that_was_never_finished_costs_nothing() {
    let home = Home::new();
    let storage = home.storage().await;
    storage.commit(vec![put(Table::Facts, "k", "1")], Durability::Durable).await.unwrap();
    storage.close().await.unwrap();
    for half in ["", "half a snapshot, as a full disk or a crash leaves it"] {
        fs::write(home.store().join("snap.00000000FFFFFFFF.generating"), half).unwrap();
        let opened = home.open().await;
        assert_eq!(opened.fate, StoreFate::Existing);
        assert_eq!(opened.storage.load(Table::Facts).await.unwrap(), [pair("k", "1")]);
        opened.storage.close().await.unwrap();
    }
}

#[tokio::test]
async fn only_the_newest_three_damaged_stores_are_kept() {
    let home = Home::new();
    for _ in 0..5 {
        home.storage().await.close().await.unwrap();
        fs::write(home.store().join("conf"), "this is no configuration").unwrap();
        // Another file with a similar name stays where it is.
        fs::create_dir_all(home.dir.path().join("store.damaged-by-me")).unwrap();
    }
    assert!(matches!(home.open().await.fate, StoreFate::SetAside { .. }));
    let mut names: Vec<_> = fs::read_dir(home.dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("damaged"))
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["store.damaged-3", "store.damaged-4", "store.damaged-5", "store.damaged-by-me"]
    );
}

#[tokio::test]
async fn trouble_of_the_machine_sets_nothing_aside() {
    let home = Home::new();
    fs::write(home.dir.path().join("file"), "").unwrap();
    let result = open(&home.lock, &home.dir.path().join("file/store")).await;
    assert!(matches!(result, Err(OpenError::Directory { .. })), "{result:?}");
}

#[tokio::test]
async fn a_store_in_use_is_not_taken_for_a_damaged_one() {
    let home = Home::new();
    let storage = home.storage().await;
    storage.commit(vec![put(Table::Facts, "k", "1")], Durability::Durable).await.unwrap();
    let result = open(&home.lock, &home.store()).await;
    assert!(matches!(result, Err(OpenError::Directory { .. })), "{result:?}");
    assert_eq!(storage.load(Table::Facts).await.unwrap(), [pair("k", "1")]);
}

#[tokio::test]
async fn a_panic_in_the_engine_is_an_error_and_the_store_works_again() {
    let home = Home::new();
    let storage = home.storage().await;
    storage.commit(vec![put(Table::Facts, "k", "1")], Durability::Durable).await.unwrap();
    let result: Result<(), _> = storage.worker.ask("read", |_| panic!("a torn page")).await;
    let error = result.unwrap_err();
    assert_eq!(error.cause.to_string(), "a torn page");

    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        match storage.load(Table::Facts).await {
            Ok(records) => break assert_eq!(records, [pair("k", "1")]),
            Err(error) if tokio::time::Instant::now() > deadline => panic!("{error:?}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    storage.commit(vec![put(Table::Facts, "k", "2")], Durability::Durable).await.unwrap();
}

#[tokio::test]
async fn records_of_any_size_survive() {
    let home = Home::new();
    let storage = home.storage().await;
    let values: Vec<Vec<u8>> =
        [0, 1, 1_000, 100_000, 1_000_000, 4_000_000].map(|n| vec![0xA5; n]).to_vec();
    for (n, value) in (0u64..).zip(&values) {
        let key = n.to_be_bytes().to_vec();
        let write = Write::Put { table: Table::Inbox, key, value: value.clone() };
        storage.commit(vec![write], Durability::Durable).await.unwrap();
    }
    storage.close().await.unwrap();
    let records = home.storage().await.load(Table::Inbox).await.unwrap();
    assert!(records.into_iter().map(|(_, value)| value).eq(values), "some value changed");
}

/// What plugins that come and go write, each under a name of its own.
async fn come_and_go(storage: &SledStorage, cycle: u64) {
    let key = |number: u64| number.to_be_bytes().to_vec();
    let put = |table, key, size: usize| Write::Put { table, key, value: vec![7; size] };
    let name = format!("p{cycle:06}").into_bytes();
    let mut told = cycle * 7;
    storage.commit(vec![put(Table::Inbox, key(cycle), 900)], Durability::Durable).await.unwrap();
    for size in [400, 500, 600, 700, 600, 600, 300] {
        let mut writes = vec![put(Table::Plugins, name.clone(), size)];
        writes.push(put(Table::Outbox, key(told), 180));
        storage.commit(writes, Durability::Durable).await.unwrap();
        let mut settled = vec![Write::Delete { table: Table::Outbox, key: key(told) }];
        settled.push(put(Table::History, key(told), 180));
        if let Some(old) = told.checked_sub(1_000) {
            settled.push(Write::Delete { table: Table::History, key: key(old) });
        }
        storage.commit(settled, Durability::Lazy).await.unwrap();
        told += 1;
    }
    let over = [(Table::Inbox, key(cycle)), (Table::Plugins, name)];
    let over = over.map(|(table, key)| Write::Delete { table, key });
    storage.commit(over.into(), Durability::Durable).await.unwrap();
}

/// How many plugins come and go: `STORE_CYCLES`, or enough for what grows with each of them.
fn store_cycles() -> u64 {
    std::env::var("STORE_CYCLES").map_or(900, |it| it.parse().unwrap())
}

/// With 12,000 cycles there are the records of as many plugins.
#[tokio::test]
async fn a_store_that_much_goes_through_does_not_grow() {
    // Until here the history fills, and the log is written for the first time.
    const WARM_UP: u64 = 300;
    const SEGMENTS_KIB: u64 = 1024;
    let home = Home::new();
    let storage = home.storage().await;
    let size_kib = || -> u64 {
        let files = fs::read_dir(home.store()).unwrap().flatten();
        files.map(|file| file.metadata().map_or(0, |it| it.len() / 1024)).sum()
    };
    let mut settled = 0;
    for cycle in 0..store_cycles() {
        come_and_go(&storage, cycle).await;
        if cycle == WARM_UP {
            settled = size_kib();
        }
    }
    let end = size_kib();
    assert!(end <= settled + SEGMENTS_KIB, "{settled} KiB became {end} KiB");
}

/// Messages that were taken lately are remembered under what looks like random keys: thousands of
/// small records that stay for a while between all those that come and go.
#[tokio::test]
async fn a_store_does_not_grow_because_of_what_stays() {
    const MESSAGES: u64 = 4096;
    const ALLOWED: u64 = 8 << 20;
    let home = Home::new();
    let storage = home.storage().await;
    let key = |message: u64| Sha256Digest::of(&message.to_be_bytes()).to_string().into_bytes();
    let put = |message| Write::Put { table: Table::Facts, key: key(message), value: vec![7; 8] };
    storage.commit((0..MESSAGES).map(put).collect(), Durability::Durable).await.unwrap();
    let mut largest = 0;
    for cycle in 0..store_cycles() {
        come_and_go(&storage, cycle).await;
        let forgotten = Write::Delete { table: Table::Facts, key: key(cycle) };
        storage.commit(vec![put(MESSAGES + cycle), forgotten], Durability::Lazy).await.unwrap();
        largest = fs::metadata(home.store().join("db")).unwrap().len().max(largest);
    }
    assert!(largest <= ALLOWED, "it came to {largest} bytes");
}

/// Whether the process issued syncs can be seen from outside only by tracing it; what is tested is
/// that an idle store writes nothing and has no thread whose work is to sync.
#[tokio::test]
async fn an_idle_store_has_no_flusher_and_writes_nothing() {
    let home = Home::new();
    let storage = home.storage().await;
    storage.commit(vec![put(Table::Facts, "k", "1")], Durability::Durable).await.unwrap();
    let names: Vec<String> = fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok())
        .collect();
    assert!(!names.iter().any(|name| name.contains("flusher")), "{names:?}");
    // Sled may still write for a while after the commit returned.
    let quiet = async {
        loop {
            let before = newest_change(&home.store());
            // Twice as long as sled's own interval would be.
            tokio::time::sleep(Duration::from_secs(1)).await;
            if newest_change(&home.store()) == before {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), quiet).await.expect("it writes on and on");
    drop(storage);
}

/// Not a test of its own: the process that the next test kills. Writes numbers until it dies, the
/// even ones with a durable commit, and prints those that were acknowledged.
#[tokio::test]
async fn helper_that_writes_until_it_is_killed() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let dir = PathBuf::from(dir);
    let lock = StateLock::acquire(&dir).unwrap();
    let storage = open(&lock, &dir.join("store")).await.unwrap().storage;
    let known = storage.load(Table::Outbox).await.unwrap();
    let start = known
        .last()
        .map_or(0, |(key, _)| u64::from_be_bytes(key.as_slice().try_into().unwrap()) + 1);
    let mut out = std::io::stdout();
    writeln!(out, "\nready").unwrap();
    for number in start.. {
        let key = number.to_be_bytes().to_vec();
        let value = number.to_string().into_bytes();
        let writes = vec![
            Write::Put { table: Table::Outbox, key: key.clone(), value: value.clone() },
            Write::Put { table: Table::History, key, value },
        ];
        if number % 2 == 0 {
            storage.commit(writes, Durability::Durable).await.unwrap();
            writeln!(out, "ack {number}").unwrap();
        } else {
            // Durable with the next one, which comes after it in every outcome.
            storage.commit(writes, Durability::Lazy).await.unwrap();
        }
    }
}

#[tokio::test]
async fn acknowledged_commits_survive_kill_9() {
    let home = tempfile::tempdir().unwrap();
    let mut random = StdRng::seed_from_u64(9);
    let mut acknowledged = 0;
    for _ in 0..8 {
        let mut child = helper("helper_that_writes_until_it_is_killed", home.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.by_ref().any(|line| line.unwrap() == "ready"), "the helper did not start");
        let until: u64 = acknowledged + random.random_range(1..200);
        for line in lines.by_ref() {
            let line = line.unwrap();
            acknowledged = line.strip_prefix("ack ").unwrap().parse().unwrap();
            if acknowledged >= until {
                break;
            }
        }
        // Somewhere inside one of the next commits.
        std::thread::sleep(Duration::from_micros(random.random_range(0..2_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        // What it printed before it died counts too; the last line may be incomplete.
        for number in lines.filter_map(|line| line.ok()?.strip_prefix("ack ")?.parse().ok()) {
            acknowledged = acknowledged.max(number);
        }

        let lock = StateLock::acquire(home.path()).unwrap();
        let opened = open(&lock, &home.path().join("store")).await.unwrap();
        assert_eq!(opened.fate, StoreFate::Existing);
        let outbox = opened.storage.load(Table::Outbox).await.unwrap();
        assert!(outbox.len() as u64 > acknowledged, "{} of {acknowledged}", outbox.len());
        for (number, (key, value)) in (0u64..).zip(&outbox) {
            assert_eq!(key[..], number.to_be_bytes());
            assert_eq!(value[..], *number.to_string().as_bytes());
        }
        // Both halves of every commit are there, or neither.
        assert_eq!(opened.storage.load(Table::History).await.unwrap(), outbox);
        opened.storage.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_kill_while_the_store_opens_costs_nothing() {
    let home = tempfile::tempdir().unwrap();
    let mut random = StdRng::seed_from_u64(7);
    let mut least = 0;
    for round in 0..KILLED_OPENINGS {
        let lock = StateLock::acquire(home.path()).unwrap();
        let opened = open(&lock, &home.path().join("store")).await.unwrap();
        let known = opened.storage.load(Table::Outbox).await.unwrap().len();
        assert!(known >= least, "round {round}: {known} of {least}");
        assert!(
            matches!(opened.fate, StoreFate::Existing | StoreFate::Fresh),
            "round {round}: {:?}",
            opened.fate
        );
        least = known;
        opened.storage.close().await.unwrap();
        drop(lock);

        let mut child = helper("helper_that_writes_until_it_is_killed", home.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The harness prints its first line just before the helper starts to open the store.
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.find(|line| line.as_ref().unwrap().starts_with("running")).unwrap().unwrap();
        std::thread::sleep(Duration::from_micros(random.random_range(0..15_000)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Not a test of its own: the process whose output the next test reads.
#[tokio::test]
async fn helper_whose_store_panics() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let lock = StateLock::acquire(Path::new(&dir)).unwrap();
    let storage = open(&lock, &Path::new(&dir).join("store")).await.unwrap().storage;
    let result: Result<(), _> = storage.worker.ask("read", |_| panic!("a torn page")).await;
    result.unwrap_err();
    eprintln!("the end");
    std::thread::spawn(|| panic!("another thread")).join().unwrap_err();
}

#[test]
fn a_caught_panic_does_not_look_like_a_crash() {
    let home = tempfile::tempdir().unwrap();
    let output = helper("helper_whose_store_panics", home.path()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("the end"), "{stderr}");
    assert!(!stderr.contains("a torn page"), "{stderr}");
    // Panics of other threads are printed as before.
    assert!(stderr.contains("another thread"), "{stderr}");
}

/// This test binary, with the arguments to run one of the helpers above.
fn helper(name: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &format!("store::tests::{name}")])
        .args(["--nocapture", "--test-threads=1"])
        .env(CHILD_DIR, dir);
    command
}

#[tokio::test]
async fn torn_stores_open_and_work() {
    let home = Home::new();
    let written = fill(&home).await;
    let intact = home.dir.path().join("intact");
    fs::rename(home.store(), &intact).unwrap();
    let files = files_below(&intact);
    assert!(files.iter().any(|f| f.ends_with("db")), "{files:?}");

    let mut random = StdRng::seed_from_u64(4);
    let (mut kept, mut aside) = (0, 0);
    for round in 0..ROUNDS {
        copy_tree(&intact, &home.store());
        let file = &files[random.random_range(0..files.len())];
        let damage = tear(&home.store().join(file), &mut random);
        let context = format!("round {round}: {} {damage}", file.display());

        let opened = open(&home.lock, &home.store()).await.expect(&context);
        let mut found = BTreeMap::new();
        for table in Table::ALL {
            for (key, value) in opened.storage.load(table).await.expect(&context) {
                found.insert((table, key), value);
            }
        }
        match &opened.fate {
            StoreFate::SetAside { .. } => {
                aside += 1;
                assert!(found.is_empty(), "{context}: an empty store has records");
            }
            StoreFate::Existing if found == written => kept += 1,
            StoreFate::Existing => panic!(
                "{context}: {} of {} records, and nothing was said",
                found.len(),
                written.len()
            ),
            StoreFate::Fresh | StoreFate::Lost { .. } => panic!("{context}: taken for a new store"),
        }
        for (key, value) in &found {
            assert!(written.get(key) == Some(value), "{context}: a record that nobody wrote");
        }
        let write = vec![put(Table::Facts, "after", "all")];
        opened.storage.commit(write, Durability::Durable).await.expect(&context);
        opened.storage.close().await.expect(&context);
        let storage = home.storage().await;
        let facts = storage.load(Table::Facts).await.expect(&context);
        assert!(facts.contains(&pair("after", "all")), "{context}: the new record is gone");
        storage.close().await.expect(&context);
        fs::remove_dir_all(home.store()).unwrap();
    }
    assert!(aside > 0 && kept > 0, "the damage was of one kind only");
}

/// As much damage as a file system can do to a store at once, the mark included.
#[tokio::test]
async fn stores_whose_files_are_torn_together_lose_nothing_in_silence() {
    const TOGETHER: u64 = 100;
    let home = Home::new();
    let written = fill(&home).await;
    let intact = home.dir.path().join("intact");
    fs::rename(home.store(), &intact).unwrap();
    let files = files_below(&intact);
    let mut random = StdRng::seed_from_u64(9);
    let (mut kept, mut aside, mut lost) = (0, 0, 0);
    for round in 0..TOGETHER {
        copy_tree(&intact, &home.store());
        let share = [0.1, 0.5, 1.0][(round % 3) as usize];
        // Chance alone rarely deletes all of them.
        let all_go = round % 25 == 24;
        let mut context = format!("round {round}:");
        for file in &files {
            if !all_go && !random.random_bool(share) {
                continue;
            }
            let path = home.store().join(file);
            let damage = if all_go || random.random_bool(0.3) {
                fs::remove_file(&path).unwrap();
                "deleted".to_owned()
            } else {
                tear(&path, &mut random)
            };
            context = format!("{context} {} {damage};", file.display());
        }
        let traces = Some("are files of plugins".to_owned());
        let opened = open_beside(&home.lock, &home.store(), traces).await.expect(&context);
        let mut found = BTreeMap::new();
        for table in Table::ALL {
            for (key, value) in opened.storage.load(table).await.expect(&context) {
                found.insert((table, key), value);
            }
        }
        match &opened.fate {
            StoreFate::SetAside { .. } => aside += 1,
            StoreFate::Lost { noted_in, .. } => {
                assert!(noted_in.join("LOST").exists(), "{context}");
                lost += 1;
            }
            StoreFate::Existing if found == written => kept += 1,
            StoreFate::Existing => {
                panic!("{context} {} of {} records", found.len(), written.len())
            }
            StoreFate::Fresh => panic!("{context} taken for a new store"),
        }
        let losses = opened.storage.losses().await.expect(&context);
        let is_whole = matches!(opened.fate, StoreFate::Existing);
        assert_eq!(losses.stores.is_empty(), is_whole, "{context} {losses:?}");
        opened.storage.close().await.expect(&context);
        fs::remove_dir_all(home.store()).unwrap();
        for damaged in losses.stores {
            fs::remove_dir_all(damaged).unwrap();
        }
    }
    assert!(aside > 0 && kept > 0 && lost > 0, "{aside} set aside, {kept} kept, {lost} lost");
}

#[tokio::test]
async fn one_loss_is_noted_once_however_often_the_next_opening_ends_early() {
    let home = Home::new();
    let traces = || Some("is data of plugins".to_owned());
    fs::create_dir_all(home.store()).unwrap();
    for _ in 0..3 {
        damage::note_lost(&home.store(), "is data of plugins").unwrap();
    }
    let opened = open_beside(&home.lock, &home.store(), traces()).await.unwrap();
    let StoreFate::Lost { noted_in, traces: why } = &opened.fate else { panic!("{opened:?}") };
    assert!(noted_in.ends_with("store.damaged-1"), "{}", noted_in.display());
    assert_eq!(why, "is data of plugins");
    opened.storage.close().await.unwrap();
    // The next opening reports it.
    let opened = open_beside(&home.lock, &home.store(), traces()).await.unwrap();
    assert_eq!(opened.fate, StoreFate::Existing);
    assert_eq!(opened.storage.losses().await.unwrap().stores.len(), 1);
    opened.storage.close().await.unwrap();
}

/// A store with a history: records of all sizes, overwritten and deleted, over several openings.
async fn fill(home: &Home) -> BTreeMap<(Table, Vec<u8>), Vec<u8>> {
    let mut written = BTreeMap::new();
    for opening in 0..3u32 {
        let storage = home.storage().await;
        for n in 0..300u32 {
            let table = Table::ALL[n as usize % Table::ALL.len()];
            let key = n.to_be_bytes().to_vec();
            if opening == 2 && n % 7 == 0 {
                written.remove(&(table, key.clone()));
                storage.commit(vec![Write::Delete { table, key }], Durability::Lazy).await.unwrap();
                continue;
            }
            let len = if n % 100 == 99 { 200_000 } else { n as usize * 7 };
            let value: Vec<u8> =
                (0..len).map(|i| (i * 31 + opening as usize).to_le_bytes()[0]).collect();
            written.insert((table, key.clone()), value.clone());
            let write = vec![Write::Put { table, key, value }];
            storage.commit(write, Durability::Lazy).await.unwrap();
        }
        storage.close().await.unwrap();
    }
    written
}

/// Damages a file at random and returns how.
fn tear(path: &Path, random: &mut StdRng) -> String {
    let mut bytes = fs::read(path).unwrap();
    let at = random.random_range(0..bytes.len().max(1));
    let damage = match random.random_range(0..4) {
        0 => {
            bytes.truncate(at);
            format!("truncated to {at}")
        }
        1 => {
            let end = bytes.len().min(at + random.random_range(1..8_192));
            bytes[at..end].fill(0);
            format!("zeroed {at}..{end}")
        }
        2 => {
            let end = bytes.len().min(at + random.random_range(1..64));
            random.fill(&mut bytes[at..end]);
            format!("scrambled {at}..{end}")
        }
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.random_range(0..8);
            }
            format!("flipped a bit of {at}")
        }
    };
    fs::write(path, bytes).unwrap();
    damage
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to.join("blobs")).unwrap();
    for file in files_below(from) {
        fs::copy(from.join(&file), to.join(&file)).unwrap();
    }
}

/// Files of a store, relative to it.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in ["", "blobs"] {
        for entry in fs::read_dir(dir.join(folder)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                files.push(Path::new(folder).join(entry.file_name()));
            }
        }
    }
    files.sort();
    files
}

fn newest_change(dir: &Path) -> SystemTime {
    files_below(dir)
        .into_iter()
        .map(|file| fs::metadata(dir.join(file)).unwrap().modified().unwrap())
        .max()
        .unwrap()
}

/// A page of the newest records is what the whole table would give, and no other table's.
#[tokio::test]
async fn the_newest_records_below_a_key_are_those_of_the_whole_table() {
    let home = Home::new();
    let storage = home.storage().await;
    let mut writes: Vec<_> =
        ["a", "b", "c", "d"].map(|key| put(Table::History, key, "event")).into();
    writes.push(put(Table::Inbox, "z", "order"));
    writes.push(put(Table::Facts, "z", "fact"));
    storage.commit(writes, Durability::Durable).await.unwrap();
    let whole = storage.load(Table::History).await.unwrap();
    for below in [None, Some("a"), Some("c"), Some("cc"), Some("zz")] {
        for most in [0, 1, 2, 9] {
            let below = below.map(|key| key.as_bytes().to_vec());
            let newest = storage.newest(Table::History, below.clone(), most).await.unwrap();
            let fits = |(key, _): &&(Vec<u8>, Vec<u8>)| below.as_ref().is_none_or(|it| key < it);
            let wanted: Vec<_> = whole.iter().rev().filter(fits).take(most).cloned().collect();
            assert_eq!(newest, wanted, "{below:?}, {most}");
        }
    }
}
