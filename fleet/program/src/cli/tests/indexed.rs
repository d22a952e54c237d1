//! Lists and counts from an index that a fold made.

use std::sync::Arc;
use std::time::Duration;

use guest_fleet_core::time::Seconds;
use guest_fleet_server::fold::reader::Index;
use guest_fleet_server::fold::{self, Settings};
use insta::assert_snapshot;
use tokio_util::sync::CancellationToken;

use super::super::failure::Exit;
use super::agents::fleet;
use super::{MemoryLedger, now, parsed, ran, run, runtime, shown};

/// The fleet of four agents, folded at the time of the commands less `age`.
fn folded(age: u64) -> Arc<MemoryLedger> {
    fold_of(fleet(), age)
}

/// A ledger with its index, from the time of the commands less `age`.
pub(super) fn fold_of(ledger: MemoryLedger, age: u64) -> Arc<MemoryLedger> {
    let ledger = Arc::new(ledger);
    let at = Seconds(u64::try_from(now().as_second()).expect("after 1970") - age);
    let settings = Settings { wall: Arc::new(move || at), ..Settings::default() };
    runtime().block_on(async {
        let ending = CancellationToken::new();
        let folding = tokio::spawn(fold::run(ledger.clone(), settings, ending.clone()));
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let index = Index::open(&*ledger).await.expect("no fault");
            if index.is_some_and(|index| index.as_of().is_some()) {
                break;
            }
        }
        ending.cancel();
        folding.await.expect("it ends");
    });
    ledger
}

#[test]
fn lists_and_counts_come_from_the_index_and_say_how_old_they_are() {
    let commands: [&[&str]; 10] = [
        &["status"],
        &["agents"],
        &["agents", "--archived", "--limit", "2"],
        &["agents", "--archived", "--limit", "2", "--after", "a-2"],
        &["agents", "env = prod"],
        &["agents", "--plugin", "monitor"],
        &["agents", "--state", "held"],
        &["agents", "--state", "failed"],
        &["releases"],
        &["assignments"],
    ];
    let mut all = String::new();
    let ledger = folded(2);
    for words in commands {
        all.push_str(&shown(words, &ran(&ledger, words)));
    }
    let old = folded(3600);
    for words in [&["status"], &["agents"]] {
        all.push_str(&shown(words, &ran(&old, words)));
    }
    all.push_str(&shown(&["agents", "--scan"], &ran(&old, &["agents", "--scan"])));
    assert_snapshot!(all);
    for words in commands {
        assert_eq!(ran(&ledger, &[words, &["--json"]].concat()).exit, Exit::Done);
    }
}

#[test]
fn without_an_index_counts_are_not_invented() {
    let ledger = fleet();
    let ran_status = ran(&ledger, &["status"]);
    assert!(ran_status.err.contains("nobody counted yet"), "{}", ran_status.err);
    assert!(ran_status.out.is_empty(), "{}", ran_status.out);
    let arguments = parsed(&["agents", "--state", "failed"]);
    let (result, _, _) = runtime().block_on(run(&ledger, &arguments, ""));
    let failure = result.expect_err("there is no index");
    assert!(failure.text().contains("guest-fleet serve"), "{}", failure.text());
}
