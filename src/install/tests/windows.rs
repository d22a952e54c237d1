//! The memory that archives ask for before their signature or checksum is verified.

use std::sync::Arc;
use std::time::Duration;

use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::model::spec::PluginSpec;
use guest_agent_actors::ports::{InstallError, InstallStep, Installer, Progress};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::rig::{PATIENCE, Rig, assert_failed, spec};
use super::server::{Answer, Server};
use super::tarball::{Tarball, xz_with, zstd_asking};
use crate::install::window_budget::WindowBudget;

/// The logarithm of the largest window that is allowed.
const LARGEST: u32 = 27;

fn archive(window_log: u32) -> Vec<u8> {
    let noise: Vec<u8> = (0..200_000u32).flat_map(|n| n.wrapping_mul(n).to_le_bytes()).collect();
    zstd_asking(window_log, &Tarball::good().file("noise", 0o644, &noise).finish())
}

fn rig(patience: Duration) -> Rig {
    let mut rig = Rig::new();
    let pipeline = Arc::get_mut(&mut rig.pipeline).expect("nobody else has it yet");
    pipeline.downloader.windows = Arc::new(WindowBudget::with_patience(patience));
    rig
}

fn named(name: &str, url: &str, archive: &[u8]) -> PluginSpec {
    let name = name.parse().expect("a name");
    PluginSpec { name, ..spec(url, Sha256Digest::of(archive)) }
}

type Install = JoinHandle<Result<(), InstallError>>;

fn begin(rig: &Rig, spec: PluginSpec) -> (Install, watch::Receiver<Progress>) {
    let (sender, progress) = watch::channel(Progress::default());
    let pipeline = Arc::clone(&rig.pipeline);
    (tokio::spawn(async move { pipeline.install(Arc::new(spec), sender).await }), progress)
}

async fn until(progress: &mut watch::Receiver<Progress>, reached: impl Fn(&Progress) -> bool) {
    let reached = progress.wait_for(|progress| reached(progress));
    tokio::time::timeout(PATIENCE, reached).await.expect("in time").expect("it goes on");
}

async fn installed(install: Install) {
    tokio::time::timeout(PATIENCE, install).await.expect("in time").expect("alive").expect("done");
}

#[tokio::test]
async fn installations_that_ask_for_much_memory_take_turns_and_say_so() {
    let rig = rig(PATIENCE);
    let large = archive(LARGEST);
    let slow = Server::new(vec![Answer::Stalled(large[..400_000].to_vec())]).await;
    let (holder, mut progress) = begin(&rig, named("holder", &slow.address, &large));
    until(&mut progress, |progress| progress.received >= 400_000).await;
    let fast = Server::new(vec![Answer::Whole(large.clone())]).await;
    let mut waits = named("waits", &fast.address, &large);
    waits.download.attempts = 1;
    waits.download.timeout = Duration::from_secs(4);
    let timeout = waits.download.timeout;
    let (waiting, mut progress) = begin(&rig, waits);
    until(&mut progress, |progress| progress.held_up.is_some()).await;
    // Longer than a download may take, of which there is at most one.
    assert!(tokio::time::timeout(timeout * 5 / 4, progress.changed()).await.is_err(), "it goes on");
    // First come, first served: an archive that asks for little does not overtake the others.
    let (small, _) = begin(&rig, named("small", &rig.archive(&archive(20)), &archive(20)));
    holder.abort();
    installed(waiting).await;
    installed(small).await;
    assert_eq!(fast.requests(), 2, "once to see the header, once for all of it");
    assert_eq!((progress.borrow().attempt, progress.borrow().held_up), (1, None));
}

#[tokio::test]
async fn a_stalled_download_gives_its_memory_to_others_and_begins_again() {
    let patience = Duration::from_millis(500);
    let rig = rig(patience);
    let large = archive(LARGEST);
    let answers = [Answer::Stalled(large[..400_000].to_vec()), Answer::Whole(large.clone())];
    let slow = Server::new(answers.to_vec()).await;
    let mut one_try = named("stalls", &slow.address, &large);
    one_try.download.attempts = 1;
    let (stalled, mut progress) = begin(&rig, one_try);
    until(&mut progress, |progress| progress.received >= 400_000).await;
    // No other installation waits, so the server may be as slow as the order allows.
    let idle = tokio::time::timeout(patience * 3, progress.changed()).await;
    assert!(idle.is_err() && slow.requests() == 1, "it began again for nobody");
    // Another archive, which the cache does not have for the first.
    let also_large = archive(LARGEST - 1);
    let (other, _) = begin(&rig, named("other", &rig.archive(&also_large), &also_large));
    installed(other).await;
    installed(stalled).await;
    assert_eq!(slow.requests(), 2);
    assert_eq!(progress.borrow().attempt, 1, "beginning again is not another attempt");
}

#[tokio::test]
async fn a_download_that_stalls_again_and_again_ends_all_the_same() {
    let rig = rig(Duration::from_millis(20));
    let large = archive(LARGEST);
    let slow = Server::new(vec![Answer::Stalled(large[..400_000].to_vec())]).await;
    let mut specs = ["one", "two"].map(|name| named(name, &slow.address, &large));
    for spec in &mut specs {
        spec.download.attempts = 1;
        spec.download.timeout = Duration::from_millis(300);
    }
    let all = specs.map(|spec| begin(&rig, spec).0);
    for install in all {
        let done = tokio::time::timeout(PATIENCE, install).await.expect("in time").expect("alive");
        assert_failed(done, InstallStep::Download, "within 300ms");
    }
    rig.assert_untouched();
}

#[tokio::test]
async fn a_window_that_no_archive_may_have_is_refused_with_a_way_out() {
    let rig = Rig::new();
    let archive = archive(28);
    let server = Server::new(vec![Answer::Whole(archive.clone())]).await;
    let result = rig.install(spec(&server.address, Sha256Digest::of(&archive))).await;
    let text = result.as_ref().expect_err("too large").cause.to_string();
    assert!(text.contains("134217728") && text.contains("without --long"), "{text}");
    assert_failed(result, InstallStep::Unpack, "a window of 268435456 bytes");
    assert_eq!(server.requests(), 1);
    rig.assert_untouched();
}

#[tokio::test]
async fn a_later_frame_is_asked_for_what_it_needs_as_well() {
    let rig = rig(PATIENCE);
    let tar = Tarball::good().finish();
    let (small, large) = (zstd_asking(10, &tar[..512]), zstd_asking(28, &tar[512..]));
    let result = rig.install_bytes(&[small.clone(), large].concat()).await;
    assert_failed(result, InstallStep::Unpack, "a window of 268435456 bytes");
    rig.assert_untouched();
    // While another installation has most of the memory, it is enough for the first frame and not
    // for the next.
    let holder = rig.pipeline.downloader.windows.take(120 << 10, || {}).await;
    let both = [small, zstd_asking(26, &tar[512..])].concat();
    let (install, mut progress) = begin(&rig, named("sample", &rig.archive(&both), &both));
    until(&mut progress, |progress| progress.held_up.is_some()).await;
    drop(holder);
    installed(install).await;
    assert!(rig.installed("run").exists());
}

#[tokio::test]
async fn a_dictionary_of_xz_is_a_window_as_well() {
    let rig = rig(PATIENCE);
    let tar = Tarball::good().finish();
    let archive = xz_with(9, &tar).await;
    let holder = rig.pipeline.downloader.windows.take(100 << 10, || {}).await;
    let (install, mut progress) = begin(&rig, named("sample", &rig.archive(&archive), &archive));
    until(&mut progress, |progress| progress.held_up.is_some()).await;
    drop(holder);
    installed(install).await;
    // Its first header states what it needs; the decoder gets no more.
    let grows = [xz_with(0, &tar[..512]).await, xz_with(9, &tar[512..]).await].concat();
    let result = Rig::new().install_bytes(&grows).await;
    assert_failed(result, InstallStep::Unpack, "a larger window than its first, of 262144 bytes");
}
