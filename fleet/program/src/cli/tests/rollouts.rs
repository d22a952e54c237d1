//! Rollouts by hand, their way back when they are done, and what stays known of those that have ended.

use guest_fleet_core::rollout::{Former, State, Verb};
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::AssignmentRollout;
use guest_fleet_ledger::records::rollout::{RolloutRecord, rollout_key};
use guest_fleet_ledger::{Bucket, records};
use insta::assert_snapshot;
use prost::Message;

use super::super::failure::Exit;
use super::agents::{fleet, ordered};
use super::{DIGEST, MemoryLedger, Ran, declarations, ran, ran_with, shown};

const ASSIGNMENT: &str = "monitor-prod";

/// Number of the state of an order that was done.
const DONE: u32 = 4;

/// The file with another release.
fn with_release(revision: &str) -> String {
    let release = format!(
        "[[release]]\nplugin = \"monitor\"\nrevision = \"{revision}\"\nentry_point = \"bin/monitor\"\n\
         archives.amd64 = {{ sha256 = \"{DIGEST}\" }}\n"
    );
    declarations() + &release
}

/// The same with this revision in the assignment.
fn wants(file: &str, revision: &str) -> String {
    file.replacen("revision = \"1.2\"\nselect", &format!("revision = \"{revision}\"\nselect"), 1)
}

/// A fleet in which the releases 1.2 and 1.3 are declared, and a-1 did 1.2.
pub(super) fn two_releases() -> MemoryLedger {
    let ledger = fleet();
    ordered(&ledger, "a-1", "1.2", DONE, "2026-01-01T10:00:00Z");
    let ran = ran_with(&ledger, &["apply", "-f", "-"], &with_release("1.3"));
    assert_eq!((ran.exit, ran.err.as_str()), (Exit::Done, ""));
    ledger
}

fn rollout(ledger: &MemoryLedger) -> AssignmentRollout {
    let key = rollout_key(ASSIGNMENT);
    let value = ledger.peek(Bucket::Configuration, &key).expect("a rollout");
    records::decode::<RolloutRecord>(&key, &value).expect("a record").rollout(&key).expect("one")
}

/// Puts a rollout there that has come to another state.
fn becomes(ledger: &MemoryLedger, change: impl FnOnce(&mut AssignmentRollout)) {
    let mut found = rollout(ledger);
    change(&mut found);
    let value = RolloutRecord::of(&found).encode_to_vec();
    ledger.put(Bucket::Configuration, &rollout_key(ASSIGNMENT), value);
}

fn is_done(ledger: &MemoryLedger) {
    becomes(ledger, |found| {
        found.rollout.state = State::Done;
        found.rollout.grant = None;
    });
}

fn applied(ledger: &MemoryLedger, file: &str) -> Ran {
    ran_with(ledger, &["apply", "-f", "-"], file)
}

#[test]
fn a_file_that_a_person_went_past_by_hand_changes_nothing_until_it_says_something_else() {
    let ledger = two_releases();
    let create = ["rollout", "create", "spring", "--assignment", ASSIGNMENT, "--to", "1.3"];
    let mut all = shown(&create, &ran(&ledger, &create));
    let diff = ["diff", "-f", "-"];
    all += &shown(&diff, &ran_with(&ledger, &diff, &with_release("1.3")));
    all += &shown(&["apply", "-f", "-"], &applied(&ledger, &with_release("1.3")));
    assert_eq!(rollout(&ledger).name, "spring");
    // Another part of the assignment is the file's all the same.
    let wider = with_release("1.3")
        .replace("select = \"env = prod\"\n\n[[hold", "select = \"all\"\n\n[[hold");
    all += &shown(&["apply", "-f", "-"], &applied(&ledger, &wider));
    // The file agrees with the fleet.
    let agrees = wants(&wider, "1.3");
    all += &shown(&["apply", "-f", "-"], &applied(&ledger, &agrees));
    all += &shown(&diff, &ran_with(&ledger, &diff, &agrees));
    assert_snapshot!(all);
    // So the file decides again.
    is_done(&ledger);
    let back = applied(&ledger, &wider);
    assert!(back.out.contains("monitor 1.3 to 1.2, "), "{}", back.out);
}

#[test]
fn a_rollout_that_is_done_goes_back_by_a_new_one_and_stays_known() {
    let ledger = two_releases();
    let create = ["rollout", "create", "spring", "--assignment", ASSIGNMENT, "--to", "1.3"];
    assert_eq!(ran(&ledger, &create).exit, Exit::Done);
    is_done(&ledger);
    ordered(&ledger, "a-1", "1.3", DONE, "2026-01-01T11:00:00Z");
    let mut all = String::new();
    let mut run = |words: &[&str]| all += &shown(words, &ran(&ledger, words));
    run(&["rollout", "rollback", "spring", "--reason", "it leaks"]);
    run(&["rollout", "list"]);
    run(&["rollout", "list", "--ended"]);
    run(&["rollout", "show", "spring"]);
    run(&["rollout", "history", "spring"]);
    run(&["rollout", "rollback", "spring"]);
    run(&["rollout", "show", ASSIGNMENT]);
    run(&["rollout", "rollback", ASSIGNMENT, "--at-once", "--reason", "now"]);
    assert_snapshot!(all);
    for words in [
        ["rollout", "list", "--ended", "--json"].as_slice(),
        &["rollout", "show", "spring", "--json"],
        &["rollout", "show", ASSIGNMENT, "--json"],
    ] {
        assert_eq!(ran(&ledger, words).exit, Exit::Done);
    }
    let back = rollout(&ledger);
    assert_eq!((back.name.as_str(), back.number), ("monitor-prod-2", 2));
}

#[test]
fn a_file_that_the_fleet_went_back_from_says_so_and_changes_nothing() {
    let ledger = two_releases();
    let file = wants(&with_release("1.3"), "1.3");
    assert_eq!(applied(&ledger, &file).exit, Exit::Done);
    let mut all = String::new();
    let diff = ["diff", "-f", "-"];
    for verb in [Verb::Pause, Verb::Halt { reason: "it leaks".to_owned() }, Verb::RollBack] {
        becomes(&ledger, |found| found.rollout.ask(&verb, Seconds(1_767_268_900)).expect("it may"));
        all += &shown(&diff, &ran_with(&ledger, &diff, &file));
    }
    becomes(&ledger, |found| found.rollout.state = State::RolledBack);
    all += &shown(&diff, &ran_with(&ledger, &diff, &file));
    all += &shown(&["apply", "-f", "-"], &applied(&ledger, &file));
    let again = ["rollout", "create", "spring", "--assignment", ASSIGNMENT, "--to", "1.3"];
    let again = again.iter().chain(&["--again", "--reason", "it was the disk"]).copied();
    let again: Vec<&str> = again.collect();
    assert_eq!(ran(&ledger, &again).exit, Exit::Done);
    // Begun again by hand, it is what the files say.
    let diff_now = ran_with(&ledger, &diff, &file);
    assert_eq!((diff_now.exit, diff_now.out.as_str()), (Exit::Done, ""));
    becomes(&ledger, |found| found.rollout.state = State::RolledBack);
    let json = ran_with(&ledger, &["diff", "-f", "-", "--json"], &file);
    assert!(json.out.contains("\"state\": \"rolled back\""), "{}", json.out);
    assert_snapshot!(all);
}

#[test]
fn a_pruned_assignment_leaves_what_halted_it_and_its_number() {
    let ledger = two_releases();
    let file = wants(&with_release("1.3"), "1.3");
    assert_eq!(applied(&ledger, &file).exit, Exit::Done);
    assert_eq!(
        ran(&ledger, &["rollout", "halt", ASSIGNMENT, "--reason", "it leaks"]).exit,
        Exit::Done
    );
    let gone: String = file
        .split("\n\n")
        .filter(|part| !part.starts_with("[[assignment]]"))
        .collect::<Vec<_>>()
        .join("\n\n");
    let prune = ["apply", "-f", "-", "--prune", "--yes"];
    let mut all = shown(&prune, &ran_with(&ledger, &prune, &gone));
    all += &shown(&["rollout", "list"], &ran(&ledger, &["rollout", "list"]));
    all += &shown(&["rollout", "list", "--ended"], &ran(&ledger, &["rollout", "list", "--ended"]));
    // It halted, and comes back.
    all += &shown(&["apply", "-f", "-"], &applied(&ledger, &file));
    let again = ["apply", "-f", "-", "--again", "it was the disk"];
    all += &shown(&again, &ran_with(&ledger, &again, &file));
    assert_snapshot!(all);
}

#[test]
fn a_release_that_was_taken_back_by_hand_is_not_pushed_again_by_its_file() {
    let ledger = two_releases();
    let file = wants(&with_release("1.3"), "1.3");
    assert_eq!(applied(&ledger, &file).exit, Exit::Done);
    is_done(&ledger);
    ordered(&ledger, "a-1", "1.3", DONE, "2026-01-01T11:00:00Z");
    let back = ["rollout", "rollback", ASSIGNMENT, "--at-once", "--reason", "it leaks"];
    let mut all = shown(&back, &ran(&ledger, &back));
    let diff = ["diff", "-f", "-"];
    all += &shown(&diff, &ran_with(&ledger, &diff, &file));
    is_done(&ledger);
    let prune = ["apply", "-f", "-", "--prune", "--yes"];
    // No file names the release that the fleet went back to.
    let only_new = file.replacen("revision = \"1.2\"\nentry", "revision = \"1.4\"\nentry", 1);
    all += &shown(&prune, &ran_with(&ledger, &prune, &only_new));
    // Another revision is another wish.
    let newer =
        wants(&only_new.replace("revision = \"1.3\"\nselect", "revision = \"1.2\"\nselect"), "1.4");
    // Agents may have to go back to what they have, though no file names that.
    all += &shown(&prune, &ran_with(&ledger, &prune, &newer));
    assert_snapshot!(all);
}

#[test]
fn a_way_back_of_some_agents_alone_wants_the_name_of_their_rollout() {
    let ledger = two_releases();
    let file = wants(&with_release("1.3"), "1.3");
    assert_eq!(applied(&ledger, &file).exit, Exit::Done);
    is_done(&ledger);
    becomes(&ledger, |found| found.rollout.from = Former::Each);
    let mut all = String::new();
    let mut run = |words: &[&str]| all += &shown(words, &ran(&ledger, words));
    run(&["rollout", "rollback", ASSIGNMENT]);
    run(&["rollout", "rollback", ASSIGNMENT, "--at-once", "--reason", " "]);
    run(&["rollout", "rollback", "monitor-prod-1"]);
    // Nobody is left of whom anything could be asked.
    becomes(&ledger, |found| found.rollout.state = State::Done);
    let ended = rollout(&ledger);
    ledger.put(Bucket::Configuration, &rollout_key("gone"), {
        let named = AssignmentRollout { name: "gone-1".to_owned(), ..ended };
        RolloutRecord::of(&named).encode_to_vec()
    });
    run(&["rollout", "rollback", "gone-1"]);
    run(&["rollout", "show", "gone-1"]);
    assert_snapshot!(all);
}
