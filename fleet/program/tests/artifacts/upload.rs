//! Artifacts on their way in.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use guest_fleet_server::artifacts::Digest;
use guest_fleet_server::artifacts::store::{ArtifactStore, Bounds};
use reqwest::{Body, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::artifacts::harness::{BOUNDS, Rig, TOKEN, bytes, client, code, read_all};

async fn put(rig: &Rig, digest: &Digest, token: Option<&str>, body: impl Into<Body>) -> Response {
    let mut request = client().put(rig.url(digest)).body(body);
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    request.send().await.unwrap()
}

/// The head of an upload, as it is on the wire.
fn head(digest: &Digest, length: usize, more: &str) -> String {
    format!(
        "PUT /artifacts/echo/{digest} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n\
         content-length: {length}\r\n{more}\r\n"
    )
}

#[tokio::test]
async fn what_has_the_digest_of_its_url_is_kept() {
    let rig = Rig::start().await;
    let text = bytes(3_000_000);
    let digest = Digest::of(&text);
    for _ in 0..2 {
        let answer = put(&rig, &digest, Some(TOKEN), text.clone()).await;
        assert_eq!(answer.status(), 201);
        let document: serde_json::Value =
            serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
        assert_eq!(document["digest"], digest.to_string());
    }
    let got = client().get(rig.url(&digest)).send().await.unwrap();
    assert_eq!(got.bytes().await.unwrap(), text);
    // Without a length, in pieces.
    let other = bytes(2_000_000);
    let pieces: Vec<_> =
        other.chunks(10_000).map(|piece| io::Result::Ok(Bytes::copy_from_slice(piece))).collect();
    let body = Body::wrap_stream(stream::iter(pieces));
    assert_eq!(put(&rig, &Digest::of(&other), Some(TOKEN), body).await.status(), 201);
    assert!(rig.has(&Digest::of(&other)).await && rig.temporary().is_empty());
}

#[tokio::test]
async fn of_what_has_another_digest_nothing_is_kept() {
    let rig = Rig::start().await;
    let digest = Digest::of(b"what was hashed");
    let answer = put(&rig, &digest, Some(TOKEN), bytes(3_000_000)).await;
    assert_eq!(code(answer).await, (422, "wrong_digest".to_owned()));
    assert!(rig.store.list(None, 10).await.unwrap().is_empty() && rig.temporary().is_empty());
}

#[tokio::test]
async fn nobody_uploads_without_the_token() {
    let rig = Rig::start().await;
    let text = bytes(1_000_000);
    let digest = Digest::of(&text);
    for token in [None, Some(""), Some("wrong"), Some("upload-token-012345678")] {
        let answer = put(&rig, &digest, token, text.clone()).await;
        assert_eq!(answer.headers()["www-authenticate"], "Bearer");
        assert_eq!(code(answer).await, (401, "not_authorized".to_owned()), "{token:?}");
    }
    assert!(!rig.has(&digest).await);
    // A token that is put into the file is good at once, and one that is taken out is not.
    std::fs::write(rig.folder.path().join("tokens"), "another-token-0123456789").unwrap();
    assert_eq!(put(&rig, &digest, Some(TOKEN), text.clone()).await.status(), 401);
    let answer = put(&rig, &digest, Some("another-token-0123456789"), text.clone()).await;
    assert_eq!(answer.status(), 201);
    std::fs::remove_file(rig.folder.path().join("tokens")).unwrap();
    let answer = put(&rig, &digest, Some(TOKEN), text.clone()).await;
    assert_eq!(code(answer).await, (500, "tokens_not_readable".to_owned()));
    let closed = Rig::with(|options| options.upload_tokens = None).await;
    let answer = put(&closed, &digest, Some(TOKEN), text).await;
    assert_eq!(code(answer).await, (403, "uploads_are_off".to_owned()));
}

#[tokio::test]
async fn a_client_that_waits_sends_only_what_is_wanted() {
    let rig = Rig::start().await;
    let text = bytes(100_000);
    let digest = Digest::of(&text);
    let mut stream = rig.connect().await;
    let wanted = head(&digest, text.len(), "expect: 100-continue\r\nconnection: close\r\n");
    stream.write_all(wanted.as_bytes()).await.unwrap();
    let mut begin = [0; 25];
    stream.read_exact(&mut begin).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(&text).await.unwrap();
    assert!(read_all(stream).await.starts_with("HTTP/1.1 201"));
    let refused = head(&digest, text.len(), "expect: 100-continue\r\n").replace(TOKEN, "wrong");
    let answer = rig.raw(refused).await;
    assert!(answer.starts_with("HTTP/1.1 401") && !answer.contains("100 Continue"), "{answer}");
}

#[tokio::test]
async fn a_client_that_sends_everything_first_gets_the_refusal_too() {
    let rig = Rig::start().await;
    let text = bytes(30 << 20);
    let mut stream = rig.connect().await;
    let refused = head(&Digest::of(&text), text.len(), "").replace(TOKEN, "wrong");
    stream.write_all(refused.as_bytes()).await.unwrap();
    stream.write_all(&text).await.unwrap();
    assert!(read_all(stream).await.starts_with("HTTP/1.1 401"));
}

#[tokio::test]
async fn an_upload_that_breaks_off_leaves_nothing() {
    let rig = Rig::start().await;
    let text = bytes(3_000_000);
    let digest = Digest::of(&text);
    let mut stream = rig.connect().await;
    stream.write_all(head(&digest, text.len(), "").as_bytes()).await.unwrap();
    stream.write_all(&text[..2_000_000]).await.unwrap();
    let writing = || !rig.temporary().is_empty();
    while !writing() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(stream);
    while writing() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!rig.has(&digest).await);
}

#[tokio::test]
async fn an_upload_that_stalls_is_cut() {
    let rig = Rig::with(|options| options.limits.stall = Duration::from_millis(300)).await;
    let text = bytes(3_000_000);
    let digest = Digest::of(&text);
    let mut stream = rig.connect().await;
    stream.write_all(head(&digest, text.len(), "").as_bytes()).await.unwrap();
    stream.write_all(&text[..1_000_000]).await.unwrap();
    let answer = read_all(stream).await;
    assert!(answer.contains("400") && answer.contains("upload_incomplete"), "{answer}");
    assert!(!rig.has(&digest).await && rig.temporary().is_empty());
}

#[tokio::test]
async fn an_upload_that_is_too_large_is_refused() {
    let rig = Rig::with(|options| {
        let bounds = Bounds { artifact: 1_000_000, ..BOUNDS };
        let root = tempfile::tempdir().unwrap().keep();
        let store =
            guest_fleet_server::artifacts::store::DirectoryStore::open(root, bounds).unwrap();
        options.store = std::sync::Arc::new(store);
    })
    .await;
    let text = bytes(1_000_001);
    let answer = put(&rig, &Digest::of(&text), Some(TOKEN), text.clone()).await;
    assert_eq!(code(answer).await, (413, "artifact_too_large".to_owned()));
    let pieces: Vec<_> =
        text.chunks(10_000).map(|piece| io::Result::Ok(Bytes::copy_from_slice(piece))).collect();
    let body = Body::wrap_stream(stream::iter(pieces));
    let answer = put(&rig, &Digest::of(&text), Some(TOKEN), body).await;
    assert_eq!(code(answer).await, (413, "artifact_too_large".to_owned()));
}

#[tokio::test]
async fn uploads_of_one_artifact_at_once_all_succeed() {
    let rig = Rig::start().await;
    let text = bytes(2_000_000);
    let digest = Digest::of(&text);
    let puts = (0..6).map(|_| put(&rig, &digest, Some(TOKEN), text.clone()));
    for answer in join_all(puts).await {
        assert_eq!(answer.status(), 201);
    }
    assert_eq!(rig.store.list(None, 10).await.unwrap().len(), 1);
    assert!(rig.temporary().is_empty());
}

#[tokio::test]
async fn more_uploads_than_there_are_places_are_told_to_come_again() {
    let rig = Rig::with(|options| options.limits.uploads = 1).await;
    let text = bytes(3_000_000);
    let digest = Digest::of(&text);
    let mut first = rig.connect().await;
    first.write_all(head(&digest, text.len(), "connection: close\r\n").as_bytes()).await.unwrap();
    first.write_all(&text[..2_000_000]).await.unwrap();
    while rig.temporary().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let answer = put(&rig, &digest, Some(TOKEN), text.clone()).await;
    assert!(answer.headers().contains_key("retry-after"));
    assert_eq!(code(answer).await, (503, "too_many_uploads".to_owned()));
    first.write_all(&text[2_000_000..]).await.unwrap();
    assert!(read_all(first).await.starts_with("HTTP/1.1 201"));
    assert_eq!(put(&rig, &digest, Some(TOKEN), text).await.status(), 201);
}

#[tokio::test]
async fn a_body_that_is_not_the_file_itself_is_refused() {
    let rig = Rig::start().await;
    let text = bytes(1000);
    for (name, value) in [("content-encoding", "gzip"), ("content-range", "bytes 0-999/2000")] {
        let request = client().put(rig.url(&Digest::of(&text))).bearer_auth(TOKEN);
        let answer = request.header(name, value).body(text.clone()).send().await.unwrap();
        assert_eq!(code(answer).await, (400, "header_not_allowed".to_owned()), "{name}");
    }
    let body = stream::iter([io::Result::Ok(text.clone())]).boxed();
    let request = client().put(format!("{}/elsewhere", rig.listener.endpoint()));
    let answer = request.bearer_auth(TOKEN).body(Body::wrap_stream(body)).send().await.unwrap();
    assert_eq!(code(answer).await, (404, "no_such_path".to_owned()));
}
