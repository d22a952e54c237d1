//! A change of a fleet's configuration, as the controller of rollouts makes it.

use std::cell::RefCell;

use guest_fleet_core::view::{Archive, Release, ReleaseName};
use guest_fleet_ledger::records::configuration::{HoldRecord, ReleaseRecord, release_key};
use guest_fleet_ledger::{Bucket, Ledger, MemoryLedger, Revision, Write};
use guest_fleet_server::configuration::Configuration;
use guest_fleet_server::configuration::change::{
    Becomes, ChangeError, Decision, Edit, change_under,
};
use prost::Message;
use sha2::{Digest, Sha256};

use super::{Pair, calls};

/// Releases of the fleet.
const RELEASES: usize = 1000;

/// Bytes that are hashed beside it.
const HASHED: usize = 16 << 10;

pub(crate) fn pairs() -> Vec<Pair> {
    vec![change()]
}

/// One record is replaced, with its audit entry, in a configuration of a thousand releases that the
/// caller follows. Beside it some bytes are hashed.
fn change() -> Pair {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime");
    let ledger = MemoryLedger::default();
    runtime.block_on(declare(&ledger));
    let followed =
        RefCell::new(runtime.block_on(Configuration::load(&ledger)).expect("it is read"));
    let decision = Decision {
        who: "the controller".to_owned(),
        from: "here".to_owned(),
        what: "rollout grant".to_owned(),
        why: "a wave is over".to_owned(),
        at: jiff::Timestamp::UNIX_EPOCH,
    };
    let hold = HoldRecord { version: 1, selector: "all".to_owned(), ..HoldRecord::default() };
    let edit = Edit {
        key: "hold/h".to_owned(),
        before: None,
        after: Some("all plugins on all".to_owned()),
        record: Becomes::Bytes(hold.encode_to_vec().into()),
    };
    let own = calls(move || {
        let plan = |_: &Configuration| Ok((vec![edit.clone()], ()));
        let mut followed = followed.borrow_mut();
        let changed = change_under(&ledger, &decision, None, &mut followed, plan);
        let changed: Result<_, ChangeError<std::io::Error>> = runtime.block_on(changed);
        changed.expect("it is changed").entry
    });
    let bytes = vec![0x5a; HASHED];
    let reference = calls(move || Sha256::digest(&bytes));
    Pair { name: "fleet-change", own, reference }
}

async fn declare(ledger: &MemoryLedger) {
    for number in 0..RELEASES {
        let name = ReleaseName { plugin: format!("plugin-{number}"), revision: "1".to_owned() };
        let archive = Archive { digest: "ab".repeat(32), url: String::new() };
        let archives = [("amd64".to_owned(), archive)].into();
        let record = ReleaseRecord::of(&name, &Release { archives, order: vec![0; 200] });
        let write = Write {
            key: release_key(&name),
            expected: Revision::ABSENT,
            value: Some(record.encode_to_vec().into()),
        };
        ledger.write(Bucket::Configuration, vec![write]).await.expect("it is written");
    }
}
