//! The files of forms. Blocks.
//!
//! ```text
//!   <root>/encoded/                            0700
//!     <digest>.zstd.<tag>                      compressed
//!     <digest>.<dictionary>.dcz.<tag>          as what changed since the dictionary
//!     tmp/<random>                             what is not complete yet
//!     lock                                     held by the process that makes them
//! ```
//!
//! The tag is the begin of the SHA-256 of the file. It is a part of the entity tag, so that a client
//! never puts parts of two files together. A file has its name when it is complete, checked and
//! durable.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::artifacts::digest::Digest;
use crate::artifacts::store::temporary::{self, Temporary};

/// Digits of a tag.
const TAG_DIGITS: usize = 16;

/// A form of an artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::artifacts) enum Form {
    /// Compressed.
    Zstd,
    /// As what changed since this artifact.
    Delta(Digest),
}

/// A form that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::artifacts) struct Encoded {
    pub(in crate::artifacts) digest: Digest,
    pub(in crate::artifacts) form: Form,
    tag: u64,
    pub(in crate::artifacts) length: u64,
}

/// All forms that are there.
#[derive(Debug, Default)]
pub(super) struct Index(BTreeMap<(Digest, Form), Encoded>);

/// The folder.
#[derive(Debug)]
pub(super) struct Files {
    folder: PathBuf,
}

// === impl Form ===

impl Form {
    /// Its name in `Content-Encoding` and in counts.
    pub(in crate::artifacts) fn coding(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Delta(_) => "dcz",
        }
    }
}

// === impl Encoded ===

impl Encoded {
    /// Its strong entity tag.
    pub(in crate::artifacts) fn etag(&self) -> String {
        format!("\"{}\"", self.name())
    }

    fn name(&self) -> String {
        let Self { digest, form, tag, .. } = self;
        match form {
            Form::Zstd => format!("{digest}.zstd.{tag:016x}"),
            Form::Delta(dictionary) => format!("{digest}.{dictionary}.dcz.{tag:016x}"),
        }
    }

    /// A form by the name of its file.
    fn parse(name: &str, length: u64) -> Option<Self> {
        let (rest, tag) = name.rsplit_once('.')?;
        let (of, coding) = rest.rsplit_once('.')?;
        let (digest, form) = match coding {
            "zstd" => (of.parse().ok()?, Form::Zstd),
            "dcz" => {
                let (digest, dictionary) = of.split_once('.')?;
                (digest.parse().ok()?, Form::Delta(dictionary.parse().ok()?))
            }
            _ => return None,
        };
        let tag = u64::from_str_radix(tag, 16).ok().filter(|_| tag.len() == TAG_DIGITS)?;
        let encoded = Self { digest, form, tag, length };
        (encoded.name() == name).then_some(encoded)
    }
}

// === impl Index ===

impl Index {
    /// A form of an artifact.
    pub(super) fn find(&self, digest: Digest, form: Form) -> Option<&Encoded> {
        self.0.get(&(digest, form))
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> u64 {
        self.0.values().map(|encoded| encoded.length).sum()
    }
}

// === impl Files ===

impl Files {
    /// Opens the folder below the directory of a store, and removes what dead writers left in it.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        let folder = root.join("encoded");
        DirBuilder::new().recursive(true).mode(0o700).create(folder.join("tmp"))?;
        let removed = temporary::clean(&folder.join("tmp"))?;
        if removed > 0 {
            tracing::info!(removed, "removed forms of artifacts that were never complete");
        }
        Ok(Self { folder })
    }

    /// The right to make and delete forms; `None` while another process has it.
    pub(super) fn turn(&self) -> io::Result<Option<File>> {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(self.folder.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(lock)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// What is there. Names that are not ours are left alone.
    pub(super) fn index(&self) -> io::Result<Index> {
        let mut index = BTreeMap::new();
        for encoded in self.all()? {
            index.insert((encoded.digest, encoded.form), encoded);
        }
        Ok(Index(index))
    }

    /// Deletes the forms that are not wanted, and of two of one kind the one that is not given out.
    pub(super) fn sweep(
        &self,
        index: &Index,
        is_wanted: impl Fn(&Encoded) -> bool,
    ) -> io::Result<()> {
        for encoded in self.all()? {
            let is_given_out = index.find(encoded.digest, encoded.form) == Some(&encoded);
            if is_given_out && is_wanted(&encoded) {
                continue;
            }
            match fs::remove_file(self.folder.join(encoded.name())) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => tracing::info!(form = encoded.name(), "deleted a form of an artifact"),
            }
        }
        Ok(())
    }

    /// A file for a form that is being made.
    pub(super) fn begin(&self) -> io::Result<Temporary> {
        Temporary::create(&self.folder.join("tmp"))
    }

    /// Makes a form durable and gives it its name.
    pub(super) fn keep(&self, made: Temporary, digest: Digest, form: Form) -> io::Result<Encoded> {
        let (sum, length) = made.sum();
        let begin = sum.as_bytes().first_chunk().copied().unwrap_or_default();
        let encoded = Encoded { digest, form, tag: u64::from_be_bytes(begin), length };
        made.sync()?;
        made.keep(&self.folder.join(encoded.name()))?;
        File::open(&self.folder)?.sync_all()?;
        Ok(encoded)
    }

    /// The file of a form; `None` where it was deleted, or is not as long as it was.
    pub(super) fn read(&self, encoded: &Encoded) -> io::Result<Option<File>> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let path = self.folder.join(encoded.name());
        let file = match File::options().read(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let metadata = file.metadata()?;
        Ok((metadata.is_file() && metadata.len() == encoded.length).then_some(file))
    }

    /// Bytes that the disk has left.
    pub(super) fn free(&self) -> io::Result<u64> {
        let found = rustix::fs::statvfs(&self.folder)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    fn all(&self) -> io::Result<Vec<Encoded>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let metadata = match entry.metadata() {
                Ok(metadata) if metadata.is_file() => metadata,
                Ok(_) => continue,
                // Another process deleted it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let name = entry.file_name();
            all.extend(name.to_str().and_then(|name| Encoded::parse(name, metadata.len())));
        }
        all.sort_by_key(|encoded| encoded.name());
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn keep(files: &Files, digest: Digest, form: Form, text: &'static str) -> Encoded {
        let mut made = files.begin().expect("a file");
        made.write(&[Bytes::from(text)]).expect("written");
        files.keep(made, digest, form).expect("kept")
    }

    #[test]
    fn a_form_is_found_by_the_name_of_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = Files::open(folder.path()).expect("opened");
        let (one, other) = (Digest::of(b"one"), Digest::of(b"other"));
        let zstd = keep(&files, one, Form::Zstd, "compressed");
        let delta = keep(&files, one, Form::Delta(other), "changed");
        assert_ne!(zstd.etag(), delta.etag());
        for name in ["README", "a.b.c", &format!("{one}.zstd.1"), &format!("{one}.gzip.{:016x}", 1)]
        {
            fs::write(folder.path().join("encoded").join(name), "not ours").expect("written");
        }
        let index = files.index().expect("listed");
        assert_eq!(index.find(one, Form::Zstd), Some(&zstd));
        assert_eq!(index.find(one, Form::Delta(other)), Some(&delta));
        assert_eq!(index.find(other, Form::Delta(one)), None);
        assert_eq!(index.bytes(), 17);
        assert!(files.read(&zstd).expect("opened").is_some());
        fs::write(folder.path().join("encoded").join(zstd.name()), "cut").expect("written");
        assert!(files.read(&zstd).expect("opened").is_none(), "it is shorter than it was");
    }

    #[test]
    fn what_is_not_wanted_is_deleted_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = Files::open(folder.path()).expect("opened");
        let [one, other] = [b"one", b"two"].map(|text| Digest::of(text));
        keep(&files, one, Form::Zstd, "an older one");
        keep(&files, one, Form::Zstd, "a newer one");
        let gone = keep(&files, other, Form::Zstd, "of no release");
        fs::write(folder.path().join("encoded/README"), "not ours").expect("written");
        let index = files.index().expect("listed");
        let kept = *index.find(one, Form::Zstd).expect("one of both");
        files.sweep(&index, |encoded| encoded.digest == one).expect("swept");
        assert_eq!(files.all().expect("listed"), [kept]);
        assert!(files.read(&gone).expect("looked").is_none());
        assert!(folder.path().join("encoded/README").exists());
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_only_one_process_works() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = Files::open(folder.path()).expect("opened");
        fs::write(folder.path().join("encoded/tmp/left"), "half").expect("written");
        let working = files.begin().expect("a file");
        let again = Files::open(folder.path()).expect("opened");
        assert_eq!(fs::read_dir(folder.path().join("encoded/tmp")).expect("listed").count(), 1);
        drop(working);
        let turn = files.turn().expect("a lock");
        assert!(turn.is_some() && again.turn().expect("a lock").is_none());
        drop(turn);
        assert!(again.turn().expect("a lock").is_some());
    }
}
