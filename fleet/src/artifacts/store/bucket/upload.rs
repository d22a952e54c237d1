//! One upload: in one request where the artifact is small, else in parts.
//!
//! Nothing is there under the key before [`Upload::complete`]. An upload that is dropped before is
//! taken back.

use std::time::Duration;

use bytes::Bytes;
use object_store::aws::AmazonS3;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStoreExt, PutPayload, Result};

/// Bytes of a part, all but the last one: some services want parts of one size, and all want at
/// least five mebibytes. So much memory takes an upload.
pub(super) const PART_BYTES: usize = 8 << 20;
/// Longest that taking an upload back may take.
const ABORTING: Duration = Duration::from_secs(30);

pub(super) struct Upload<'a> {
    bucket: &'a AmazonS3,
    key: &'a Path,
    waiting: Vec<Bytes>,
    waiting_bytes: usize,
    parts: Option<Box<dyn MultipartUpload>>,
}

impl<'a> Upload<'a> {
    pub(super) fn new(bucket: &'a AmazonS3, key: &'a Path) -> Self {
        Self { bucket, key, waiting: Vec::new(), waiting_bytes: 0, parts: None }
    }

    pub(super) async fn write(&mut self, mut chunk: Bytes) -> Result<()> {
        while self.waiting_bytes + chunk.len() > PART_BYTES {
            self.push(chunk.split_to(PART_BYTES - self.waiting_bytes));
            self.send().await?;
        }
        self.push(chunk);
        Ok(())
    }

    /// Puts all that was written under the key.
    pub(super) async fn complete(mut self) -> Result<()> {
        if self.parts.is_none() {
            let payload = self.payload();
            return self.bucket.put(self.key, payload).await.map(drop);
        }
        self.send().await?;
        if let Some(parts) = &mut self.parts {
            parts.complete().await?;
        }
        // There is nothing left to take back.
        self.parts = None;
        Ok(())
    }

    fn push(&mut self, chunk: Bytes) {
        self.waiting_bytes += chunk.len();
        self.waiting.push(chunk);
    }

    async fn send(&mut self) -> Result<()> {
        let payload = self.payload();
        if self.parts.is_none() {
            self.parts = Some(self.bucket.put_multipart(self.key).await?);
        }
        match &mut self.parts {
            Some(parts) => parts.put_part(payload).await,
            None => Ok(()),
        }
    }

    fn payload(&mut self) -> PutPayload {
        self.waiting_bytes = 0;
        std::mem::take(&mut self.waiting).into_iter().collect()
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        let Some(mut parts) = self.parts.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let aborted = tokio::time::timeout(ABORTING, parts.abort()).await;
            if !matches!(aborted, Ok(Ok(()))) {
                tracing::warn!(
                    "parts of an upload that never ended stay in the bucket; give it a lifecycle \
                     rule that deletes incomplete uploads"
                );
            }
        });
    }
}
