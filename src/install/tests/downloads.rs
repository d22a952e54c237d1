//! Downloads: which errors are retried, which are not, and what a failed download leaves.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use guest_agent_actors::error::Chain;
use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::model::spec::ArtifactUrl;
use guest_agent_actors::ports::{Arrival, ContentCoding, InstallStep, Installer, Progress};
use tokio::sync::watch;

use super::rig::{PATIENCE, Rig, assert_failed, listing, spec};
use super::server::{Answer, Server};
use super::tarball::{Tarball, gzip};
use crate::install::RedirectRules;
use crate::install::download::clients::Resolver;
use crate::install::download::fetch::Fetcher;
use crate::install::download::offer::Offer;

async fn archive() -> Vec<u8> {
    gzip(&Tarball::good().finish()).await
}

#[tokio::test]
async fn an_archive_is_installed_over_http_and_progress_is_told() {
    let (rig, archive) = (Rig::new(), archive().await);
    let server = Server::new(vec![Answer::Whole(archive.clone())]).await;
    let spec = spec(&format!("{}/a.zip", server.address), Sha256Digest::of(&archive));
    let progress = rig.install(spec.clone()).await.expect("installable");
    let size = archive.len() as u64;
    let mut arrival = Arrival::default();
    arrival.add(ContentCoding::Identity, size);
    let (total, held_up) = (Some(size), None);
    assert_eq!(progress, Progress { received: size, total, attempt: 1, held_up, arrival });
    assert!(rig.installed("run").exists());
    rig.install(spec).await.expect("it is there already");
    assert_eq!(server.requests(), 1, "what is there was fetched again");
}

#[tokio::test]
async fn an_archive_is_installed_from_a_unix_socket() {
    let (rig, archive) = (Rig::new(), archive().await);
    let server = Server::on_socket(&rig.dir.path().join("s"), Answer::Whole(archive.clone()));
    let url = format!("{}/a.tgz?sig=1", server.address);
    rig.install(spec(&url, Sha256Digest::of(&archive))).await.expect("installable");
    assert!(rig.installed("run").exists());
}

#[tokio::test]
async fn what_is_received_goes_through_the_same_few_buffers() {
    let (rig, archive) = (Rig::new(), vec![7; 8 << 20]);
    let server = Server::new(vec![Answer::Whole(archive.clone())]).await;
    for url in [format!("{}/a.tgz", server.address), rig.archive(&archive)] {
        let mut body = Fetcher::new(RedirectRules::default())
            .open(&ArtifactUrl::new(&url), &Offer::nothing())
            .await
            .expect("there");
        let (mut places, mut received) = (BTreeSet::new(), 0);
        while let Some(chunk) = body.chunk().await.expect("whole") {
            places.insert(chunk.as_ptr());
            received += chunk.len();
        }
        assert_eq!(received, archive.len());
        assert!(places.len() < 10, "{} places in memory for {url}", places.len());
    }
}

#[tokio::test]
async fn a_wrong_checksum_is_final_and_leaves_nothing() {
    let (rig, archive) = (Rig::new(), archive().await);
    let server = Server::new(vec![Answer::Whole(archive.clone())]).await;
    let expected = Sha256Digest::of(b"another archive");
    let result = rig.install(spec(&server.address, expected)).await;
    let chain = Chain(result.as_ref().expect_err("wrong")).to_string();
    assert!(chain.contains(&expected.to_string()), "{chain}");
    assert_failed(result, InstallStep::Verify, &Sha256Digest::of(&archive).to_string());
    assert_eq!(server.requests(), 1);
    rig.assert_untouched();
}

#[tokio::test]
async fn damaged_bytes_are_blamed_on_the_checksum() {
    let rig = Rig::new();
    let good = archive().await;
    // Long enough for the agent to notice the damage while the rest is still arriving.
    let noise: Vec<u8> = (0..1_000_000u32).flat_map(|n| n.wrapping_mul(n).to_le_bytes()).collect();
    let long = gzip(&Tarball::good().file("noise", 0o644, &noise).finish()).await;
    let places = [(&good, 0), (&good, good.len() / 2), (&good, good.len() - 5), (&long, 1)];
    for (good, at) in places {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        let server = Server::new(vec![Answer::Whole(bad)]).await;
        let result = rig.install(spec(&server.address, Sha256Digest::of(good))).await;
        assert_failed(result, InstallStep::Verify, "checksum");
        rig.assert_untouched();
    }
}

/// A 206 with this range and tag.
fn part(range: &str, tag: &str, body: &[u8]) -> Answer {
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nconnection: close\r\ncontent-length: {}\r\n\
         content-range: bytes {range}\r\netag: {tag}\r\n\r\n",
        body.len()
    );
    Answer::Raw([head.as_bytes(), body].concat())
}

#[tokio::test]
async fn the_rest_of_another_archive_is_not_put_behind_the_beginning_of_this_one() {
    let archive = archive().await;
    let (size, half) = (archive.len(), archive.len() / 2);
    let range = |from: usize| format!("{from}-{}/{size}", size - 1);
    let whole = Answer::Whole(archive.clone());
    for other in [
        part(&range(half), "\"b\"", &archive[half..]),
        part(&range(half - 1), "\"a\"", &archive[half - 1..]),
        part(&format!("{half}-{}/{}", size - 1, size + 1), "\"a\"", &archive[half..]),
        whole.clone(),
        Answer::Status("412 Precondition Failed"),
        Answer::Status("416 Range Not Satisfiable"),
    ] {
        let rig = Rig::new();
        let broken = Answer::Tagged("\"a\"", archive.clone(), half);
        let server = Server::new(vec![broken, other, whole.clone()]).await;
        rig.install(spec(&server.address, Sha256Digest::of(&archive))).await.expect("installable");
        assert_eq!(server.requests(), 3, "the beginning, the attempt to resume, the whole");
    }
}

#[tokio::test]
async fn a_broken_transfer_is_gone_on_with_as_often_as_attempts_are_left() {
    let archive = archive().await;
    let (size, third) = (archive.len(), archive.len() / 3);
    let rest =
        |from: usize| part(&format!("{from}-{}/{size}", size - 1), "\"a\"", &archive[from..]);
    let cut = |from: usize| {
        let Answer::Raw(mut bytes) = rest(from) else { unreachable!() };
        bytes.truncate(bytes.len() - (size - from) + third);
        Answer::Raw(bytes)
    };
    let rig = Rig::new();
    let broken = Answer::Tagged("\"a\"", archive.clone(), third);
    let server = Server::new(vec![broken, cut(third), rest(2 * third)]).await;
    let spec = spec(&server.address, Sha256Digest::of(&archive));
    let progress = rig.install(spec).await.expect("installable");
    let size = size as u64;
    assert_eq!((progress.received, progress.total, progress.attempt), (size, Some(size), 3));
    assert_eq!(progress.arrival.coding, Some(ContentCoding::Identity));
    assert_eq!(server.requests(), 3);
}

#[tokio::test]
async fn a_weak_tag_is_no_reason_to_go_on() {
    let (rig, archive) = (Rig::new(), archive().await);
    let broken = Answer::Tagged("W/\"a\"", archive.clone(), archive.len() / 2);
    let server = Server::new(vec![broken, Answer::Whole(archive.clone())]).await;
    rig.install(spec(&server.address, Sha256Digest::of(&archive))).await.expect("installable");
    assert_eq!(server.requests(), 2);
}

#[tokio::test]
async fn a_truncated_body_is_tried_again_until_the_attempts_are_used_up() {
    let (rig, archive) = (Rig::new(), archive().await);
    let server = Server::new(vec![Answer::Truncated(archive.clone())]).await;
    let result = rig.install(spec(&server.address, Sha256Digest::of(&archive))).await;
    assert_failed(result, InstallStep::Download, "gave up after 3 attempts");
    assert_eq!(server.requests(), 3);
    rig.assert_untouched();
}

#[tokio::test]
async fn what_is_not_there_is_asked_for_once() {
    for status in ["404 Not Found", "403 Forbidden", "410 Gone", "204 No Content", "304 Not"] {
        let rig = Rig::new();
        let server = Server::new(vec![Answer::Status(status)]).await;
        let url = format!("{}/x?sig=secret", server.address);
        let result = rig.install(spec(&url, Sha256Digest::of(b""))).await;
        let chain = Chain(result.as_ref().expect_err("no archive")).to_string();
        assert!(!chain.contains("secret"), "{chain}");
        assert_failed(result, InstallStep::Download, &status[..3]);
        assert_eq!(server.requests(), 1, "{status}");
        rig.assert_untouched();
    }
}

#[tokio::test]
async fn a_server_in_trouble_is_asked_again() {
    let archive = archive().await;
    let troubles = [
        Answer::Status("500 Oops"),
        Answer::Status("503 Busy\r\nretry-after: 0"),
        Answer::Status("429 Slow down"),
        Answer::Truncated(archive[..20].to_vec()),
        Answer::Hangup,
    ];
    for trouble in troubles {
        let rig = Rig::new();
        let server = Server::new(vec![trouble, Answer::Whole(archive.clone())]).await;
        let spec = spec(&server.address, Sha256Digest::of(&archive));
        let progress = rig.install(spec).await.expect("installable");
        assert_eq!((progress.attempt, server.requests()), (2, 2));
        assert_eq!(listing(&rig.plugins().join("sample")), [".installed-r1", "r1"]);
    }
}

#[tokio::test]
async fn redirections_are_followed_within_bounds() {
    let (rig, archive) = (Rig::new(), archive().await);
    let last = Server::new(vec![Answer::Whole(archive.clone())]).await;
    let onward = format!("302 Found\r\nlocation: {}/b?sig=secret", last.address);
    let first = Server::new(vec![Answer::Status(onward.leak())]).await;
    rig.install(spec(&first.address, Sha256Digest::of(&archive))).await.expect("installable");
    for target in ["/again?sig=secret", "file:///etc/passwd", "ftp://x/?sig=secret"] {
        let rig = Rig::new();
        let onward = format!("302 Found\r\nlocation: {target}");
        let server = Server::new(vec![Answer::Status(onward.leak())]).await;
        let error = rig
            .install(spec(&server.address, Sha256Digest::of(&archive)))
            .await
            .expect_err("not to be followed");
        let chain = Chain(&error).to_string();
        assert!(!chain.contains("secret"), "{chain}");
        assert!(server.requests() <= 11, "{} requests", server.requests());
        rig.assert_untouched();
    }
}

fn redirect_hosts(hosts: &[&str]) -> RedirectRules {
    let mut config = crate::config::Config::default();
    config.install.redirect_hosts = hosts.iter().map(|host| host.parse().expect("one")).collect();
    RedirectRules::configured(&config)
}

fn onward(target: &str) -> Answer {
    Answer::Status(format!("302 Found\r\nlocation: {target}").leak())
}

#[tokio::test]
async fn a_redirection_to_another_host_is_followed_where_that_is_configured_only() {
    let (rig, archive) = (Rig::new(), archive().await);
    let store = Server::new(vec![Answer::Whole(archive.clone())]).await;
    let elsewhere = format!("{}/b?sig=secret", store.address.replace("127.0.0.1", "localhost"));
    let first = Server::new(vec![onward(&elsewhere)]).await;
    let ordered = spec(&first.address, Sha256Digest::of(&archive));
    let result = rig.install(ordered.clone()).await;
    let chain = Chain(result.as_ref().expect_err("another host")).to_string();
    assert!(!chain.contains("secret"), "{chain}");
    assert!(chain.contains("from 127.0.0.1 to the host localhost"), "{chain}");
    assert_failed(result, InstallStep::Download, "add \"localhost\" there");
    assert_eq!((first.requests(), store.requests()), (1, 0), "asked for once, and not elsewhere");
    rig.assert_untouched();
    rig.pipeline.set_redirect_rules(redirect_hosts(&["localhost"]));
    rig.install(ordered).await.expect("installable");
    assert!(rig.installed("run").exists());
}

#[tokio::test]
async fn no_redirection_leads_to_a_metadata_server() {
    for (target, part) in [
        ("http://169.254.169.254/latest?secret", "a link-local address"),
        ("http://[::ffff:169.254.169.254]/?secret", "a link-local address"),
        ("http://[fd00:ec2::254]/?secret", "a metadata server"),
        ("http://metadata.google.internal/?secret", "a metadata server"),
    ] {
        let rig = Rig::new();
        rig.pipeline.set_redirect_rules(redirect_hosts(&["*"]));
        let server = Server::new(vec![onward(target)]).await;
        let result = rig.install(spec(&server.address, Sha256Digest::of(b""))).await;
        let chain = Chain(result.as_ref().expect_err("off limits")).to_string();
        assert!(!chain.contains("secret"), "{chain}");
        assert_failed(result, InstallStep::Download, part);
        assert_eq!(server.requests(), 1, "{target}");
        rig.assert_untouched();
    }
}

#[tokio::test]
async fn no_redirection_leads_to_a_name_of_a_link_local_address() {
    let archive = archive().await;
    let store = Server::new(vec![Answer::Whole(archive.clone())]).await;
    let port = store.address.rsplit(':').next().expect("a port");
    let first = Server::new(vec![onward(&format!("http://rebound.example:{port}/a?secret"))]).await;
    let url = ArtifactUrl::new(&first.address);
    let resolver = Resolver::new(|name| {
        assert_eq!(name, "rebound.example");
        let mapped = "[::ffff:169.254.169.254]:0".parse().expect("an address");
        Box::pin(async move { Ok(vec!["169.254.169.254:0".parse().expect("an address"), mapped]) })
    });
    let error = Fetcher::with(redirect_hosts(&["*"]), resolver).open(&url, &Offer::nothing()).await;
    let error = error.expect_err("off limits");
    let chain = Chain(&error).to_string();
    assert!(chain.contains("rebound.example, whose address 169.254.169.254"), "{chain}");
    assert!(!error.is_transient() && !chain.contains("secret"), "{chain}");
    // The client connects to an allowed address, whatever other addresses the name has.
    let resolver = Resolver::new(|_| {
        let both = ["169.254.169.254:0", "127.0.0.1:0"].map(|text| text.parse().expect("one"));
        Box::pin(async move { Ok(both.to_vec()) })
    });
    let body = Fetcher::with(redirect_hosts(&["*"]), resolver).open(&url, &Offer::nothing()).await;
    assert_eq!(body.expect("there").total(), Some(archive.len() as u64));
}

#[tokio::test]
async fn a_slow_server_meets_the_deadline() {
    for answer in [Answer::Stalled(archive().await), Answer::Stalled(Vec::new())] {
        let rig = Rig::new();
        let server = Server::new(vec![answer]).await;
        let mut spec = spec(&server.address, Sha256Digest::of(b""));
        spec.download.timeout = Duration::from_millis(100);
        spec.download.attempts = 2;
        let result = rig.install(spec).await;
        let chain = Chain(result.as_ref().expect_err("too slow")).to_string();
        assert!(chain.contains("gave up after 2 attempts"), "{chain}");
        assert_failed(result, InstallStep::Download, "within 100ms");
        rig.assert_untouched();
    }
}

#[tokio::test]
async fn an_endless_body_meets_the_limit() {
    let limits = super::super::Limits { archive_bytes: 1 << 20, ..Default::default() };
    let rig = Rig::with(limits, crate::install::unpack::tree::Resolver::Kernel);
    let server = Server::new(vec![Answer::Endless(Tarball::good().cut())]).await;
    let result = rig.install(spec(&server.address, Sha256Digest::of(b""))).await;
    assert_failed(result, InstallStep::Download, "1048576 bytes that are allowed");
    rig.assert_untouched();
}

#[tokio::test]
async fn a_dropped_installation_leaves_nothing() {
    let rig = Rig::new();
    let name = "sample".parse().expect("a name");
    // Half of the archive is unpacked when the server stops sending.
    let half = Tarball::good().file("half", 0o644, &[1; 100_000]).cut();
    let server = Server::new(vec![Answer::Stalled(half.clone())]).await;
    let spec = Arc::new(spec(&server.address, Sha256Digest::of(b"")));
    let (sender, mut progress) = watch::channel(Progress::default());
    let pipeline = Arc::clone(&rig.pipeline);
    let install = tokio::spawn(async move { pipeline.install(spec, sender).await });
    let sample = rig.plugins().join("sample");
    until(|| staged_file(&sample, "half")).await;
    assert_eq!(progress.borrow_and_update().attempt, 1);
    install.abort();
    assert!(install.await.expect_err("aborted").is_cancelled());
    // A removal waits until the dropped installation has deleted its files.
    tokio::time::timeout(PATIENCE, rig.pipeline.remove(&name)).await.expect("soon").expect("done");
    rig.assert_untouched();
}

/// Waits for a condition, with a deadline.
async fn until(condition: impl Fn() -> bool) {
    let met = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, met).await.expect("in time");
}

fn staged_file(folder: &std::path::Path, file: &str) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| entry.path().join(file).exists())
}

#[tokio::test]
async fn a_dropped_installation_clears_up_by_itself() {
    let rig = Rig::new();
    let server = Server::new(vec![Answer::Stalled(Tarball::good().cut())]).await;
    let spec = Arc::new(spec(&server.address, Sha256Digest::of(b"")));
    let (sender, _) = watch::channel(Progress::default());
    let install = rig.pipeline.install(spec, sender);
    let sample = rig.plugins().join("sample");
    tokio::select! {
        _ = install => panic!("the server never answers in full"),
        () = until(|| staged_file(&sample, "run")) => {}
    }
    until(|| !sample.exists()).await;
    rig.assert_untouched();
}

#[tokio::test]
async fn waiting_installations_do_not_hold_up_others_for_ever() {
    let (rig, archive) = (Rig::new(), archive().await);
    let slow = Server::new(vec![Answer::Stalled(Vec::new())]).await;
    let fast = Server::new(vec![Answer::Whole(archive.clone())]).await;
    let mut stuck = Vec::new();
    for name in ["one", "two"] {
        let mut spec = spec(&slow.address, Sha256Digest::of(b""));
        spec.name = name.parse().expect("a name");
        let (pipeline, sender) = (Arc::clone(&rig.pipeline), watch::channel(Progress::default()).0);
        stuck.push(tokio::spawn(async move { pipeline.install(Arc::new(spec), sender).await }));
    }
    until(|| slow.requests() == 2).await;
    let (pipeline, sender) = (Arc::clone(&rig.pipeline), watch::channel(Progress::default()).0);
    let spec = Arc::new(spec(&fast.address, Sha256Digest::of(&archive)));
    let third = tokio::spawn(async move { pipeline.install(spec, sender).await });
    // Both slots are taken; one is free again when its holder is dropped.
    stuck[0].abort();
    tokio::time::timeout(PATIENCE, third).await.expect("soon").expect("alive").expect("installed");
    stuck[1].abort();
}

#[tokio::test]
async fn only_regular_files_are_taken_from_this_machine() {
    let rig = Rig::new();
    let archive = Tarball::good().finish();
    let real = rig.archive(&archive);
    let real = real.strip_prefix("file:").expect("a file");
    let link = rig.dir.path().join("link");
    std::os::unix::fs::symlink(real, &link).expect("link");
    let pipe = rig.dir.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .expect("pipe");
    for odd in [&link, &pipe, &rig.dir.path().join("absent"), &rig.dir.path().to_owned()] {
        let url = format!("file:{}", odd.display());
        let result = rig.install(spec(&url, Sha256Digest::of(&archive))).await;
        assert_failed(result, InstallStep::Download, odd.to_str().expect("UTF-8"));
    }
    rig.assert_untouched();
}
