//! Clients that mean no good.

use std::time::Duration;

use guest_fleet_server::artifacts::Digest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::artifacts::LONG;
use crate::artifacts::harness::{PLUGIN, Rig, bytes, client, put, read_all};

#[tokio::test]
async fn paths_lead_nowhere_but_to_artifacts() {
    let rig = Rig::start().await;
    let digest = put(rig.store.as_ref(), &bytes(10)).await.unwrap().digest;
    for path in [
        "/".to_owned(),
        "/etc/passwd".to_owned(),
        "/artifacts".to_owned(),
        "/artifacts/../../etc/passwd".to_owned(),
        "/artifacts/echo/../../../etc/passwd".to_owned(),
        "/artifacts/echo/%2e%2e%2f%2e%2e%2fetc%2fpasswd".to_owned(),
        format!("/artifacts/echo/../echo/{digest}"),
        format!("/artifacts/%65cho/{digest}"),
        format!("/artifacts/echo//{digest}"),
        format!("/artifacts/echo/{digest}%00"),
        format!("/artifacts/echo/{}", digest.to_string().to_uppercase()),
        format!("/artifacts/{}/{digest}", "a".repeat(8000)),
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let answer = rig.raw(request).await;
        assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
        assert!(answer.contains("no_such_path"), "{path}: {answer}");
    }
    let absolute = format!(
        "GET http://other.example/artifacts/{PLUGIN}/{digest} HTTP/1.1\r\nhost: x\r\n\
         connection: close\r\n\r\n"
    );
    assert!(rig.raw(absolute).await.starts_with("HTTP/1.1 200"), "its path is what counts");
}

#[tokio::test]
async fn odd_requests_are_refused_and_end_their_connection() {
    let rig = Rig::start().await;
    let digest = put(rig.store.as_ref(), &bytes(10)).await.unwrap().digest;
    let path = format!("/artifacts/{PLUGIN}/{digest}");
    let big = "x".repeat(20_000);
    let many: String = (0..200).map(|number| format!("h{number}: x\r\n")).collect();
    for (what, request, status) in [
        ("not HTTP", "\0\0\0\0\r\n\r\n".to_owned(), "400"),
        ("a large header", format!("GET {path} HTTP/1.1\r\nx: {big}\r\n\r\n"), "431"),
        ("many headers", format!("GET {path} HTTP/1.1\r\n{many}\r\n"), "431"),
        ("a body", format!("GET {path} HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc"), "400"),
        (
            "a body in pieces",
            format!("GET {path} HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
            "400",
        ),
        (
            "two lengths",
            format!("PUT {path} HTTP/1.1\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc"),
            "400",
        ),
        ("another method", format!("DELETE {path} HTTP/1.1\r\n\r\n"), "405"),
        ("a tunnel", "CONNECT other.example:443 HTTP/1.1\r\n\r\n".to_owned(), "405"),
    ] {
        let answer = rig.raw(request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{what}: {answer}");
    }
    let answer = client().get(rig.url(&digest)).send().await.unwrap();
    assert_eq!(answer.status(), 200, "nobody else is disturbed");
}

#[tokio::test]
async fn a_head_that_does_not_come_is_not_waited_for() {
    let rig = Rig::with(|options| options.limits.head = Duration::from_millis(200)).await;
    for begin in ["", "GET /artifacts/echo/", "GET / HTTP/1.1\r\nx: "] {
        let mut stream = rig.connect().await;
        stream.write_all(begin.as_bytes()).await.unwrap();
        let answer = read_all(stream).await;
        assert!(!answer.contains("200 OK"), "{answer}");
    }
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_cut() {
    let rig = Rig::with(|options| {
        options.limits.stall = Duration::from_millis(300);
        options.limits.per_peer = 1;
    })
    .await;
    // More than the buffers of both ends hold.
    let digest = put(rig.store.as_ref(), &bytes(48 << 20)).await.unwrap().digest;
    let mut slow = rig.connect().await;
    let request = format!("GET /artifacts/{PLUGIN}/{digest} HTTP/1.1\r\nhost: x\r\n\r\n");
    slow.write_all(request.as_bytes()).await.unwrap();
    let mut begin = [0; 15];
    slow.read_exact(&mut begin).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200 OK");
    // Its place is the only one, and is free again when it was cut.
    let deadline = tokio::time::Instant::now() + LONG;
    while client().head(rig.url(&digest)).send().await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "it is not cut");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn connections_beyond_the_bound_are_closed_unless_an_idle_one_makes_room() {
    let rig = Rig::with(|options| {
        options.limits.per_peer = 2;
        options.limits.head = LONG * 10;
    })
    .await;
    let (one, two) = (rig.connect().await, rig.connect().await);
    // Of the two that ask for nothing the older one leaves.
    let url = rig.url(&Digest::of(b"missing"));
    assert_eq!(client().get(&url).send().await.unwrap().status(), 404);
    assert_eq!(read_all(one).await, "");
    drop(two);
    // More than the buffers of both ends hold.
    let digest = put(rig.store.as_ref(), &bytes(48 << 20)).await.unwrap().digest;
    let request = format!("GET /artifacts/{PLUGIN}/{digest} HTTP/1.1\r\nhost: x\r\n\r\n");
    let mut fetching = Vec::new();
    for _ in 0..2 {
        let mut stream = rig.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut begin = [0; 15];
        stream.read_exact(&mut begin).await.unwrap();
        fetching.push(stream);
    }
    assert_eq!(read_all(rig.connect().await).await, "");
    drop(fetching);
    let deadline = tokio::time::Instant::now() + LONG;
    while client().get(&url).send().await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "no place is free again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_shutdown_lets_requests_end_and_cuts_those_that_do_not() {
    let rig = Rig::with(|options| options.limits.end = Duration::from_millis(500)).await;
    let text = bytes(48 << 20);
    let digest = put(rig.store.as_ref(), &text).await.unwrap().digest;
    let mut stalled = rig.connect().await;
    let request = format!("GET /artifacts/{PLUGIN}/{digest} HTTP/1.1\r\nhost: x\r\n\r\n");
    stalled.write_all(request.as_bytes()).await.unwrap();
    let mut begin = [0; 15];
    stalled.read_exact(&mut begin).await.unwrap();
    tokio::time::timeout(LONG, rig.listener.shutdown()).await.unwrap();
    assert!(tokio::net::TcpStream::connect(rig.listener.address().unwrap()).await.is_err());
    assert!(read_all(stalled).await.len() < text.len());
}
