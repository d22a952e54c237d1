//! Archives that come compressed, or as what changed since an archive of the cache; and servers that
//! do that wrong.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::ports::{ContentCoding, InstallStep, Progress, Unused};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use zstd::zstd_safe::CParameter;

use super::rig::{PATIENCE, Rig, assert_failed, spec};
use super::tarball::{SCRIPT, Tarball};
use crate::install::download::expand::DELTA_MAGIC;

const TERMS: &str = "use-as-dictionary: match=\"/artifacts/sample/*\"\r\n";

/// A server that answers as a function says, and remembers what it was asked.
struct Asked {
    address: String,
    requests: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Asked {
    async fn new(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let (seen, answer) = (Arc::clone(&requests), Arc::new(answer));
        let task = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("acceptable");
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                tokio::spawn(async move {
                    let mut request = Vec::new();
                    while !request.ends_with(b"\r\n\r\n") {
                        match stream.read_u8().await {
                            Ok(byte) => request.push(byte),
                            Err(_) => return,
                        }
                    }
                    let request = String::from_utf8_lossy(&request).to_lowercase();
                    let bytes = answer(&request);
                    seen.lock().expect("no panic").push(request);
                    // The client may have closed the connection, which it may.
                    stream.write_all(&bytes).await.ok();
                    stream.shutdown().await.ok();
                });
            }
        });
        Self { address, requests, task }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("no panic").clone()
    }

    fn url(&self, archive: &str) -> String {
        format!("{}/artifacts/sample/{archive}", self.address)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn answered(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

fn compressed(content: &[u8], dictionary: &[u8]) -> Vec<u8> {
    let encoder = zstd::stream::raw::Encoder::with_ref_prefix(3, dictionary).expect("an encoder");
    let mut encoder = zstd::stream::zio::Writer::new(Vec::new(), encoder);
    for parameter in [CParameter::WindowLog(22), CParameter::ChecksumFlag(true)] {
        encoder.operation_mut().set_parameter(parameter).expect("a parameter");
    }
    encoder.write_all(content).expect("memory");
    encoder.finish().expect("memory");
    encoder.into_inner().0
}

fn delta(content: &[u8], dictionary: &[u8]) -> Vec<u8> {
    let header = [&DELTA_MAGIC[..], Sha256Digest::of(dictionary).as_bytes()].concat();
    [header, compressed(content, dictionary)].concat()
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 1u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..length).map(next).collect()
}

/// Two revisions as plain tar archives.
fn revisions() -> (Vec<u8>, Vec<u8>) {
    let noise = noise(300_000);
    let old = Tarball::good().file("data", 0o644, &noise).finish();
    let new = Tarball::good()
        .file("data", 0o644, &[&noise[..1000], b"new", &noise[1000..]].concat())
        .finish();
    (old, new)
}

/// How a server answers for the second revision.
type Second = Box<dyn Fn(&str) -> Vec<u8> + Send + Sync>;

/// A rig whose cache has the first revision from this server.
async fn rig(second: Second) -> (Rig, Asked) {
    let (old, _) = revisions();
    let first = old.clone();
    let server = Asked::new(move |request| {
        if request.starts_with("get /artifacts/sample/old ") {
            return answered("200 OK", TERMS, &first);
        }
        second(request)
    })
    .await;
    let rig = Rig::new();
    let sha256 = Sha256Digest::of(&old);
    rig.install(spec(&server.url("old"), sha256)).await.expect("installable");
    let cached = rig.dir.path().join("cache").join(sha256.to_string());
    let wait = async {
        while !cached.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("in time");
    (rig, server)
}

/// Installs the second revision, and checks that all of it is there.
async fn upgrade(rig: &Rig, server: &Asked) -> Progress {
    let (_, new) = revisions();
    let mut order = spec(&server.url("new"), Sha256Digest::of(&new));
    order.revision = "r2".parse().expect("a revision");
    let progress = rig.install(order).await.expect("installable");
    let data = fs::read(rig.plugins().join("sample/r2/data")).expect("readable");
    assert_eq!(data.len(), 300_003);
    assert_eq!(fs::read(rig.plugins().join("sample/r2/run")).expect("readable"), SCRIPT);
    progress
}

/// The coding that was given up, and why, in an upgrade from this server; and how often it was asked
/// for the second revision.
async fn detour(second: Second) -> (Option<(ContentCoding, Unused)>, usize) {
    let (rig, server) = rig(second).await;
    let progress = upgrade(&rig, &server).await;
    (progress.arrival.unused, server.requests().len() - 1)
}

/// Answers with a delta to those who offer a dictionary, compressed to those who take that, and else
/// as it is.
fn right(request: &str) -> Vec<u8> {
    let (old, new) = revisions();
    if request.contains("accept-encoding: dcz, zstd") {
        assert!(request.contains("available-dictionary: :"));
        answered("200 OK", "content-encoding: dcz\r\netag: \"d\"\r\n", &delta(&new, &old))
    } else if request.contains("accept-encoding: zstd") {
        answered("200 OK", "content-encoding: zstd\r\netag: \"z\"\r\n", &compressed(&new, &[]))
    } else {
        assert!(request.contains("accept-encoding: identity"), "{request}");
        answered("200 OK", "", &new)
    }
}

#[tokio::test]
async fn an_upgrade_brings_only_what_changed() {
    let (rig, server) = rig(Box::new(right)).await;
    let progress = upgrade(&rig, &server).await;
    let (_, new) = revisions();
    let arrival = progress.arrival;
    assert_eq!(arrival.coding, Some(ContentCoding::Delta));
    assert!(arrival.bytes(ContentCoding::Delta) < 2_000, "{arrival:?}");
    assert_eq!((arrival.bytes(ContentCoding::Identity), arrival.unused), (0, None));
    assert_eq!(progress.received, new.len() as u64, "progress counts the archive");
    assert!(arrival.remark().is_some_and(|it| it.contains("what changed")));
    // What is kept is the archive, not the delta.
    let cached = rig.dir.path().join("cache").join(Sha256Digest::of(&new).to_string());
    let wait = async {
        while !cached.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("in time");
    assert_eq!(fs::read(cached).expect("readable"), new);
}

#[tokio::test]
async fn without_a_dictionary_the_archive_comes_compressed() {
    let server = Asked::new(right).await;
    let progress = upgrade(&Rig::new(), &server).await;
    assert_eq!(progress.arrival.coding, Some(ContentCoding::Zstd));
    assert_eq!(progress.arrival.remark(), None, "nothing unusual");
    assert!(!server.requests()[0].contains("available-dictionary"));
}

#[tokio::test]
async fn a_delta_that_is_wrong_is_replaced_by_the_whole_archive_once() {
    /// Answers those who offer a dictionary with this, and others rightly.
    fn instead(wrong: impl Fn(&[u8], &[u8]) -> Vec<u8> + Send + Sync + 'static) -> Second {
        Box::new(move |request| {
            if !request.contains("accept-encoding: dcz") {
                return right(request);
            }
            let (old, new) = revisions();
            answered("200 OK", "content-encoding: dcz\r\n", &wrong(&old, &new))
        })
    }
    let cases: [(&str, Unused, Second); 8] = [
        (
            "cut",
            Unused::Damaged,
            instead(|old, new| {
                let delta = delta(new, old);
                delta[..delta.len() - 9].to_vec()
            }),
        ),
        (
            "a flipped bit",
            Unused::Damaged,
            instead(|old, new| {
                let mut delta = delta(new, old);
                let last = delta.len() - 1;
                delta[last] ^= 1;
                delta
            }),
        ),
        ("another dictionary", Unused::OtherDictionary, instead(|_, new| delta(new, b"other"))),
        ("no header", Unused::Damaged, instead(|old, new| compressed(new, old))),
        ("a web page", Unused::Damaged, instead(|_, _| b"<html>not found</html>".to_vec())),
        ("nothing", Unused::Damaged, instead(|_, _| Vec::new())),
        (
            "another archive",
            Unused::Checksum,
            instead(|old, _| delta(&Tarball::good().file("other", 0o644, b"x").finish(), old)),
        ),
        ("no archive at all", Unused::Checksum, instead(|old, _| delta(b"no tar", old))),
    ];
    for (what, reason, second) in cases {
        let (unused, requests) = detour(second).await;
        assert_eq!(unused, Some((ContentCoding::Delta, reason)), "{what}");
        assert_eq!(requests, 2, "{what}: the delta, and the archive compressed");
    }
}

#[tokio::test]
async fn a_server_that_lies_about_every_coding_gets_asked_for_the_archive_as_it_is() {
    let (unused, requests) = detour(Box::new(|request: &str| {
        if request.contains("accept-encoding: dcz") {
            answered("200 OK", "content-encoding: dcz\r\n", b"lies")
        } else if request.contains("accept-encoding: zstd") {
            answered("200 OK", "content-encoding: zstd\r\n", b"more lies")
        } else {
            right(request)
        }
    }))
    .await;
    assert_eq!(unused, Some((ContentCoding::Delta, Unused::Damaged)));
    assert_eq!(requests, 3);
    // One that has no right archive at all is believed in the end, and nothing is installed.
    let server = Asked::new(|_| answered("200 OK", "content-encoding: zstd\r\n", b"lies")).await;
    let rig = Rig::new();
    let result = rig.install(spec(&server.url("x"), Sha256Digest::of(b"truth"))).await;
    assert_failed(result, InstallStep::Verify, "checksum");
    assert_eq!(server.requests().len(), 2);
    rig.assert_untouched();
}

#[tokio::test]
async fn a_server_that_refuses_what_it_does_not_know_is_asked_as_before() {
    for status in ["400 Bad Request", "406 Not Acceptable", "415 Unsupported Media Type"] {
        let (unused, requests) = detour(Box::new(move |request: &str| {
            match request.contains("accept-encoding: identity") {
                true => right(request),
                false => answered(status, "", b""),
            }
        }))
        .await;
        assert_eq!(unused, Some((ContentCoding::Zstd, Unused::Refused)), "{status}");
        assert_eq!(requests, 2, "{status}");
    }
}

#[tokio::test]
async fn a_file_that_the_server_calls_encoded_is_still_installed() {
    // Some servers take the end of a file's name for an encoding of it.
    let (_, new) = revisions();
    let archive = compressed(&new, &[]);
    let body = archive.clone();
    let server = Asked::new(move |_| answered("200 OK", "content-encoding: zstd\r\n", &body)).await;
    for (name, requests) in [("new.tar.zst", 1), ("new", 2)] {
        let rig = Rig::new();
        let before = server.requests().len();
        rig.install(spec(&server.url(name), Sha256Digest::of(&archive))).await.expect("installed");
        assert_eq!(server.requests().len() - before, requests, "{name}");
    }
}

#[tokio::test]
async fn a_damaged_dictionary_costs_a_download_and_is_forgotten() {
    let (rig, server) = rig(Box::new(right)).await;
    let (old, _) = revisions();
    let cached = rig.dir.path().join("cache").join(Sha256Digest::of(&old).to_string());
    let mut spoilt = old.clone();
    spoilt[1000] ^= 1;
    fs::write(&cached, spoilt).expect("written");
    let progress = upgrade(&rig, &server).await;
    assert_eq!(progress.arrival.unused, Some((ContentCoding::Delta, Unused::NoDictionary)));
    assert_eq!(progress.arrival.coding, Some(ContentCoding::Zstd));
    assert!(!cached.exists());
}

#[tokio::test]
async fn a_dictionary_is_offered_to_its_server_only_and_never_to_a_signed_address() {
    let (rig, server) = rig(Box::new(right)).await;
    let (_, new) = revisions();
    let order = |url: String, revision: &str| {
        let mut order = spec(&url, Sha256Digest::of(&new));
        order.revision = revision.parse().expect("a revision");
        order
    };
    // Another server, another plugin of the same server, an address with a signature.
    let other = Asked::new(right).await;
    for (number, url) in [
        other.url("new"),
        format!("{}/artifacts/other/new", server.address),
        format!("{}?X-Amz-Signature=1", server.url("new")),
    ]
    .into_iter()
    .enumerate()
    {
        fs::remove_dir_all(rig.plugins().join("sample")).expect("removed");
        let cached = rig.dir.path().join("cache").join(Sha256Digest::of(&new).to_string());
        drop(fs::remove_file(&cached));
        rig.install(order(url.clone(), &format!("x{number}"))).await.expect("installable");
    }
    let all = [other.requests(), server.requests()].concat();
    assert!(all.iter().all(|request| !request.contains("available-dictionary")), "{all:?}");
    let signed = all.iter().find(|request| request.contains("x-amz-signature")).expect("asked");
    assert!(signed.contains("accept-encoding: identity"), "{signed}");
}

#[tokio::test]
async fn a_redirection_is_followed_without_an_offer() {
    let bucket = Asked::new(right).await;
    let target = format!("{}/new", bucket.address);
    let (rig, server) = rig(Box::new(move |_| {
        answered("307 Temporary Redirect", &format!("location: {target}\r\n"), b"")
    }))
    .await;
    let progress = upgrade(&rig, &server).await;
    assert_eq!(progress.arrival.coding, Some(ContentCoding::Identity));
    assert!(bucket.requests()[0].contains("accept-encoding: identity"));
    assert!(!bucket.requests()[0].contains("available-dictionary"));
}

#[tokio::test]
async fn a_delta_that_broke_off_is_resumed_in_its_coding() {
    // Of a few bytes behind the header nothing can be expanded yet.
    for cut in [DELTA_MAGIC.len() + 32 + 5, 100_000] {
        resumes_a_delta_that_broke_off_at(cut).await;
    }
}

async fn resumes_a_delta_that_broke_off_at(cut: usize) {
    let (rig, server) = rig(Box::new(move |request: &str| {
        let (old, new) = revisions();
        // It needs nothing of the dictionary, so that it is large enough to be cut.
        let frame = compressed(&new, &[]);
        let whole = [&DELTA_MAGIC[..], Sha256Digest::of(&old).as_bytes(), &frame].concat();
        let headers = "content-encoding: dcz\r\netag: \"d\"\r\n";
        assert!(whole.len() > cut);
        if let Some((_, rest)) = request.split_once("range: bytes=") {
            assert!(request.contains("if-range: \"d\""), "{request}");
            assert!(request.contains("accept-encoding: dcz, zstd"), "{request}");
            assert!(request.contains("available-dictionary: :"), "{request}");
            let (from, _) = rest.split_once('-').expect("a range");
            let from: usize = from.parse().expect("a number");
            assert!(from > 0 && from <= cut);
            let last = whole.len() - 1;
            let range = format!("{headers}content-range: bytes {from}-{last}/{}\r\n", whole.len());
            return answered("206 Partial Content", &range, &whole[from..]);
        }
        let mut bytes = answered("200 OK", headers, &whole);
        bytes.truncate(bytes.len() - (whole.len() - cut));
        bytes
    }))
    .await;
    let progress = upgrade(&rig, &server).await;
    assert_eq!(
        (progress.arrival.coding, progress.arrival.unused),
        (Some(ContentCoding::Delta), None)
    );
    assert_eq!((progress.attempt, server.requests().len()), (2, 3));
}

#[tokio::test]
async fn what_a_server_compresses_as_it_sends_is_fetched_as_it_is_after_a_break() {
    let (_, new) = revisions();
    let server = Asked::new(move |request| {
        if request.contains("accept-encoding: identity") {
            return answered("200 OK", "", &new);
        }
        let headers = "content-encoding: zstd\r\netag: W/\"weak\"\r\n";
        let mut bytes = answered("200 OK", headers, &compressed(&new, &[]));
        bytes.truncate(bytes.len() / 2);
        bytes
    })
    .await;
    let progress = upgrade(&Rig::new(), &server).await;
    assert_eq!((progress.attempt, progress.arrival.coding), (2, Some(ContentCoding::Identity)));
}

#[tokio::test]
async fn a_delta_that_expands_to_too_much_is_given_up_early() {
    let second = Box::new(|request: &str| {
        let (old, _) = revisions();
        match request.contains("accept-encoding: dcz") {
            true => {
                let much = vec![0; 20 << 20];
                answered("200 OK", "content-encoding: dcz\r\n", &delta(&much, &old))
            }
            false => right(request),
        }
    });
    let (mut rig, server) = rig(second).await;
    let limits =
        crate::install::Limits { archive_bytes: 1 << 20, ..crate::install::Limits::default() };
    Arc::get_mut(&mut rig.pipeline).expect("only here").downloader.set_limits(limits);
    let progress = upgrade(&rig, &server).await;
    assert_eq!(progress.arrival.unused, Some((ContentCoding::Delta, Unused::TooLarge)));
    assert!(Path::new(&rig.plugins().join("sample/r2/run")).exists());
}
