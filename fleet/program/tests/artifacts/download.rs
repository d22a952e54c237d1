//! Artifacts on their way to agents.

use std::collections::BTreeMap;
use std::sync::Arc;

use guest_agent_proto::artifact;
use guest_agent_serve_kit::listen::Listen;
use guest_agent_serve_kit::socket::SocketError;
use guest_fleet_core::view::ReleaseName;
use guest_fleet_server::artifacts::listener::{ArtifactListener, ListenerError};
use guest_fleet_server::artifacts::named::Named;
use guest_fleet_server::artifacts::{Digest, store::ArtifactStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::artifacts::harness::{PLUGIN, Rig, bytes, client, code, directory, options, put};

#[tokio::test]
async fn an_artifact_comes_with_a_strong_tag_and_may_be_kept_for_ever() {
    let rig = Rig::start().await;
    let text = bytes(600_000);
    let digest = put(rig.store.as_ref(), &text).await.unwrap().digest;
    let url = rig.url(&digest);
    for method in [reqwest::Method::GET, reqwest::Method::HEAD] {
        let answer = client().request(method.clone(), &url).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let headers = answer.headers().clone();
        assert_eq!(headers["etag"], format!("\"{digest}\""));
        assert_eq!(headers["content-length"], "600000");
        assert_eq!(headers["accept-ranges"], "bytes");
        assert!(headers["cache-control"].to_str().unwrap().contains("immutable"));
        assert_eq!(headers["x-content-type-options"], "nosniff");
        let expected = if method == reqwest::Method::GET { text.clone() } else { bytes(0) };
        assert_eq!(answer.bytes().await.unwrap(), expected);
    }
    let known = client().get(&url).header("if-none-match", format!("\"{digest}\""));
    let known = known.send().await.unwrap();
    assert_eq!((known.status().as_u16(), known.bytes().await.unwrap().len()), (304, 0));
}

#[tokio::test]
async fn a_download_that_broke_is_resumed() {
    let rig = Rig::start().await;
    let text = bytes(5_000_000);
    let digest = put(rig.store.as_ref(), &text).await.unwrap().digest;
    let url = rig.url(&digest);
    let mut first = client().get(&url).send().await.unwrap();
    let tag = first.headers()["etag"].clone();
    let mut got = first.chunk().await.unwrap().unwrap().to_vec();
    drop(first);
    assert!(got.len() < text.len());
    let rest = client()
        .get(&url)
        .header("range", format!("bytes={}-", got.len()))
        .header("if-range", tag)
        .send()
        .await
        .unwrap();
    assert_eq!(rest.status(), 206);
    let shown = format!("bytes {}-4999999/5000000", got.len());
    assert_eq!(rest.headers()["content-range"], shown);
    got.extend_from_slice(&rest.bytes().await.unwrap());
    assert_eq!(Digest::of(&got), digest);
    let other = client().get(&url).header("range", "bytes=10-").header("if-range", "\"other\"");
    let other = other.send().await.unwrap();
    assert_eq!((other.status().as_u16(), other.bytes().await.unwrap().len()), (200, 5_000_000));
}

#[tokio::test]
async fn hostile_ranges_bring_the_whole_a_part_or_nothing() {
    let rig = Rig::start().await;
    let text = bytes(1000);
    let digest = put(rig.store.as_ref(), &text).await.unwrap().digest;
    for (range, status, length) in [
        ("bytes=0-0", 206, 1),
        ("bytes=-1", 206, 1),
        ("bytes=0-18446744073709551615", 206, 1000),
        ("bytes=0-99999999999999999999999999", 206, 1000),
        ("bytes=1000-", 416, 0),
        ("bytes=18446744073709551615-", 416, 0),
        ("bytes=-0", 416, 0),
        ("bytes=5-1", 200, 1000),
        ("bytes=0-1,5-6", 200, 1000),
        ("bytes=abc", 200, 1000),
        ("bytes=--1", 200, 1000),
        ("items=0-1", 200, 1000),
    ] {
        let answer = client().get(rig.url(&digest)).header("range", range).send().await.unwrap();
        let found = (answer.status().as_u16(), answer.bytes().await.unwrap().len());
        assert_eq!(found, (status, length), "{range}");
    }
}

#[tokio::test]
async fn only_what_a_release_of_the_plugin_names_is_given_out() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(directory(folder.path()));
    let (one, other) = (bytes(10), bytes(20));
    put(store.as_ref(), &one).await.unwrap();
    put(store.as_ref(), &other).await.unwrap();
    let mut named = Named::default();
    let release = || ReleaseName { plugin: PLUGIN.to_owned(), revision: "1".to_owned() };
    named.add(Digest::of(&one), release());
    named.add(Digest::of(b"not pushed yet"), release());
    let mut options = options(store);
    options.known = Arc::new(named);
    let listener = ArtifactListener::start(options).await.unwrap();
    let get = async |plugin: &str, digest: Digest| {
        let url = format!("{}{}", listener.endpoint(), artifact::path(plugin, digest));
        client().get(url).send().await.unwrap()
    };
    assert_eq!(get(PLUGIN, Digest::of(&one)).await.status(), 200);
    let answers = BTreeMap::from([
        ("another artifact", get(PLUGIN, Digest::of(&other)).await),
        ("another plugin", get("other", Digest::of(&one)).await),
    ]);
    for (what, answer) in answers {
        assert_eq!(code(answer).await, (404, "artifact_not_named".to_owned()), "{what}");
    }
    let missing = get(PLUGIN, Digest::of(b"not pushed yet")).await;
    assert_eq!(code(missing).await, (404, "artifact_missing".to_owned()));
}

#[tokio::test]
async fn without_tls_it_listens_on_this_machine_only() {
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn ArtifactStore> = Arc::new(directory(folder.path()));
    let mut on_all = options(store.clone());
    on_all.listen = Listen::Tcp(([0, 0, 0, 0], 0).into());
    let error = ArtifactListener::start(on_all).await.unwrap_err();
    assert!(matches!(error, ListenerError::PlaintextOffLoopback(_)), "{error}");

    let path = folder.path().join("artifacts.sock");
    let digest = put(store.as_ref(), &bytes(1000)).await.unwrap().digest;
    let mut on_socket = options(store);
    on_socket.listen = Listen::Unix(path.clone());
    let listener = ArtifactListener::start(on_socket.clone()).await.unwrap();
    let error = ArtifactListener::start(on_socket).await.unwrap_err();
    assert!(matches!(error, ListenerError::Socket(SocketError::InUse(_))), "{error}");
    let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    let request = format!(
        "GET {} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        artifact::path(PLUGIN, digest)
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n") && answer.ends_with(&bytes(1000)));
    listener.shutdown().await;
    assert!(!path.exists());
}
