//! Downloads that fail: what the agent retries, how often, and what it reports in the end.

use std::time::{Duration, Instant};

use guest_agent_lab::{ArtifactFaults, CutOff, StatusFault};

use crate::harness::{Archive, ArchiveSpec, Bed, orders};

/// A bed with an archive of the echo plugin that is large enough to be cut.
async fn with_faults(faults: ArtifactFaults) -> (Bed, Archive) {
    let bed = Bed::new().await;
    let archive = bed.archive("echo.tar", ArchiveSpec::echo().padded(256 << 10)).await;
    bed.artifacts.set_faults("echo.tar", faults);
    (bed, archive)
}

/// Checks that an install failed as a download does, and returns why.
async fn failed(bed: &Bed) -> String {
    bed.expect_events("echo", &[1, 8]).await;
    let status = bed.in_state("echo", "INSTALL_FAILED").await;
    assert!(status.pid.is_none());
    assert!(bed.processes("echo").is_empty());
    let left = bed.plugin_files("echo");
    assert!(left.is_empty(), "a failed download left {left:?}");
    bed.event(8, "echo", "1").await.details().into_owned()
}

fn always(after_bytes: u64) -> Option<CutOff> {
    Some(CutOff { after_bytes, requests: u32::MAX })
}

#[tokio::test]
async fn a_wrong_checksum_is_refused_at_once_and_leaves_nothing() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    let wrong = "0123456789abcdef".repeat(4);
    let order =
        orders::install("echo", "1", &echo).plugin(|plugin| plugin.checksum = wrong.clone());
    bed.configure(vec![order.order()]).await;
    let why = failed(&bed).await;
    assert!(why.contains(&wrong), "{why}");
    assert!(why.contains(&echo.sha256), "{why}");
    assert_eq!(bed.artifacts.counters(&echo.name).requests, 1, "it would be wrong again");

    // The right order repairs it.
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.running("echo", "1").await;
    bed.expect_events("echo", &[1, 8, 1, 4, 3]).await;
    bed.finish().await;
}

#[tokio::test]
async fn a_transfer_that_breaks_off_is_gone_on_with_where_it_stopped() {
    let truncate = Some(CutOff { after_bytes: 100_000, requests: 2 });
    let (bed, echo) = with_faults(ArtifactFaults { truncate, ..Default::default() }).await;
    let order = orders::install("echo", "1", &echo).manifest(|m| m.download_attempt_count = 3);
    bed.configure(vec![order.order()]).await;
    bed.expect_events("echo", &[1, 4, 3]).await;
    let counters = bed.artifacts.counters(&echo.name);
    assert_eq!((counters.requests, counters.partial), (3, 2), "the rest was asked for twice");
    bed.finish().await;
}

#[tokio::test]
async fn a_transfer_that_stalls_is_gone_on_with_where_it_stopped() {
    let stall = Some(CutOff { after_bytes: 100_000, requests: 1 });
    let (bed, echo) = with_faults(ArtifactFaults { stall, ..Default::default() }).await;
    let order = orders::install("echo", "1", &echo).manifest(|manifest| {
        manifest.download_attempt_count = 2;
        manifest.download_timeout = orders::seconds(1.0);
    });
    bed.configure(vec![order.order()]).await;
    bed.expect_events("echo", &[1, 4, 3]).await;
    let counters = bed.artifacts.counters(&echo.name);
    assert_eq!((counters.requests, counters.partial), (2, 1));
    bed.finish().await;
}

#[tokio::test]
async fn a_server_in_trouble_is_asked_for_the_rest_again() {
    let truncate = Some(CutOff { after_bytes: 100_000, requests: 1 });
    let (bed, echo) = with_faults(ArtifactFaults { truncate, ..Default::default() }).await;
    let order = orders::install("echo", "1", &echo).manifest(|m| m.download_attempt_count = 4);
    bed.configure(vec![order.order()]).await;
    bed.until("the transfer broke off", async || {
        (bed.artifacts.counters(&echo.name).bytes >= 100_000).then_some(())
    })
    .await;
    let status = Some(StatusFault { status: 503, requests: 2 });
    bed.artifacts.set_faults(&echo.name, ArtifactFaults { status, ..Default::default() });
    bed.expect_events("echo", &[1, 4, 3]).await;
    bed.finish().await;
}

#[tokio::test]
async fn a_transfer_that_always_breaks_off_fails_after_the_ordered_attempts() {
    let truncate = always(100_000);
    let (bed, echo) = with_faults(ArtifactFaults { truncate, ..Default::default() }).await;
    let order = orders::install("echo", "1", &echo).manifest(|m| m.download_attempt_count = 2);
    bed.configure(vec![order.order()]).await;
    let why = failed(&bed).await;
    assert!(why.contains("2 attempts") && why.contains("200000 bytes"), "{why}");
    let counters = bed.artifacts.counters(&echo.name);
    assert_eq!((counters.requests, counters.partial), (2, 1));
    bed.finish().await;
}

#[tokio::test]
async fn a_missing_archive_is_asked_for_once_and_its_signature_is_told_to_nobody() {
    let bed = Bed::new().await;
    let status = Some(StatusFault { status: 404, requests: u32::MAX });
    bed.artifacts.set_faults("gone.tar", ArtifactFaults { status, ..Default::default() });
    let mut archive = bed.echo().await;
    archive.url = format!("{}?X-Signature=S3CR3T", bed.artifacts.url("gone.tar"));
    bed.configure(vec![orders::install("echo", "1", &archive).order()]).await;
    let why = failed(&bed).await;
    assert!(why.contains("404"), "{why}");
    assert_eq!(bed.artifacts.counters("gone.tar").requests, 1);
    let status = bed.cli(&["status", "echo", "--json"]).await;
    for text in [why, bed.log(), status.stdout, status.stderr] {
        assert!(!text.contains("S3CR3T"), "{text}");
    }
    bed.finish().await;
}

#[tokio::test]
async fn a_server_in_trouble_is_asked_again() {
    let status = Some(StatusFault { status: 500, requests: 2 });
    let (bed, echo) = with_faults(ArtifactFaults { status, ..Default::default() }).await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.expect_events("echo", &[1, 4, 3]).await;
    let counters = bed.artifacts.counters(&echo.name);
    assert_eq!((counters.requests, counters.faults), (3, 2));
    bed.finish().await;
}

#[tokio::test]
async fn a_slow_server_meets_the_download_timeout() {
    let bytes_per_second = Some(20_000);
    let (bed, echo) = with_faults(ArtifactFaults { bytes_per_second, ..Default::default() }).await;
    times_out(&bed, &echo).await;
    bed.finish().await;
}

#[tokio::test]
async fn a_stalled_server_meets_the_download_timeout() {
    let stall = always(10_000);
    let (bed, echo) = with_faults(ArtifactFaults { stall, ..Default::default() }).await;
    times_out(&bed, &echo).await;
    bed.finish().await;
}

#[tokio::test]
async fn a_server_that_never_answers_meets_the_download_timeout() {
    let header_delay = Duration::from_secs(3600);
    let (bed, echo) = with_faults(ArtifactFaults { header_delay, ..Default::default() }).await;
    times_out(&bed, &echo).await;
    bed.finish().await;
}

async fn times_out(bed: &Bed, echo: &Archive) {
    let since = Instant::now();
    let order = orders::install("echo", "1", echo).manifest(|manifest| {
        manifest.download_timeout = orders::seconds(0.4);
        manifest.download_attempt_count = 2;
    });
    bed.configure(vec![order.order()]).await;
    let why = failed(bed).await;
    assert!(why.contains("2 attempts") && why.contains("download_timeout"), "{why}");
    assert!(since.elapsed() >= Duration::from_millis(800), "each attempt has its own timeout");
    // On a busy machine an attempt may be over before its request is.
    assert!(bed.artifacts.counters(&echo.name).requests <= 2);
}

#[tokio::test]
async fn a_server_that_is_gone_is_tried_a_bounded_number_of_times() {
    let bed = Bed::new().await;
    let mut echo = bed.echo().await;
    // A bound socket that does not listen refuses, and keeps others from taking its port.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    echo.url = format!("http://{}/echo.tar", socket.local_addr().unwrap());
    let order = orders::install("echo", "1", &echo).manifest(|m| m.download_attempt_count = 3);
    bed.configure(vec![order.order()]).await;
    let why = failed(&bed).await;
    assert!(why.contains("3 attempts"), "{why}");
    bed.finish().await;
}

#[tokio::test]
async fn what_is_no_archive_is_refused_with_what_it_looks_like() {
    let bed = Bed::new().await;
    let html = "<html>please log in</html>".repeat(100);
    let cases = [
        ("empty", ArchiveSpec::bytes("")),
        ("html", ArchiveSpec::bytes(html)),
        ("zeros", ArchiveSpec::bytes(vec![0_u8; 4096])),
        ("gzip-head", ArchiveSpec::bytes([0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3])),
        ("no-program", ArchiveSpec::tar("run", Default::default())),
    ];
    let mut all = Vec::new();
    let names = cases.each_ref().map(|(name, _)| *name);
    for (name, spec) in cases {
        let archive = bed.archive(name, spec).await;
        all.push(orders::install(name, "1", &archive).order());
    }
    bed.configure(all).await;
    for name in names {
        bed.expect_events(name, &[1, 8]).await;
        let why = bed.event(8, name, "1").await.details().into_owned();
        assert!(why.len() > 20, "{name}: {why}");
        assert_eq!(bed.plugin_files(name), [""; 0], "{name}");
        assert_eq!(bed.artifacts.counters(name).requests, 1, "{name}");
    }
    bed.finish().await;
}

#[tokio::test]
async fn without_certificates_http_works_and_https_names_what_is_missing() {
    let secrets = tempfile::tempdir().unwrap();
    let none = secrets.path().join("none.pem");
    std::fs::write(&none, "").unwrap();
    let bed = Bed::builder().variable("SSL_CERT_FILE", none.display().to_string()).start().await;
    let mut archive = bed.echo().await;
    bed.configure(vec![orders::install("plain", "1", &archive).order()]).await;
    bed.running("plain", "1").await;
    archive.url = archive.url.replace("http://", "https://");
    bed.configure(vec![orders::install("echo", "1", &archive).order()]).await;
    let why = failed(&bed).await;
    assert!(why.contains("ca-certificates") && why.contains("SSL_CERT_FILE"), "{why}");
    bed.finish().await;
}
