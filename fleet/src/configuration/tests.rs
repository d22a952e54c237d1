//! Changes of the configuration over a ledger that fails as engines may.

use std::convert::Infallible;

use guest_fleet_core::account::{Account, Decided};
use guest_fleet_core::rollout::{Cause, Former, Plan, Rollout, Stage, State, Strategy, Verb};
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::{Assignment, AssignmentRollout, Before, Hold, Plugins, Target};
use guest_fleet_ledger::records::audit::{self, AUDIT_HEAD, AuditHead};
use guest_fleet_ledger::records::configuration::{ASSIGNMENT, AssignmentRecord, HOLD, HoldRecord};
use guest_fleet_ledger::records::rollout::{RolloutRecord, rollout_key};
use guest_fleet_ledger::{Bucket, Fate, Faults, Ledger, MemoryLedger, Revision, bounds};
use prost::Message;

use super::audit::{Known, newest, verify};
use super::change::{Becomes, ChangeError, Changed, Decision, EDITS, Edit, change};
use super::{Configuration, ended, words};

fn decision() -> Decision {
    Decision {
        who: "alice@ops".to_owned(),
        from: "a test".to_owned(),
        what: "apply".to_owned(),
        why: "because".to_owned(),
        at: "2026-01-01T00:00:00Z".parse().unwrap(),
    }
}

fn hold(reason: &str) -> Hold {
    Hold {
        selector: Selector::all(),
        own_labels: OwnLabels::Ignored,
        plugins: Plugins::All,
        reason: reason.to_owned(),
        by: "alice@ops".to_owned(),
        until: None,
    }
}

fn put(name: &str, reason: &str) -> Edit {
    let hold = hold(reason);
    Edit {
        key: format!("{HOLD}{name}"),
        before: None,
        after: Some(words::hold(&hold)),
        record: Becomes::Bytes(HoldRecord::of(&hold).encode_to_vec().into()),
    }
}

/// Writes these edits, whatever is there.
async fn all(
    ledger: &dyn Ledger,
    edits: Vec<Edit>,
) -> Result<Changed<()>, ChangeError<Infallible>> {
    change(ledger, &decision(), |_| Ok((edits.clone(), ()))).await
}

/// Raises the attempt of the assignment `a`, which is a change that must not happen twice.
async fn raise(ledger: &dyn Ledger) -> Result<Changed<u32>, ChangeError<Infallible>> {
    change(ledger, &decision(), |configuration| {
        let before = configuration.view().assignments.get("a").cloned();
        let before = before.unwrap_or(Assignment {
            plugin: "p".to_owned(),
            target: Target::Absent,
            selector: Selector::all(),
            own_labels: OwnLabels::Ignored,
            priority: 0,
            attempt: 0,
            strategy: Strategy::default(),
            declared: None,
        });
        let after = Assignment { attempt: before.attempt + 1, ..before };
        let edit = Edit {
            key: format!("{ASSIGNMENT}a"),
            before: None,
            after: Some(words::assignment(&after)),
            record: Becomes::Bytes(AssignmentRecord::of(&after).encode_to_vec().into()),
        };
        Ok((vec![edit], after.attempt))
    })
    .await
}

async fn attempt(ledger: &dyn Ledger) -> u32 {
    Configuration::load(ledger).await.unwrap().view().assignments["a"].attempt
}

#[tokio::test(start_paused = true)]
async fn a_change_is_one_write_with_its_entry() {
    let ledger = MemoryLedger::short_pages();
    let changed = all(&ledger, vec![put("one", "x"), put("two", "y")]).await;
    assert_eq!(changed.unwrap().entry, Some(1));
    assert_eq!(ledger.writes(), 1);
    let entries = newest(&ledger, 10).await.unwrap();
    let [entry] = entries.as_slice() else { panic!("{entries:?}") };
    assert_eq!((entry.number, entry.who.as_str(), entry.why.as_str()), (1, "alice@ops", "because"));
    assert_eq!(entry.changes[1].key, "hold/two");
    assert_eq!(entry.changes[1].after, "all plugins on all: y");
}

#[tokio::test(start_paused = true)]
async fn what_changes_nothing_writes_nothing() {
    let ledger = MemoryLedger::short_pages();
    let changed = all(&ledger, Vec::new()).await;
    assert_eq!(changed.unwrap().entry, None);
    assert_eq!(ledger.writes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_planned_again() {
    let ledger = MemoryLedger::short_pages();
    ledger.script([Fate::Conflict, Fate::Conflict]);
    let changed = raise(&ledger).await.unwrap();
    assert_eq!((changed.entry, changed.answer), (Some(1), 1));
    ledger.script([Fate::Conflict; 5]);
    assert!(matches!(raise(&ledger).await, Err(ChangeError::Contended)));
    assert_eq!(attempt(&ledger).await, 1);
}

#[tokio::test(start_paused = true)]
async fn an_ambiguous_change_that_happened_happens_once() {
    let ledger = MemoryLedger::short_pages();
    ledger.script([Fate::Happened]);
    let changed = raise(&ledger).await.unwrap();
    assert_eq!((changed.entry, changed.answer), (Some(1), 1));
    assert_eq!(attempt(&ledger).await, 1);
    ledger.script([Fate::Lost, Fate::Happened]);
    let changed = raise(&ledger).await.unwrap();
    assert_eq!((changed.entry, changed.answer), (Some(2), 2));
    assert_eq!(attempt(&ledger).await, 2);
}

#[tokio::test(start_paused = true)]
async fn an_ambiguous_change_that_never_happened_says_so() {
    let ledger = MemoryLedger::short_pages();
    ledger.script([Fate::Lost; 5]);
    assert!(matches!(raise(&ledger).await, Err(ChangeError::Unknown(_))));
    assert_eq!(ledger.writes(), 0);
}

#[tokio::test(start_paused = true)]
async fn changes_at_the_same_time_all_happen_one_after_the_other() {
    let ledger = MemoryLedger::short_pages();
    let (a, b, c) = tokio::join!(raise(&ledger), raise(&ledger), raise(&ledger));
    let mut answers = [a, b, c].map(|changed| changed.unwrap().answer);
    answers.sort_unstable();
    assert_eq!(answers, [1, 2, 3]);
    let verdict = verify(&ledger, None).await.unwrap();
    assert_eq!((verdict.checked, verdict.problems), (3, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn more_than_a_batch_holds_is_refused_whole() {
    let ledger = MemoryLedger::short_pages();
    let edits = |count: usize| (0..count).map(|n| put(&format!("h{n}"), "x")).collect::<Vec<_>>();
    let changed = all(&ledger, edits(EDITS + 1)).await;
    assert!(matches!(changed, Err(ChangeError::TooMuch(count)) if count == EDITS + 1));
    assert_eq!(ledger.writes(), 0);
    let changed = all(&ledger, edits(EDITS)).await;
    assert_eq!(changed.unwrap().entry, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_record_of_a_newer_program_is_not_written_over() {
    let ledger = MemoryLedger::short_pages();
    let newer = HoldRecord { version: 9, ..HoldRecord::of(&hold("x")) };
    ledger.put(Bucket::Configuration, "hold/one", newer.encode_to_vec());
    let changed = all(&ledger, vec![put("one", "y")]).await;
    assert!(matches!(changed, Err(ChangeError::Record(_))));
    // A damaged one is: nobody can read it anyway.
    ledger.put(Bucket::Configuration, "hold/one", vec![0xff]);
    let changed = all(&ledger, vec![put("one", "y")]).await;
    assert_eq!(changed.unwrap().entry, Some(1));
}

#[tokio::test(start_paused = true)]
async fn the_newest_entries_are_kept_and_older_ones_go_with_the_batch() {
    let ledger = MemoryLedger::short_pages();
    let head = AuditHead { version: 1, number: audit::KEPT, digest: vec![1; 32] };
    ledger.put(Bucket::Configuration, AUDIT_HEAD, head.encode_to_vec());
    ledger.put(Bucket::Configuration, &audit::key(1), vec![8]);
    assert_eq!(raise(&ledger).await.unwrap().entry, Some(audit::KEPT + 1));
    assert_eq!(ledger.peek(Bucket::Configuration, &audit::key(1)), None);
    assert_eq!(raise(&ledger).await.unwrap().entry, Some(audit::KEPT + 2));
}

#[tokio::test(start_paused = true)]
async fn a_changed_removed_or_cut_off_entry_is_found() {
    async fn problems(ledger: &MemoryLedger, known: Option<&Known>) -> Vec<String> {
        verify(ledger, known).await.unwrap().problems
    }
    let ledger = MemoryLedger::short_pages();
    for _ in 0..4 {
        raise(&ledger).await.unwrap();
    }
    let whole = verify(&ledger, None).await.unwrap();
    let known = Known { number: whole.newest, digest: whole.digest };
    assert_eq!(problems(&ledger, Some(&known)).await, Vec::<String>::new());
    let first = ledger.peek(Bucket::Configuration, &audit::key(2)).unwrap();
    let mut entry = audit::AuditRecord::decode(first.clone()).unwrap();
    entry.who = "mallory".to_owned();
    ledger.put(Bucket::Configuration, &audit::key(2), entry.encode_to_vec());
    assert_eq!(problems(&ledger, None).await, ["entry 2 is not the one that entry 3 follows"]);
    ledger.put(Bucket::Configuration, &audit::key(2), first.to_vec());
    assert_eq!(problems(&ledger, None).await, Vec::<String>::new());
    // The end is cut off, and the head made to fit.
    let third = ledger.peek(Bucket::Configuration, &audit::key(3)).unwrap();
    let head = AuditHead { version: 1, number: 3, digest: audit::digest(&third) };
    ledger.put(Bucket::Configuration, AUDIT_HEAD, head.encode_to_vec());
    assert_eq!(problems(&ledger, None).await, Vec::<String>::new());
    assert_eq!(
        problems(&ledger, Some(&known)).await,
        ["entry 4 was written down, and the newest is 3: entries at the end are gone"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_cannot_be_read_changes_nothing() {
    let ledger = MemoryLedger::short_pages();
    ledger.set_faults(Faults { unavailable: 1.0, ..Faults::default() });
    assert!(matches!(raise(&ledger).await, Err(ChangeError::Read(_))));
}

/// The rollout of the assignment `web` with this number, begun at a time of the same number.
fn rollout(number: u32, state: State) -> AssignmentRollout {
    let mut rollout = Rollout::new(Former::Each, Target::Absent, Plan::usual(1, 30));
    rollout.ask(&Verb::Start, Seconds(number.into())).unwrap();
    rollout.state = state;
    let mut account = Account::default();
    account.note(Decided { who: "alice@ops".to_owned(), ..Decided::default() });
    let (name, plugin) = (format!("web-{number}"), "web".to_owned());
    AssignmentRollout { name, plugin, number, before: Before::New, rollout, account }
}

fn put_rollout(found: &AssignmentRollout) -> Edit {
    Edit {
        key: rollout_key("web"),
        before: None,
        after: Some(words::rollout(found)),
        record: Becomes::Bytes(RolloutRecord::of(found).encode_to_vec().into()),
    }
}

#[tokio::test(start_paused = true)]
async fn a_rollout_whose_place_another_one_takes_stays_known() {
    async fn known(ledger: &MemoryLedger) -> Vec<(String, Option<String>)> {
        let configuration = Configuration::load(ledger).await.unwrap();
        let all = ended::all(ledger, configuration.view()).await.unwrap();
        all.into_iter().map(|it| (it.found.name, it.found.account.replaced_by)).collect()
    }
    let ledger = MemoryLedger::short_pages();
    let named = |name: &str, by: Option<&str>| (name.to_owned(), by.map(str::to_owned));
    all(&ledger, vec![put_rollout(&rollout(1, State::Draft))]).await.unwrap();
    assert_eq!(known(&ledger).await, []);
    // Another state of the same one takes no place.
    all(&ledger, vec![put_rollout(&rollout(1, State::RollingBack))]).await.unwrap();
    assert_eq!(known(&ledger).await, []);
    all(&ledger, vec![put_rollout(&rollout(2, State::RollingBack))]).await.unwrap();
    assert_eq!(known(&ledger).await, [named("web-1", Some("web-2"))]);
    all(&ledger, vec![put_rollout(&rollout(2, State::Done))]).await.unwrap();
    let both = [named("web-2", None), named("web-1", Some("web-2"))];
    assert_eq!(known(&ledger).await, both);
    // One of the same name, such as one that a person makes again.
    let again = AssignmentRollout { number: 3, ..rollout(2, State::Draft) };
    all(&ledger, vec![put_rollout(&again)]).await.unwrap();
    assert_eq!(known(&ledger).await, both);
    let too_much = (1..EDITS).map(|at| put(&format!("h-{at}"), "x"));
    let edits = too_much.chain([put_rollout(&rollout(4, State::Draft))]).collect();
    let refused = all(&ledger, edits).await;
    assert!(
        matches!(refused, Err(ChangeError::TooMuch(count)) if count == EDITS + 1),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_change_that_was_read_before_an_error_is_reported_with_the_next_success() {
    let mut failed = 0;
    for seed in 0..20 {
        let ledger = MemoryLedger::with_faults(seed, Faults::default());
        let held = HoldRecord::of(&hold("r")).encode_to_vec();
        ledger.put(Bucket::Configuration, "hold/h", held);
        // More than a page takes, and nothing of them changes a decision.
        for number in 0..=bounds::PAGE {
            ledger.put(Bucket::Configuration, &format!("gateway/{number}"), Vec::new());
        }
        ledger.set_faults(Faults { unavailable: 0.5, ..Faults::default() });
        let mut configuration = Configuration::default();
        let changed = loop {
            match configuration.catch_up(&ledger, Revision::ABSENT).await {
                Ok(changed) => break changed,
                Err(_) => failed += usize::from(!configuration.view().holds.is_empty()),
            }
        };
        assert!(changed && configuration.view().holds.contains_key("h"), "seed {seed}");
        ledger.set_faults(Faults::default());
        let again = configuration.catch_up(&ledger, Revision::ABSENT).await;
        assert!(!again.expect("it answers"), "it is reported once");
    }
    assert!(failed > 5, "{failed}: no error came between two pages");
}

#[test]
fn the_words_of_a_rollout_are_read_as_they_were_written() {
    let states = [
        State::Draft,
        State::Running(Stage::Reaching),
        State::Running(Stage::Approval),
        State::Halted(Cause::Restored),
        State::RolledBack,
        State::Done,
        State::Aborted,
    ];
    for state in states {
        let mut found = rollout(1, state.clone());
        found.rollout.to = Target::Revision("1, done, all at once".to_owned());
        let mut at_once = found.clone();
        at_once.rollout.plan = Plan::at_once();
        for found in [found, at_once] {
            let text = words::rollout(&found);
            let expected =
                words::RolloutWords { name: "web-1", plugin: "web", state: state.name() };
            assert_eq!(words::of_rollout(&text), Some(expected), "{text}");
        }
    }
    for other in ["", "web", "web: x", "web: x y", "web: x y, z"] {
        assert_eq!(words::of_rollout(other), None, "{other}");
    }
}
