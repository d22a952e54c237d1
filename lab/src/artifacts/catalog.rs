//! The published artifacts, with their faults and counters.
//!
//! A file's ETag is the SHA-256 of its content, found once and remembered for as long as length,
//! modification time and inode stay the same. Opening and hashing run off the runtime's thread.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use data_encoding::HEXLOWER;
use guest_agent_serve_kit::lock::lock;
use sha2::{Digest, Sha256};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use super::faults::{ArtifactCounters, ArtifactFaults, RequestFaults};

const MAX_NAME_BYTES: usize = 255;
/// Number of remembered ETags of files in directories; beyond that all are computed anew.
const MAX_REMEMBERED: usize = 4096;
const HASH_CHUNK: usize = 256 << 10;
/// `O_NONBLOCK`: opening a FIFO in the directory must not wait for a writer.
const NON_BLOCKING: i32 = 0o4000;

/// All published artifacts.
pub(super) struct Catalog {
    pub(super) shutdown: CancellationToken,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    published: HashMap<String, Source>,
    directories: Vec<PathBuf>,
    faults: HashMap<String, ArtifactFaults>,
    counters: HashMap<String, ArtifactCounters>,
    etags: HashMap<PathBuf, (Version, String)>,
}

#[derive(Clone)]
enum Source {
    Memory { bytes: Bytes, etag: String },
    File(PathBuf),
}

/// The properties of a file that change when it is changed or replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Version {
    length: u64,
    inode: u64,
    seconds: i64,
    nanoseconds: i64,
}

/// Why an artifact could not be published.
#[derive(Debug, Error)]
pub enum PublishError {
    /// The name would not be one segment of a URL or one name in a directory.
    #[error("`{0}` is no artifact name: letters, digits, `.`, `_`, `-`, `+`, not first a dot")]
    Name(String),
    /// The file cannot be read.
    #[error("failed to read `{path}`", path = .path.display())]
    File {
        /// The file that was given.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
}

/// An artifact ready to be sent.
pub(super) struct Artifact {
    pub(super) content: Content,
    pub(super) length: u64,
    /// The strong ETag, with its quotes.
    pub(super) etag: String,
}

pub(super) enum Content {
    Memory(Bytes),
    File(File),
}

// === impl Catalog ===

impl Catalog {
    pub(super) fn new(shutdown: CancellationToken) -> Self {
        Self { shutdown, state: Mutex::default() }
    }

    pub(super) fn publish(&self, name: &str, bytes: Bytes) -> Result<(), PublishError> {
        check_name(name)?;
        let etag = quoted(&Sha256::digest(&bytes));
        lock(&self.state).published.insert(name.to_owned(), Source::Memory { bytes, etag });
        Ok(())
    }

    pub(super) fn publish_file(&self, name: &str, path: &Path) -> Result<(), PublishError> {
        check_name(name)?;
        open(path).map_err(|source| PublishError::File { path: path.to_owned(), source })?;
        lock(&self.state).published.insert(name.to_owned(), Source::File(path.to_owned()));
        Ok(())
    }

    pub(super) fn publish_directory(&self, directory: PathBuf) {
        lock(&self.state).directories.push(directory);
    }

    pub(super) fn set_faults(&self, name: &str, faults: ArtifactFaults) {
        lock(&self.state).faults.insert(name.to_owned(), faults);
    }

    pub(super) fn counters(&self, name: &str) -> ArtifactCounters {
        lock(&self.state).counters.get(name).copied().unwrap_or_default()
    }

    /// Changes the counters of an artifact. Only called for names that exist or have faults, so
    /// that requests for other names take no memory.
    pub(super) fn count(&self, name: &str, change: impl FnOnce(&mut ArtifactCounters)) {
        change(lock(&self.state).counters.entry(name.to_owned()).or_default());
    }

    pub(super) fn next_request(&self, name: &str) -> RequestFaults {
        let mut state = lock(&self.state);
        state.faults.get_mut(name).map(ArtifactFaults::next_request).unwrap_or_default()
    }

    /// Finds an artifact; `None` when no artifact has this name.
    pub(super) async fn find(self: &Arc<Self>, name: &str) -> io::Result<Option<Artifact>> {
        if check_name(name).is_err() {
            return Ok(None);
        }
        let paths = {
            let state = lock(&self.state);
            match state.published.get(name) {
                Some(Source::Memory { bytes, etag }) => {
                    return Ok(Some(Artifact {
                        content: Content::Memory(bytes.clone()),
                        length: bytes.len() as u64,
                        etag: etag.clone(),
                    }));
                }
                Some(Source::File(path)) => vec![path.clone()],
                None => state.directories.iter().map(|directory| directory.join(name)).collect(),
            }
        };
        let catalog = self.clone();
        tokio::task::spawn_blocking(move || catalog.open_first(&paths))
            .await
            .unwrap_or_else(|_| Err(io::Error::other("the runtime is ending")))
    }

    fn open_first(&self, paths: &[PathBuf]) -> io::Result<Option<Artifact>> {
        for path in paths {
            match open(path) {
                Ok(file) => return self.artifact(path, file).map(Some),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn artifact(&self, path: &Path, file: File) -> io::Result<Artifact> {
        let version = version(&file)?;
        let known = lock(&self.state).etags.get(path).cloned();
        let etag = match known {
            Some((of, etag)) if of == version => etag,
            _ => {
                let etag = quoted(&digest(&file)?);
                let mut state = lock(&self.state);
                if state.etags.len() >= MAX_REMEMBERED {
                    state.etags.clear();
                }
                state.etags.insert(path.to_owned(), (version, etag.clone()));
                etag
            }
        };
        Ok(Artifact { content: Content::File(file), length: version.length, etag })
    }
}

fn check_name(name: &str) -> Result<(), PublishError> {
    let allowed =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'+');
    let good = !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && !name.starts_with('.')
        && name.bytes().all(allowed);
    if good { Ok(()) } else { Err(PublishError::Name(name.to_owned())) }
}

/// Opens a regular file; anything else counts as not found.
fn open(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(NON_BLOCKING).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "not a regular file"));
    }
    Ok(file)
}

fn version(file: &File) -> io::Result<Version> {
    let metadata = file.metadata()?;
    Ok(Version {
        length: metadata.len(),
        inode: metadata.ino(),
        seconds: metadata.mtime(),
        nanoseconds: metadata.mtime_nsec(),
    })
}

fn digest(mut file: &File) -> io::Result<Vec<u8>> {
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; HASH_CHUNK];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hasher.finalize().to_vec()),
            read => hasher.update(&chunk[..read]),
        }
    }
}

fn quoted(digest: &[u8]) -> String {
    format!("\"{}\"", HEXLOWER.encode(digest))
}
