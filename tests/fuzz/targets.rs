//! What must hold for any bytes at all. Each target panics when it does not.
//!
//! Included by the harness beside it and by the libFuzzer programs in `fuzz/`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use guest_agent::install::trust::Trust;
use guest_agent::install::{Pipeline, PipelineConfig};
use guest_agent_actors::model::id::{Generation, Sha256Digest};
use guest_agent_actors::model::origin::Origin;
use guest_agent_actors::model::spec::{
    Artifact, ArtifactUrl, EntryPoint, MetricsPolicy, PluginSpec, Source, Tries,
};
use guest_agent_actors::plugin::event::Order;
use guest_agent_actors::plugin::machine::begin;
use guest_agent_actors::plugin::snapshot::Snapshot;
use guest_agent_actors::plugin::state::State;
use guest_agent_actors::ports::{InboundMessage, Receipt};
use guest_agent_actors::records::InboxEntry;
use guest_agent_actors::wire::{self, NamedOrder, Request};
use guest_agent_proto::agent_communication::StreamAgentMessagesResponse;
use guest_agent_proto::agent_communication::stream_agent_messages_response::Type;
use prost::Message;

/// A frame as it comes from a server.
pub(crate) fn frames(data: &[u8]) {
    let Ok(frame) = StreamAgentMessagesResponse::decode(data) else { return };
    let Some(Type::MessageBody(body)) = frame.r#type else { return };
    let labels: BTreeMap<String, String> = body.labels.into_iter().collect();
    let message = InboundMessage {
        receipt: Receipt { stream: 1, message_id: frame.message_id },
        labels,
        body: body.body.map(|any| any.value).unwrap_or_default(),
    };
    match wire::decode_request(&message) {
        Ok(Request::Configure(bytes)) => orders(&bytes),
        Ok(_) => {}
        Err(error) => assert!(error.to_string().len() < 1024, "an error has to stay readable"),
    }
}

/// An encoded `ConfigurePluginStates`. An accepted INSTALL can be made durable and read back.
pub(crate) fn orders(data: &[u8]) {
    let Ok(orders) = wire::decode_orders(data, Origin::ControlPlane) else { return };
    for order in orders {
        match order {
            Ok(NamedOrder { name, order: Order::Install(spec), .. }) => {
                assert_eq!(name, spec.name);
                let state = begin(Generation(1), spec).next;
                same_again(&first(state));
            }
            Ok(_) => {}
            Err(refusal) => {
                assert!(!refusal.reason.is_empty(), "a refusal without a reason");
                assert!(refusal.reason.len() < 4096, "a reason has to stay readable");
            }
        }
    }
}

/// A manifest of a local plugin: binary, and as text.
pub(crate) fn manifests(data: &[u8]) {
    manifest(data);
    let Ok(text) = std::str::from_utf8(data) else { return };
    match guest_agent_proto::json::configure_plugin_from_json(text) {
        Ok(order) => manifest(&order.encode_to_vec()),
        Err(error) => assert!(error.to_string().len() < 4096, "an error has to stay readable"),
    }
}

fn manifest(data: &[u8]) {
    let name = "monitor".parse().expect("a name");
    let digest = |_: &Path| Ok(Sha256Digest::of(b"program"));
    match wire::decode_local(data, &name, "/usr/lib/plugins/monitor", digest) {
        Ok(spec) => {
            assert_eq!(spec.name, name, "a folder holds the plugin of its name");
            let state = begin(Generation(1), spec).next;
            same_again(&first(state));
        }
        Err(reason) => assert!(!reason.is_empty() && reason.len() < 4096, "{reason}"),
    }
}

/// A request on the command socket: it is understood, or there is one reply that says why not.
pub(crate) fn commands(data: &[u8]) {
    let Some(reply) = guest_agent::api::commands::refusal(data) else { return };
    let reply: serde_json::Value = serde_json::from_slice(&reply).expect("a reply is JSON");
    assert_ne!(reply["Status"], 0, "a refusal is no success");
    assert!(reply["StatusMessage"].as_str().is_some_and(|text| text.len() < 4096), "{reply}");
}

/// The metadata server's answer to a recursive question.
pub(crate) fn metadata(data: &[u8]) {
    if let Ok(tree) = guest_agent::hostinfo::metadata::Tree::parse(data) {
        assert!(tree.instance_id().is_none_or(|id| id.len() <= data.len()));
    }
}

/// A signature file, as it stands beside an archive, and a public key, as somebody configured it.
pub(crate) fn signatures(data: &[u8]) {
    use guest_agent::config::trust_key;
    use guest_agent::install::trust;

    if let Err(reason) = trust::check_signature(data) {
        assert!(!reason.is_empty());
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Err(error) = trust_key::check_key(text)
    {
        assert!(error.to_string().len() < 1024, "an error has to stay readable");
    }
}

/// A bundle, as a user gives it to `install`.
pub(crate) fn bundles(data: &[u8]) {
    use std::io::Read;

    match guest_agent::install::bundle::Bundle::read(data) {
        Ok(mut bundle) => {
            let mut archive = Vec::new();
            bundle.archive.read_to_end(&mut archive).expect("memory is readable");
            let signature = bundle.signature.map_or(0, |bytes| bytes.len());
            assert!(bundle.manifest.len() + signature + archive.len() <= data.len());
        }
        Err(error) => assert!(error.to_string().len() < 1024, "an error has to stay readable"),
    }
}

/// A record of the store, of whichever kind.
pub(crate) fn records(data: &[u8]) {
    if let Ok(snapshot) = Snapshot::decode(data) {
        same_again(&snapshot);
    }
    if let Ok(entry) = InboxEntry::decode(data) {
        let again = InboxEntry::decode(&entry.encode()).expect("what was read can be written");
        assert_eq!(again, entry);
    }
    let key = 7_u64.to_be_bytes();
    if let Ok(event) = guest_agent_actors::model::event::StoredEvent::decode(&key, data) {
        let again = guest_agent_actors::model::event::StoredEvent::decode(&key, &event.encode());
        assert_eq!(again.expect("what was read can be written"), event);
    }
}

/// What is kept of a plugin that was just ordered.
fn first(state: State) -> Snapshot {
    Snapshot::of(state)
}

fn same_again(snapshot: &Snapshot) {
    let again = Snapshot::decode(&snapshot.encode()).expect("what was accepted can be kept");
    assert_eq!(again.state, snapshot.state);
}

/// An archive that is installed. The first byte says how it is compressed and whether the checksums
/// of its headers are made right, without which hardly a changed header would be read at all; the
/// rest is the tar stream.
pub(crate) fn archives(data: &[u8]) {
    let Some((how, tar)) = data.split_first() else { return };
    let mut tar = tar.to_vec();
    if how & 4 == 0 {
        for block in tar.as_chunks_mut::<512>().0 {
            sum(block);
        }
    }
    let archive = compressed(how & 3, &tar);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(install(&archive));
}

/// An archive that its server says is coded, as any bytes at all. The first byte says as what, and
/// whether the header of a delta comes before the rest. Whatever comes, the archive is installed: from
/// a coding that cannot be undone, the agent goes on to the next simpler one.
pub(crate) fn codings(data: &[u8]) {
    let Some((how, rest)) = data.split_first() else { return };
    let coding = if how & 1 == 0 { "dcz" } else { "zstd" };
    let header = if how & 3 == 0 { delta_header() } else { Vec::new() };
    let coded = [&header, rest].concat();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(install_coded(coding, &coded));
}

/// The archives of two revisions that have much in common.
pub(crate) fn revisions() -> [Vec<u8>; 2] {
    let content = |end: &str| {
        let lines = (0..200).map(|line| format!("# line {}", line * line * 7919 % 10_007));
        let lines: Vec<String> = lines.collect();
        format!("#!/bin/sh\n{}\nexit {end}\n", lines.join("\n"))
    };
    ["1", "0"].map(|end| {
        let content = content(end);
        let mut block = [0; 512];
        let size = format!("{:011o}\0", content.len());
        let fields: [(usize, &[u8]); 6] = [
            (0, b"run"),
            (100, b"0000755\0"),
            (124, size.as_bytes()),
            (136, b"07346545000\0"),
            (156, b"0"),
            (257, b"ustar\x0000"),
        ];
        for (at, field) in fields {
            block[at..at + field.len()].copy_from_slice(field);
        }
        sum(&mut block);
        let mut tar = [&block[..], content.as_bytes()].concat();
        tar.resize(tar.len().next_multiple_of(512) + 1024, 0);
        tar
    })
}

/// What a delta to the second revision begins with: RFC 9842, section 5.
fn delta_header() -> Vec<u8> {
    let magic = [0x5e, 0x2a, 0x4d, 0x18, 0x20, 0, 0, 0];
    [&magic[..], Sha256Digest::of(&revisions()[0]).as_bytes()].concat()
}

/// Installs both revisions from a server, which sends the second one coded to those who take that.
async fn install_coded(coding: &'static str, coded: &[u8]) {
    use guest_agent_actors::ports::Installer;

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let address = listener.local_addr().expect("an address");
    let serving = tokio::spawn(serve(listener, coding, coded.to_vec()));
    let dir = folder();
    let pipeline = pipeline(dir.path(), 1 << 20);
    for (revision, archive) in ["old", "new"].into_iter().zip(revisions()) {
        let url = format!("http://{address}/{revision}");
        let mut spec = spec(&url, Sha256Digest::of(&archive));
        spec.revision = revision.parse().expect("a revision");
        let (progress, _seen) = tokio::sync::watch::channel(Default::default());
        if let Err(error) = pipeline.install(spec.into(), progress).await {
            let text = guest_agent_actors::error::Chain(&error).to_string();
            panic!("{revision} is not installed: {text}");
        }
        let program = dir.path().join("plugins/sample").join(revision).join("run");
        let content = std::fs::read(program).expect("readable");
        assert_eq!(content, archive[512..512 + content.len()], "{revision} has other bytes");
        if revision == "old" {
            cached(dir.path()).await;
        }
    }
    serving.abort();
}

/// Waits until the first archive may be a dictionary. The cache takes it after the installation.
async fn cached(dir: &Path) {
    let is_there = |dir: &Path| {
        let entries = std::fs::read_dir(dir.join("cache")).into_iter().flatten().flatten();
        let mut paths = entries.into_iter().map(|entry| entry.path());
        // The archive comes last.
        paths.any(|path| {
            path.extension().is_some_and(|it| it == "dictionary")
                && path.with_extension("").exists()
        })
    };
    for _ in 0..10_000 {
        if is_there(dir) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    panic!("the cache has no dictionary");
}

/// Serves both revisions.
async fn serve(listener: tokio::net::TcpListener, coding: &str, coded: Vec<u8>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let [old, new] = revisions();
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") && head.len() < 10_000 {
            let Ok(byte) = stream.read_u8().await else { break };
            head.push(byte.to_ascii_lowercase());
        }
        let head = String::from_utf8_lossy(&head);
        let accepted = head.lines().filter(|line| line.starts_with("accept-encoding:"));
        let is_accepted = accepted.into_iter().any(|line| line.contains(coding));
        let (body, says) = match head.starts_with("get /old ") {
            true => (&old, String::new()),
            false if is_accepted => (&coded, format!("content-encoding: {coding}\r\n")),
            false => (&new, String::new()),
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\nuse-as-dictionary: match=\"/*\"\r\nconnection: close\r\n\
             content-length: {}\r\n{says}\r\n",
            body.len()
        );
        // Who has read enough goes away.
        drop(stream.write_all(&[head.as_bytes(), body].concat()).await);
    }
}

/// A folder in memory where there is such a place: thousands of archives are tried.
fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    dir.expect("a folder")
}

/// A pipeline in a folder, with small limits.
fn pipeline(dir: &Path, cache_max_bytes: u64) -> Pipeline {
    let limits = guest_agent::install::Limits {
        expanded_bytes: 1 << 20,
        entries: 100,
        ..guest_agent::install::Limits::default()
    };
    let config = PipelineConfig {
        pressure: guest_agent::install::PressurePolicy::default(),
        redirects: guest_agent::install::RedirectRules::default(),
        plugins_dir: dir.join("plugins"),
        state_root: dir.join("state"),
        log_dir: dir.join("log"),
        cache_dir: dir.join("cache"),
        spool_dir: dir.join("spool"),
        cache_max_bytes,
        limits,
        max_parallel: 1,
    };
    Pipeline::new(config, Trust::Anybody).expect("a folder for plugins")
}

/// Makes the checksum of a tar header right.
pub(crate) fn sum(block: &mut [u8; 512]) {
    if &block[257..262] != b"ustar" {
        return;
    }
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fn compressed(how: u8, tar: &[u8]) -> Vec<u8> {
    use async_compression::tokio::bufread::{GzipEncoder, XzEncoder, ZstdEncoder};
    use tokio::io::AsyncReadExt;

    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let mut out = Vec::new();
    let level = async_compression::Level::Fastest;
    let read = match how {
        0 => return tar.to_vec(),
        1 => runtime.block_on(GzipEncoder::with_quality(tar, level).read_to_end(&mut out)),
        2 => runtime.block_on(ZstdEncoder::with_quality(tar, level).read_to_end(&mut out)),
        _ => runtime.block_on(XzEncoder::with_quality(tar, level).read_to_end(&mut out)),
    };
    read.expect("memory can be read");
    out
}

/// Installs an archive next to something that must stay as it is. What is refused leaves nothing;
/// what is taken is files, folders and links that stay inside.
async fn install(archive: &[u8]) {
    use guest_agent_actors::ports::Installer;

    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("precious"), "precious").expect("a file");
    std::fs::write(at("archive"), archive).expect("a file");
    let before = around(dir.path());
    let pipeline = pipeline(dir.path(), 0);
    let spec = spec(&format!("file:{}", at("archive").display()), Sha256Digest::of(archive));
    let (progress, _seen) = tokio::sync::watch::channel(Default::default());
    let result = pipeline.install(spec.into(), progress).await;
    assert_eq!(around(dir.path()), before, "something outside was changed");
    let plugin = at("plugins/sample");
    match result {
        Err(error) => {
            let text = guest_agent_actors::error::Chain(&error).to_string();
            assert!(!text.contains("panicked") && text.len() < 1000, "{text}");
            assert!(!text.contains(char::is_control), "{text:?}");
            assert!(!plugin.exists(), "{text}, and something is left");
        }
        Ok(()) => stays_inside(&plugin.join("r1")),
    }
}

/// What lies next to the plugins, in every respect that an archive could change.
fn around(dir: &Path) -> Vec<(PathBuf, u32, u64, i64, i64, Vec<u8>)> {
    use std::os::unix::fs::MetadataExt;

    let mut all: Vec<_> = std::fs::read_dir(dir)
        .expect("listable")
        .map(|entry| entry.expect("listable").path())
        .filter(|path| !path.ends_with("plugins"))
        .map(|path| {
            let found = std::fs::symlink_metadata(&path).expect("it is there");
            let content = std::fs::read(&path).expect("readable");
            (path, found.mode(), found.nlink(), found.mtime(), found.mtime_nsec(), content)
        })
        .collect();
    all.sort();
    all
}

fn stays_inside(root: &Path) {
    use std::os::unix::fs::PermissionsExt;

    let mut ahead = vec![root.to_owned()];
    while let Some(path) = ahead.pop() {
        let found = std::fs::symlink_metadata(&path).expect("it is there");
        if found.is_symlink() {
            if let Ok(end) = path.canonicalize() {
                assert!(end.starts_with(root.canonicalize().expect("it is there")), "{end:?}");
            }
            continue;
        }
        assert_eq!(found.permissions().mode() & 0o7022, 0, "{}", path.display());
        if found.is_dir() {
            let entries = std::fs::read_dir(&path).expect("listable");
            ahead.extend(entries.map(|entry| entry.expect("listable").path()));
        } else {
            assert!(found.is_file(), "{} is something else", path.display());
        }
    }
}

fn spec(url: &str, sha256: Sha256Digest) -> PluginSpec {
    let second = std::time::Duration::from_secs(60);
    let tries = Tries { attempts: 1, timeout: second };
    PluginSpec {
        name: "sample".parse().expect("a name"),
        revision: "r1".parse().expect("a revision"),
        source: Source::Archive(Artifact { url: ArtifactUrl::new(url), sha256 }),
        entry_point: EntryPoint::parse("run").expect("an entry point"),
        arguments: Vec::new(),
        limits: Default::default(),
        download: tries,
        start: tries,
        stop_timeout: second,
        metrics: MetricsPolicy { interval: second, points: 1 },
        backoff_factor: 2,
        config: None,
        execution: Default::default(),
        order_digest: None,
    }
}
