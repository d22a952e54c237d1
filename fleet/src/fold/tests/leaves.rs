//! Laws of the leaves: what is written is what the rows are, in records that can be found.

use std::collections::BTreeMap;

use guest_fleet_core::fold::{AgentFacts, Row};
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::records::index::{DirectoryRecord, LeafRecord, directory_key, leaf_key};
use guest_fleet_ledger::{Revision, Write, bounds};
use proptest::prelude::*;
use prost::Message;

use super::super::leaves::{BATCH_BYTES, Leaves};

fn row(size: usize, seen: u64) -> Row {
    let mut agent = AgentFacts::default().seen_at(Some(Seconds(seen * 300)));
    let parts = (0..size).map(|at| (format!("k{at:03}"), "v".repeat(200)));
    agent.labels.own = parts.collect();
    Row { agent: Some(agent), ..Row::default() }
}

/// A bucket that takes batches as a ledger does.
#[derive(Default)]
struct Kept {
    revision: u64,
    records: BTreeMap<String, (Revision, Vec<u8>)>,
}

impl Kept {
    fn write(&mut self, batch: &[Write]) -> Revision {
        self.revision += 1;
        let bytes: usize = batch.iter().filter_map(|one| Some(one.value.as_ref()?.len())).sum();
        assert!(batch.len() < bounds::BATCH && bytes < bounds::BATCH_BYTES, "{bytes}");
        let mut keys = std::collections::BTreeSet::new();
        for one in batch {
            assert!(keys.insert(&one.key), "{} twice", one.key);
            let found = self.records.get(&one.key).map_or(Revision::ABSENT, |(at, _)| *at);
            assert_eq!(found, one.expected, "{}", one.key);
            match &one.value {
                Some(value) => {
                    self.records.insert(one.key.clone(), (Revision(self.revision), value.to_vec()));
                }
                None => drop(self.records.remove(&one.key)),
            }
        }
        Revision(self.revision)
    }

    /// The ids, through the directory; and that the leaves cover all ids without a gap.
    fn ids(&self) -> Vec<String> {
        let (_, directory) = &self.records[&directory_key(0)];
        let directory = DirectoryRecord::decode(directory.as_slice()).expect("a directory");
        let mut ids = Vec::new();
        let mut expected = Some(String::new());
        for entry in &directory.leaves {
            let (_, leaf) = &self.records[&leaf_key(0, entry.number)];
            let leaf = LeafRecord::decode(leaf.as_slice()).expect("a leaf");
            assert_eq!(Some(&leaf.first), expected.as_ref());
            assert_eq!(leaf.first, entry.first);
            ids.extend(leaf.rows.into_iter().map(|row| row.id));
            expected = leaf.until;
        }
        assert_eq!(expected, None, "the last leaf has no end");
        assert_eq!(self.records.len(), directory.leaves.len() + 1, "no leaf is left over");
        ids
    }
}

fn flush(leaves: &mut Leaves, rows: &BTreeMap<String, Row>, kept: &mut Kept) {
    loop {
        let plan = leaves.plan(rows);
        assert!(plan.bytes <= bounds::BATCH_BYTES);
        if !plan.writes.is_empty() {
            let revision = kept.write(&plan.writes);
            leaves.written(&plan, revision);
        }
        if plan.is_last {
            return;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn law_leaves_have_every_row_once_whatever_changes(
        rounds in prop::collection::vec(
            prop::collection::vec((0..300_u32, 0..40_usize, any::<bool>()), 1..120), 1..12),
    ) {
        let mut rows: BTreeMap<String, Row> = BTreeMap::new();
        let mut leaves = Leaves::new(0);
        let mut kept = Kept::default();
        for (number, round) in rounds.into_iter().enumerate() {
            for (id, size, is_there) in round {
                let id = format!("a-{id:03}");
                if is_there {
                    rows.insert(id.clone(), row(size, number as u64));
                } else {
                    rows.remove(&id);
                }
                leaves.touch(&id);
            }
            flush(&mut leaves, &rows, &mut kept);
            prop_assert_eq!(kept.ids(), rows.keys().cloned().collect::<Vec<_>>());
        }
        for id in std::mem::take(&mut rows).into_keys() {
            leaves.touch(&id);
        }
        flush(&mut leaves, &rows, &mut kept);
        prop_assert!(kept.ids().is_empty());
    }
}

#[test]
fn what_does_not_fit_one_batch_is_written_in_several() {
    let rows: BTreeMap<String, Row> =
        (0..1000).map(|at| (format!("a-{at:04}"), row(64, at))).collect();
    let mut leaves = Leaves::new(0);
    let mut kept = Kept::default();
    flush(&mut leaves, &rows, &mut kept);
    assert!(kept.revision >= 5, "{} batches of {BATCH_BYTES}", kept.revision);
    assert_eq!(kept.ids(), rows.keys().cloned().collect::<Vec<_>>());
}
