//! Records beside revisions, and which of them an agent without a store adopts.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::Arc;

use guest_agent_actors::model::id::{Generation, PluginName, RevisionId};
use guest_agent_actors::model::spec::PluginSpec;
use guest_agent_actors::plugin::machine;
use guest_agent_actors::plugin::snapshot::Beside;
use guest_agent_actors::plugin::state::Phase;
use guest_agent_actors::ports::Installer;

use super::rig::{Rig, listing, spec};
use super::signatures::{Pair, rig, trust};
use crate::install::trust::Trust;

fn name() -> PluginName {
    "sample".parse().expect("a name")
}

/// A plugin at rest, as its actor would have it recorded.
fn record(spec: PluginSpec, generation: u64) -> Vec<u8> {
    let mut state = machine::begin(Generation(generation), Arc::new(spec)).next;
    state.phase = Phase::Idle;
    match Beside::of(&state, (None, None)) {
        Beside::Keep(record) => record,
        other => panic!("{other:?}"),
    }
}

async fn keep(rig: &Rig, revision: &str, record: Option<Vec<u8>>) {
    let revision: RevisionId = revision.parse().expect("a revision");
    rig.pipeline.keep_record(&name(), &revision, record).await.expect("kept");
}

/// What an agent that lost its store makes of the only plugin that is there: the order that its
/// record is of, or the reason against it.
fn found(rig: &Rig) -> Result<(u64, String), String> {
    let mut all = rig.pipeline.adoptable();
    assert_eq!(all.len(), 1, "{all:?}");
    let (of, record) = all.pop().expect("one");
    assert_eq!(of, name());
    record.map(|it| (it.state.generation.0, it.state.spec.revision.to_string()))
}

/// A rig with an installed revision, its record, and the path of that record.
async fn recorded() -> (Rig, PluginSpec, PathBuf) {
    let (rig, url, sha256) = rig().await;
    let spec = spec(&url, sha256);
    rig.install(spec.clone()).await.expect("installable");
    keep(&rig, "r1", Some(record(spec.clone(), 7))).await;
    let path = rig.plugins().join("sample/.adopt-r1");
    (rig, spec, path)
}

#[tokio::test]
async fn a_record_is_its_owners_alone_and_goes_with_its_revision() {
    let (rig, spec, path) = recorded().await;
    assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o7777, 0o600);
    assert_eq!(found(&rig), Ok((7, "r1".to_owned())));
    // Written anew, there is no second one and nothing temporary.
    keep(&rig, "r1", Some(record(spec.clone(), 8))).await;
    assert_eq!(found(&rig), Ok((8, "r1".to_owned())));
    assert_eq!(listing(&rig.plugins().join("sample")), [".adopt-r1", ".installed-r1", "r1"]);
    // None beside a revision that is not there.
    keep(&rig, "r2", Some(record(spec.clone(), 9))).await;
    assert_eq!(found(&rig), Ok((8, "r1".to_owned())));
    keep(&rig, "r1", None).await;
    assert!(found(&rig).expect_err("it is deleted").contains("no record"));
    keep(&rig, "r1", Some(record(spec, 10))).await;
    rig.pipeline.discard(&name(), &"r1".parse().expect("a revision")).await.expect("discarded");
    assert_eq!(listing(&rig.plugins()), [""; 0]);
}

#[tokio::test]
async fn a_record_that_is_damaged_or_not_the_agents_own_is_refused_with_the_reason() {
    type Spoil = fn(&Rig, &PathBuf);
    let spoilt: [(&str, Spoil); 8] = [
        ("digest does not match", |_, path| {
            let mut bytes = fs::read(path).expect("readable");
            let last = bytes.last_mut().expect("not empty");
            *last ^= 1;
            fs::write(path, bytes).expect("written");
        }),
        ("too short", |_, path| fs::write(path, "short").expect("written")),
        ("another user may have written it", |_, path| {
            fs::set_permissions(path, fs::Permissions::from_mode(0o622)).expect("changed");
        }),
        ("single name", |rig, path| {
            fs::hard_link(path, rig.dir.path().join("second")).expect("linked");
        }),
        ("cannot be used", |rig, path| {
            let elsewhere = rig.dir.path().join("elsewhere");
            fs::rename(path, &elsewhere).expect("moved");
            symlink(elsewhere, path).expect("linked");
        }),
        ("is one of sample r1", |rig, path| {
            let dir = rig.plugins().join("sample");
            for kind in [".installed-", ""] {
                let (from, to) = (format!("{kind}r1"), format!("{kind}r2"));
                fs::rename(dir.join(from), dir.join(to)).expect("moved");
            }
            fs::rename(path, dir.join(".adopt-r2")).expect("moved");
        }),
        ("of another archive", |rig, _| {
            let other = format!("{}\n", "0".repeat(64));
            fs::write(rig.plugins().join("sample/.installed-r1"), other).expect("written");
        }),
        ("no revision beside it", |rig, _| {
            fs::remove_dir_all(rig.plugins().join("sample/r1")).expect("deleted");
        }),
    ];
    for (expected, spoil) in spoilt {
        let (rig, _, path) = recorded().await;
        spoil(&rig, &path);
        let why = found(&rig).expect_err(expected);
        assert!(why.contains(expected), "{why:?} does not say {expected:?}");
    }
}

#[tokio::test]
async fn only_what_todays_keys_vouch_for_is_adopted() {
    let (rig, url, sha256) = rig().await;
    let (ours, theirs) = (Pair::new(&rig, "ours"), Pair::new(&rig, "theirs"));
    ours.sign(&url, "sample", "r1");
    rig.pipeline.set_trust(trust(&[&ours]));
    let spec = spec(&url, sha256);
    rig.install(spec.clone()).await.expect("signed");
    keep(&rig, "r1", Some(record(spec, 7))).await;
    assert_eq!(found(&rig), Ok((7, "r1".to_owned())));
    rig.pipeline.set_trust(trust(&[&theirs]));
    let why = found(&rig).expect_err("its key was withdrawn");
    assert!(why.contains("is not trusted"), "{why}");
    rig.pipeline.set_trust(Trust::Unreadable("gone".to_owned()));
    found(&rig).expect_err("no key can be read");
    rig.pipeline.set_trust(trust(&[&ours]));
    fs::remove_file(rig.plugins().join("sample/.signature-r1")).expect("deleted");
    let why = found(&rig).expect_err("nobody vouches for it");
    assert!(why.contains("signature of its archive cannot be read"), "{why}");
    // Without keys there is nothing to vouch for.
    rig.pipeline.set_trust(Trust::Anybody);
    assert_eq!(found(&rig), Ok((7, "r1".to_owned())));
}

#[tokio::test]
async fn of_two_revisions_the_one_of_the_newest_order_comes_back_and_of_one_order_the_current_one()
{
    let (rig, first, _) = recorded().await;
    let mut second = first.clone();
    second.revision = "r2".parse().expect("a revision");
    rig.install(second.clone()).await.expect("installable");
    keep(&rig, "r2", Some(record(second.clone(), 8))).await;
    assert_eq!(found(&rig), Ok((8, "r2".to_owned())));
    for (current, spec) in [("r1", &first), ("r2", &second)] {
        keep(&rig, current, Some(record(spec.clone(), 8))).await;
        rig.pipeline.activate(&name(), &spec.revision).await.expect("activated");
        assert_eq!(found(&rig), Ok((8, current.to_owned())));
    }
    // A damaged one is not in the way of the other.
    fs::write(rig.plugins().join("sample/.adopt-r2"), "damaged").expect("written");
    assert_eq!(found(&rig), Ok((8, "r1".to_owned())));
}
