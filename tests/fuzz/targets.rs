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

    // In memory where there is such a place: thousands of archives are tried.
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let dir = dir.expect("a folder");
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("precious"), "precious").expect("a file");
    std::fs::write(at("archive"), archive).expect("a file");
    let before = around(dir.path());
    let limits = guest_agent::install::Limits {
        expanded_bytes: 1 << 20,
        entries: 100,
        ..guest_agent::install::Limits::default()
    };
    let pipeline = Pipeline::new(
        PipelineConfig {
            pressure: guest_agent::install::PressurePolicy::default(),
            redirects: guest_agent::install::RedirectRules::default(),
            plugins_dir: at("plugins"),
            state_root: at("state"),
            log_dir: at("log"),
            cache_dir: at("cache"),
            spool_dir: at("spool"),
            cache_max_bytes: 0,
            limits,
            max_parallel: 1,
        },
        Trust::Anybody,
    )
    .expect("a folder for plugins");
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
