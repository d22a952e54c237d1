//! Artifacts in a bucket that speaks S3.
//!
//! ```text
//!   <prefix>/sha256/<digest>      an artifact
//!   <prefix>/incoming/<random>    one whose digest is not known before all of it came
//! ```
//!
//! What passes through this process is verified: an artifact on its way in before it gets its
//! name, and on its way out before its last bytes leave. A part is only fetched alone when the
//! whole was verified before and the bucket says that it did not change since; else the whole is
//! read, and the part is taken out of it.
//!
//! Requests are repeated a few times with growing, random pauses. Parts of an upload that never
//! ended stay in the bucket until its lifecycle rule for incomplete uploads deletes them.

mod options;
mod upload;

use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt};
use guest_agent_serve_kit::lock::lock;
use http::Method;
use object_store::aws::AmazonS3;
use object_store::path::Path;
use object_store::signer::Signer;
use object_store::{
    Error as BucketError, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt,
};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::verified::verified;
use super::{
    ArtifactStore, Bounds, Claim, Deletion, Fetch, Incoming, Outgoing, Part, PutError, Stat,
    StoreError,
};
use crate::artifacts::digest::Digest;
use upload::{PART_BYTES, Upload};

pub use options::{BucketOptions, Credentials};

/// Longest that the bucket may take to answer when it is opened.
const OPENING: Duration = Duration::from_secs(20);
/// How many verified artifacts are remembered; beyond that all are verified anew.
const MAX_REMEMBERED: usize = 4096;
/// Folder of artifacts, and of what has no digest yet.
const ARTIFACTS: &str = "sha256";
const INCOMING: &str = "incoming";

/// Keeps artifacts in a bucket. A clone is the same store.
#[derive(Clone, Debug)]
pub struct BucketStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    bucket: AmazonS3,
    /// Where it is, for errors.
    place: String,
    prefix: Path,
    bounds: Bounds,
    /// The versions of artifacts that were verified.
    verified: Mutex<HashMap<Digest, String>>,
}

// === impl BucketStore ===

impl BucketStore {
    /// Opens the store in a bucket, which has to answer.
    ///
    /// # Errors
    /// The options cannot be used, or the bucket does not let us list it.
    pub async fn open(options: BucketOptions, bounds: Bounds) -> Result<Self, StoreError> {
        let place = options.place();
        let prefix = Path::from(options.prefix.as_str());
        let bucket = options.build()?;
        let inner = Inner { bucket, place, prefix, bounds, verified: Mutex::default() };
        let store = Self { inner: Arc::new(inner) };
        let listing = store.list(None, 1);
        match tokio::time::timeout(OPENING, listing).await {
            Ok(listed) => drop(listed?),
            Err(_) => return Err(store.failed("list the artifacts", "it did not answer in time")),
        }
        Ok(store)
    }

    fn failed(
        &self,
        doing: impl std::fmt::Display,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> StoreError {
        StoreError::new(format!("{doing} in {}", self.inner.place), source)
    }

    fn folder(&self) -> Path {
        self.inner.prefix.clone().join(ARTIFACTS)
    }

    fn key(&self, digest: &Digest) -> Path {
        self.folder().join(digest.to_string())
    }

    async fn head(&self, digest: &Digest) -> Result<Option<ObjectMeta>, StoreError> {
        match self.inner.bucket.head(&self.key(digest)).await {
            Ok(meta) => Ok(Some(meta)),
            Err(BucketError::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed(format_args!("look at the artifact {digest}"), error)),
        }
    }

    /// The whole artifact, as it is in the bucket.
    async fn whole(&self, digest: &Digest) -> Result<Option<(Outgoing, ObjectMeta)>, StoreError> {
        match self.inner.bucket.get(&self.key(digest)).await {
            Ok(found) => {
                let meta = found.meta.clone();
                Ok(Some((found.into_stream().map_err(io::Error::other).boxed(), meta)))
            }
            Err(BucketError::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed(format_args!("fetch the artifact {digest}"), error)),
        }
    }

    /// A part of a version that was verified; `None` where there is no such version any more.
    async fn part(&self, digest: &Digest, part: Part) -> Result<Option<Outgoing>, StoreError> {
        let known = lock(&self.inner.verified).get(digest).cloned();
        let Some(version) = known else { return Ok(None) };
        let range = GetRange::Bounded(part.first..part.first.saturating_add(part.length));
        let options =
            GetOptions { range: Some(range), if_match: Some(version), ..GetOptions::default() };
        match self.inner.bucket.get_opts(&self.key(digest), options).await {
            Ok(found) => Ok(Some(found.into_stream().map_err(io::Error::other).boxed())),
            Err(BucketError::NotFound { .. } | BucketError::Precondition { .. }) => {
                lock(&self.inner.verified).remove(digest);
                Ok(None)
            }
            Err(error) => {
                Err(self.failed(format_args!("fetch a part of the artifact {digest}"), error))
            }
        }
    }

    async fn receive(
        &self,
        claim: Claim,
        key: &Path,
        mut bytes: Incoming<'_>,
    ) -> Result<(Digest, u64), PutError> {
        let failed = |error| self.failed("write an artifact", error);
        let (mut length, mut hasher) = (0, Sha256::new());
        let mut upload = Upload::new(&self.inner.bucket, key);
        while let Some(chunk) = bytes.next().await {
            let chunk = chunk.map_err(PutError::Incomplete)?;
            length += chunk.len() as u64;
            self.inner.bounds.bound(&claim, length)?;
            hasher.update(&chunk);
            upload.write(chunk).await.map_err(failed)?;
        }
        let digest = Digest::finish(hasher);
        claim.check(digest, length)?;
        upload.complete().await.map_err(failed)?;
        Ok((digest, length))
    }

    fn stat_of(&self, digest: Digest, meta: &ObjectMeta) -> Stat {
        Stat { digest, length: meta.size, modified: meta.last_modified.into() }
    }
}

#[async_trait]
impl ArtifactStore for BucketStore {
    async fn put(&self, claim: Claim, bytes: Incoming<'_>) -> Result<Stat, PutError> {
        self.inner.bounds.admit(&claim)?;
        let name = Uuid::new_v4().simple().to_string();
        let key = match &claim.digest {
            Some(digest) => self.key(digest),
            None => self.inner.prefix.clone().join(INCOMING).join(name),
        };
        let (digest, length) = self.receive(claim, &key, bytes).await?;
        if claim.digest.is_none() {
            let failed = |error| self.failed(format_args!("name the artifact {digest}"), error);
            self.inner.bucket.copy(&key, &self.key(&digest)).await.map_err(failed)?;
            self.inner.bucket.delete(&key).await.map_err(failed)?;
        }
        Ok(Stat { digest, length, modified: SystemTime::now() })
    }

    async fn stat(&self, digest: &Digest) -> Result<Option<Stat>, StoreError> {
        Ok(self.head(digest).await?.map(|meta| self.stat_of(*digest, &meta)))
    }

    async fn open(
        &self,
        digest: &Digest,
        part: Option<Part>,
    ) -> Result<Option<Outgoing>, StoreError> {
        if let Some(part) = part
            && let Some(bytes) = self.part(digest, part).await?
        {
            return Ok(Some(bytes));
        }
        let Some((bytes, meta)) = self.whole(digest).await? else { return Ok(None) };
        let part = part.unwrap_or(Part { first: 0, length: meta.size });
        let (inner, of) = (Arc::clone(&self.inner), *digest);
        Ok(Some(verified(bytes, *digest, part, move || inner.note(of, meta.e_tag))))
    }

    async fn list(&self, after: Option<&Digest>, most: usize) -> Result<Vec<Stat>, StoreError> {
        let folder = self.folder();
        let entries = match after {
            Some(after) => self.inner.bucket.list_with_offset(Some(&folder), &self.key(after)),
            None => self.inner.bucket.list(Some(&folder)),
        };
        let stats = entries.try_filter_map(async |meta| {
            // Other objects were put there by somebody else and are left alone.
            let name = meta.location.filename().and_then(|name| name.parse().ok());
            Ok(name.map(|digest| self.stat_of(digest, &meta)))
        });
        let listed: Result<Vec<_>, _> = stats.take(most).try_collect().await;
        listed.map_err(|error| self.failed("list the artifacts", error))
    }

    async fn delete(&self, digest: &Digest, before: SystemTime) -> Result<Deletion, StoreError> {
        // A bucket has no lock: somebody may put the artifact again between the look and the end.
        match self.head(digest).await? {
            None => Ok(Deletion::Absent),
            Some(meta) if SystemTime::from(meta.last_modified) >= before => Ok(Deletion::TooYoung),
            Some(_) => {
                let deleted = self.inner.bucket.delete(&self.key(digest)).await;
                let doing = format_args!("delete the artifact {digest}");
                deleted.map_err(|error| self.failed(doing, error))?;
                Ok(Deletion::Deleted)
            }
        }
    }

    async fn address(
        &self,
        digest: &Digest,
        fetch: Fetch,
        lifetime: Duration,
    ) -> Result<Option<String>, StoreError> {
        let method = match fetch {
            Fetch::Bytes => Method::GET,
            Fetch::Headers => Method::HEAD,
        };
        let signed = self.inner.bucket.signed_url(method, &self.key(digest), lifetime).await;
        let doing = format_args!("sign an address of the artifact {digest}");
        signed.map(|url| Some(url.into())).map_err(|error| self.failed(doing, error))
    }
}

// === impl Inner ===

impl Inner {
    /// Remembers a version that was verified.
    fn note(&self, digest: Digest, version: Option<String>) {
        let Some(version) = version else { return };
        let mut verified = lock(&self.verified);
        if verified.len() >= MAX_REMEMBERED {
            verified.clear();
        }
        verified.insert(digest, version);
    }
}

// The store takes artifacts that fit into the parts that S3 allows.
const _: () = assert!(super::ARTIFACT_BYTES / (PART_BYTES as u64) < 10_000);
