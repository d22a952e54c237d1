//! The memory of artifacts, behind a trait.
//!
//! ```text
//!   put(stream) ─► hashed on its way ─► complete and right? ─┬─ yes ─► durable under its digest
//!                                                           └─ no ──► nothing is left of it
//!   open, stat, list, delete ─► by digest
//! ```
//!
//! Two implementations are here: [`DirectoryStore`] and [`BucketStore`]. Both keep an artifact
//! under its digest only, so no name from outside becomes part of a path, and putting the same
//! artifact twice changes nothing but its age.

mod bucket;
pub(in crate::artifacts) mod directory;
pub(in crate::artifacts) mod temporary;
mod verified;

use std::error::Error;
use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use thiserror::Error;

use super::digest::Digest;

pub use bucket::{BucketOptions, BucketStore, Credentials};
pub use directory::DirectoryStore;

/// Largest artifact by default, in bytes.
const ARTIFACT_BYTES: u64 = 4 << 30;
/// Room that uploads leave free by default, in bytes.
const RESERVE_BYTES: u64 = 64 << 20;

/// The bytes of an artifact on their way in.
pub type Incoming<'a> = BoxStream<'a, io::Result<Bytes>>;

/// The bytes of an artifact on their way out. An error ends them early.
pub type Outgoing = BoxStream<'static, io::Result<Bytes>>;

/// Keeps artifacts by their digest.
#[async_trait]
pub trait ArtifactStore: fmt::Debug + Send + Sync + 'static {
    /// Keeps an artifact, and answers when it is durable. Of an artifact that is not as it was
    /// claimed, or whose bytes end with an error, nothing is kept. The caller bounds how long the
    /// bytes may take.
    ///
    /// # Errors
    /// See [`PutError`].
    async fn put(&self, claim: Claim, bytes: Incoming<'_>) -> Result<Stat, PutError>;

    /// What is known of an artifact; `None` where it is not there.
    ///
    /// # Errors
    /// The store cannot be read.
    async fn stat(&self, digest: &Digest) -> Result<Option<Stat>, StoreError>;

    /// The bytes of an artifact, or a part of them; `None` where the artifact is not there.
    ///
    /// # Errors
    /// The store cannot be read.
    async fn open(
        &self,
        digest: &Digest,
        part: Option<Part>,
    ) -> Result<Option<Outgoing>, StoreError>;

    /// The artifacts behind `after` in the order of their digests, at most `most` of them. Fewer
    /// are the last ones.
    ///
    /// # Errors
    /// The store cannot be read.
    async fn list(&self, after: Option<&Digest>, most: usize) -> Result<Vec<Stat>, StoreError>;

    /// Deletes an artifact that was put before that time and not again since.
    ///
    /// # Errors
    /// The store cannot be changed.
    async fn delete(&self, digest: &Digest, before: SystemTime) -> Result<Deletion, StoreError>;

    /// An address from which the artifact can be fetched for so long without another permission,
    /// whether it is there or not; `None` where the store has no such addresses. It is a secret.
    ///
    /// # Errors
    /// No address can be signed.
    async fn address(
        &self,
        digest: &Digest,
        fetch: Fetch,
        lifetime: Duration,
    ) -> Result<Option<String>, StoreError>;
}

/// What the caller of [`ArtifactStore::put`] knows of an artifact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Its digest, where it is known.
    pub digest: Option<Digest>,
    /// Its length in bytes, where it is known.
    pub length: Option<u64>,
}

/// What is known of an artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its digest.
    pub digest: Digest,
    /// Its length in bytes.
    pub length: u64,
    /// When it was put last.
    pub modified: SystemTime,
}

/// A part of an artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Number of bytes before it.
    pub first: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// What became of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The artifact is deleted.
    Deleted,
    /// The artifact was not there.
    Absent,
    /// The artifact was put too late.
    TooYoung,
}

/// What a signed address is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// The artifact.
    Bytes,
    /// Only its headers.
    Headers,
}

/// How much a store takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Largest artifact, in bytes.
    pub artifact: u64,
    /// Room that is left free on the disk of a directory, in bytes.
    pub reserve: u64,
}

/// Why an artifact was not kept.
#[derive(Debug, Error)]
pub enum PutError {
    /// The artifact is larger than the store takes.
    #[error("the artifact is larger than {most} bytes, the most that this store takes")]
    TooLarge {
        /// The bound, in bytes.
        most: u64,
    },
    /// The disk has not enough room.
    #[error(
        "there is no room for the artifact: `{place}` has {free} bytes and {reserve} of them stay \
         free, and {needed} are needed; delete what no release names with `guest-fleet artifact gc`"
    )]
    NoRoom {
        /// The directory of the store.
        place: String,
        /// Bytes that are free.
        free: u64,
        /// Bytes that are left free.
        reserve: u64,
        /// Bytes that were to be written next.
        needed: u64,
    },
    /// The artifact has another digest than was claimed.
    #[error("the artifact has the digest {found}, not {claimed}; send the file that was hashed")]
    WrongDigest {
        /// The digest that was claimed.
        claimed: Digest,
        /// The digest of what came.
        found: Digest,
    },
    /// The artifact has another length than was claimed.
    #[error("{found} bytes of the artifact came, not {claimed}; send the whole file again")]
    WrongLength {
        /// The length that was claimed.
        claimed: u64,
        /// The number of bytes that came.
        found: u64,
    },
    /// The bytes ended with an error.
    #[error("the artifact did not come whole; send it again")]
    Incomplete(#[source] io::Error),
    /// The store failed.
    #[error(transparent)]
    Failed(#[from] StoreError),
}

/// Why a store cannot be used.
#[derive(Debug, Error)]
#[error("failed to {doing}")]
pub struct StoreError {
    /// What was tried, with the path or the bucket.
    pub doing: String,
    /// Why it failed.
    #[source]
    pub source: Box<dyn Error + Send + Sync>,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { artifact: ARTIFACT_BYTES, reserve: RESERVE_BYTES }
    }
}

impl Bounds {
    /// Refuses what is claimed to be too large.
    fn admit(&self, claim: &Claim) -> Result<(), PutError> {
        match claim.length {
            Some(length) if length > self.artifact => {
                Err(PutError::TooLarge { most: self.artifact })
            }
            _ => Ok(()),
        }
    }

    /// Refuses the bytes that came so far, if they are too many.
    fn bound(&self, claim: &Claim, length: u64) -> Result<(), PutError> {
        match claim.length {
            Some(claimed) if length > claimed => {
                Err(PutError::WrongLength { claimed, found: length })
            }
            _ if length > self.artifact => Err(PutError::TooLarge { most: self.artifact }),
            _ => Ok(()),
        }
    }
}

impl Claim {
    /// Refuses what came whole and is something else.
    fn check(&self, digest: Digest, length: u64) -> Result<(), PutError> {
        if let Some(claimed) = self.length
            && claimed != length
        {
            return Err(PutError::WrongLength { claimed, found: length });
        }
        match self.digest {
            Some(claimed) if claimed != digest => {
                Err(PutError::WrongDigest { claimed, found: digest })
            }
            _ => Ok(()),
        }
    }
}

impl StoreError {
    pub(crate) fn new(
        doing: impl Into<String>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self { doing: doing.into(), source: source.into() }
    }
}
