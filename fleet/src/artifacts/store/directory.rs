//! Artifacts in a directory.
//!
//! ```text
//!   <root>/               0700
//!     ab/cdef…            an artifact: the first two digits of its digest, then the others
//!     tmp/<random>        what is not complete yet
//!     lock                held shared to give an artifact its name, alone to delete one
//! ```
//!
//! Several processes may use one directory: `serve` and the command line do. What blocks is on
//! threads of its own.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use rustix::fs::OFlags;

use super::temporary::{self, Temporary};
use super::{
    ArtifactStore, Bounds, Claim, Deletion, Fetch, Incoming, Outgoing, Part, PutError, Stat,
    StoreError,
};
use crate::artifacts::digest::Digest;

/// How much is collected before it is written, in bytes: each write runs on another thread.
const WRITE_BYTES: usize = 1 << 20;
/// How much is read at once, in bytes.
const READ_BYTES: u64 = 256 << 10;
/// Digits of a digest that name its folder.
const SHARD_DIGITS: usize = 2;

/// Keeps artifacts in files of one directory. A clone is the same store.
#[derive(Clone, Debug)]
pub struct DirectoryStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    bounds: Bounds,
}

// === impl DirectoryStore ===

impl DirectoryStore {
    /// Opens the store in this directory, which is created where it is missing, and removes what
    /// dead writers left in it. Blocks.
    ///
    /// # Errors
    /// The directory cannot be created or used, or other users may write to it.
    pub fn open(root: impl Into<PathBuf>, bounds: Bounds) -> Result<Self, StoreError> {
        let root = root.into();
        let doing = || format!("open the artifact store in `{}`", root.display());
        let failed = |source: io::Error| StoreError::new(doing(), source);
        create_folder(&root).map_err(failed)?;
        let mode = fs::metadata(&root).map_err(failed)?.mode();
        if mode & 0o022 != 0 {
            let root = root.display();
            let problem = format!("other users may write to it; run `chmod 700 {root}`");
            return Err(StoreError::new(doing(), problem));
        }
        let temporary = root.join("tmp");
        create_folder(&temporary).map_err(failed)?;
        lock_file(&root).map_err(failed)?;
        let removed = temporary::clean(&temporary).map_err(failed)?;
        if removed > 0 {
            tracing::info!(removed, root = %root.display(), "removed uploads that never ended");
        }
        Ok(Self { inner: Arc::new(Inner { root, bounds }) })
    }

    /// The file of an artifact; `None` where it is not there. Blocks.
    pub(in crate::artifacts) fn read(
        &self,
        digest: Digest,
    ) -> io::Result<Option<(File, fs::Metadata)>> {
        let Some((file, _)) = self.inner.open(digest)? else { return Ok(None) };
        let metadata = file.metadata()?;
        Ok(Some((file, metadata)))
    }

    /// Runs what blocks on another thread.
    async fn blocking<T: Send + 'static>(
        &self,
        run: impl FnOnce(&Inner) -> T + Send + 'static,
    ) -> io::Result<T> {
        let inner = Arc::clone(&self.inner);
        tokio::task::spawn_blocking(move || run(&inner))
            .await
            .map_err(|_| io::Error::other("the program is ending"))
    }

    fn failed(&self, doing: &str, source: io::Error) -> StoreError {
        StoreError::new(format!("{doing} in `{}`", self.inner.root.display()), source)
    }

    /// Writes to the end of the file, which comes back afterwards.
    async fn write(&self, mut file: Temporary, chunks: Vec<Bytes>) -> Result<Temporary, PutError> {
        let written = self.blocking(move |inner| {
            let needed = chunks.iter().map(|chunk| chunk.len() as u64).sum();
            inner.room_for(needed)?;
            file.write(&chunks).map_err(|error| inner.not_written(needed, error))?;
            Ok(file)
        });
        written.await.map_err(|error| self.failed("write an artifact", error))?
    }
}

#[async_trait]
impl ArtifactStore for DirectoryStore {
    async fn put(&self, claim: Claim, mut bytes: Incoming<'_>) -> Result<Stat, PutError> {
        let bounds = self.inner.bounds;
        bounds.admit(&claim)?;
        let created = self.blocking(move |inner| {
            inner.room_for(claim.length.unwrap_or_default())?;
            let file = Temporary::create(&inner.root.join("tmp"));
            file.map_err(|error| inner.not_written(0, error))
        });
        let failed = |error| self.failed("write an artifact", error);
        let mut file = created.await.map_err(failed)??;
        let (mut length, mut waiting, mut waiting_bytes) = (0, Vec::new(), 0);
        while let Some(chunk) = bytes.next().await {
            let chunk = chunk.map_err(PutError::Incomplete)?;
            length += chunk.len() as u64;
            bounds.bound(&claim, length)?;
            waiting_bytes += chunk.len();
            waiting.push(chunk);
            if waiting_bytes >= WRITE_BYTES {
                file = self.write(file, std::mem::take(&mut waiting)).await?;
                waiting_bytes = 0;
            }
        }
        let file = self.write(file, waiting).await?;
        let kept = self.blocking(move |inner| {
            let (digest, length) = file.sum();
            claim.check(digest, length)?;
            inner.keep(file, digest).map_err(|error| inner.not_written(0, error))
        });
        kept.await.map_err(failed)?
    }

    async fn stat(&self, digest: &Digest) -> Result<Option<Stat>, StoreError> {
        let digest = *digest;
        let found = self.blocking(move |inner| inner.stat(digest)).await.flatten();
        found.map_err(|error| self.failed(&format!("look at the artifact {digest}"), error))
    }

    async fn open(
        &self,
        digest: &Digest,
        part: Option<Part>,
    ) -> Result<Option<Outgoing>, StoreError> {
        let digest = *digest;
        let opened = self.blocking(move |inner| inner.open(digest)).await.flatten();
        let failed = |error| self.failed(&format!("open the artifact {digest}"), error);
        let Some((file, length)) = opened.map_err(failed)? else { return Ok(None) };
        let part = part.unwrap_or(Part { first: 0, length });
        Ok(Some(read(file, part)))
    }

    async fn list(&self, after: Option<&Digest>, most: usize) -> Result<Vec<Stat>, StoreError> {
        let after = after.copied();
        let listed = self.blocking(move |inner| inner.list(after, most)).await.flatten();
        listed.map_err(|error| self.failed("list the artifacts", error))
    }

    async fn delete(&self, digest: &Digest, before: SystemTime) -> Result<Deletion, StoreError> {
        let digest = *digest;
        let deleted = self.blocking(move |inner| inner.delete(digest, before)).await.flatten();
        deleted.map_err(|error| self.failed(&format!("delete the artifact {digest}"), error))
    }

    async fn address(
        &self,
        _digest: &Digest,
        _fetch: Fetch,
        _lifetime: Duration,
    ) -> Result<Option<String>, StoreError> {
        Ok(None)
    }
}

// === impl Inner ===

impl Inner {
    fn folder(&self, digest: Digest) -> PathBuf {
        self.root.join(&digest.to_string()[..SHARD_DIGITS])
    }

    fn path(&self, digest: Digest) -> PathBuf {
        self.folder(digest).join(&digest.to_string()[SHARD_DIGITS..])
    }

    /// Whether so many bytes can be written and the reserve stays free.
    fn room_for(&self, needed: u64) -> Result<(), PutError> {
        let free = self.free().map_err(|error| self.not_written(needed, error))?;
        if free.saturating_sub(self.bounds.reserve) < needed {
            return Err(self.no_room(needed, free));
        }
        Ok(())
    }

    fn free(&self) -> io::Result<u64> {
        let found = rustix::fs::statvfs(&self.root)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    fn no_room(&self, needed: u64, free: u64) -> PutError {
        let place = self.root.display().to_string();
        PutError::NoRoom { place, free, reserve: self.bounds.reserve, needed }
    }

    /// What an error of the operating system means for the one who puts.
    fn not_written(&self, needed: u64, error: io::Error) -> PutError {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        if matches!(error.kind(), StorageFull | QuotaExceeded) {
            return self.no_room(needed, self.free().unwrap_or_default());
        }
        let doing = format!("write an artifact in `{}`", self.root.display());
        PutError::Failed(StoreError::new(doing, error))
    }

    fn keep(&self, file: Temporary, digest: Digest) -> io::Result<Stat> {
        file.sync()?;
        let folder = self.folder(digest);
        if !folder.is_dir() {
            create_folder(&folder)?;
            sync_folder(&self.root)?;
        }
        let lock = lock_file(&self.root)?;
        lock.lock_shared()?;
        let metadata = file.keep(&self.path(digest))?;
        sync_folder(&folder)?;
        Ok(Stat { digest, length: metadata.len(), modified: metadata.modified()? })
    }

    fn stat(&self, digest: Digest) -> io::Result<Option<Stat>> {
        let metadata = match fs::symlink_metadata(self.path(digest)) {
            Ok(metadata) if metadata.is_file() => metadata,
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(Stat { digest, length: metadata.len(), modified: metadata.modified()? }))
    }

    /// The file, if it is a regular one, and its length.
    fn open(&self, digest: Digest) -> io::Result<Option<(File, u64)>> {
        // Somebody else's pipe or link in the directory is not followed and waits for nobody.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = match File::options().read(true).custom_flags(flags).open(self.path(digest)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let metadata = file.metadata()?;
        Ok(metadata.is_file().then_some((file, metadata.len())))
    }

    fn list(&self, after: Option<Digest>, most: usize) -> io::Result<Vec<Stat>> {
        let after = after.map(|digest| digest.to_string());
        let first = after.as_ref().map(|digest| &digest[..SHARD_DIGITS]);
        let mut found = Vec::new();
        for shard in names(&self.root)? {
            if shard.len() != SHARD_DIGITS || first.is_some_and(|first| shard.as_str() < first) {
                continue;
            }
            for rest in names(&self.root.join(&shard))? {
                // Other files were put there by somebody else and are left alone.
                let Ok(digest) = format!("{shard}{rest}").parse::<Digest>() else { continue };
                if after.as_ref().is_some_and(|after| digest.to_string() <= *after) {
                    continue;
                }
                if found.len() >= most {
                    return Ok(found);
                }
                found.extend(self.stat(digest)?);
            }
        }
        Ok(found)
    }

    fn delete(&self, digest: Digest, before: SystemTime) -> io::Result<Deletion> {
        let lock = lock_file(&self.root)?;
        // Nobody puts the artifact again between the look at its age and its end.
        lock.lock()?;
        match self.stat(digest)? {
            None => Ok(Deletion::Absent),
            Some(stat) if stat.modified >= before => Ok(Deletion::TooYoung),
            Some(_) => {
                fs::remove_file(self.path(digest))?;
                sync_folder(&self.folder(digest))?;
                Ok(Deletion::Deleted)
            }
        }
    }
}

/// The bytes of a part of a file.
pub(in crate::artifacts) fn read(file: File, part: Part) -> Outgoing {
    let file = Arc::new(file);
    let end = part.first.saturating_add(part.length);
    stream::try_unfold(part.first, move |at| {
        let file = Arc::clone(&file);
        async move {
            if at >= end {
                return Ok(None);
            }
            let size = READ_BYTES.min(end - at);
            let reading = tokio::task::spawn_blocking(move || read_at(&file, at, size));
            let ending = |_| io::Error::other("the program is ending");
            let chunk = reading.await.map_err(ending)??;
            let next = at + chunk.len() as u64;
            Ok(Some((chunk, next)))
        }
    })
    .boxed()
}

fn read_at(file: &File, at: u64, size: u64) -> io::Result<Bytes> {
    let size = usize::try_from(size).map_err(io::Error::other)?;
    let mut chunk = BytesMut::zeroed(size);
    let read = file.read_at(&mut chunk, at)?;
    if read == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the artifact became shorter"));
    }
    chunk.truncate(read);
    Ok(chunk.freeze())
}

/// The names in a folder, sorted; those that are not UTF-8 are not ours.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn lock_file(root: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(root.join("lock"))
}
