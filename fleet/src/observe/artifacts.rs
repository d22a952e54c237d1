//! A store of artifacts whose bytes are counted.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::StreamExt;

use crate::artifacts::digest::Digest;
use crate::artifacts::store::{
    ArtifactStore, Claim, Deletion, Fetch, Incoming, Outgoing, Part, PutError, Stat, StoreError,
};
use crate::telemetry::figures::Figures;

/// Passes every call on to a store and counts bytes.
#[derive(Debug)]
pub struct ObservedStore {
    inner: Arc<dyn ArtifactStore>,
    figures: Arc<Figures>,
}

// === impl ObservedStore ===

impl ObservedStore {
    /// Counts what goes into this store and out of it.
    #[must_use]
    pub fn new(inner: Arc<dyn ArtifactStore>, figures: Arc<Figures>) -> Arc<Self> {
        Arc::new(Self { inner, figures })
    }
}

#[async_trait]
impl ArtifactStore for ObservedStore {
    async fn put(&self, claim: Claim, bytes: Incoming<'_>) -> Result<Stat, PutError> {
        let counted = bytes.inspect(|bytes| {
            if let Ok(bytes) = bytes {
                self.figures.artifact_written(bytes.len());
            }
        });
        self.inner.put(claim, counted.boxed()).await
    }

    async fn stat(&self, digest: &Digest) -> Result<Option<Stat>, StoreError> {
        self.inner.stat(digest).await
    }

    async fn open(
        &self,
        digest: &Digest,
        part: Option<Part>,
    ) -> Result<Option<Outgoing>, StoreError> {
        let figures = self.figures.clone();
        let opened = self.inner.open(digest, part).await?;
        Ok(opened.map(|bytes| {
            let counted = bytes.inspect(move |bytes| {
                if let Ok(bytes) = bytes {
                    figures.artifact_read(bytes.len());
                }
            });
            counted.boxed()
        }))
    }

    async fn list(&self, after: Option<&Digest>, most: usize) -> Result<Vec<Stat>, StoreError> {
        self.inner.list(after, most).await
    }

    async fn delete(&self, digest: &Digest, before: SystemTime) -> Result<Deletion, StoreError> {
        self.inner.delete(digest, before).await
    }

    async fn address(
        &self,
        digest: &Digest,
        fetch: Fetch,
        lifetime: Duration,
    ) -> Result<Option<String>, StoreError> {
        self.inner.address(digest, fetch, lifetime).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifacts::store::{Bounds, DirectoryStore};
    use bytes::Bytes;
    use futures_util::stream;

    #[tokio::test]
    async fn bytes_are_counted_both_ways() {
        let folder = tempfile::tempdir().expect("a directory");
        let figures = Arc::new(Figures::default());
        let store = DirectoryStore::open(folder.path(), Bounds::default()).expect("a store");
        let store = ObservedStore::new(Arc::new(store), figures.clone());
        let bytes =
            stream::iter([Ok(Bytes::from_static(b"four")), Ok(Bytes::from_static(b"more"))]);
        let stat = store.put(Claim::default(), bytes.boxed()).await.expect("kept");
        let part = Part { first: 2, length: 3 };
        for part in [None, Some(part)] {
            let opened =
                store.open(&stat.digest, part).await.expect("opened").expect("it is there");
            opened.for_each(async |bytes| drop(bytes.expect("bytes"))).await;
        }
        let counted = figures.now();
        assert_eq!((counted.artifact_bytes_written, counted.artifact_bytes_read), (8, 8 + 3));
    }
}
