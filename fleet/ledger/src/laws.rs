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
//! guest_fleet_ledger::ledger_laws!(sqlite, make);
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
pub(crate) mod tools;

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
                $crate::laws::model::check(24, $make);
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
                $crate::laws::$file::$law(ledger).await;
            }
        )*
    };
}
