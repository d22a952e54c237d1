//! Laws that hold while others write at the same time. All but
//! [`exactly_one_racer_wins_each_revision`] hold as well while answers are lost and reads are stale:
//! the writers here do what the contract tells writers to do.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::join_all;
use futures_util::poll;

use super::tools::{delete, follow, patiently, put};
use crate::{
    Appended, Bucket, Entry, Follower, Log, ReadError, Revision, SharedLedger, WriteError, bounds,
};

const ABSENT: Revision = Revision::ABSENT;

/// How often a writer tries: far more than chance ever needs.
const TRIES: usize = 100_000;

/// Exactly one racer wins each revision. A ledger that is busy with itself may refuse all of them.
pub async fn exactly_one_racer_wins_each_revision(ledger: SharedLedger) {
    const RACERS: usize = 12;
    const ROUNDS: usize = 20;
    let (mut newest, mut round, mut tries) = (ABSENT, 0, 0);
    while round < ROUNDS {
        tries += 1;
        assert!(tries <= 10 * ROUNDS, "the racers do not get on");
        let racers = (0..RACERS).map(|racer| {
            let ledger = Arc::clone(&ledger);
            let write = vec![put("key", newest, format!("{round}-{racer}"))];
            tokio::spawn(async move { ledger.write(Bucket::Journal, write).await })
        });
        let (mut won, mut refused) = (Vec::new(), 0);
        for answer in join_all(racers).await {
            match answer.expect("a racer ends") {
                Ok(revision) => won.push(revision),
                Err(WriteError::Conflict { .. }) => {}
                Err(WriteError::Refused(_)) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        if refused == RACERS {
            continue;
        }
        assert_eq!(won.len(), 1, "round {round}");
        newest = won[0];
        let record = patiently(|| ledger.get(Bucket::Journal, "key")).await.expect("a record");
        assert_eq!(record.revision, newest);
        round += 1;
    }
}

/// A count, and how far each writer came in it.
fn decode(value: &[u8]) -> Vec<u64> {
    value.chunks(8).map(|chunk| u64::from_be_bytes(chunk.try_into().expect("8 bytes"))).collect()
}

fn encode(counts: &[u64]) -> Bytes {
    counts.iter().flat_map(|count| count.to_be_bytes()).collect::<Vec<u8>>().into()
}

/// Every increment counts once.
pub async fn every_increment_counts_once(ledger: SharedLedger) {
    const WRITERS: usize = 6;
    const EACH: u64 = 20;
    let writers = (0..WRITERS).map(|writer| {
        let ledger = Arc::clone(&ledger);
        tokio::spawn(async move {
            let mut won = Vec::new();
            let mut tries = 0;
            let mut next = 1;
            while next <= EACH {
                tries += 1;
                assert!(tries < TRIES, "the writer does not get on");
                let record = patiently(|| ledger.get(Bucket::Journal, "count")).await;
                let (expected, mut counts) = match record {
                    Some(record) => (record.revision, decode(&record.value)),
                    None => (ABSENT, vec![0; WRITERS + 1]),
                };
                // What it sees in a record happened, though the answer may have been lost.
                if counts[writer] >= next {
                    next += 1;
                    continue;
                }
                counts[writer] = next;
                counts[WRITERS] += 1;
                match ledger
                    .write(Bucket::Journal, vec![put("count", expected, encode(&counts))])
                    .await
                {
                    Ok(revision) => {
                        won.push(revision);
                        next += 1;
                    }
                    Err(WriteError::TooLarge { .. }) => panic!("it is small"),
                    Err(_) => {}
                }
            }
            won
        })
    });
    let mut seen = BTreeSet::new();
    for won in join_all(writers).await {
        for revision in won.expect("a writer ends") {
            assert!(seen.insert(revision), "two writers won {revision:?}");
        }
    }
    let newest = *seen.last().expect("somebody won");
    // The last write may be one whose answer was lost, so that nobody knows its revision.
    for attempt in 0..TRIES {
        let page = patiently(|| ledger.changes(Bucket::Journal, ABSENT, newest)).await;
        let counts = decode(page.changes[0].value.as_ref().expect("it is there"));
        let sum: u64 = counts[..WRITERS].iter().sum();
        assert_eq!(counts[WRITERS], sum, "an update was lost, or counted twice");
        if sum == EACH * WRITERS as u64 {
            return;
        }
        assert!(attempt + 1 < TRIES, "{counts:?} is all there is");
    }
}

/// All entries of the log, whatever goes wrong meanwhile; `complete` says when they are all there.
async fn read_until(ledger: &SharedLedger, complete: impl Fn(&[Entry]) -> bool) -> Vec<Entry> {
    for _ in 0..TRIES {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let after = entries.last().map_or(0, |last| last.position);
            let page = patiently(|| ledger.read(Log::Events, "", after, bounds::PAGE)).await;
            if page.is_empty() {
                break;
            }
            entries.extend(page);
        }
        if complete(&entries) {
            return entries;
        }
        tokio::task::yield_now().await;
    }
    panic!("the entries do not become complete");
}

/// Two gateways that an agent sends the same events to: none comes twice, none out of order.
pub async fn two_writers_of_one_sequence_leave_it_whole(ledger: SharedLedger) {
    const EVENTS: u64 = 60;
    let writers = (0..2).map(|_| {
        let ledger = Arc::clone(&ledger);
        tokio::spawn(async move {
            let mut last = 0;
            let mut tries = 0;
            for event in 0..EVENTS {
                let id = format!("event-{event}");
                last = loop {
                    tries += 1;
                    assert!(tries < TRIES, "the writer does not get on");
                    match ledger.append(Log::Events, "a.web", last, &id, "".into()).await {
                        Ok(Appended::New(number) | Appended::Already(number)) => break number,
                        // Somebody else is further: this writer is stale and ends.
                        Err(WriteError::Conflict { .. }) => return event,
                        Err(WriteError::TooLarge { .. }) => panic!("it is small"),
                        Err(WriteError::Ambiguous(_) | WriteError::Refused(_)) => {}
                    }
                };
            }
            EVENTS
        })
    });
    let reached: Vec<u64> =
        join_all(writers).await.into_iter().map(|it| it.expect("a writer ends")).collect();
    let furthest = reached.into_iter().max().unwrap_or(0);
    let entries = read_until(&ledger, |entries| entries.len() as u64 >= furthest).await;
    for (at, entry) in (0..).zip(&entries) {
        assert_eq!((entry.number, &entry.id), (at + 1, &format!("event-{at}")));
    }
}

/// Writers that compete for a subject, each of which reads where it stands after it lost.
pub async fn racing_appenders_leave_no_gap(ledger: SharedLedger) {
    const WRITERS: u64 = 5;
    const EACH: u64 = 20;
    let writers = (0..WRITERS).map(|writer| {
        let ledger = Arc::clone(&ledger);
        tokio::spawn(async move {
            let mut sure = BTreeMap::new();
            for event in 0..EACH {
                for attempt in 0..TRIES {
                    let last = patiently(|| ledger.last(Log::Events, "a.web")).await;
                    let last = last.map_or(0, |entry| entry.number);
                    // Another id each time: what became of an attempt before is not known.
                    let id = format!("{writer}-{event}-{attempt}");
                    match ledger.append(Log::Events, "a.web", last, &id, "".into()).await {
                        Ok(Appended::New(number)) => {
                            sure.insert(number, id);
                            break;
                        }
                        Ok(Appended::Already(_)) => panic!("{id} is new"),
                        Err(_) => {}
                    }
                    assert!(attempt + 1 < TRIES, "the writer does not get on");
                }
            }
            sure
        })
    });
    let mut sure = BTreeMap::new();
    for of_writer in join_all(writers).await {
        for (number, id) in of_writer.expect("a writer ends") {
            assert_eq!(sure.insert(number, id), None, "two entries with the number {number}");
        }
    }
    let newest = *sure.last_key_value().expect("somebody wrote").0;
    let entries =
        read_until(&ledger, |all| all.last().is_some_and(|last| last.number >= newest)).await;
    let first = entries[0].number;
    let mut ids = BTreeSet::new();
    for (at, entry) in (first..).zip(&entries) {
        assert_eq!(entry.number, at, "a gap");
        assert!(ids.insert(entry.id.clone()), "{} is there twice", entry.id);
        assert!(sure.get(&at).is_none_or(|id| *id == entry.id), "{at} is another entry");
    }
    assert!(sure.keys().all(|number| *number < first || *number < first + entries.len() as u64));
}

/// A follower ends with what is there.
pub async fn a_follower_ends_with_what_is_there(ledger: SharedLedger) {
    let bucket = Bucket::Agents;
    let writers = (0..3).map(|writer| {
        let ledger = Arc::clone(&ledger);
        tokio::spawn(async move {
            let mut newest = ABSENT;
            for number in 0_u64..60 {
                let key = format!("{writer}-{}", (number * 7) % 10);
                for attempt in 0..TRIES {
                    assert!(attempt + 1 < TRIES, "the writer does not get on");
                    let record = patiently(|| ledger.get(bucket, &key)).await;
                    let expected = record.map_or(ABSENT, |it| it.revision);
                    let write = match number % 3 {
                        0 => delete(&key, expected),
                        _ => put(&key, expected, number.to_be_bytes()),
                    };
                    if let Ok(revision) = ledger.write(bucket, vec![write]).await {
                        newest = revision;
                        break;
                    }
                }
            }
            newest
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut follower = Follower::new(bucket);
    let mut kept: BTreeMap<String, (Revision, Bytes)> = BTreeMap::new();
    while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
        // What fails is asked for again.
        drop(follow(&mut follower, &mut kept, &ledger, ABSENT).await);
    }
    let newest = join_all(writers).await.into_iter().map(|it| it.expect("a writer ends")).max();
    let newest = newest.expect("there are writers");
    // A late write may still come, so both look at the same time: as soon as they agree, it is shown
    // that the follower misses nothing.
    for attempt in 0..TRIES {
        assert!(attempt + 1 < TRIES, "{kept:?} is not what is there");
        if matches!(follow(&mut follower, &mut kept, &ledger, newest).await, Ok(true) | Err(_)) {
            continue;
        }
        let mut fresh = Follower::new(bucket);
        let mut found = BTreeMap::new();
        let at_least = follower.through();
        let done = loop {
            match follow(&mut fresh, &mut found, &ledger, at_least).await {
                Ok(true) => {}
                Ok(false) => break true,
                Err(_) => break false,
            }
        };
        if done && fresh.through() == follower.through() {
            assert_eq!(kept, found);
            break;
        }
    }
}

/// What a caller gives up on happens whole or not.
pub async fn what_a_caller_gives_up_on_happens_whole_or_not(ledger: SharedLedger) {
    let bucket = Bucket::Configuration;
    let rounds = 60_usize;
    for round in 0..rounds {
        let (a, b) = (format!("a-{round}"), format!("b-{round}"));
        let batch = vec![put(&a, ABSENT, ""), put(&b, ABSENT, "")];
        let mut write = pin!(ledger.write(bucket, batch).fuse());
        let subject = format!("a.{round}");
        let mut append = pin!(ledger.append(Log::Events, &subject, 0, "id", "".into()).fuse());
        for _ in 0..round % 5 {
            drop((poll!(&mut write), poll!(&mut append)));
            tokio::task::yield_now().await;
        }
        // Both are dropped here.
    }
    // What was asked for before is over when this is.
    let mut newest = None;
    for attempt in 0..TRIES {
        assert!(attempt + 1 < TRIES, "the last write does not get on");
        let key = format!("end-{attempt}");
        if let Ok(revision) = ledger.write(bucket, vec![put(&key, ABSENT, "")]).await {
            newest = Some(revision);
            break;
        }
    }
    let newest = newest.expect("it was written");
    let page = patiently(async || match ledger.changes(bucket, ABSENT, newest).await {
        Err(ReadError::Damaged { .. }) => panic!("nothing is damaged"),
        page => page,
    })
    .await;
    let mut found: BTreeMap<String, Revision> = BTreeMap::new();
    found.extend(page.changes.into_iter().map(|it| (it.key, it.revision)));
    for round in 0..rounds {
        let pair = (found.get(&format!("a-{round}")), found.get(&format!("b-{round}")));
        assert_eq!(pair.0, pair.1, "half of round {round}");
    }
    for entry in read_until(&ledger, |_| true).await {
        assert_eq!((entry.number, entry.id.as_str()), (1, "id"));
    }
}
