use guest_fleet_core::rollout::{Grant, Plan, Rollout, Stage, Verb};
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::{AssignmentRollout, Target};
use guest_fleet_ledger::{Existing, Revision, SqliteLedger, Write, restore};

use super::*;
use crate::configuration::audit;

/// Assignments and the state of their rollouts.
fn states() -> Vec<(&'static str, State)> {
    vec![
        ("aborted", State::Aborted),
        ("done", State::Done),
        ("draft", State::Draft),
        ("halted", State::Halted(Cause::Person("slow".to_owned()))),
        ("paused", State::Paused(Stage::Approval)),
        ("rolled-back", State::RolledBack),
        ("rolling-back", State::RollingBack),
        ("running", State::Running(Stage::Reaching)),
        ("soaking", State::Running(Stage::Soaking { since: Seconds(7) })),
    ]
}

fn rollout(assignment: &str, state: State) -> AssignmentRollout {
    let [from, to] = ["1", "2"].map(|text| Target::Revision(text.to_owned()));
    let mut rollout = Rollout::new(from, to, Plan::usual(10, 60));
    rollout.grant = Some(Grant { label: None, first: 1, last: 9, since: Seconds(3) });
    (rollout.state, rollout.resumed) = (state, Seconds(4));
    AssignmentRollout::first(&format!("of-{assignment}"), "p", rollout)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_moved_when_the_copy_was_made_waits_for_a_person() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = SqliteLedger::open(&folder.path().join("ledger")).unwrap();
    for (assignment, state) in states() {
        let record = RolloutRecord::of(&rollout(assignment, state)).encode_to_vec();
        let (key, value) = (rollout_key(assignment), Some(record.into()));
        let write = Write { key, expected: Revision::ABSENT, value };
        ledger.write(Bucket::Configuration, vec![write]).await.unwrap();
    }
    let garbage = Write {
        key: rollout_key("unreadable"),
        expected: Revision::ABSENT,
        value: Some(vec![0xff].into()),
    };
    ledger.write(Bucket::Configuration, vec![garbage]).await.unwrap();
    let copy = folder.path().join("copy");
    ledger.backup(&copy).await.unwrap();

    let path = folder.path().join("restored");
    restore(&copy, &path, Existing::Refuse, amend).unwrap();
    let restored = SqliteLedger::open(&path).unwrap();
    let at = jiff::Timestamp::UNIX_EPOCH;
    let decision =
        Decision { who: "alice".to_owned(), what: "restore".to_owned(), at, ..Decision::default() };
    let names = record(&*restored, &decision, &copy).await.unwrap();
    assert_eq!(names, ["of-paused", "of-rolling-back", "of-running", "of-soaking"]);

    let configuration = Configuration::load(&*restored).await.unwrap();
    for (assignment, before) in states() {
        let found = &configuration.view().rollouts[assignment].rollout;
        if names.contains(&format!("of-{assignment}")) {
            assert_eq!((&found.state, &found.grant), (&State::Halted(Cause::Restored), &None));
        } else {
            assert_eq!(*found, rollout(assignment, before).rollout);
        }
    }
    assert!(configuration.problem(&rollout_key("unreadable")).is_some());
    let entries = audit::newest(&*restored, 10).await.unwrap();
    let [entry] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!((entry.what.as_str(), entry.changes.len()), ("restore", 5));
    assert!(entry.changes[0].after.contains("copy"), "{entry:?}");
}

#[test]
fn going_on_after_a_restore_wants_a_reason_and_keeps_what_failed() {
    let mut found = rollout("a", State::Running(Stage::Reaching)).rollout;
    assert!(found.restore());
    let resume = |reason: &str| Verb::Resume { reason: reason.to_owned() };
    found.ask(&resume(" "), Seconds(9)).unwrap_err();
    found.ask(&resume("all agents were compared"), Seconds(9)).unwrap();
    assert_eq!(found.state, State::Running(Stage::Reaching));
    assert_eq!((found.epoch, found.resumed), (0, Seconds(4)));
}
