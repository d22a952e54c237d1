//! An upgrade by what changed, against the whole archive compressed: bytes, time and memory.
//!
//! ```text
//!   Go ─► node_exporter 1.9.0 and 1.9.1 ─► plain tar ─► store of a fleet ─► its forms
//!                                                          listener ─┬────────────────► agent
//!                                                                    └─ 20 Mbit/s ────► agent
//! ```
//!
//! The programs are built here, stripped, because Go compresses debug information. Where there is no Go
//! or no proxy of its modules, one line says so and nothing is measured.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine;
use guest_fleet::Listen;
use guest_fleet::artifacts::Digest;
use guest_fleet::artifacts::encodings::{EncodingLimits, Encodings};
use guest_fleet::artifacts::listener::{
    ArtifactListener, Delivery, Limits, ListenerOptions, artifact_path,
};
use guest_fleet::artifacts::named::Named;
use guest_fleet::artifacts::store::{ArtifactStore, Bounds, Claim, DirectoryStore};
use guest_fleet::observe::figures::Figures;
use guest_fleet_core::view::{Archive as Declared, Release, ReleaseName, View};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::Extent;
use crate::harness::archive::Tarball;
use crate::harness::{Archive, ArchiveSpec, Bed, PATIENCE, orders};
use crate::report::Row;
use crate::samples::Samples;
use crate::told::{STARTED, Told};
use crate::world::{self, between};

/// The two releases.
const VERSIONS: [&str; 2] = ["1.9.0", "1.9.1"];

/// The plugin.
const PLUGIN: &str = "node";

/// A slow line: 20 Mbit/s.
const LINE: u64 = 20_000_000 / 8;

/// Longest that the forms take to be made.
const MAKING: Duration = Duration::from_secs(600);

/// How the second release comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Delta,
    Whole,
}

/// The artifact server of a fleet with both releases and their forms.
struct Fleet {
    listener: ArtifactListener,
    figures: Arc<Figures>,
    /// Digests of both archives.
    digests: [Digest; 2],
    bytes: u64,
    _encodings: Arc<Encodings>,
}

pub(crate) async fn measure(program: &Path, extent: Extent, aside: &Path) -> Vec<Row> {
    let Some(programs) = built(aside) else {
        println!("SKIPPED: node_exporter cannot be built: see above");
        return Vec::new();
    };
    let fleet = Fleet::start(&aside.join("artifacts"), &programs).await;
    let direct = fleet.listener.address().unwrap();
    let slow = shaped(direct, LINE).await;
    // What is kept of archives decides what comes.
    let bed = world::bed(program, &[]).await;
    let mut bytes = [Samples::default(), Samples::default()];
    let mut times = [(); 4].map(|()| Samples::default());
    for (line, address) in [direct, slow].into_iter().enumerate() {
        empty(&cache(&bed));
        for round in 0..=extent.rounds {
            for (number, way) in [Way::Delta, Way::Whole].into_iter().enumerate() {
                let name = format!("{line}-{round}-{number}");
                let (took, sent) = fleet.upgrade(&bed, address, way, &name).await;
                // The first warms up what there is to be warmed.
                if round > 0 {
                    times[line * 2 + number].add_time(took);
                    bytes[number].add(thousands(sent));
                }
            }
        }
    }
    world::put_aside(bed, aside).await;
    let mut peaks = Vec::new();
    for way in [Way::Delta, Way::Whole] {
        let bed = world::bed(program, &[]).await;
        fleet.upgrade(&bed, direct, way, "peak").await;
        peaks.push(Samples::once(peak_mib(bed.agent_pid())));
        let gone = aside.join(format!("peak-{way:?}"));
        std::fs::create_dir(&gone).unwrap();
        world::put_aside(bed, &gone).await;
    }
    let whole = "whole, zstd −19";
    let [delta_bytes, whole_bytes] = bytes;
    let [direct_delta, direct_whole, slow_delta, slow_whole] = times;
    let (whole_peak, delta_peak) = (peaks.pop().unwrap(), peaks.pop().unwrap());
    let what = |what: &str| format!("node_exporter 1.9.0 → 1.9.1: {what}");
    let note = "stripped builds by Go as plain tar archives with a plugin that is ready at once; from the \
                order until the revision is verified, synced to the disk and in its place";
    vec![
        Row::new(what("bytes over the network"), delta_bytes, "kB")
            .times(0.10, whole, whole_bytes)
            .beside("the archive as it is", Samples::once(thousands(fleet.bytes)))
            .note(note),
        Row::new(what("install over loopback"), direct_delta, "ms").times(1.0, whole, direct_whole),
        Row::new(what("install at 20 Mbit/s"), slow_delta, "ms").times(0.25, whole, slow_whole),
        Row::new(what("most memory of the agent"), delta_peak, "MiB")
            .beside(whole, whole_peak)
            .note("`VmHWM` of an agent that installed both and nothing else"),
    ]
}

// === impl Fleet ===

impl Fleet {
    async fn start(root: &Path, programs: &[PathBuf; 2]) -> Self {
        let store = Arc::new(DirectoryStore::open(root, Bounds::default()).unwrap());
        let figures = Arc::<Figures>::default();
        let encodings =
            Encodings::open(root, EncodingLimits::default(), Arc::clone(&figures)).unwrap();
        let (mut digests, mut bytes, mut view) = (Vec::new(), 0, View::default());
        for (program, version) in programs.iter().zip(VERSIONS) {
            let content = std::fs::read(program).unwrap();
            let tar = Tarball::default().file("bin/node_exporter", 0o755, &content);
            let packed = ArchiveSpec::echo().with(tar).into_bytes().await;
            bytes = packed.len() as u64;
            let incoming = futures_util::stream::iter([Ok(packed.into())]);
            let stat = store.put(Claim::default(), Box::pin(incoming)).await.unwrap();
            digests.push(stat.digest);
            let declared = Declared { digest: stat.digest.to_string(), url: String::new() };
            let archives = BTreeMap::from([("amd64".to_owned(), declared)]);
            let name = ReleaseName { plugin: PLUGIN.to_owned(), revision: version.to_owned() };
            view.releases.insert(name, Release { archives, order: Vec::new() });
        }
        encodings.release(Arc::new(Named::of(&view)));
        let listener = ArtifactListener::start(ListenerOptions {
            listen: Listen::Tcp(([127, 0, 0, 1], 0).into()),
            tls: None,
            store,
            known: Arc::new(Named::of(&view)),
            upload_tokens: None,
            delivery: Delivery::Stream,
            encodings: Some(Arc::clone(&encodings)),
            limits: Limits::default(),
        })
        .await
        .unwrap();
        let digests = [digests[0], digests[1]];
        let fleet = Self { listener, figures, digests, bytes, _encodings: encodings };
        fleet.until_made().await;
        fleet
    }

    /// Waits for the forms of the second release.
    async fn until_made(&self) {
        let began = Instant::now();
        let [first, second] = &self.digests;
        for coding in ["dcz", "zstd"] {
            let request = format!(
                "HEAD {} HTTP/1.1\r\nhost: fleet\r\nconnection: close\r\naccept-encoding: {coding}\r\n\
                 available-dictionary: {}\r\n\r\n",
                artifact_path(PLUGIN, second),
                hash(first),
            );
            loop {
                let address = self.listener.address().unwrap();
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(request.as_bytes()).await.unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.unwrap();
                if answer.contains(&format!("content-encoding: {coding}")) {
                    break;
                }
                assert!(began.elapsed() < MAKING, "the forms are not made: {answer}");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        // Nothing is made while something is measured.
        while self.figures.now().encodings_made.values().sum::<u64>() < 3 {
            assert!(began.elapsed() < MAKING, "the forms are not made");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        println!("forms made in {:.0} s", began.elapsed().as_secs_f64());
    }

    fn archive(&self, address: SocketAddr, number: usize) -> Archive {
        let digest = self.digests[number];
        Archive {
            name: VERSIONS[number].to_owned(),
            url: format!("http://{address}{}", artifact_path(PLUGIN, &digest)),
            sha256: digest.to_string(),
            entry_point: "run".to_owned(),
        }
    }

    /// Upgrades a plugin from the first release to the second one. Returns how long the second one
    /// took to be in its place, and how many bytes were sent for it.
    async fn upgrade(
        &self,
        bed: &Bed,
        address: SocketAddr,
        way: Way,
        name: &str,
    ) -> (Duration, u64) {
        let name = format!("{PLUGIN}-{name}");
        let mut told = Told::from_now(&bed.control_plane, STARTED).await;
        let first = orders::install(&name, "old", &self.archive(address, 0)).order();
        bed.configure(vec![first]).await;
        told.times(1, PATIENCE).await;
        let cache = cache(bed);
        let dictionary = cache.join(format!("{}.dictionary", self.digests[0]));
        let kept = cache.join(self.digests[0].to_string());
        bed.until("the first archive is kept", async || kept.exists().then_some(())).await;
        let aside = dictionary.with_extension("aside");
        if way == Way::Whole {
            std::fs::rename(&dictionary, &aside).unwrap();
        }
        drop(std::fs::remove_file(cache.join(self.digests[1].to_string())));
        world::warm(256 << 20);
        let before: u64 = self.figures.now().artifact_sent.values().sum();
        let began = SystemTime::now();
        let second = orders::install(&name, "new", &self.archive(address, 1)).order();
        bed.configure(vec![second]).await;
        told.times(2, PATIENCE).await;
        let sent = self.figures.now().artifact_sent.values().sum::<u64>() - before;
        if way == Way::Whole {
            std::fs::rename(&aside, &dictionary).unwrap();
        }
        // The folder appears by a rename when everything in it is on the disk; only a rename changes
        // this time.
        let appeared = rustix::fs::stat(bed.plugin_dir(&name).join("new")).unwrap();
        let nanoseconds = u32::try_from(appeared.st_ctime_nsec).unwrap();
        let appeared = SystemTime::UNIX_EPOCH
            + Duration::new(u64::try_from(appeared.st_ctime).unwrap(), nanoseconds);
        let kept = cache.join(self.digests[1].to_string());
        bed.until("the second archive is kept", async || kept.exists().then_some(())).await;
        (between(began, appeared), sent)
    }
}

/// The programs of both releases, built by Go. `None`, with a line that says why, where that cannot be
/// done.
fn built(aside: &Path) -> Option<[PathBuf; 2]> {
    let one = |version: &str| {
        let bin = aside.join(version);
        let output = Command::new("go")
            .args(["install", "-trimpath", "-ldflags", "-s -w"])
            .arg(format!("github.com/prometheus/node_exporter@v{version}"))
            .env("GOBIN", &bin)
            .env("CGO_ENABLED", "0")
            .output();
        match output {
            Ok(output) if output.status.success() => Some(bin.join("node_exporter")),
            Ok(output) => {
                eprint!("{}", String::from_utf8_lossy(&output.stderr));
                None
            }
            Err(error) => {
                eprintln!("go: {error}");
                None
            }
        }
    };
    Some([one(VERSIONS[0])?, one(VERSIONS[1])?])
}

/// A way to a server whose answers come no faster than this.
async fn shaped(to: SocketAddr, bytes_per_second: u64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let server = TcpStream::connect(to).await.unwrap();
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let asking = tokio::spawn(async move {
                    // The connection may be broken by either end, at any time.
                    drop(tokio::io::copy(&mut from_client, &mut to_server).await);
                });
                let (began, mut sent) = (Instant::now(), 0_u64);
                let mut piece = vec![0; 16 << 10];
                while let Ok(read @ 1..) = from_server.read(&mut piece).await {
                    sent += read as u64;
                    let due = Duration::from_micros(sent * 1_000_000 / bytes_per_second);
                    tokio::time::sleep(due.saturating_sub(began.elapsed())).await;
                    if to_client.write_all(&piece[..read]).await.is_err() {
                        break;
                    }
                }
                asking.abort();
            });
        }
    });
    address
}

/// The folder of cached archives.
fn cache(bed: &Bed) -> PathBuf {
    bed.state_root().join("cache")
}

/// Deletes all files of a folder, if there is one.
fn empty(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    entries.flatten().for_each(|entry| std::fs::remove_file(entry.path()).unwrap());
}

/// The name of a dictionary in requests.
fn hash(digest: &Digest) -> String {
    let text = digest.to_string();
    let byte = |place: usize| u8::from_str_radix(&text[place..place + 2], 16).unwrap();
    let raw: Vec<u8> = (0..text.len()).step_by(2).map(byte).collect();
    assert_eq!(raw.len(), Sha256::output_size());
    format!(":{}:", base64::engine::general_purpose::STANDARD.encode(raw))
}

fn thousands(bytes: u64) -> f64 {
    f64::from(u32::try_from(bytes).unwrap()) / 1e3
}

/// Most memory that a process ever had, in MiB.
fn peak_mib(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
}
