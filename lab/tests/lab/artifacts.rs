//! The artifact server over a plain socket, so that every byte of an answer is seen.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use guest_agent_lab::{ArtifactFaults, ArtifactServer, CutOff, StatusFault};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

use crate::client::LONG;

const TEXT: &[u8] = b"0123456789abcdefghij";

struct Answer {
    status: u16,
    headers: HashMap<String, String>,
    /// All bytes until the connection was closed.
    body: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

async fn start() -> ArtifactServer {
    ArtifactServer::start((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap()
}

async fn ask(server: &ArtifactServer, method: &str, name: &str, headers: &[&str]) -> Answer {
    let stream = TcpStream::connect(server.address().unwrap()).await.unwrap();
    exchange(stream, method, name, headers).await
}

async fn get(server: &ArtifactServer, name: &str, headers: &[&str]) -> Answer {
    ask(server, "GET", name, headers).await
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    method: &str,
    name: &str,
    headers: &[&str],
) -> Answer {
    let mut request = format!("{method} /{name} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
    for header in headers {
        request += header;
        request += "\r\n";
    }
    request += "\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    // A connection that was cut off may end with a reset, after the bytes that matter.
    drop(tokio::time::timeout(LONG, stream.read_to_end(&mut bytes)).await.expect("it is closed"));
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a header");
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    Answer { status, headers, body: bytes[end + 4..].to_vec() }
}

#[tokio::test]
async fn the_whole_artifact_has_its_length_and_a_stable_etag() {
    let server = start().await;
    let url = server.publish("a.tar.gz", TEXT).unwrap();
    assert_eq!(url, format!("http://{}/a.tar.gz", server.address().unwrap()));
    let answer = get(&server, "a.tar.gz?X-Signature=secret", &[]).await;
    assert_eq!((answer.status, answer.body.as_slice()), (200, TEXT));
    assert_eq!(answer.header("content-length"), "20");
    assert_eq!(answer.header("accept-ranges"), "bytes");
    let etag = answer.header("etag").to_owned();
    assert_eq!(etag.len(), 66);
    server.publish("same", TEXT).unwrap();
    assert_eq!(get(&server, "same", &[]).await.header("etag"), etag);
    server.publish("same", "other").unwrap();
    assert_ne!(get(&server, "same", &[]).await.header("etag"), etag);
    assert_eq!(server.counters("a.tar.gz").bytes, 20);
}

#[tokio::test]
async fn head_has_the_headers_and_no_body() {
    let server = start().await;
    server.publish("a", TEXT).unwrap();
    let answer = ask(&server, "HEAD", "a", &["range: bytes=0-1"]).await;
    assert_eq!((answer.status, answer.header("content-length")), (200, "20"));
    assert!(answer.body.is_empty());
    assert_eq!(ask(&server, "POST", "a", &[]).await.status, 405);
}

#[tokio::test]
async fn a_range_brings_its_part() {
    let server = start().await;
    server.publish("a", TEXT).unwrap();
    let answer = get(&server, "a", &["range: bytes=5-9"]).await;
    assert_eq!((answer.status, answer.body.as_slice()), (206, b"56789".as_slice()));
    assert_eq!(answer.header("content-range"), "bytes 5-9/20");
    assert_eq!(answer.header("content-length"), "5");
    let answer = get(&server, "a", &["range: bytes=-3"]).await;
    assert_eq!((answer.status, answer.body.as_slice()), (206, b"hij".as_slice()));
    let answer = get(&server, "a", &["range: bytes=20-"]).await;
    assert_eq!((answer.status, answer.header("content-range")), (416, "bytes */20"));
    assert!(answer.body.is_empty());
    assert_eq!(server.counters("a").partial, 2);
}

#[tokio::test]
async fn if_range_with_an_old_etag_brings_the_whole() {
    let server = start().await;
    server.publish("a", TEXT).unwrap();
    let etag = get(&server, "a", &[]).await.header("etag").to_owned();
    let if_range = format!("if-range: {etag}");
    assert_eq!(get(&server, "a", &["range: bytes=5-", &if_range]).await.status, 206);
    server.publish("a", "ABCDEFGHIJKLMNOPQRST").unwrap();
    let answer = get(&server, "a", &["range: bytes=5-", &if_range]).await;
    assert_eq!((answer.status, answer.body.len()), (200, 20));
}

#[tokio::test]
async fn if_none_match_with_the_etag_brings_nothing() {
    let server = start().await;
    server.publish("a", TEXT).unwrap();
    let etag = get(&server, "a", &[]).await.header("etag").to_owned();
    let answer = get(&server, "a", &[&format!("if-none-match: {etag}")]).await;
    assert_eq!((answer.status, answer.header("etag")), (304, etag.as_str()));
    assert!(answer.body.is_empty());
    assert_eq!(server.counters("a").not_modified, 1);
}

#[tokio::test]
async fn files_are_streamed_and_noticed_when_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("large");
    let large: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    std::fs::write(&path, &large).unwrap();
    let server = start().await;
    server.publish_file("f", &path).unwrap();
    server.publish_directory(directory.path());
    let answer = get(&server, "f", &[]).await;
    assert!(answer.status == 200 && answer.body == large);
    let etag = answer.header("etag").to_owned();
    let answer = get(&server, "large", &["range: bytes=300000-799999"]).await;
    assert!(answer.status == 206 && answer.body == large[300_000..800_000]);
    assert_eq!(answer.header("etag"), etag);
    std::fs::write(directory.path().join("new"), TEXT).unwrap();
    std::fs::rename(directory.path().join("new"), &path).unwrap();
    let answer = get(&server, "f", &[]).await;
    assert_eq!(answer.body, TEXT);
    assert_ne!(answer.header("etag"), etag);
    assert!(server.publish_file("g", &directory.path().join("missing")).is_err());
}

#[tokio::test]
async fn nothing_outside_the_directory_is_served() {
    let directory = tempfile::tempdir().unwrap();
    let inside = directory.path().join("inside");
    std::fs::create_dir(&inside).unwrap();
    std::fs::create_dir(inside.join("sub")).unwrap();
    std::fs::write(directory.path().join("outside"), "x").unwrap();
    std::fs::write(inside.join(".hidden"), "x").unwrap();
    let server = start().await;
    server.publish_directory(&inside);
    for name in ["", "..", "../outside", "%2e%2e/outside", "sub", ".hidden", "missing", "a/b"] {
        assert_eq!(get(&server, name, &[]).await.status, 404, "{name}");
    }
    assert!(server.publish("../x", TEXT).is_err());
}

#[tokio::test]
async fn a_status_fault_lasts_for_so_many_requests() {
    let server = start().await;
    server.publish("a", TEXT).unwrap();
    let status = Some(StatusFault { status: 503, requests: 2 });
    server.set_faults("a", ArtifactFaults { status, ..ArtifactFaults::default() });
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(get(&server, "a", &[]).await.status);
    }
    assert_eq!(seen, [503, 503, 200]);
    let counters = server.counters("a");
    assert_eq!((counters.requests, counters.faults), (3, 2));
}

#[tokio::test]
async fn a_truncated_download_can_be_continued() {
    let server = start().await;
    server.publish("a", TEXT).unwrap();
    let truncate = Some(CutOff { after_bytes: 7, requests: 1 });
    server.set_faults("a", ArtifactFaults { truncate, ..ArtifactFaults::default() });
    let first = get(&server, "a", &[]).await;
    assert_eq!((first.status, first.header("content-length")), (200, "20"));
    assert_eq!(first.body, &TEXT[..7]);
    let if_range = format!("if-range: {}", first.header("etag"));
    let rest = get(&server, "a", &["range: bytes=7-", &if_range]).await;
    assert_eq!((rest.status, rest.body.as_slice()), (206, &TEXT[7..]));
}

#[tokio::test]
async fn throttling_and_delay_take_their_time() {
    let server = start().await;
    server.publish("a", vec![b'x'; 2000]).unwrap();
    let faults = ArtifactFaults {
        bytes_per_second: Some(10_000),
        header_delay: Duration::from_millis(50),
        ..ArtifactFaults::default()
    };
    server.set_faults("a", faults);
    let before = Instant::now();
    assert_eq!(get(&server, "a", &[]).await.body.len(), 2000);
    // 2000 bytes at 10,000 a second, but for the last piece of 500, and the delay.
    assert!(before.elapsed() >= Duration::from_millis(200), "{:?}", before.elapsed());
}

#[tokio::test]
async fn a_stalled_download_is_held_until_the_shutdown() {
    let server = start().await;
    server.publish("a", TEXT).unwrap();
    let stall = Some(CutOff { after_bytes: 3, requests: 1 });
    server.set_faults("a", ArtifactFaults { stall, ..ArtifactFaults::default() });
    let mut stream = TcpStream::connect(server.address().unwrap()).await.unwrap();
    stream.write_all(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"012") {
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        seen.extend(byte);
    }
    let waiting = tokio::time::timeout(Duration::from_millis(50), stream.read_u8()).await;
    assert!(waiting.is_err(), "nothing comes while it is stalled");
    server.shutdown().await;
    let ended = tokio::time::timeout(LONG, stream.read_u8()).await.expect("it is closed");
    assert!(ended.is_err());
}

#[tokio::test]
async fn artifacts_are_served_on_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("artifacts.sock");
    let server = ArtifactServer::start_unix(&path).await.unwrap();
    assert_eq!(server.publish("a", TEXT).unwrap(), "/a");
    let answer = exchange(UnixStream::connect(&path).await.unwrap(), "GET", "a", &[]).await;
    assert_eq!((answer.status, answer.body.as_slice()), (200, TEXT));
    server.shutdown().await;
    assert!(!path.exists());
}
