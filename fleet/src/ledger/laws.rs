//! The laws of the ledger as one suite, which every engine passes.
//!
//! ```text
//!   ledger_laws!(memory, make) ─► one test per law ─► records · changes · logs · bounds · races · model
//! ```
//!
//! An engine joins with one line, where `make` is a function that makes an empty ledger and what
//! has to live as long as it:
//!
//! ```text
//! async fn make() -> (SharedLedger, TempDir) { … }
//! guest_fleet::ledger_laws!(sqlite, make);
//! ```
//!
//! The laws in [`races`] hold while answers are lost and reads are stale, and engines that can
//! simulate that run them so, too. A law never sleeps and never asks what time it is.

pub mod bounds;
pub mod changes;
pub mod logs;
pub mod model;
pub mod races;
pub mod records;

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    Bucket, Change, Entry, Log, ReadError, Record, Revision, SharedLedger, Write, WriteError,
};

/// Makes a module of tests, one for every law, for an engine.
#[macro_export]
macro_rules! ledger_laws {
    ($engine:ident, $make:expr) => {
        mod $engine {
            use super::*;

            $crate::ledger_law! { $make;
                records::a_record_reads_back_as_it_was_written
                records::a_write_succeeds_only_against_the_newest_revision
                records::a_deleted_record_is_absent_and_can_be_made_again
                records::to_delete_what_is_absent_asserts_that_it_is
                records::a_batch_happens_whole_or_not_at_all
                records::revisions_of_a_bucket_grow_and_those_of_others_stay
                records::every_text_is_a_key
                records::a_scan_sees_the_records_of_its_prefix_in_pages
                records::a_scan_sees_every_record_that_is_there_throughout
                records::a_watcher_is_woken_by_a_write_and_by_a_wake
                changes::changes_show_the_newest_state_of_every_key_once
                changes::changes_come_in_pages_that_tear_no_batch
                changes::changes_show_deletions
                changes::changes_reach_the_revision_that_was_asked_for
                changes::changes_that_are_not_there_yet_are_unavailable
                changes::old_deletions_are_forgotten_and_said_to_be
                logs::entries_are_numbered_without_a_gap
                logs::the_same_id_again_is_the_same_entry
                logs::an_append_after_another_entry_than_the_last_conflicts
                logs::a_subject_keeps_its_newest_entries
                logs::a_log_is_read_in_pages_from_a_position
                logs::subjects_do_not_disturb_each_other
                bounds::what_is_at_a_bound_is_taken
                bounds::what_is_beyond_a_bound_is_refused_and_changes_nothing
                bounds::pages_have_a_bound
                races::exactly_one_racer_wins_each_revision
                races::every_increment_counts_once
                races::two_writers_of_one_sequence_leave_it_whole
                races::racing_appenders_leave_no_gap
                races::a_follower_ends_with_what_is_there
                races::what_a_caller_gives_up_on_happens_whole_or_not
            }

            #[test]
            fn sequences_of_calls_match_a_model() {
                $crate::ledger::laws::model::check(24, $make);
            }
        }
    };
}

/// Makes the tests of [`ledger_laws`].
#[doc(hidden)]
#[macro_export]
macro_rules! ledger_law {
    ($make:expr; $($file:ident :: $law:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $law() {
                let (ledger, _lives_as_long) = $make().await;
                $crate::ledger::laws::$file::$law(ledger).await;
            }
        )*
    };
}

/// A write of a value.
pub(crate) fn put(key: &str, expected: Revision, value: impl AsRef<[u8]>) -> Write {
    let value = Some(Bytes::copy_from_slice(value.as_ref()));
    Write { key: key.to_owned(), expected, value }
}

/// A write that deletes.
pub(crate) fn delete(key: &str, expected: Revision) -> Write {
    Write { key: key.to_owned(), expected, value: None }
}

/// All records with a prefix, page by page.
pub(crate) async fn scan_all(
    ledger: &SharedLedger,
    bucket: Bucket,
    prefix: &str,
    limit: usize,
) -> Vec<Record> {
    let mut records = Vec::new();
    let mut next: Option<String> = None;
    loop {
        let page = ledger.scan(bucket, prefix, next.as_deref(), limit).await.expect("a page");
        records.extend(page.records);
        next = page.next;
        if next.is_none() {
            return records;
        }
    }
}

/// All changes after a revision, page by page, and the revision they reach.
async fn changes_all(
    ledger: &SharedLedger,
    bucket: Bucket,
    mut after: Revision,
    at_least: Revision,
) -> (Vec<Change>, Revision) {
    let mut changes = Vec::new();
    loop {
        let page = ledger.changes(bucket, after, at_least).await.expect("changes");
        assert!(page.through >= after, "changes go backwards");
        changes.extend(page.changes);
        after = page.through;
        if !page.more {
            return (changes, after);
        }
    }
}

/// All entries of a log with a prefix, page by page.
pub(crate) async fn read_all(ledger: &SharedLedger, prefix: &str, limit: usize) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    loop {
        let after = entries.last().map_or(0, |last| last.position);
        let page = ledger.read(Log::Events, prefix, after, limit).await.expect("a page");
        if page.is_empty() {
            return entries;
        }
        entries.extend(page);
    }
}

/// Everything in a bucket, by key.
async fn contents(ledger: &SharedLedger, bucket: Bucket) -> BTreeMap<String, (Revision, Bytes)> {
    let records = scan_all(ledger, bucket, "", super::bounds::PAGE).await;
    records.into_iter().map(|it| (it.key, (it.revision, it.value))).collect()
}

fn is_conflict<T>(result: &Result<T, WriteError>) -> bool {
    matches!(result, Err(WriteError::Conflict { .. }))
}

/// Reads until the ledger answers. How often is bounded.
async fn patiently<T, F>(mut read: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, ReadError>>,
{
    for _ in 0..10_000 {
        match read().await {
            Ok(answer) => return answer,
            Err(ReadError::Unavailable(_)) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the ledger did not answer 10,000 times");
}

/// A follower of a bucket that keeps what it is given.
pub(crate) async fn follow(
    follower: &mut super::Follower,
    kept: &mut BTreeMap<String, (Revision, Bytes)>,
    ledger: &SharedLedger,
    at_least: Revision,
) -> Result<bool, ReadError> {
    let update = follower.next(&**ledger, at_least).await?;
    if update.is_reset {
        kept.clear();
    }
    for change in update.changes {
        match change.value {
            Some(value) => drop(kept.insert(change.key, (change.revision, value))),
            None => drop(kept.remove(&change.key)),
        }
    }
    Ok(update.more)
}
