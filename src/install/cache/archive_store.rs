//! A folder of archives whose names are their SHA-256, each with its signature beside it.
//!
//! ```text
//! <SHA-256>             an archive
//! <SHA-256>.minisig     its signature
//! <SHA-256>.dictionary  for which downloads it may be the dictionary (terms)
//! .incoming-<random>    an archive that arrives
//! ```
//!
//! The common part of the cache and the spool, which decide when an archive is added and deleted.
//! Blocks.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::ports::{SweepFate, SweepManner, SweepReport};

use crate::hostinfo::preflight::file_system;
use crate::install::leftovers::{NAMES_MAX, is_random, shown};
use crate::install::trust::SUFFIX;

const INCOMING: &str = ".incoming-";

/// The end of the name of an archive's terms.
const TERMS: &str = ".dictionary";

#[derive(Debug)]
pub(crate) struct ArchiveStore {
    dir: PathBuf,
}

/// The meaning of a name in the folder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Archive(Sha256Digest),
    Signature(Sha256Digest),
    /// What an archive may be the dictionary for.
    Terms(Sha256Digest),
    /// An archive that is arriving, or whose arrival was interrupted.
    Incoming,
    /// A name that this agent does not give.
    Odd,
}

// === impl ArchiveStore ===

impl ArchiveStore {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes the folder where it is missing.
    pub(crate) fn make(&self) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)
    }

    pub(crate) fn path_of(&self, sha256: Sha256Digest) -> PathBuf {
        self.dir.join(sha256.to_string())
    }

    pub(crate) fn signature_of(&self, sha256: Sha256Digest) -> PathBuf {
        self.dir.join(self.signature_name(sha256))
    }

    pub(crate) fn signature_name(&self, sha256: Sha256Digest) -> String {
        format!("{sha256}{SUFFIX}")
    }

    pub(crate) fn terms_of(&self, sha256: Sha256Digest) -> PathBuf {
        self.dir.join(self.terms_name(sha256))
    }

    pub(crate) fn terms_name(&self, sha256: Sha256Digest) -> String {
        format!("{sha256}{TERMS}")
    }

    /// A fresh file for an archive that arrives, and its name.
    pub(crate) fn incoming(&self) -> io::Result<(File, String)> {
        let name = format!("{INCOMING}{:016x}", rand::random::<u64>());
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o600);
        Ok((options.open(self.dir.join(&name))?, name))
    }

    /// Bytes that its file system has left.
    pub(crate) fn room(&self) -> io::Result<u64> {
        Ok(file_system::free_bytes(&rustix::fs::statvfs(&self.dir)?))
    }

    /// All names. One that is not UTF-8 is shown in a form that is no name of this agent.
    pub(crate) fn names(&self) -> io::Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(&self.dir)?.take(NAMES_MAX) {
            names.insert(entry?.file_name().to_string_lossy().into_owned());
        }
        Ok(names)
    }

    /// All names, for a sweep. A folder that does not exist counts as empty; one that cannot be
    /// listed is reported.
    pub(crate) fn names_to_sweep(&self, report: &mut SweepReport) -> BTreeSet<String> {
        match self.names() {
            Ok(names) => return names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let why = format!("cannot list it: {error}");
                report.push(shown(&self.dir), SweepFate::Failed, why);
            }
        }
        BTreeSet::new()
    }

    /// Deletes an archive and what is beside it. The sweep deletes what remains.
    pub(crate) fn delete(&self, sha256: Sha256Digest) {
        drop(fs::remove_file(self.path_of(sha256)));
        drop(fs::remove_file(self.signature_of(sha256)));
        drop(fs::remove_file(self.terms_of(sha256)));
    }

    /// Deletes an entry in a sweep, or reports that a sweep would delete it.
    pub(crate) fn sweep_away(
        &self,
        name: &str,
        why: &str,
        manner: SweepManner,
        report: &mut SweepReport,
    ) {
        let path = self.dir.join(name);
        let fate = match manner {
            SweepManner::Pretend => Ok(SweepFate::WouldDelete),
            SweepManner::Delete => fs::remove_file(&path).map(|()| SweepFate::Deleted),
        };
        match fate {
            Ok(fate) => report.push(shown(&path), fate, why),
            Err(error) => report.push(shown(&path), SweepFate::Failed, error.to_string()),
        }
    }

    /// Reports that an entry with an unknown name stays.
    pub(crate) fn leave_alone(&self, name: &str, report: &mut SweepReport) {
        let why = "the agent gives no such name";
        report.push(shown(&self.dir.join(name)), SweepFate::LeftAlone, why);
    }
}

// === impl Kind ===

impl Kind {
    pub(crate) fn of(name: &str) -> Self {
        if name.strip_prefix(INCOMING).is_some_and(is_random) {
            return Self::Incoming;
        }
        let (digest, kind): (_, fn(Sha256Digest) -> Self) =
            match (name.strip_suffix(SUFFIX), name.strip_suffix(TERMS)) {
                (Some(digest), _) => (digest, Self::Signature),
                (None, Some(digest)) => (digest, Self::Terms),
                (None, None) => (name, Self::Archive),
            };
        digest.parse().map_or(Self::Odd, kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        let sha256 = Sha256Digest::of(b"an archive");
        let archives = ArchiveStore::new("/archives".into());
        let of =
            |path: PathBuf| Kind::of(path.file_name().and_then(|it| it.to_str()).expect("text"));
        assert_eq!(of(archives.path_of(sha256)), Kind::Archive(sha256));
        assert_eq!(of(archives.signature_of(sha256)), Kind::Signature(sha256));
        assert_eq!(of(archives.terms_of(sha256)), Kind::Terms(sha256));
        assert_eq!(Kind::of(".incoming-0123456789abcdef"), Kind::Incoming);
        for odd in ["", SUFFIX, ".incoming-", ".incoming-0123456789ABCDEF", "README", "\u{fffd}"] {
            assert_eq!(Kind::of(odd), Kind::Odd, "{odd:?}");
        }
    }

    #[test]
    fn no_folder_is_an_empty_one_and_what_is_none_is_reported() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("file");
        fs::write(&file, "").expect("written");
        let mut report = SweepReport::default();
        let gone = ArchiveStore::new(dir.path().join("gone"));
        assert_eq!(gone.names_to_sweep(&mut report), BTreeSet::new());
        assert!(report.items.is_empty());
        assert_eq!(ArchiveStore::new(file).names_to_sweep(&mut report), BTreeSet::new());
        assert!(report.items[0].why.contains("cannot list it"), "{report:?}");
    }
}
