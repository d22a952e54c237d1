//! Processes that are killed while they write.

use std::collections::BTreeMap;
use std::path::Path;

use guest_fleet_ledger::{Ledger, Log, SqliteLedger, bounds};

use crate::ledger::child::{BUCKET, WRITERS, Writing, count_of};

/// What was acknowledged, by writer.
#[derive(Debug, Default)]
pub(crate) struct Acknowledged {
    pub(crate) records: BTreeMap<u64, u64>,
    pub(crate) entries: BTreeMap<u64, u64>,
    pub(crate) refused: usize,
    pub(crate) failed: bool,
}

impl Acknowledged {
    /// Takes a line of a child; whether it was a write that was acknowledged.
    pub(crate) fn take(&mut self, line: &str) -> bool {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        match words.as_slice() {
            ["record", _, _] => self.records.insert(number(1), number(2)),
            ["entry", _, _] => self.entries.insert(number(1), number(2)),
            ["refused"] => {
                self.refused += 1;
                return false;
            }
            ["failed"] => {
                self.failed = true;
                return false;
            }
            ["ready"] => return false,
            other => panic!("no line of a child: {other:?}"),
        };
        true
    }
}

/// Everything that was acknowledged is there, nothing is there twice, no batch in halves. From then on
/// all that is there counts as acknowledged: the next child goes on from it.
pub(crate) async fn check(file: &Path, acknowledged: &mut Acknowledged) {
    let ledger = SqliteLedger::open(file).expect("it opens after a crash");
    for writer in 0..WRITERS {
        let mut counts = Vec::new();
        for key in [format!("a-{writer}"), format!("b-{writer}")] {
            let record = ledger.get(BUCKET, &key).await.expect("it reads");
            counts.push(record.map_or(0, |it| count_of(&it.value)));
        }
        assert_eq!(counts[0], counts[1], "half of a batch");
        let known = acknowledged.records.get(&writer).copied().unwrap_or(0);
        // One write may have happened whose answer did not arrive.
        assert!((known..=known + 1).contains(&counts[0]), "{known} were acknowledged: {counts:?}");
        acknowledged.records.insert(writer, counts[0]);

        let subject = format!("vm-{writer}.web");
        let mut entries = Vec::new();
        loop {
            let after = entries.last().map_or(0, |it: &guest_fleet_ledger::Entry| it.position);
            let page = ledger.read(Log::Events, &subject, after, 1000).await.expect("it reads");
            if page.is_empty() {
                break;
            }
            entries.extend(page);
        }
        let known = acknowledged.entries.get(&writer).copied().unwrap_or(0);
        let last = entries.last().map_or(0, |it| it.number);
        assert!((known..=known + 1).contains(&last), "{known} were acknowledged: {last}");
        acknowledged.entries.insert(writer, last);
        let first = last.saturating_sub(bounds::ENTRIES) + 1;
        let numbers: Vec<u64> = entries.iter().map(|it| it.number).collect();
        assert_eq!(numbers, (first..=last).collect::<Vec<_>>(), "a gap, or an entry twice");
        for entry in entries {
            assert_eq!(entry.id, entry.number.to_string());
            assert_eq!(count_of(&entry.value), entry.number);
        }
    }
    ledger.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_a_kill() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ledger");
    let mut acknowledged = Acknowledged::default();
    let mut state = 42_u64;
    for round in 0..20 {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Small values fill groups, large ones make checkpoints.
        let size = if round % 4 == 3 { 200_000 } else { 50 };
        let mut writing = Writing::start(&file, size, "");
        let mut left = (state >> 33) % 150;
        while left > 0 {
            let line = writing.line().expect("it writes until it is killed");
            left -= u64::from(acknowledged.take(&line));
        }
        writing.kill();
        while let Some(line) = writing.line() {
            acknowledged.take(&line);
        }
        assert!(!acknowledged.failed && acknowledged.refused == 0, "{acknowledged:?}");
        check(&file, &mut acknowledged).await;
    }
    assert!(acknowledged.records.values().all(|count| *count > 0), "{acknowledged:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_goes_on_where_the_first_was_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ledger");
    // The command line has it open all the time, and reads.
    let ledger = SqliteLedger::open(&file).expect("it opens");
    let mut acknowledged = Acknowledged::default();
    for _ in 0..5 {
        let mut writing = Writing::start(&file, 50, "");
        let mut left = 40;
        while left > 0 {
            let line = writing.line().expect("it writes until it is killed");
            left -= u64::from(acknowledged.take(&line));
            ledger.scan(BUCKET, "", None, 10).await.expect("it reads");
        }
        writing.kill();
        while let Some(line) = writing.line() {
            acknowledged.take(&line);
        }
        check(&file, &mut acknowledged).await;
    }
}
