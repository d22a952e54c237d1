//! What the tests share: bytes, stores, listeners, a client that speaks HTTP by hand.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use guest_agent_proto::artifact;
use guest_agent_serve_kit::listen::Listen;
use guest_fleet_server::artifacts::Digest;
use guest_fleet_server::artifacts::listener::{
    ArtifactListener, Delivery, Limits, ListenerOptions,
};
use guest_fleet_server::artifacts::store::{
    ArtifactStore, Bounds, Claim, DirectoryStore, Incoming, Outgoing, PutError, Stat,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::artifacts::LONG;

pub(crate) const PLUGIN: &str = "echo";
pub(crate) const TOKEN: &str = "upload-token-0123456789";
/// Bounds for small disks.
pub(crate) const BOUNDS: Bounds = Bounds { artifact: 64 << 20, reserve: 0 };

/// Bytes of which no two blocks are the same.
pub(crate) fn bytes(length: usize) -> Bytes {
    const BLOCK: usize = 64 << 10;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ length as u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let block: Vec<u8> = (0..BLOCK / 8).flat_map(|_| next()).collect();
    let mut bytes = Vec::with_capacity(length + BLOCK);
    while bytes.len() < length {
        let at = bytes.len();
        bytes.extend_from_slice(&block);
        bytes[at..at + 8].copy_from_slice(&next());
    }
    bytes.truncate(length);
    bytes.into()
}

/// The bytes in chunks of this size.
pub(crate) fn chunks(bytes: &Bytes, size: usize) -> Incoming<'static> {
    let bytes = bytes.clone();
    let starts = (0..bytes.len()).step_by(size);
    futures_util::stream::iter(
        starts.map(move |at| io::Result::Ok(bytes.slice(at..bytes.len().min(at + size)))),
    )
    .boxed()
}

pub(crate) async fn put(store: &dyn ArtifactStore, bytes: &Bytes) -> Result<Stat, PutError> {
    let claim = Claim { digest: Some(Digest::of(bytes)), length: Some(bytes.len() as u64) };
    store.put(claim, chunks(bytes, 100_000)).await
}

/// What comes before the end or an error, and whether it was an error.
pub(crate) async fn collect(mut outgoing: Outgoing) -> (Vec<u8>, Option<io::Error>) {
    let mut got = Vec::new();
    while let Some(chunk) = outgoing.next().await {
        match chunk {
            Ok(chunk) => got.extend_from_slice(&chunk),
            Err(error) => return (got, Some(error)),
        }
    }
    (got, None)
}

pub(crate) fn directory(root: &Path) -> DirectoryStore {
    DirectoryStore::open(root, BOUNDS).unwrap()
}

/// Names of files that are not complete.
pub(crate) fn temporary(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root.join("tmp")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + LONG;
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Options of a listener on loopback that gives out everything.
pub(crate) fn options(store: Arc<dyn ArtifactStore>) -> ListenerOptions {
    ListenerOptions {
        listen: Listen::Tcp(([127, 0, 0, 1], 0).into()),
        tls: None,
        store,
        known: Arc::new(|plugin: &str, _: &Digest| plugin == PLUGIN),
        upload_tokens: None,
        delivery: Delivery::default(),
        limits: Limits::default(),
    }
}

/// A listener of a directory, which takes uploads.
pub(crate) struct Rig {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) store: Arc<DirectoryStore>,
    pub(crate) listener: ArtifactListener,
}

impl Rig {
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut ListenerOptions)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tokens = folder.path().join("tokens");
        std::fs::write(&tokens, format!("{TOKEN}\n")).unwrap();
        let store = Arc::new(directory(&folder.path().join("store")));
        let mut options = options(store.clone());
        options.upload_tokens = Some(tokens);
        change(&mut options);
        let listener = ArtifactListener::start(options).await.unwrap();
        Self { folder, store, listener }
    }

    pub(crate) fn url(&self, digest: &Digest) -> String {
        format!("{}{}", self.listener.endpoint(), artifact::path(PLUGIN, digest))
    }

    pub(crate) fn temporary(&self) -> Vec<String> {
        temporary(&self.folder.path().join("store"))
    }

    pub(crate) async fn has(&self, digest: &Digest) -> bool {
        self.store.stat(digest).await.unwrap().is_some()
    }

    /// Sends bytes as they are, and returns all that comes until the connection ends.
    pub(crate) async fn raw(&self, request: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect().await;
        stream.write_all(request.as_ref()).await.unwrap();
        read_all(stream).await
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.listener.address().unwrap()).await.unwrap()
    }
}

/// All that comes until the connection ends, in whatever way.
pub(crate) async fn read_all(mut stream: TcpStream) -> String {
    let mut got = Vec::new();
    let reading = async {
        let mut chunk = [0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut chunk).await {
            got.extend_from_slice(&chunk[..read]);
        }
    };
    tokio::time::timeout(LONG, reading).await.expect("the server ends the connection");
    String::from_utf8_lossy(&got).into_owned()
}

/// A client of HTTP that follows nothing.
pub(crate) fn client() -> reqwest::Client {
    drop(rustls::crypto::ring::default_provider().install_default());
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap()
}

/// The code of a refusal.
pub(crate) async fn code(answer: reqwest::Response) -> (u16, String) {
    let status = answer.status().as_u16();
    assert_eq!(answer.headers()["content-type"], "application/json");
    let document: serde_json::Value =
        serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
    for name in ["message", "fix"] {
        assert!(document["error"][name].as_str().is_some_and(|text| !text.is_empty()));
    }
    (status, document["error"]["code"].as_str().unwrap().to_owned())
}
