//! Archives that are kept: installing again without a network, and what the cache may cost.

use std::fs;
use std::path::PathBuf;

use guest_agent_lab::{ArtifactFaults, CutOff, StatusFault};

use crate::harness::archive::Tarball;
use crate::harness::{Archive, ArchiveSpec, Bed, listing, orders};

/// A bed whose agent keeps so many bytes of archives.
async fn keeping(bytes: u64) -> Bed {
    Bed::builder().set(format!("install.cache_max_bytes={bytes}")).start().await
}

impl Bed {
    fn cache(&self) -> PathBuf {
        self.state_root().join("cache")
    }

    async fn until_kept(&self, archive: &Archive) {
        let path = self.cache().join(&archive.sha256);
        self.until("the archive is kept", async || path.exists().then_some(())).await;
    }

    /// From now on the server has nothing to give.
    fn network_is_gone(&self, archives: &[&Archive]) {
        for archive in archives {
            let status = Some(StatusFault { status: 503, requests: u32::MAX });
            let faults = ArtifactFaults { status, ..Default::default() };
            self.artifacts.set_faults(&archive.name, faults);
        }
    }

    async fn removed(&self, plugin: &str) {
        self.configure(vec![orders::remove(plugin)]).await;
        self.gone(plugin).await;
    }

    /// An echo plugin of about 100 kB that is different from others.
    async fn large(&self, name: &str) -> Archive {
        let own = Tarball::default().file("own", 0o644, name.as_bytes());
        self.archive(name, ArchiveSpec::echo().padded(100_000).with(own)).await
    }
}

#[tokio::test]
async fn what_was_installed_once_needs_no_network_again() {
    let mut bed = keeping(10 << 20).await;
    let (old, new, bad) = (bed.large("old").await, bed.large("new").await, bed.trouble().await);
    let other = bed.large("other").await;
    bed.configure(vec![orders::install("p", "1", &old).order()]).await;
    bed.running("p", "1").await;
    bed.configure(vec![orders::install("p", "0", &other).order()]).await;
    bed.running("p", "0").await;
    bed.configure(vec![orders::install("p", "2", &new).order()]).await;
    bed.running("p", "2").await;
    // It is kept though it never worked.
    bed.configure(vec![orders::install("p", "3", &bad).arg("--exit-before-start=3").order()]).await;
    for archive in [&old, &new, &bad, &other] {
        bed.until_kept(archive).await;
    }
    bed.removed("p").await;

    bed.network_is_gone(&[&old, &new, &bad, &other]);
    bed.kill_agent().await;
    bed.start_agent().await;
    let requests =
        || [&old, &new, &bad, &other].map(|it| bed.artifacts.counters(&it.name).requests);
    let before = requests();
    bed.configure(vec![orders::install("p", "1", &old).order()]).await;
    bed.running("p", "1").await;
    for (revision, archive) in [("0", &other), ("2", &new)] {
        bed.configure(vec![orders::install("p", revision, archive).order()]).await;
        bed.running("p", revision).await;
        bed.status_where("p", "it has proved itself", |status| !status.on_trial).await;
    }
    bed.until("revision 1 is let go", async || {
        (bed.revisions("p") == ["0", "2", "current"]).then_some(())
    })
    .await;
    // An upgrade that fails goes back, and an ordered way back to 1 works, too.
    let bad = orders::install("p", "3", &bad).arg("--exit-before-start=3");
    bed.configure(vec![bad.order()]).await;
    bed.until("it went back to 2", async || {
        let status = bed.running("p", "2").await;
        status.pending.filter(|pending| pending.revision == "3" && !pending.error.is_empty())
    })
    .await;
    bed.configure(vec![orders::install("p", "1", &old).order()]).await;
    bed.running("p", "1").await;
    assert_eq!(requests(), before, "nobody was asked");
    bed.finish().await;
}

#[tokio::test]
async fn a_spoilt_archive_in_the_cache_is_fetched_anew() {
    let bed = keeping(10 << 20).await;
    let archive = bed.large("a").await;
    bed.configure(vec![orders::install("p", "1", &archive).order()]).await;
    bed.until_kept(&archive).await;
    bed.removed("p").await;
    let entry = bed.cache().join(&archive.sha256);
    let good = fs::read(&entry).unwrap();
    let mut spoilt = good.clone();
    spoilt[50_000] ^= 1;
    fs::write(&entry, spoilt).unwrap();
    bed.configure(vec![orders::install("p", "1", &archive).order()]).await;
    bed.running("p", "1").await;
    assert_eq!(bed.artifacts.counters("a").requests, 2);
    assert!(bed.log().contains("the agent downloads it again"));
    bed.until("it is right again", async || {
        fs::read(&entry).is_ok_and(|bytes| bytes == good).then_some(())
    })
    .await;
    bed.finish().await;
}

#[tokio::test]
async fn the_cache_stays_within_its_bound_and_keeps_what_is_installed() {
    let bed = keeping(250_000).await;
    let archives = [bed.large("a").await, bed.large("b").await, bed.large("c").await];
    // `a` runs on, the others come and go.
    for archive in &archives {
        let name = archive.name.as_str();
        bed.configure(vec![orders::install(name, "1", archive).order()]).await;
        bed.running(name, "1").await;
        bed.until_kept(archive).await;
        let sizes = listing(&bed.cache()).into_iter().map(|it| fs::metadata(it).unwrap().len());
        assert!(sizes.sum::<u64>() <= 250_000);
        if name != "a" {
            bed.removed(name).await;
        }
    }
    let kept = archives.each_ref().map(|it| bed.cache().join(&it.sha256).exists());
    assert_eq!(kept, [true, false, true]);
    bed.finish().await;
}

#[tokio::test]
async fn a_killed_agent_leaves_nothing_half_in_the_cache() {
    let mut bed = keeping(10 << 20).await;
    let archive = bed.large("a").await;
    let stall = Some(CutOff { after_bytes: 60_000, requests: u32::MAX });
    bed.artifacts.set_faults("a", ArtifactFaults { stall, ..Default::default() });
    bed.configure(vec![orders::install("p", "1", &archive).order()]).await;
    bed.until("some of it arrives", async || {
        let arrived = listing(&bed.cache()).into_iter().map(|it| fs::metadata(it).unwrap().len());
        (arrived.sum::<u64>() > 0).then_some(())
    })
    .await;
    bed.kill_agent().await;
    bed.artifacts.set_faults("a", ArtifactFaults::default());
    assert_eq!(listing(&bed.cache()).len(), 1);
    bed.start_agent().await;
    bed.running("p", "1").await;
    bed.until_kept(&archive).await;
    assert_eq!(listing(&bed.cache()), [bed.cache().join(&archive.sha256)]);
    bed.finish().await;
}
