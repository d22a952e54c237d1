//! Each server in turn is killed, and stopped, while many write. What was acknowledged is there
//! afterwards, once and in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use guest_fleet_ledger::{
    Appended, Bucket, Entry, Follower, JetstreamLedger, Ledger, Log, NatsAddress, ReadError,
    Revision, Write, WriteError, bounds,
};
use tempfile::TempDir;

use crate::nats_cluster::{self, NatsCluster};

/// Longer than anything takes; only a failing test waits for all of it.
const LONG: Duration = Duration::from_secs(120);

/// How much has to be acknowledged between two events.
const PROGRESS: u64 = 150;

/// Writers of each counter, counters, and appenders.
const WRITERS: usize = 2;
const COUNTERS: usize = 3;
const APPENDERS: usize = 4;

/// Entries of one subject: fewer than a log keeps of it.
const ENTRIES: u64 = 150;

#[derive(Clone)]
struct Load {
    ledger: Arc<JetstreamLedger>,
    acknowledged: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Load {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::SeqCst)
    }

    fn acknowledge(&self) {
        self.acknowledged.fetch_add(1, Ordering::SeqCst);
    }

    /// Reads until the ledger answers.
    async fn read<T, F>(&self, mut read: impl FnMut() -> F) -> T
    where
        F: Future<Output = Result<T, ReadError>>,
    {
        let deadline = Instant::now() + LONG;
        loop {
            match read().await {
                Ok(answer) => return answer,
                Err(error @ ReadError::Damaged { .. }) => panic!("{error}"),
                Err(error) => assert!(Instant::now() < deadline, "no answer: {error:?}"),
            }
        }
    }

    /// Waits until so much more was acknowledged.
    async fn progress(&self) {
        let goal = self.acknowledged.load(Ordering::SeqCst) + PROGRESS;
        let deadline = Instant::now() + LONG;
        while self.acknowledged.load(Ordering::SeqCst) < goal {
            assert!(Instant::now() < deadline, "the writers do not get on");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn decode(value: &[u8]) -> Vec<u64> {
    value.chunks(8).map(|it| u64::from_be_bytes(it.try_into().unwrap())).collect()
}

fn encode(counts: &[u64]) -> Bytes {
    counts.iter().flat_map(|count| count.to_be_bytes()).collect::<Vec<u8>>().into()
}

/// Counts in a record that others count in as well: each has a place of its own, and the sum has
/// one. Returns how far it came for sure, and the revisions that it was given.
async fn count(load: Load, key: String, writer: usize) -> (u64, Vec<Revision>) {
    let (mut mine, mut won) = (0, Vec::new());
    while load.goes_on() {
        let record = load.read(|| load.ledger.get(Bucket::Journal, &key)).await;
        let (expected, mut counts) = match record {
            Some(record) => (record.revision, decode(&record.value)),
            None => (Revision::ABSENT, vec![0; WRITERS + 1]),
        };
        assert!(counts[writer] >= mine, "an acknowledged write is gone: {counts:?}, {mine}");
        // One more happened than was acknowledged where an answer got lost.
        assert!(counts[writer] <= mine + 1, "a write happened twice: {counts:?}, {mine}");
        if counts[writer] > mine {
            mine += 1;
            continue;
        }
        counts[writer] += 1;
        counts[WRITERS] += 1;
        let write = Write { key: key.clone(), expected, value: Some(encode(&counts)) };
        match load.ledger.write(Bucket::Journal, vec![write]).await {
            Ok(revision) => {
                mine += 1;
                won.push(revision);
                load.acknowledge();
            }
            Err(
                WriteError::Conflict { .. } | WriteError::Ambiguous(_) | WriteError::Refused(_),
            ) => {}
            Err(error) => panic!("{error}"),
        }
    }
    (mine, won)
}

/// Writes ten keys at once with one number, and the next one. Every seventh time it deletes them.
async fn batches(load: Load, prefix: &'static str) -> u64 {
    let keys: Vec<String> = (0..10).map(|at| format!("{prefix}/{at}")).collect();
    let mut sure = 0;
    let mut number = 1_u64;
    // The last batch that deleted, or was meant to, and reads of half a batch in a row.
    let (mut deleted, mut torn) = (0, 0);
    while load.goes_on() {
        let mut found = Vec::new();
        for key in &keys {
            found.push(load.read(|| load.ledger.get(Bucket::Agents, key)).await);
        }
        let is_deleted = found.iter().all(Option::is_none);
        let numbers: BTreeSet<u64> =
            found.iter().flatten().map(|it| decode(&it.value)[0]).collect();
        let revisions: BTreeSet<Revision> = found.iter().flatten().map(|it| it.revision).collect();
        if is_deleted {
            assert!(deleted >= sure, "an acknowledged batch is gone: {sure}");
        } else if numbers.len() == 1 && revisions.len() == 1 && found.iter().all(Option::is_some) {
            let newest = numbers.first().copied().unwrap();
            assert!(newest >= sure, "an acknowledged batch is gone: {newest} and {sure}");
        } else {
            // A batch whose answer got lost came while the keys were read one after the other. This
            // writer is alone, so that it does not come again.
            torn += 1;
            assert!(torn < 3, "half of a batch is there: {found:?}");
            continue;
        }
        torn = 0;
        let value = (is_deleted || !number.is_multiple_of(7)).then(|| encode(&[number]));
        if value.is_none() {
            deleted = number;
        }
        let batch = keys.iter().zip(&found).map(|(key, found)| Write {
            key: key.clone(),
            expected: found.as_ref().map_or(Revision::ABSENT, |it| it.revision),
            value: value.clone(),
        });
        if load.ledger.write(Bucket::Agents, batch.collect()).await.is_ok() {
            sure = number;
            load.acknowledge();
        }
        number += 1;
    }
    sure
}

/// Appends to one subject after the other; returns how many entries of each are there for sure.
async fn append(load: Load, appender: usize) -> BTreeMap<String, u64> {
    let mut sure = BTreeMap::new();
    for round in 0.. {
        let subject = format!("agent-{appender}.{round}");
        for number in 0..ENTRIES {
            let id = format!("id-{number}");
            loop {
                if !load.goes_on() {
                    return sure;
                }
                let value = Bytes::from(id.clone());
                match load.ledger.append(Log::Events, &subject, number, &id, value).await {
                    Ok(Appended::New(at) | Appended::Already(at)) => {
                        assert_eq!(at, number + 1, "{subject}");
                        sure.insert(subject.clone(), at);
                        load.acknowledge();
                        break;
                    }
                    Err(WriteError::Ambiguous(_) | WriteError::Refused(_)) => {}
                    // Nobody else appends there.
                    Err(error) => panic!("{subject} {id}: {error}"),
                }
            }
        }
    }
    sure
}

/// Keeps up with a bucket through everything, until the writers have ended.
async fn follow(load: Load, is_over: Arc<AtomicBool>) -> BTreeMap<String, (Revision, Bytes)> {
    let mut follower = Follower::new(Bucket::Agents);
    let mut kept = BTreeMap::new();
    // One more round when they have ended: everything that was acknowledged is in reach then.
    loop {
        let was_over = is_over.load(Ordering::SeqCst);
        loop {
            let Ok(update) = follower.next(&*load.ledger, Revision::ABSENT).await else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            if update.is_reset {
                kept.clear();
            }
            for change in update.changes {
                match change.value {
                    Some(value) => drop(kept.insert(change.key, (change.revision, value))),
                    None => drop(kept.remove(&change.key)),
                }
            }
            if !update.more {
                break;
            }
        }
        if was_over {
            return kept;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Every entry of the log, from its beginning.
async fn entries(load: &Load) -> Vec<Entry> {
    let mut all: Vec<Entry> = Vec::new();
    loop {
        let after = all.last().map_or(0, |last| last.position);
        let page = load.read(|| load.ledger.read(Log::Events, "", after, bounds::PAGE)).await;
        if page.is_empty() {
            return all;
        }
        all.extend(page);
    }
}

async fn disturb(cluster: &mut NatsCluster, load: &Load) {
    for node in 0..cluster.len() {
        load.progress().await;
        cluster.kill(node);
        load.progress().await;
        // A gateway starts without it, though it cannot be asked for its settings.
        let address: NatsAddress = cluster.address("deaths").parse().unwrap();
        JetstreamLedger::open(&address).await.unwrap();
        cluster.restart(node);
        cluster.wait_healthy();
    }
    for node in 0..cluster.len() {
        load.progress().await;
        cluster.stop(node);
        load.progress().await;
        cluster.resume(node);
        cluster.wait_healthy();
    }
    load.progress().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_the_death_of_each_server_in_turn() {
    let Some(program) = nats_cluster::program() else { return };
    let folder = TempDir::new().unwrap();
    let mut cluster = NatsCluster::start(&program, folder.path());
    let address: NatsAddress = cluster.address("deaths").parse().unwrap();
    let ledger = JetstreamLedger::open(&address).await.unwrap();
    let load = Load { ledger, acknowledged: Arc::default(), is_over: Arc::default() };

    let counters: Vec<_> = (0..COUNTERS * WRITERS)
        .map(|at| {
            tokio::spawn(count(load.clone(), format!("counter-{}", at / WRITERS), at % WRITERS))
        })
        .collect();
    let batchers = ["a", "b"].map(|prefix| tokio::spawn(batches(load.clone(), prefix)));
    let appenders: Vec<_> =
        (0..APPENDERS).map(|at| tokio::spawn(append(load.clone(), at))).collect();
    let have_ended = Arc::new(AtomicBool::new(false));
    let follower = tokio::spawn(follow(load.clone(), Arc::clone(&have_ended)));

    disturb(&mut cluster, &load).await;
    load.is_over.store(true, Ordering::SeqCst);

    let mut seen = BTreeSet::new();
    let mut counted = vec![vec![0; WRITERS]; COUNTERS];
    for (at, counter) in counters.into_iter().enumerate() {
        let (mine, won) = counter.await.unwrap();
        counted[at / WRITERS][at % WRITERS] = mine;
        assert!(won.is_sorted(), "revisions go back");
        assert!(
            won.into_iter().all(|revision| seen.insert(revision)),
            "a revision was given twice"
        );
    }
    for (at, counted) in counted.iter().enumerate() {
        let key = format!("counter-{at}");
        let record = load.read(|| load.ledger.get(Bucket::Journal, &key)).await.unwrap();
        let counts = decode(&record.value);
        assert_eq!(counts[..WRITERS].iter().sum::<u64>(), counts[WRITERS], "{key}");
        for (found, sure) in counts.iter().zip(counted) {
            assert!(found == sure || *found == sure + 1, "{key}: {counts:?} and {counted:?}");
        }
    }
    for batcher in batchers {
        assert!(batcher.await.unwrap() > 0);
    }
    let mut sure = BTreeMap::new();
    for appender in appenders {
        sure.extend(appender.await.unwrap());
    }
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for entry in entries(&load).await {
        let number = found.entry(entry.subject.clone()).or_default();
        *number += 1;
        assert_eq!(entry.number, *number, "a gap, or one twice: {entry:?}");
        assert_eq!(entry.id, format!("id-{}", *number - 1), "out of order");
    }
    for (subject, sure) in &sure {
        let found = found.get(subject).copied().unwrap_or(0);
        assert!(found == *sure || found == sure + 1, "{subject}: {found} and {sure}");
    }
    have_ended.store(true, Ordering::SeqCst);
    let kept = follower.await.unwrap();
    let fresh = follow(load.clone(), have_ended).await;
    assert_eq!(kept, fresh, "the follower missed something");
    eprintln!("{} acknowledged", load.acknowledged.load(Ordering::SeqCst));
}
