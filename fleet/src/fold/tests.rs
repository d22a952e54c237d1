//! Owners under faults, kills and pauses, on paused time; what pages cost; what the index holds.

mod bounds;
mod leaves;
mod owners;
mod stand_in;
mod stored;

use std::collections::BTreeMap;
use std::sync::Arc;

use guest_fleet_core::fold::{Cell, Declared, Fold, Row, count};
use guest_fleet_core::time::{Seconds, UtcOnly};
use guest_fleet_ledger::{Bucket, Ledger};
use tokio::time::Instant;

use super::reader::Index;
use super::{Settings, inputs, patience};
use crate::configuration::Configuration;

const START: u64 = 1_767_225_600;

/// Settings whose wall clock goes with tokio's.
fn settings(shards: u32) -> Settings {
    let begin = Instant::now();
    let wall = Arc::new(move || Seconds(START + begin.elapsed().as_secs()));
    Settings { shards, wall, ..Settings::default() }
}

/// Everything in the index, by pages of this size.
async fn indexed(ledger: &dyn Ledger, limit: usize) -> Option<BTreeMap<String, Row>> {
    let mut index = Index::open(ledger).await.ok()??;
    let mut rows = BTreeMap::new();
    let mut after: Option<String> = None;
    loop {
        let page = index.page(after.as_deref(), limit, |_, _| true).await.ok()?;
        for (id, row) in page.rows {
            assert!(after.as_ref().is_none_or(|after| *after < id), "ids go up: {id}");
            assert!(rows.insert(id.clone(), row).is_none(), "{id} comes twice");
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Some(rows),
        }
    }
}

/// A recount from the buckets alone, of a ledger in which nothing goes wrong any more.
async fn recounted(ledger: &dyn Ledger) -> BTreeMap<String, Row> {
    let configuration = Configuration::load(ledger).await.expect("no fault");
    let declared = Declared::new(configuration.view(), patience::patience);
    let mut fold = Fold::default();
    for bucket in [Bucket::Agents, Bucket::Journal, Bucket::Reports] {
        let mut next: Option<String> = None;
        loop {
            let page = ledger.scan(bucket, "", next.as_deref(), 1000).await.expect("no fault");
            for record in page.records {
                let input = inputs::of_record(bucket, &record.key, Some(&record.value));
                let _effect =
                    fold.apply(&record.key, input.expect("a bucket that is folded"), &declared);
            }
            next = page.next;
            if next.is_none() {
                break;
            }
        }
    }
    fold.rows().clone()
}

/// Whether the index says what a recount says; events are left out, because logs forget.
pub(crate) async fn is_right(ledger: &dyn Ledger, now: Seconds) -> Result<(), String> {
    let rows = recounted(ledger).await;
    let index = Index::open(ledger).await.map_err(|error| error.to_string())?;
    let index = index.ok_or("there is no index")?;
    let found = indexed(ledger, 7).await.ok_or("the index cannot be read")?;
    // Events change what is counted, too.
    let configuration = Configuration::load(ledger).await.map_err(|error| error.to_string())?;
    let declared = Declared::new(configuration.view(), patience::patience);
    let mut with_events = rows.clone();
    for (id, row) in &mut with_events {
        row.events = found.get(id).map(|row| row.events.clone()).unwrap_or_default();
    }
    let counts = count(&with_events, &declared, now).at(now);
    let found: BTreeMap<String, Row> =
        found.into_iter().map(|(id, row)| (id, Row { events: BTreeMap::new(), ..row })).collect();
    let shown: BTreeMap<String, Row> =
        rows.into_iter().filter(|(_, row)| row.agent.is_some()).collect();
    if found != shown {
        let wrong = found.iter().find(|(id, row)| shown.get(*id) != Some(row));
        return Err(format!(
            "{} rows, {} expected; first wrong {wrong:?}",
            found.len(),
            shown.len()
        ));
    }
    let stored = index.counts(now, &UtcOnly);
    let expected = {
        let doors = index.doors(&UtcOnly);
        let mut expected = super::reader::Counts::default();
        for (cell, number) in counts {
            match cell {
                Cell::Agents(place) => {
                    let presence = place.presence(index.links(), now);
                    *expected.agents.entry(presence).or_default() += number;
                }
                Cell::Assigned { assignment, plugin, revision, mark } => {
                    let word = mark.word(now, &doors);
                    let all = expected.assignments.entry(assignment).or_default();
                    *all.entry(word).or_default() += number;
                    let all = expected.wanted.entry((plugin, revision)).or_default();
                    *all.entry(word).or_default() += number;
                }
                Cell::Having { release, archived: false } => {
                    *expected.having.entry(release).or_default() += number;
                }
                Cell::Faulty { plugin, fingerprint } => {
                    *expected.faulty.entry((plugin, fingerprint)).or_default() += number;
                }
                Cell::HeldByOwner { plugin } => {
                    *expected.held_by_owner.entry(plugin).or_default() += number;
                }
                Cell::Having { .. } | Cell::Over => {}
            }
        }
        expected
    };
    if stored == expected { Ok(()) } else { Err(format!("{stored:?} is not {expected:?}")) }
}
