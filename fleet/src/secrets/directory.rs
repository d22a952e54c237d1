//! The secrets of a gateway: a directory with a file for each, read again when they change.
//!
//! A configuration with a secret is sent with a mark beside it, an HMAC under the key that is in the
//! directory as well. The digest of the order, which is in the journal and in the agent's report, is that of
//! both: it changes with the secret, is the same at every gateway with the same files, and nobody without
//! the key finds a secret by trying digests.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_agent_serve_kit::lock::lock;
use ring::hmac;
use thiserror::Error;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::file::{self, FileProblem, Secret, Stamp};
use super::reference::SecretName;

/// Most secrets of a directory.
const SECRETS: usize = 256;

/// Most entries of a directory that are looked at; others than secrets count as well.
const ENTRIES: usize = 1024;

/// The file with the key of marks.
pub(crate) const KEY: &str = ".digest-key";

/// Shortest key, in bytes: that of 128 bits.
const KEY_LEAST: usize = 16;

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(2);

/// For how long a missing secret is shown after somebody asked for it. Longer than the sessions' pause
/// between two looks at their agents.
const TOLD: Duration = Duration::from_secs(30);

/// Most of them that are shown.
const MISSING: usize = 64;

/// Why a secret cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum SecretProblem {
    #[error("this gateway has no secrets: serve with --secrets DIR")]
    NoDirectory,
    #[error("{0}")]
    Directory(Arc<DirectoryProblem>),
    #[error("{0}")]
    File(FileProblem),
}

/// Why nothing of a directory is used.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum DirectoryProblem {
    #[error("the directory of --secrets cannot be read: {0}")]
    Read(String),
    #[error(
        "others may write into the directory of --secrets (mode {0:03o}): run `chmod o= DIR` on it"
    )]
    Open(u32),
    #[error(
        "the directory of --secrets has more than {SECRETS} secrets, or more than {ENTRIES} entries: keep those there \
         that releases name"
    )]
    TooMany,
    #[error("the key `{KEY}` of the directory of --secrets cannot be used: {0}")]
    Key(#[source] FileProblem),
    #[error(
        "the directory of --secrets has no file `{KEY}`: make one with `(umask 077; head -c 32 /dev/urandom | base64 \
         > DIR/{KEY})`, and give all gateways the same"
    )]
    NoKey,
    #[error(
        "the key `{KEY}` of the directory of --secrets has fewer than {KEY_LEAST} bytes: make a longer one"
    )]
    ShortKey,
}

/// Why a gateway does not start with its secrets.
#[derive(Debug, Error)]
#[error("the secrets in `{}` cannot be used", .directory.display())]
pub struct OpenError {
    directory: PathBuf,
    source: io::Error,
}

/// The secrets of a gateway; by default it has no secrets.
#[derive(Clone, Default)]
pub struct Secrets {
    shared: Option<Arc<Shared>>,
}

struct Shared {
    directory: PathBuf,
    known: Mutex<Arc<Known>>,
    /// What was asked for lately and was not there.
    missed: Mutex<BTreeMap<SecretName, Instant>>,
}

type Files = BTreeMap<SecretName, (Option<Stamp>, Result<Secret, FileProblem>)>;

/// The secrets as they are at a moment: two that are equal have the same ones. It shows none.
#[derive(Clone)]
pub(crate) struct Snapshot(Option<Arc<Known>>);

/// What was read last.
struct Known(Result<(hmac::Key, Files), Arc<DirectoryProblem>>);

// === impl Secrets ===

impl Secrets {
    /// Reads a directory.
    ///
    /// # Errors
    /// It cannot be used. The log alone names a single file that cannot, since others may do
    /// without it.
    pub async fn open(directory: &Path) -> Result<Self, OpenError> {
        let failed = |source| OpenError { directory: directory.to_owned(), source };
        let path = directory.to_owned();
        let reading = tokio::task::spawn_blocking(move || Known::read(&path, &Files::new()));
        let known = reading.await.map_err(|gone| failed(io::Error::other(gone)))?;
        match &known.0 {
            Ok((_, files)) => warn(files, &Files::new()),
            Err(problem) => return Err(failed(io::Error::other(problem.to_string()))),
        }
        Ok(Self::of(directory.to_owned(), known))
    }

    fn of(directory: PathBuf, known: Known) -> Self {
        let known = Mutex::new(Arc::new(known));
        Self { shared: Some(Arc::new(Shared { directory, known, missed: Mutex::default() })) }
    }

    /// Reads what changed, until `ending`.
    pub async fn follow(self, ending: CancellationToken) {
        loop {
            tokio::select! {
                () = ending.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
            tokio::select! {
                () = ending.cancelled() => return,
                () = self.refresh() => {}
            }
        }
    }

    /// Reads what changed. A disk that does not answer leaves what is known as it is.
    pub(crate) async fn refresh(&self) {
        let Some(shared) = &self.shared else { return };
        let former = lock(&shared.known).clone();
        let (path, of) = (shared.directory.clone(), former.clone());
        let reading = tokio::task::spawn_blocking(move || {
            let none = Files::new();
            Known::read(&path, of.0.as_ref().map_or(&none, |(_, files)| files))
        });
        let Ok(known) = reading.await else { return };
        let none = Files::new();
        match (&known.0, &former.0) {
            (Ok((_, files)), former) => {
                warn(files, former.as_ref().map_or(&none, |(_, files)| files));
            }
            (Err(problem), Err(former)) if problem == former => {}
            (Err(problem), _) => {
                tracing::warn!(%problem, "no secret is there, and what needs one is not ordered");
            }
        }
        if !known.is_same(&former) {
            *lock(&shared.known) = Arc::new(known);
        }
    }

    /// The secrets as they are now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot(self.shared.as_ref().map(|shared| lock(&shared.known).clone()))
    }

    /// The secret of this name.
    pub(crate) fn find(&self, name: &SecretName) -> Result<Secret, SecretProblem> {
        let shared = self.shared.as_ref().ok_or(SecretProblem::NoDirectory)?;
        let found = lock(&shared.known).find(name);
        if found.is_err() {
            let mut missed = lock(&shared.missed);
            if missed.len() < MISSING || missed.contains_key(name) {
                missed.insert(name.clone(), Instant::now());
            }
        }
        found
    }

    /// The mark of a body with secrets in it.
    pub(crate) fn mark(&self, body: &[u8]) -> Result<Vec<u8>, SecretProblem> {
        let shared = self.shared.as_ref().ok_or(SecretProblem::NoDirectory)?;
        let known = lock(&shared.known).clone();
        match &known.0 {
            Ok((key, _)) => Ok(hmac::sign(key, body).as_ref().to_vec()),
            Err(problem) => Err(SecretProblem::Directory(problem.clone())),
        }
    }

    /// The secrets that orders wait for, each with what is wrong.
    pub(crate) fn missing(&self) -> Vec<(String, String)> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let now = Instant::now();
        let mut missed = lock(&shared.missed);
        missed.retain(|_, asked| now.saturating_duration_since(*asked) < TOLD);
        let known = lock(&shared.known).clone();
        let problem =
            |name: &SecretName| Some((name.to_string(), known.find(name).err()?.to_string()));
        missed.keys().filter_map(problem).collect()
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directory = self.shared.as_ref().map(|shared| &shared.directory);
        formatter.debug_struct("Secrets").field("directory", &directory).finish_non_exhaustive()
    }
}

// === impl Snapshot ===

impl PartialEq for Snapshot {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(known), Some(other)) => Arc::ptr_eq(known, other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Snapshot")
    }
}

// === impl Known ===

impl Known {
    /// Whether it says the same.
    fn is_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Ok((key, files)), Ok((other_key, others))) => {
                // A key cannot be looked into.
                let tag = |key| hmac::sign(key, b"").as_ref().to_vec();
                let said = |files: &Files| -> Vec<_> {
                    let said = files.iter().map(|(name, (stamp, found))| {
                        (name.clone(), *stamp, found.as_ref().err().cloned())
                    });
                    said.collect()
                };
                tag(key) == tag(other_key) && said(files) == said(others)
            }
            (Err(problem), Err(other)) => problem == other,
            (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
        }
    }

    /// Reads a directory; what is there as it was before is not read again. Blocks.
    fn read(directory: &Path, former: &Files) -> Self {
        Self(read(directory, former).map_err(Arc::new))
    }

    fn find(&self, name: &SecretName) -> Result<Secret, SecretProblem> {
        match &self.0 {
            Ok((_, files)) => match files.get(name) {
                Some((_, found)) => found.clone().map_err(SecretProblem::File),
                None => Err(SecretProblem::File(FileProblem::Missing)),
            },
            Err(problem) => Err(SecretProblem::Directory(problem.clone())),
        }
    }
}

fn read(directory: &Path, former: &Files) -> Result<(hmac::Key, Files), DirectoryProblem> {
    let failed = |error: io::Error| DirectoryProblem::Read(error.to_string());
    let directory = std::fs::canonicalize(directory).map_err(failed)?;
    let mode = std::fs::metadata(&directory).map_err(failed)?.mode() & 0o777;
    if mode & 0o002 != 0 {
        return Err(DirectoryProblem::Open(mode));
    }
    let key = match file::open(&directory, KEY).and_then(|(file, _)| file::read(file)) {
        Ok(key) => key,
        Err(FileProblem::Missing) => return Err(DirectoryProblem::NoKey),
        Err(problem) => return Err(DirectoryProblem::Key(problem)),
    };
    if key.expose().len() < KEY_LEAST {
        return Err(DirectoryProblem::ShortKey);
    }
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.expose().as_bytes());
    let mut files = Files::new();
    for (number, entry) in std::fs::read_dir(&directory).map_err(failed)?.enumerate() {
        let entry = entry.map_err(failed)?;
        if number >= ENTRIES {
            return Err(DirectoryProblem::TooMany);
        }
        // Others are no secrets: hidden files, what editors leave.
        let Some(name) = entry.file_name().to_str().and_then(SecretName::new) else { continue };
        let found = one(&directory, &name, former);
        files.insert(name, found);
        if files.len() > SECRETS {
            return Err(DirectoryProblem::TooMany);
        }
    }
    Ok((key, files))
}

fn one(
    directory: &Path,
    name: &SecretName,
    former: &Files,
) -> (Option<Stamp>, Result<Secret, FileProblem>) {
    match file::open(directory, name.as_str()) {
        Err(problem) => (None, Err(problem)),
        Ok((file, stamp)) => match former.get(name) {
            Some((Some(known), found)) if *known == stamp => (Some(stamp), found.clone()),
            _ => (Some(stamp), file::read(file)),
        },
    }
}

/// Writes into the log which files are no secrets, once each.
fn warn(files: &Files, former: &Files) {
    for (name, (_, found)) in files {
        let before = former.get(name).map(|(_, found)| found);
        match found {
            Err(problem) if before != Some(found) => {
                tracing::warn!(secret = %name, %problem, "a secret cannot be used, and what needs it is not ordered");
            }
            Ok(_) if before.is_some_and(|before| before != found) => {
                tracing::info!(secret = %name, "a secret was read again");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
