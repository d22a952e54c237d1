//! The files on disk between the steps.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use guest_agent_actors::model::id::{PluginName, RevisionId, Sha256Digest};
use guest_agent_actors::model::spec::EntryPoint;
use guest_agent_actors::ports::{InstallStep, Installer};

use super::super::error::FolderError;
use super::rig::{Rig, assert_failed, listing, spec};
use super::tarball::Tarball;
use crate::install::unpack::tree::Resolver;

fn name() -> PluginName {
    "sample".parse().expect("a name")
}

fn revision(text: &str) -> RevisionId {
    text.parse().expect("a revision")
}

async fn install(rig: &Rig, revision_id: &str) {
    let archive = Tarball::good().file("which", 0o644, revision_id.as_bytes()).finish();
    let mut spec = spec(&rig.archive(&archive), Sha256Digest::of(&archive));
    spec.revision = revision(revision_id);
    rig.install(spec).await.expect("installable");
}

#[tokio::test]
async fn a_revision_from_another_archive_is_refused() {
    let rig = Rig::new();
    rig.install_bytes(&Tarball::good().finish()).await.expect("installable");
    let other = Tarball::good().file("more", 0o644, b"").finish();
    let result = rig.install_bytes(&other).await;
    assert_failed(result, InstallStep::Prepare, "a changed archive needs a revision of its own");
    assert!(rig.installed("run").exists());
}

#[tokio::test]
async fn another_entry_point_must_be_in_the_installed_revision() {
    let rig = Rig::new();
    let archive = Tarball::good().file("tool", 0o755, b"").file("data", 0o644, b"").finish();
    rig.install_bytes(&archive).await.expect("installable");
    let with = |entry_point| {
        let mut spec = spec(&rig.archive(&archive), Sha256Digest::of(&archive));
        spec.entry_point = EntryPoint::parse(entry_point).expect("an entry point");
        rig.install(spec)
    };
    with("tool").await.expect("it is there");
    for odd in ["absent", "data", "run/x"] {
        assert_failed(with(odd).await, InstallStep::Prepare, "correct the entry point");
    }
    assert!(rig.installed("run").exists());
}

#[tokio::test]
async fn a_foreign_folder_is_left_alone() {
    let rig = Rig::new();
    fs::create_dir_all(rig.installed("mine")).expect("folder");
    let result = rig.install_bytes(&Tarball::good().finish()).await;
    assert_failed(result, InstallStep::Prepare, "no record");
    assert!(rig.installed("mine").exists());
}

#[tokio::test]
async fn a_plugin_folder_that_is_a_link_is_not_followed() {
    let rig = Rig::new();
    symlink(rig.dir.path().join("outside"), rig.plugins().join("sample")).expect("link");
    let result = rig.install_bytes(&Tarball::good().finish()).await;
    assert_failed(result, InstallStep::Prepare, "sample");
    rig.pipeline.discard(&name(), &revision("file")).await.expect_err("not a folder");
    rig.assert_precious();
    rig.pipeline.remove(&name()).await.expect("the link itself can go");
    rig.assert_untouched();
}

#[tokio::test]
async fn leftovers_of_a_killed_installation_are_swept() {
    let rig = Rig::new();
    install(&rig, "r0").await;
    let sample = rig.plugins().join("sample");
    let leftovers = [".staging-r1-0123", ".trash-r1-0123", ".staging-other-45"];
    for leftover in leftovers {
        fs::create_dir_all(sample.join(leftover).join("deep/er")).expect("folders");
        symlink(rig.dir.path().join("outside"), sample.join(leftover).join("out")).expect("link");
    }
    fs::write(sample.join(".record-0123"), "half").expect("file");
    symlink("r0", sample.join(".current-0123")).expect("link");
    fs::write(sample.join(".installed-r1"), "a record whose revision never came").expect("file");
    install(&rig, "r1").await;
    assert_eq!(listing(&sample), [".installed-r0", ".installed-r1", "r0", "r1"]);
    rig.assert_precious();
}

#[tokio::test]
async fn a_failure_leaves_other_revisions_alone() {
    let rig = Rig::new();
    install(&rig, "r0").await;
    rig.install_bytes(b"no archive").await.expect_err("no archive");
    assert_eq!(listing(&rig.plugins().join("sample")), [".installed-r0", "r0"]);
}

#[tokio::test]
async fn what_nobody_wants_any_more_is_not_published() {
    let rig = Rig::new();
    let (folder, _) = rig.pipeline.folder(&name());
    let id = revision("r1");
    let staging = folder.stage(&id, None, Resolver::Kernel).expect("a staging folder");
    let result = staging.publish(&id, (Sha256Digest::of(b""), None), || false);
    assert!(matches!(result, Err(FolderError::Abandoned)), "{result:?}");
    rig.assert_untouched();
}

#[tokio::test]
async fn a_revision_that_appeared_meanwhile_is_not_replaced() {
    let rig = Rig::new();
    let (folder, _) = rig.pipeline.folder(&name());
    let id = revision("r1");
    let staging = folder.stage(&id, None, Resolver::Kernel).expect("a staging folder");
    fs::create_dir(rig.plugins().join("sample/r1")).expect("folder");
    staging.publish(&id, (Sha256Digest::of(b""), None), || true).expect_err("it is in the way");
    assert_eq!(listing(&rig.plugins().join("sample")), ["r1"]);
}

#[tokio::test]
async fn only_installed_revisions_are_activated() {
    let rig = Rig::new();
    let result = rig.pipeline.activate(&name(), &revision("r1")).await;
    assert_failed(result, InstallStep::Activate, "not installed");
    rig.assert_untouched();
    install(&rig, "r1").await;
    rig.pipeline.activate(&name(), &revision("r1")).await.expect("installed");
    let current = rig.plugins().join("sample/current");
    assert_eq!(fs::read_link(&current).expect("a link"), PathBuf::from("r1"));
    let result = rig.pipeline.activate(&name(), &revision("r2")).await;
    assert_failed(result, InstallStep::Activate, "not installed");
    assert_eq!(fs::read_link(&current).expect("a link"), PathBuf::from("r1"));
}

#[tokio::test]
async fn switching_is_atomic() {
    let rig = Rig::new();
    for id in ["r1", "r2"] {
        install(&rig, id).await;
    }
    rig.pipeline.activate(&name(), &revision("r1")).await.expect("installed");
    let which = rig.plugins().join("sample/current/which");
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    // A process that reads `current` at any moment finds one revision or the other.
    let watcher = std::thread::spawn(move || {
        let mut seen = 0;
        while !stopped.load(Ordering::Relaxed) {
            let found = fs::read_to_string(&which).expect("there is always a current revision");
            assert!(found == "r1" || found == "r2", "{found}");
            seen += 1;
        }
        seen
    });
    for round in 0..100 {
        let id = if round % 2 == 0 { "r2" } else { "r1" };
        rig.pipeline.activate(&name(), &revision(id)).await.expect("installed");
    }
    stop.store(true, Ordering::Relaxed);
    assert!(watcher.join().expect("it always found one") > 0);
    let left = listing(&rig.plugins().join("sample"));
    assert_eq!(left, [".installed-r1", ".installed-r2", "current", "r1", "r2"]);
}

#[tokio::test]
async fn discarding_follows_no_link_and_can_be_repeated() {
    let rig = Rig::new();
    install(&rig, "r1").await;
    install(&rig, "r2").await;
    rig.pipeline.activate(&name(), &revision("r2")).await.expect("installed");
    symlink(rig.dir.path().join("outside"), rig.installed("out")).expect("link");
    for _ in 0..2 {
        rig.pipeline.discard(&name(), &revision("r1")).await.expect("deletable");
        let left = listing(&rig.plugins().join("sample"));
        assert_eq!(left, [".installed-r2", "current", "r2"]);
    }
    rig.assert_precious();
    rig.pipeline.discard(&name(), &revision("r2")).await.expect("deletable");
    rig.assert_untouched();
    rig.pipeline.discard(&name(), &revision("r2")).await.expect("gone already");
}

#[tokio::test]
async fn a_revision_that_is_a_link_is_discarded_and_not_its_target() {
    let rig = Rig::new();
    let sample = rig.plugins().join("sample");
    fs::create_dir(&sample).expect("folder");
    symlink(rig.dir.path().join("outside"), sample.join("r1")).expect("link");
    rig.pipeline.discard(&name(), &revision("r1")).await.expect("deletable");
    rig.assert_untouched();
}

#[tokio::test]
async fn removing_deletes_everything_of_the_plugin_and_nothing_else() {
    let rig = Rig::new();
    install(&rig, "r1").await;
    rig.pipeline.activate(&name(), &revision("r1")).await.expect("installed");
    let dir = rig.dir.path();
    for folder in ["state/sample/db", "state/sample-2", "log", "plugins/sample-2/r1"] {
        fs::create_dir_all(dir.join(folder)).expect("folders");
    }
    for leftover in
        ["plugins/.trash-sample-0123456789abcdef", "state/.trash-sample-0123456789abcdef"]
    {
        fs::create_dir_all(dir.join(leftover).join("x")).expect("folders");
    }
    symlink(dir.join("outside"), dir.join("state/sample/out")).expect("link");
    symlink(dir.join("outside/file"), dir.join("log/sample.log.2")).expect("link");
    for log in ["sample.log", "sample.log.1", "sample-2.log", "sample.log.log"] {
        fs::write(dir.join("log").join(log), "").expect("file");
    }
    for _ in 0..2 {
        rig.pipeline.remove(&name()).await.expect("deletable");
        assert_eq!(listing(&rig.plugins()), ["sample-2"]);
        assert_eq!(listing(&dir.join("state")), ["sample-2"]);
        assert_eq!(listing(&dir.join("log")), ["sample-2.log", "sample.log.log"]);
    }
    rig.assert_precious();
}

#[tokio::test]
async fn removing_what_never_was_succeeds() {
    let rig = Rig::new();
    rig.pipeline.remove(&name()).await.expect("nothing to do");
    rig.assert_untouched();
}
