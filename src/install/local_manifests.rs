//! Reads the manifests of plugins that came with the machine: the port `LocalPlugins`.
//!
//! ```text
//! <local_plugin_dir>/<name>/manifest.json    protobuf JSON of a ConfigurePlugin, or
//! <local_plugin_dir>/<name>/manifest.binpb   the same, encoded
//! ```
//!
//! The manager calls this at the start and at SIGHUP. The agent never writes here: the files belong
//! to the image. What a manifest says is checked field by field in the core (`wire::decode_local`);
//! here it is checked whether the files may be trusted at all (`trust`) and whether the entry point
//! could be started. A folder with an invalid manifest is refused by its name, and does not affect
//! the others. A folder without a manifest is not a plugin, and neither is anything whose name
//! begins with a dot.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use guest_agent_actors::error::Chain;
use guest_agent_actors::model::id::{IdError, PluginName, Sha256Digest};
use guest_agent_actors::model::spec::PluginSpec;
use guest_agent_actors::ports::{LocalPlugins, LocalScan, ScanError};
use guest_agent_actors::wire;
use guest_agent_proto::json::{JsonError, configure_plugin_from_json};
use prost::Message;
use rustix::fs::{Access, AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

pub(crate) mod trust;

pub use trust::Distrust;

/// Most folders that are read. There cannot be as many plugins.
const FOLDERS_MAX: usize = 10_000;

/// Most bytes of a manifest. A configuration may have one MiB, and JSON may escape it.
const MANIFEST_MAX: u64 = 8 << 20;

/// Most bytes of an entry point: it is hashed whenever the manifests are read.
const ENTRY_POINT_MAX: u64 = 1 << 30;

/// Longest part of a folder's name that is shown.
const SHOWN_MAX: usize = 80;

const JSON: &str = "manifest.json";
const BINARY: &str = "manifest.binpb";

/// The folder of local plugins.
#[derive(Clone, Debug)]
pub struct PluginFolders {
    path: PathBuf,
}

/// Why the agent knows of no local plugins.
#[derive(Debug, thiserror::Error)]
pub enum FoldersError {
    /// The folder cannot be read.
    #[error("failed to read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    /// Other users may change its content.
    #[error("the folder of local plugins cannot be trusted")]
    Distrusted(#[source] Distrust),
    /// It holds more folders than any machine has plugins.
    #[error("{} holds more than {FOLDERS_MAX} folders", .0.display())]
    TooMany(PathBuf),
    /// Reading it panicked; the panic is in the log.
    #[error("reading the local plugins panicked")]
    Panicked,
}

/// Why the manifest of one plugin cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The folder has a name that no plugin can have.
    #[error("the name of its folder is not that of a plugin")]
    Name(#[source] IdError),
    /// It is a link to a folder.
    #[error("its folder is a link; put the folder itself there")]
    Link,
    /// The folder has two manifests, and they may differ.
    #[error("it has both a {JSON} and a {BINARY}; remove one of them")]
    Two,
    /// A file cannot be read.
    #[error("failed to read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    /// A path is not a regular file.
    #[error("{} is not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// A file is larger than its limit.
    #[error("{} is larger than {max} bytes", path.display())]
    TooLarge {
        path: PathBuf,
        /// The largest allowed size.
        max: u64,
    },
    /// Other users may change the program.
    #[error("it cannot be trusted")]
    Distrusted(#[from] Distrust),
    /// The file is not UTF-8 text.
    #[error("{JSON} is not UTF-8")]
    NotUtf8,
    /// The file is not JSON, or not a ConfigurePlugin.
    #[error("{JSON} is not a ConfigurePlugin")]
    Json(#[from] JsonError),
    /// A field of the manifest is wrong.
    #[error("{0}")]
    Field(String),
    /// A relative entry point leads out of the folder.
    #[error("the entry point {} leads out of its folder; give its absolute path", .0.display())]
    Outside(PathBuf),
    /// The entry point cannot be executed.
    #[error("the entry point {} is not executable; set its x bits", .0.display())]
    NotExecutable(PathBuf),
    /// The check of the folder panicked; the panic is in the log.
    #[error("looking at it panicked")]
    Panicked,
}

/// The name of a folder as it can be shown: on one line, without characters that move others. A
/// name that is cut is longer than that of any plugin.
fn shown(name: &str) -> String {
    name.chars().take(SHOWN_MAX).flat_map(char::escape_default).collect()
}

// === impl PluginFolders ===

impl PluginFolders {
    /// The plugins below `path`, whether or not it exists.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Reads all manifests. Blocks.
    pub(crate) fn read(&self) -> Result<LocalScan, FoldersError> {
        let failed = |cause| FoldersError::Read { path: self.path.clone(), cause };
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = match rustix::fs::open(&self.path, flags, Mode::empty()) {
            Ok(opened) => opened,
            // A machine without local plugins.
            Err(Errno::NOENT) => return Ok(LocalScan::default()),
            Err(errno) => return Err(failed(errno.into())),
        };
        trust::check(&self.path).map_err(FoldersError::Distrusted)?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&opened).map_err(|errno| failed(errno.into()))? {
            let entry = entry.map_err(|errno| failed(errno.into()))?;
            if entry.file_name().to_bytes().starts_with(b".") {
                continue;
            }
            if names.len() >= FOLDERS_MAX {
                return Err(FoldersError::TooMany(self.path.clone()));
            }
            names.push(entry.file_name().to_owned());
        }
        names.sort();
        let mut scan = LocalScan::default();
        for name in names {
            let text = String::from_utf8_lossy(name.to_bytes());
            match self.plugin(&opened, &text) {
                Ok(None) => {}
                Ok(Some(spec)) => drop(scan.plugins.insert(spec.name.clone(), spec)),
                Err(error) => {
                    scan.refused.insert(shown(&text), Chain(&error).to_string());
                }
            }
        }
        Ok(scan)
    }

    /// The plugin in one folder; `None` without a manifest.
    fn plugin(&self, all: &OwnedFd, name: &str) -> Result<Option<Arc<PluginSpec>>, ManifestError> {
        let path = self.path.join(name);
        let unread = |errno: Errno| ManifestError::Read { path: path.clone(), cause: errno.into() };
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = match rustix::fs::openat(all, name, flags, Mode::empty()) {
            Ok(folder) => folder,
            Err(Errno::NOTDIR | Errno::LOOP) => return self.no_folder(all, name),
            // The folder was deleted while the others were read, or its name is not UTF-8 and the
            // shown form is not its name.
            Err(Errno::NOENT) if !name.contains(char::REPLACEMENT_CHARACTER) => return Ok(None),
            Err(errno) => return Err(unread(errno)),
        };
        let file =
            match (open_manifest(&folder, &path, JSON)?, open_manifest(&folder, &path, BINARY)?) {
                (None, None) => return Ok(None),
                (Some(_), Some(_)) => return Err(ManifestError::Two),
                (Some(json), None) => (json, JSON),
                (None, Some(binary)) => (binary, BINARY),
            };
        let plugin: PluginName = name.parse().map_err(ManifestError::Name)?;
        let bytes = match file {
            (json, JSON) => of_json(&bounded(json, &path.join(JSON))?)?,
            (binary, _) => bounded(binary, &path.join(BINARY))?,
        };
        trust::check(&path.join(file_name(&folder)))?;
        let folder = path.to_str().ok_or_else(|| {
            ManifestError::Field("the path of its folder is not UTF-8".to_owned())
        })?;
        // An error of the file stays as it is on its way through the core.
        let mut unusable = None;
        let decoded = wire::decode_local(&bytes, &plugin, folder, |program| {
            inside(program, &path).and_then(|()| fingerprint(program)).map_err(|error| {
                unusable = Some(error);
                String::new()
            })
        });
        match (decoded, unusable) {
            (Ok(spec), _) => Ok(Some(spec)),
            (Err(_), Some(error)) => Err(error),
            (Err(reason), None) => Err(ManifestError::Field(reason)),
        }
    }

    /// Judges a directory entry that is not a directory: returns an error for a symbolic link to a
    /// directory, and `None` for anything else, which the agent ignores.
    fn no_folder(
        &self,
        all: &OwnedFd,
        name: &str,
    ) -> Result<Option<Arc<PluginSpec>>, ManifestError> {
        let path = self.path.join(name);
        let stat = rustix::fs::statat(all, name, AtFlags::SYMLINK_NOFOLLOW);
        let is_link = stat.is_ok_and(|stat| {
            rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Symlink
        });
        if is_link && path.is_dir() { Err(ManifestError::Link) } else { Ok(None) }
    }
}

#[async_trait]
impl LocalPlugins for PluginFolders {
    async fn scan(&self) -> Result<LocalScan, ScanError> {
        let this = self.clone();
        let read = tokio::task::spawn_blocking(move || this.read()).await;
        read.unwrap_or(Err(FoldersError::Panicked))
            .map_err(|error| ScanError { cause: error.into() })
    }
}

/// Checks whether an entry point could be started, and hashes it. Blocks.
///
/// # Errors
/// It is not an executable file, or users that the agent does not trust may change it.
pub fn fingerprint(program: &Path) -> Result<Sha256Digest, ManifestError> {
    let failed = |cause| ManifestError::Read { path: program.to_owned(), cause };
    let real = program.canonicalize().map_err(failed)?;
    trust::check(&real)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file =
        rustix::fs::open(&real, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
    let file = File::from(file);
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(ManifestError::NotAFile(program.to_owned()));
    }
    if found.mode() & 0o111 == 0 || rustix::fs::access(&real, Access::EXEC_OK).is_err() {
        return Err(ManifestError::NotExecutable(program.to_owned()));
    }
    let mut digest = Sha256::new();
    let mut reader = file.take(ENTRY_POINT_MAX + 1);
    let mut buffer = vec![0; 64 << 10];
    let mut total = 0;
    loop {
        let read = reader.read(&mut buffer).map_err(failed)?;
        if read == 0 {
            break;
        }
        total += read as u64;
        digest.update(&buffer[..read]);
    }
    if total > ENTRY_POINT_MAX {
        return Err(ManifestError::TooLarge { path: program.to_owned(), max: ENTRY_POINT_MAX });
    }
    Ok(Sha256Digest::from_bytes(digest.finalize().into()))
}

/// Whether a program with a relative path is in its folder. One with an absolute path may be
/// anywhere.
fn inside(program: &Path, folder: &Path) -> Result<(), ManifestError> {
    if !program.starts_with(folder) {
        return Ok(());
    }
    let failed = |path: &Path, cause| ManifestError::Read { path: path.to_owned(), cause };
    let real = program.canonicalize().map_err(|cause| failed(program, cause))?;
    let home = folder.canonicalize().map_err(|cause| failed(folder, cause))?;
    if real.starts_with(home) { Ok(()) } else { Err(ManifestError::Outside(program.to_owned())) }
}

/// Opens a manifest without following a link.
fn open_manifest(folder: &OwnedFd, at: &Path, name: &str) -> Result<Option<File>, ManifestError> {
    let path = at.join(name);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::openat(folder, name, flags, Mode::empty()) {
        Ok(file) => Ok(Some(file.into())),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::LOOP) => Err(ManifestError::NotAFile(path)),
        Err(errno) => Err(ManifestError::Read { path, cause: errno.into() }),
    }
}

/// Which manifest a folder has. Call it when the folder has one.
fn file_name(folder: &OwnedFd) -> &'static str {
    let is_json = rustix::fs::accessat(folder.as_fd(), JSON, Access::EXISTS, AtFlags::empty());
    if is_json.is_ok() { JSON } else { BINARY }
}

/// All bytes of a manifest.
fn bounded(file: File, path: &Path) -> Result<Vec<u8>, ManifestError> {
    let failed = |cause| ManifestError::Read { path: path.to_owned(), cause };
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(ManifestError::NotAFile(path.to_owned()));
    }
    let mut bytes = Vec::new();
    file.take(MANIFEST_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MANIFEST_MAX {
        return Err(ManifestError::TooLarge { path: path.to_owned(), max: MANIFEST_MAX });
    }
    Ok(bytes)
}

/// The encoded message of a JSON manifest.
fn of_json(bytes: &[u8]) -> Result<Vec<u8>, ManifestError> {
    let text = std::str::from_utf8(bytes).map_err(|_| ManifestError::NotUtf8)?;
    Ok(configure_plugin_from_json(text)?.encode_to_vec())
}

#[cfg(test)]
mod tests;
