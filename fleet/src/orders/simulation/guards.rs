//! Every guard is needed: without it a law does not hold any more.

use std::iter::once;

use super::interleavings::an_order_waits_while_its_view_grows_old;
use super::seeds::notice;
use super::{on_paused_time, run};
use crate::simulated::removed::Guard;

/// Seeds within which a missing guard is noticed. Most are within a hundred; drift that is looked at once is noticed last.
const SEEDS: u64 = 1500;

#[track_caller]
fn notices(guard: Guard, law: &str) {
    notice(guard, law, 0..SEEDS, run);
}

/// The same, for a guard that few seeds notice. It begins with one that did; where the run of that one
/// is another by now, the search goes on as ever.
#[track_caller]
fn notices_from(seed: u64, guard: Guard, law: &str) {
    notice(guard, law, once(seed).chain(0..SEEDS), run);
}

#[test]
fn an_order_that_is_recorded_on_an_old_view_is_noticed() {
    notices(Guard::ViewAgeBeforeJournal, "was recorded, and no view");
}

#[test]
fn an_order_that_is_queued_on_a_view_that_grew_old_is_noticed() {
    notices_from(642, Guard::ViewAgeAfterJournal, "was queued, and no view");
}

#[test]
fn an_order_that_leaves_on_an_old_view_is_noticed() {
    // This comes about in one of some thousand seeds.
    let waits = |_| on_paused_time(an_order_waits_while_its_view_grows_old());
    notice(Guard::ViewAgeAtHandOver, "was sent, and no view", once(0), waits);
}

#[test]
fn a_replaced_session_that_goes_on_is_noticed() {
    notices(Guard::Fence, "a session that was replaced");
}

#[test]
fn an_order_that_is_sent_again_when_it_is_not_wanted_any_more_is_noticed() {
    notices(Guard::Supersede, "no view");
}

#[test]
fn an_order_that_leaves_before_it_is_recorded_is_noticed() {
    notices(Guard::JournalFirst, "which is in no journal");
}

#[test]
fn an_event_that_is_acknowledged_and_not_recorded_is_noticed() {
    notices(Guard::EventRecorded, "and the log has");
}

#[test]
fn an_event_that_is_recorded_twice_is_noticed() {
    notices(Guard::SameId, "and the log has");
}

#[test]
fn a_removal_of_what_is_not_there_is_noticed() {
    notices(Guard::RemoveWhatIsThere, "which it never had");
}

#[test]
fn an_agent_that_takes_an_older_order_is_noticed() {
    notices(Guard::Generations, "after");
}

#[test]
fn a_generation_below_what_an_agent_reports_is_noticed_when_the_journals_are_lost() {
    notices(Guard::AboveReported, "should have");
}

#[test]
fn an_agent_that_starts_what_its_owner_stopped_is_noticed() {
    notices(Guard::OwnerStopped, "which its owner had stopped");
}

#[test]
fn drift_that_was_looked_at_once_is_noticed() {
    notices_from(935, Guard::SecondLook, "which it has");
}

#[test]
fn an_agent_that_is_ordered_again_without_leave_is_noticed() {
    notices(Guard::LeaveToRepair, "again without leave");
}

#[test]
fn an_order_that_undoes_what_a_person_did_is_noticed() {
    notices_from(184, Guard::OwnersChange, "which it has");
}

#[test]
fn an_order_on_journals_that_went_back_is_noticed() {
    notices(Guard::LedgerWentBack, "on journals that went back");
}
