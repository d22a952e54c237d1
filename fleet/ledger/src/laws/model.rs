//! Sequences of calls, and a model of ten lines that says what each has to answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::tools::{contents, read_all};
use crate::{Appended, Bucket, Log, Revision, SharedLedger, Write, WriteError, bounds};

const BUCKETS: [Bucket; 2] = [Bucket::Agents, Bucket::Journal];
const KEYS: [&str; 5] = ["a", "ab", "b", "ä", "b\u{10ffff}"];
const IDS: u8 = 4;

/// What a write expects.
#[derive(Clone, Copy, Debug)]
enum Expected {
    Newest,
    Absent,
    /// The revision of an earlier write, which may be the newest of another key.
    Earlier(usize),
}

#[derive(Clone, Debug)]
enum Call {
    Write { bucket: usize, writes: BTreeMap<usize, (Expected, Option<u8>)> },
    Append { subject: usize, last: Option<u64>, id: u8 },
    Changes { bucket: usize, after: usize },
    Scan { bucket: usize, prefix: usize, limit: usize },
    Read { prefix: usize, after: u64, limit: usize },
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let expected = prop_oneof![
        6 => Just(Expected::Newest),
        1 => Just(Expected::Absent),
        1 => any::<usize>().prop_map(Expected::Earlier),
    ];
    let one = (0..KEYS.len(), (expected, prop::option::weighted(0.7, any::<u8>())));
    let write = (0..BUCKETS.len(), prop::collection::btree_map(one.0, one.1, 1..4))
        .prop_map(|(bucket, writes)| Call::Write { bucket, writes });
    let append = (0..KEYS.len(), prop::option::weighted(0.2, 0..5_u64), 0..IDS)
        .prop_map(|(subject, last, id)| Call::Append { subject, last, id });
    let changes = (0..BUCKETS.len(), any::<usize>())
        .prop_map(|(bucket, after)| Call::Changes { bucket, after });
    let scan = (0..BUCKETS.len(), 0..KEYS.len(), 1..4_usize)
        .prop_map(|(bucket, prefix, limit)| Call::Scan { bucket, prefix, limit });
    let read = (0..KEYS.len(), 0..40_u64, 1..4_usize)
        .prop_map(|(prefix, after, limit)| Call::Read { prefix, after, limit });
    let call = prop_oneof![4 => write, 3 => append, 1 => changes, 1 => scan, 1 => read];
    prop::collection::vec(call, 1..60)
}

/// What has to be in a ledger.
#[derive(Default)]
struct Model {
    /// The newest write of every key that was ever there.
    records: BTreeMap<(Bucket, String), (Revision, Option<Bytes>)>,
    revisions: Vec<Revision>,
    newest: BTreeMap<Bucket, Revision>,
    entries: Vec<(String, u64, String)>,
}

impl Model {
    fn revision(&self, bucket: Bucket, key: &str) -> Revision {
        match self.records.get(&(bucket, key.to_owned())) {
            Some((revision, Some(_))) => *revision,
            Some((_, None)) | None => Revision::ABSENT,
        }
    }

    fn earlier(&self, choice: usize) -> Revision {
        if self.revisions.is_empty() {
            return Revision::ABSENT;
        }
        self.revisions[choice % self.revisions.len()]
    }

    async fn write(&mut self, ledger: &SharedLedger, bucket: Bucket, batch: Vec<Write>) {
        let holds = batch.iter().all(|it| self.revision(bucket, &it.key) == it.expected);
        match ledger.write(bucket, batch.clone()).await {
            Ok(revision) => {
                assert!(holds, "{batch:?} should conflict");
                assert!(Some(&revision) > self.newest.get(&bucket), "{revision:?} is not newer");
                for write in batch {
                    if write.value.is_some() || write.expected != Revision::ABSENT {
                        self.records.insert((bucket, write.key), (revision, write.value));
                    }
                }
                self.newest.insert(bucket, revision);
                self.revisions.push(revision);
            }
            Err(WriteError::Conflict { key }) => {
                assert!(!holds, "{batch:?} should succeed");
                let wrong = batch.iter().find(|it| self.revision(bucket, &it.key) != it.expected);
                assert_eq!(wrong.map(|it| &it.key), Some(&key));
            }
            Err(error) => panic!("{error}"),
        }
    }

    async fn append(
        &mut self,
        ledger: &SharedLedger,
        subject: &str,
        last: Option<u64>,
        id: String,
    ) {
        let newest = self.entries.iter().rev().find(|it| it.0 == subject);
        let number = newest.map_or(0, |it| it.1);
        let is_same = newest.is_some_and(|it| it.2 == id);
        let last = last.unwrap_or(number);
        match ledger.append(Log::Events, subject, last, &id, Bytes::from(id.clone())).await {
            Ok(Appended::Already(at)) => assert!(is_same && at == number),
            Ok(Appended::New(at)) => {
                assert!(!is_same && last == number && at == number + 1);
                self.entries.push((subject.to_owned(), at, id));
            }
            Err(WriteError::Conflict { key }) => {
                assert!(!is_same && last != number && key == subject);
            }
            Err(error) => panic!("{error}"),
        }
    }

    async fn call(&mut self, ledger: &SharedLedger, call: Call) {
        match call {
            Call::Write { bucket, writes } => {
                let bucket = BUCKETS[bucket];
                let batch = writes.into_iter().map(|(key, (expected, value))| Write {
                    key: KEYS[key].to_owned(),
                    expected: match expected {
                        Expected::Newest => self.revision(bucket, KEYS[key]),
                        Expected::Absent => Revision::ABSENT,
                        Expected::Earlier(choice) => self.earlier(choice),
                    },
                    value: value.map(|value| Bytes::from(vec![value])),
                });
                let batch = batch.collect();
                self.write(ledger, bucket, batch).await;
            }
            Call::Append { subject, last, id } => {
                self.append(ledger, KEYS[subject], last, format!("id-{id}")).await;
            }
            Call::Changes { bucket, after } => {
                let bucket = BUCKETS[bucket];
                let newest = self.newest.get(&bucket).copied().unwrap_or_default();
                let after = self.earlier(after).min(newest);
                let page = ledger.changes(bucket, after, newest).await.expect("changes");
                let mut expected: Vec<_> = self
                    .records
                    .iter()
                    .filter(|((of, _), (revision, _))| *of == bucket && *revision > after)
                    .map(|((_, key), (revision, value))| (*revision, key.clone(), value.clone()))
                    .collect();
                let mut found: Vec<_> =
                    page.changes.into_iter().map(|it| (it.revision, it.key, it.value)).collect();
                assert!(found.is_sorted_by_key(|it| it.0));
                expected.sort();
                found.sort();
                assert_eq!((found, page.through, page.more), (expected, newest, false));
            }
            Call::Scan { bucket, prefix, limit } => {
                let (bucket, prefix) = (BUCKETS[bucket], KEYS[prefix]);
                let found = super::tools::scan_all(ledger, bucket, prefix, limit).await;
                let mut found: Vec<_> = found.into_iter().map(|it| it.key).collect();
                found.sort();
                let expected: Vec<String> = self
                    .records
                    .iter()
                    .filter(|((of, key), (_, value))| {
                        *of == bucket && key.starts_with(prefix) && value.is_some()
                    })
                    .map(|((_, key), _)| key.clone())
                    .collect();
                assert_eq!(found, expected);
            }
            Call::Read { prefix, after, limit } => {
                let page = ledger.read(Log::Events, KEYS[prefix], after, limit).await;
                let page = page.expect("entries");
                let is_right =
                    |it: &crate::Entry| it.position > after && it.subject.starts_with(KEYS[prefix]);
                assert!(page.len() <= limit && page.iter().all(is_right));
            }
        }
    }

    async fn compare(&self, ledger: &SharedLedger) {
        for bucket in BUCKETS {
            let expected: BTreeMap<_, _> = self
                .records
                .iter()
                .filter(|((of, _), _)| *of == bucket)
                .filter_map(|((_, key), (revision, value))| {
                    Some((key.clone(), (*revision, value.clone()?)))
                })
                .collect();
            assert_eq!(contents(ledger, bucket).await, expected);
        }
        let entries = read_all(ledger, "", bounds::PAGE).await;
        let found: Vec<_> = entries.into_iter().map(|it| (it.subject, it.number, it.id)).collect();
        assert_eq!(found, self.entries);
    }
}

/// Checks as many sequences, each on a ledger of its own.
///
/// # Panics
/// An answer is not the one of the model. The shortest sequence that shows it is printed.
pub fn check<G, F>(sequences: u32, make: impl Fn() -> F)
where
    F: Future<Output = (SharedLedger, G)>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let config = Config { cases: sequences, failure_persistence: None, ..Config::default() };
    let checked = TestRunner::new(config).run(&calls(), |calls| {
        runtime.block_on(async {
            let (ledger, _lives_as_long) = make().await;
            let mut model = Model::default();
            for call in calls {
                model.call(&Arc::clone(&ledger), call).await;
            }
            model.compare(&ledger).await;
        });
        Ok(())
    });
    if let Err(error) = checked {
        panic!("{error}");
    }
}
