//! Installing a revision again, with and without the cache.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use guest_agent_actors::model::id::{PluginName, Sha256Digest};
use guest_agent_actors::model::spec::{EntryPoint, PluginSpec};
use guest_agent_actors::ports::{InstallStep, Installer};

use super::rig::{PATIENCE, Rig, assert_failed, listing, spec};
use super::signatures::{Pair, trust};
use super::tarball::{SCRIPT, Tarball, gzip};

impl Rig {
    fn cached(&self, sha256: Sha256Digest) -> PathBuf {
        self.dir.path().join("cache").join(sha256.to_string())
    }

    /// Waits until an archive is kept: that happens beside the installation.
    async fn until_cached(&self, sha256: Sha256Digest) {
        let path = self.cached(sha256);
        let wait = async {
            while !path.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("in time");
    }

    async fn remove(&self) {
        let name: PluginName = "sample".parse().expect("a name");
        self.pipeline.remove(&name).await.expect("removed");
    }
}

/// A rig with an installed archive that is kept, and the order of it.
async fn rig() -> (Rig, PluginSpec, Sha256Digest) {
    let rig = Rig::new();
    let bytes = gzip(&Tarball::good().file("data", 0o644, &[7; 300_000]).finish()).await;
    let (url, sha256) = (rig.archive(&bytes), Sha256Digest::of(&bytes));
    rig.install(spec(&url, sha256)).await.expect("installable");
    rig.until_cached(sha256).await;
    assert_eq!(fs::read(rig.cached(sha256)).expect("readable"), bytes);
    (rig, spec(&url, sha256), sha256)
}

fn path_of(spec: &PluginSpec) -> PathBuf {
    let guest_agent_actors::model::spec::Source::Archive(artifact) = &spec.source else { panic!() };
    artifact.url.expose().trim_start_matches("file:").into()
}

#[tokio::test]
async fn what_was_installed_is_installed_again_without_its_source() {
    let (rig, order, _) = rig().await;
    fs::remove_file(path_of(&order)).expect("deleted");
    rig.remove().await;
    rig.install(order).await.expect("it is in the cache");
    assert_eq!(fs::read(rig.installed("run")).expect("readable"), SCRIPT);
}

#[tokio::test]
async fn a_spoilt_archive_is_deleted_and_fetched_anew() {
    let (rig, order, sha256) = rig().await;
    let good = fs::read(rig.cached(sha256)).expect("readable");
    let half = good.len() / 2;
    let spoilt: [Vec<u8>; 4] = [
        good[..half].to_vec(),
        [&good[..half], &[0], &good[half + 1..]].concat(),
        vec![],
        vec![0; 9],
    ];
    for bytes in spoilt {
        fs::write(rig.cached(sha256), bytes).expect("written");
        rig.remove().await;
        rig.install(order.clone()).await.expect("it is where the order says");
        rig.until_cached(sha256).await;
        assert_eq!(fs::read(rig.cached(sha256)).expect("readable"), good);
    }
    // Without a source no part of it becomes visible, and the damaged archive is gone.
    fs::write(rig.cached(sha256), &good[..half]).expect("written");
    fs::remove_file(path_of(&order)).expect("deleted");
    rig.remove().await;
    assert_failed(rig.install(order).await, InstallStep::Download, "cannot read");
    assert_eq!(listing(&rig.plugins()), [""; 0]);
    assert!(!rig.cached(sha256).exists());
}

#[tokio::test]
async fn a_wrong_order_is_no_reason_to_forget_an_archive() {
    let (rig, mut order, sha256) = rig().await;
    fs::remove_file(path_of(&order)).expect("deleted");
    rig.remove().await;
    order.entry_point = EntryPoint::parse("no/such/file").expect("a path");
    assert_failed(rig.install(order).await, InstallStep::Unpack, "no/such/file");
    assert!(rig.cached(sha256).exists());
}

#[tokio::test]
async fn what_is_not_installed_is_not_kept() {
    let rig = Rig::new();
    let bytes = gzip(&Tarball::default().file("other", 0o755, SCRIPT).finish()).await;
    rig.install_bytes(&bytes).await.expect_err("no entry point");
    let cut = &bytes[..bytes.len() - 9];
    rig.install_bytes(cut).await.expect_err("cut off");
    let cache = rig.dir.path().join("cache");
    // The thread that writes the cache file deletes it a moment after the installation failed.
    let wait = async {
        while cache.exists() && !listing(&cache).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("nothing is left");
}

#[tokio::test]
async fn a_cache_that_cannot_be_written_fails_no_installation() {
    let rig = Rig::new();
    fs::write(rig.dir.path().join("cache"), "not a folder").expect("written");
    let bytes = gzip(&Tarball::good().finish()).await;
    rig.install_bytes(&bytes).await.expect("installable");
    let sha256 = Sha256Digest::of(&bytes);
    rig.remove().await;
    rig.pipeline.set_cache_max(0);
    rig.install_bytes(&bytes).await.expect("installable");
    assert!(!rig.cached(sha256).exists());
}

#[tokio::test]
async fn a_kept_archive_needs_a_signature_like_any_other() {
    let (rig, order, sha256) = rig().await;
    let (ours, theirs) = (Pair::new(&rig, "ours"), Pair::new(&rig, "theirs"));
    rig.pipeline.set_trust(trust(&[&ours]));
    rig.remove().await;
    let result = rig.install(order.clone()).await;
    assert_failed(result, InstallStep::Verify, "not signed");
    assert!(rig.cached(sha256).exists(), "it is what it was");

    // Installed with a signature, it is kept with it.
    let url = format!("file:{}", path_of(&order).display());
    ours.sign(&url, "sample", "r1");
    fs::remove_file(rig.cached(sha256)).expect("deleted");
    rig.install(order.clone()).await.expect("signed");
    rig.until_cached(sha256).await;
    let beside = path_of(&order).with_extension("bin.minisig");
    fs::remove_file(path_of(&order)).expect("deleted");
    fs::rename(&beside, rig.dir.path().join("kept.minisig")).expect("moved");
    rig.remove().await;
    rig.install(order.clone()).await.expect("archive and signature are in the cache");

    // The keys were rotated: a signature by the new one may stand beside the archive.
    rig.pipeline.set_trust(trust(&[&theirs]));
    rig.remove().await;
    assert_failed(rig.install(order.clone()).await, InstallStep::Verify, "not signed");
    fs::copy(rig.cached(sha256), path_of(&order)).expect("copied");
    theirs.sign(&url, "sample", "r1");
    fs::remove_file(path_of(&order)).expect("deleted");
    rig.install(order).await.expect("the archive is in the cache, its signature is not");
}
