//! The secrets of a gateway: a directory with a file for each, read again when they change.
//!
//! A configuration with a secret is sent with a mark beside it, an HMAC under the key that is in the
//! directory as well. The digest of the order, which is in the journal and in the agent's report, is that of
//! both: it is the same at every gateway with the same files, and nobody without the key finds a secret by
//! trying digests.
//!
//! A secret is ordered only with the content that the ledger knows of it ([`recorded`](super::recorded)). One that
//! is ordered for the first time is recorded before.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_agent_serve_kit::lock::lock;
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::Write;
use guest_fleet_ledger::records::RecordError;
use guest_fleet_ledger::records::secret::secret_key;
use prost::Message;
use thiserror::Error;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::file::{self, FileProblem, Secret, Stamp};
use super::recorded::{self, Key, Mark};
use super::reference::SecretName;
use crate::configuration::{Configuration, words};

/// Most secrets of a directory.
const SECRETS: usize = 1024;

/// Most entries of a directory that are looked at; others than secrets count as well.
const ENTRIES: usize = 4096;

/// The file with the key of marks.
pub(crate) const KEY: &str = ".digest-key";

/// Shortest key, in bytes: that of 128 bits.
const KEY_LEAST: usize = 16;

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(2);

/// For how long a missing secret is shown after somebody asked for it. Longer than the sessions' pause
/// between two looks at their agents.
const TOLD: Duration = Duration::from_secs(30);

/// How long the recording of a secret may take before it is shown as missing.
const RECORDING: Duration = Duration::from_secs(10);

/// Most of them that are shown.
const MISSING: usize = 64;

/// Most secrets that are recorded at once; the others follow.
const AT_ONCE: usize = 256;

/// Why a secret cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum SecretProblem {
    #[error("this gateway has no secrets: serve with --secrets DIR")]
    NoDirectory,
    #[error("{0}")]
    Directory(Arc<DirectoryProblem>),
    #[error("{0}")]
    File(FileProblem),
    #[error(
        "its file has another content than the one that the gateway on {host:?} ordered first, at {at}; a version \
         never changes: put the former content back, or write this one as `{next}` and declare that"
    )]
    Changed { host: String, at: String, next: String },
    #[error("the ledger has a record of its content that cannot be read: {0}")]
    Record(RecordError),
    /// No gateway ordered it yet. It is recorded once its content was the same at two looks.
    #[error(
        "no gateway has recorded its content yet: either its file changes at every look, or the ledger does not take the \
         record"
    )]
    Unrecorded,
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
         that `guest-fleet secret status` shows with a release"
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
    /// The secrets that orders wait for until they are recorded, with the time of the first question.
    unrecorded: Mutex<BTreeMap<SecretName, Instant>>,
    /// The secrets that changed in place, when it was looked last.
    changed: Mutex<BTreeSet<SecretName>>,
}

type Files = BTreeMap<SecretName, (Option<Stamp>, FoundSecret)>;

type FoundSecret = Result<Marked, FileProblem>;

/// A secret with its mark.
#[derive(Clone, PartialEq, Eq)]
struct Marked {
    secret: Secret,
    mark: Mark,
    /// Its content was the same at the look before: nobody is writing it.
    is_settled: bool,
}

/// The number of the secrets at a moment: where two are equal, so were the secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot(Option<u64>);

/// The key and the files as they were read last.
struct Known {
    /// Another one where anything but the times of files is another.
    number: u64,
    read: Result<Read, Arc<DirectoryProblem>>,
}

/// A key and files.
struct Read {
    key: Key,
    /// The key was the same at the look before.
    is_settled: bool,
    files: Files,
}

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
        let reading = tokio::task::spawn_blocking(move || Known::read(&path, None));
        let known = reading.await.map_err(|gone| failed(io::Error::other(gone)))?;
        match &known.read {
            Ok(read) => warn(&read.files, &Files::new()),
            Err(problem) => return Err(failed(io::Error::other(problem.to_string()))),
        }
        Ok(Self::of(directory.to_owned(), known))
    }

    fn of(directory: PathBuf, known: Known) -> Self {
        let known = Mutex::new(Arc::new(known));
        let (missed, unrecorded) = (Mutex::default(), Mutex::default());
        let changed = Mutex::default();
        Self { shared: Some(Arc::new(Shared { directory, known, missed, unrecorded, changed })) }
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
        let reading = tokio::task::spawn_blocking(move || Known::read(&path, Some(&of)));
        let Ok(known) = reading.await else { return };
        let none = Files::new();
        match (&known.read, &former.read) {
            (Ok(read), former) => {
                warn(&read.files, former.as_ref().map_or(&none, |former| &former.files));
            }
            (Err(problem), Err(former)) if problem == former => {}
            (Err(problem), _) => {
                tracing::warn!(%problem, "no secret is there, and what needs one is not ordered");
            }
        }
        *lock(&shared.known) = Arc::new(known);
    }

    /// The secrets as they are now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot(self.shared.as_ref().map(|shared| lock(&shared.known).number))
    }

    /// The secret of this name, if it is the one that the ledger knows.
    pub(crate) fn find(
        &self,
        name: &SecretName,
        ledger: &Configuration,
    ) -> Result<Secret, SecretProblem> {
        let shared = self.shared.as_ref().ok_or(SecretProblem::NoDirectory)?;
        let known = lock(&shared.known).clone();
        let found = known.find(name, ledger);
        match &found {
            Ok(_) => {}
            Err(SecretProblem::Unrecorded) => {
                let mut unrecorded = lock(&shared.unrecorded);
                unrecorded.entry(name.clone()).or_insert_with(Instant::now);
            }
            Err(_) => {
                let mut missed = lock(&shared.missed);
                if missed.len() < MISSING || missed.contains_key(name) {
                    missed.insert(name.clone(), Instant::now());
                }
            }
        }
        found
    }

    /// The writes that record what was asked for and is not recorded yet. Others may record it at the same time:
    /// then the ledger refuses them, and knows it.
    pub(crate) fn to_record(&self, ledger: &Configuration, by: (&str, Seconds)) -> Vec<Write> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let known = lock(&shared.known).clone();
        let mut unrecorded = lock(&shared.unrecorded);
        unrecorded.retain(|name, _| known.find(name, ledger) == Err(SecretProblem::Unrecorded));
        let write = |name: &SecretName| {
            let (read, marked) = known.marked(name).ok()?;
            if !(read.is_settled && marked.is_settled) {
                return None;
            }
            let record = recorded::with(ledger.secret(name.as_str()), &read.key, &marked.mark, by);
            let key = secret_key(name.as_str());
            let expected = ledger.revision(&key);
            Some(Write { key, expected, value: Some(record.encode_to_vec().into()) })
        };
        unrecorded.keys().filter_map(write).take(AT_ONCE).collect()
    }

    /// The mark of a body with secrets in it.
    pub(crate) fn mark(&self, body: &[u8]) -> Result<Vec<u8>, SecretProblem> {
        let shared = self.shared.as_ref().ok_or(SecretProblem::NoDirectory)?;
        let known = lock(&shared.known).clone();
        match &known.read {
            Ok(read) => Ok(read.key.of_body(body)),
            Err(problem) => Err(SecretProblem::Directory(problem.clone())),
        }
    }

    /// Name of the key of marks, which does not tell the key; empty without a key.
    pub(crate) fn key_name(&self) -> Vec<u8> {
        let known = self.shared.as_ref().map(|shared| lock(&shared.known).clone());
        let read = known.as_ref().and_then(|known| known.read.as_ref().ok());
        read.map(|read| read.key.name.to_vec()).unwrap_or_default()
    }

    /// The secrets that orders wait for, and those that are not as the ledger knows them, each with its
    /// problem. The log names a change once.
    pub(crate) fn missing(&self, ledger: &Configuration) -> Vec<(String, String)> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let known = lock(&shared.known).clone();
        let changed = known.changed(ledger);
        let names: BTreeSet<SecretName> = changed.keys().cloned().collect();
        let before = std::mem::replace(&mut *lock(&shared.changed), names);
        for (name, problem) in changed.iter().filter(|(name, _)| !before.contains(name)) {
            tracing::warn!(secret = %name, %problem, "a secret was overwritten, and nothing is ordered with it");
        }
        for name in before.iter().filter(|name| known.find(name, ledger).is_ok()) {
            tracing::info!(secret = %name, "a secret is again as it was ordered first");
        }
        let now = Instant::now();
        let mut missed = lock(&shared.missed);
        missed.retain(|_, asked| now.saturating_duration_since(*asked) < TOLD);
        let unrecorded = lock(&shared.unrecorded).clone().into_iter();
        let slow = unrecorded.filter(|(_, at)| now.saturating_duration_since(*at) >= RECORDING);
        let slow: BTreeSet<SecretName> = slow.map(|(name, _)| name).collect();
        let missed = missed.keys().filter(|name| !changed.contains_key(name)).chain(&slow);
        let missed = missed.filter_map(|name| Some((name, known.find(name, ledger).err()?)));
        let missed = missed
            .filter(|(name, problem)| *problem != SecretProblem::Unrecorded || slow.contains(name));
        // Those first that somebody waits for.
        let all = missed.chain(changed.iter().map(|(name, problem)| (name, problem.clone())));
        all.take(MISSING).map(|(name, problem)| (name.to_string(), problem.to_string())).collect()
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directory = self.shared.as_ref().map(|shared| &shared.directory);
        formatter.debug_struct("Secrets").field("directory", &directory).finish_non_exhaustive()
    }
}

// === impl Known ===

impl Known {
    /// Reads a directory; files that are as they were before are not read again. Blocks.
    fn read(directory: &Path, former: Option<&Self>) -> Self {
        let of = former.and_then(|former| former.read.as_ref().ok());
        let read = read(directory, of).map_err(Arc::new);
        let mut known = Self { number: 0, read };
        if let Some(former) = former {
            let is_same = known.is_same(former);
            known.number = if is_same { former.number } else { former.number.wrapping_add(1) };
        }
        known
    }

    /// Whether it says the same.
    fn is_same(&self, other: &Self) -> bool {
        match (&self.read, &other.read) {
            (Ok(one), Ok(other)) => {
                fn found(files: &Files) -> impl Iterator<Item = (&SecretName, &FoundSecret)> {
                    files.iter().map(|(name, (_, found))| (name, found))
                }
                one.key.name == other.key.name
                    && one.is_settled == other.is_settled
                    && found(&one.files).eq(found(&other.files))
            }
            (Err(problem), Err(other)) => problem == other,
            (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
        }
    }

    fn marked(&self, name: &SecretName) -> Result<(&Read, &Marked), SecretProblem> {
        match &self.read {
            Ok(read) => match read.files.get(name) {
                Some((_, Ok(marked))) => Ok((read, marked)),
                Some((_, Err(problem))) => Err(SecretProblem::File(problem.clone())),
                None => Err(SecretProblem::File(FileProblem::Missing)),
            },
            Err(problem) => Err(SecretProblem::Directory(problem.clone())),
        }
    }

    fn find(&self, name: &SecretName, ledger: &Configuration) -> Result<Secret, SecretProblem> {
        let (read, marked) = self.marked(name)?;
        if let Some(error) = ledger.problem(&secret_key(name.as_str())) {
            return Err(SecretProblem::Record(error.clone()));
        }
        match recorded::first(ledger.secret(name.as_str()), &read.key) {
            None => Err(SecretProblem::Unrecorded),
            Some(first) if first.mark == marked.mark => Ok(marked.secret.clone()),
            Some(first) => Err(SecretProblem::Changed {
                host: first.host.clone(),
                at: words::time(Seconds(first.at)),
                next: name.next(),
            }),
        }
    }

    /// The secrets that have another content than the ledger knows.
    fn changed(&self, ledger: &Configuration) -> BTreeMap<SecretName, SecretProblem> {
        let Ok(read) = &self.read else { return BTreeMap::new() };
        let problem = |name: &SecretName| self.find(name, ledger).err();
        let problems = read.files.keys().filter_map(|name| Some((name.clone(), problem(name)?)));
        problems.filter(|(_, it)| matches!(it, SecretProblem::Changed { .. })).collect()
    }
}

fn read(directory: &Path, former: Option<&Read>) -> Result<Read, DirectoryProblem> {
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
    let key = Key::new(key.expose().as_bytes());
    let mut files = Files::new();
    for (number, entry) in std::fs::read_dir(&directory).map_err(failed)?.enumerate() {
        let entry = entry.map_err(failed)?;
        if number >= ENTRIES {
            return Err(DirectoryProblem::TooMany);
        }
        // Others are no secrets: hidden files, what editors leave.
        let Some(name) = entry.file_name().to_str().and_then(SecretName::new) else { continue };
        let found = one(&directory, &name, &key, former);
        files.insert(name, found);
        if files.len() > SECRETS {
            return Err(DirectoryProblem::TooMany);
        }
    }
    let is_settled = former.is_some_and(|former| former.key.name == key.name);
    Ok(Read { key, is_settled, files })
}

fn one(
    directory: &Path,
    name: &SecretName,
    key: &Key,
    former: Option<&Read>,
) -> (Option<Stamp>, FoundSecret) {
    let (file, stamp) = match file::open(directory, name.as_str()) {
        Ok(opened) => opened,
        Err(problem) => return (None, Err(problem)),
    };
    let before = former.and_then(|former| former.files.get(name));
    let secret = match before {
        Some((Some(known), found)) if *known == stamp => {
            found.as_ref().map(|marked| marked.secret.clone()).map_err(Clone::clone)
        }
        _ => file::read(file),
    };
    let mark = |secret: Secret| {
        let before = before.and_then(|(_, found)| found.as_ref().ok());
        let before = before.filter(|before| before.secret == secret);
        let is_same_key = former.is_some_and(|former| former.key.name == key.name);
        let known = before.filter(|_| is_same_key).map(|before| before.mark);
        let mark = known.unwrap_or_else(|| key.of_secret(name, secret.expose()));
        Marked { secret, mark, is_settled: before.is_some() }
    };
    (Some(stamp), secret.map(mark))
}

/// Writes into the log which files are no secrets, once each.
fn warn(files: &Files, former: &Files) {
    let secret = |found: &FoundSecret| {
        found.as_ref().map(|marked| marked.secret.clone()).map_err(Clone::clone)
    };
    for (name, (_, found)) in files {
        let (found, before) = (secret(found), former.get(name).map(|(_, found)| secret(found)));
        match found {
            Err(ref problem) if before.as_ref() != Some(&found) => {
                tracing::warn!(secret = %name, %problem, "a secret cannot be used, and what needs it is not ordered");
            }
            Ok(_) if before.as_ref().is_some_and(|before| *before != found) => {
                tracing::info!(secret = %name, "a secret was read again");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
