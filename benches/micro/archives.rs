//! Installing from a file, and hashing.

use std::hash::Hasher;
use std::hint::black_box;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use guest_agent::install::pack::{Compression, pack};
use guest_agent::install::trust::Trust;
use guest_agent::install::{Limits, Pipeline, PipelineConfig, PressurePolicy, RedirectRules};
use guest_agent_actors::fakes::sample_view;
use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::model::spec::{Artifact, ArtifactUrl, PluginSpec, Source};
use guest_agent_actors::ports::Installer;
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use sha2::{Digest, Sha256};

use super::{Pair, Work, calls};

/// Files of an archive, and bytes of each.
const FILES: u32 = 200;
const FILE_BYTES: usize = 8 * 1024;

/// Bytes that are hashed; they stay in the processor's cache.
const HASHED: usize = 128 * 1024;

pub(crate) fn pairs() -> Vec<Pair> {
    vec![unpack("unpack-gzip", Compression::Gzip), unpack("unpack-zstd", Compression::Zstd), hash()]
}

/// SHA-256 as archives are checked. Beside it the hasher of the standard library: where the
/// processor's own instructions are not used any more, the ratio rises manyfold.
fn hash() -> Pair {
    let bytes = noise(HASHED, 1);
    let same = bytes.clone();
    let own = calls(move || Sha256Digest::of(&bytes));
    let reference = calls(move || {
        let mut hasher = std::hash::DefaultHasher::new();
        hasher.write(&same);
        hasher.finish()
    });
    Pair { name: "hash", own, reference }
}

/// An archive of many small files, from the file to a revision that can be run, in memory where
/// there is such a place. Beside it what cannot be done without: hashing and inflating the same
/// bytes, one after the other, and writing the same files.
fn unpack(name: &'static str, compression: Compression) -> Pair {
    let place = Arc::new(Place::new(compression));
    let same = Arc::clone(&place);
    Pair { name, own: installing(place), reference: writing(same, compression) }
}

/// Where archives are and where they are installed.
struct Place {
    dir: tempfile::TempDir,
    files: Vec<(String, Vec<u8>)>,
    spec: Arc<PluginSpec>,
}

impl Place {
    fn new(compression: Compression) -> Self {
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let dir = dir.expect("a folder");
        let content = dir.path().join("content");
        std::fs::create_dir(&content).expect("a folder");
        let mut files: Vec<_> =
            (0..FILES).map(|number| (format!("file-{number}"), text(number))).collect();
        files.push(("run".to_owned(), b"#!/bin/sh\n".to_vec()));
        for (name, bytes) in &files {
            std::fs::write(content.join(name), bytes).expect("a file");
        }
        let run = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(content.join("run"), run).expect("a mode");
        let archive = dir.path().join("archive");
        let packed = pack(&content, &archive, compression).expect("an archive");
        let mut spec = PluginSpec::clone(&sample_view("plugin", "1").spec);
        spec.source = Source::Archive(Artifact {
            url: ArtifactUrl::new(&format!("file:{}", archive.display())),
            sha256: packed.sha256,
        });
        spec.entry_point =
            guest_agent_actors::model::spec::EntryPoint::parse("run").expect("an entry point");
        Self { dir, files, spec: spec.into() }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn pipeline(&self) -> Pipeline {
        let config = PipelineConfig {
            plugins_dir: self.at("plugins"),
            state_root: self.at("state"),
            log_dir: self.at("log"),
            cache_dir: self.at("cache"),
            cache_max_bytes: 0,
            spool_dir: self.at("spool"),
            limits: Limits::default(),
            max_parallel: 1,
            pressure: PressurePolicy::default(),
            redirects: RedirectRules::default(),
        };
        Pipeline::new(config, Trust::Anybody).expect("a folder for plugins")
    }
}

fn installing(place: Arc<Place>) -> Work {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let pipeline = runtime.block_on(async { place.pipeline() });
    Box::new(move |times| {
        let mut took = Duration::ZERO;
        for _ in 0..times {
            let (progress, _seen) = tokio::sync::watch::channel(Default::default());
            let began = Instant::now();
            let installed = runtime.block_on(pipeline.install(place.spec.clone(), progress));
            took += began.elapsed();
            installed.expect("it can be installed");
            std::fs::remove_dir_all(place.at("plugins/plugin")).expect("it was installed");
        }
        took
    })
}

fn writing(place: Arc<Place>, compression: Compression) -> Work {
    let archive = std::fs::read(place.at("archive")).expect("the archive");
    let folder = place.at("reference");
    Box::new(move |times| {
        let mut took = Duration::ZERO;
        for _ in 0..times {
            let began = Instant::now();
            black_box(Sha256::digest(&archive));
            black_box(inflated(&archive, compression));
            std::fs::create_dir(&folder).expect("a folder");
            for (name, bytes) in &place.files {
                std::fs::write(folder.join(name), bytes).expect("a file");
            }
            took += began.elapsed();
            std::fs::remove_dir_all(&folder).expect("it was made");
        }
        took
    })
}

fn inflated(archive: &[u8], compression: Compression) -> Vec<u8> {
    let mut tar = Vec::new();
    let mut archive = archive;
    let read = match compression {
        Compression::None => archive.read_to_end(&mut tar),
        Compression::Gzip => flate2::read::GzDecoder::new(archive).read_to_end(&mut tar),
        Compression::Zstd => {
            zstd::stream::Decoder::new(archive).and_then(|mut it| it.read_to_end(&mut tar))
        }
    };
    read.expect("it was just compressed");
    tar
}

/// A file that compresses about as programs do: noise and repetitions by turns.
fn text(number: u32) -> Vec<u8> {
    let noise = noise(FILE_BYTES / 2, u64::from(number) + 1);
    noise.chunks(64).flat_map(|part| [part, part].concat()).collect()
}

fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}
