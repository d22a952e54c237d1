//! Writes an archive into the cache while its files are unpacked.
//!
//! `transfer` sends the same bytes here as to the unpacking thread; a thread of its own writes
//! them. An error here fails no installation: the archive is then not kept, which is logged.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use guest_agent_actors::model::id::Sha256Digest;
use tokio::sync::mpsc;

use super::{Beside, Cache};

/// Chunks that wait for the disk. When there are no more the installation waits: it writes the same
/// bytes to the same disk, and more.
const CHUNKS_IN_FLIGHT: usize = 32;

/// Longest time for which an installation that is done waits until the thread has taken the last
/// bytes.
const LAST_WAIT: Duration = Duration::from_secs(5);

enum Piece {
    Data(Bytes),
    /// The archive is complete, and it is the ordered one.
    Keep(Beside),
}

/// An archive that is being written into the cache. It is deleted unless [`Tee::keep`] was called.
pub(in crate::install) struct Tee {
    pieces: mpsc::Sender<Piece>,
    queued: Option<Piece>,
}

// === impl Tee ===

impl Tee {
    /// Begins to keep an archive.
    pub(in crate::install) fn begin(cache: Arc<Cache>, sha256: Sha256Digest) -> Self {
        let (pieces, received) = mpsc::channel(CHUNKS_IN_FLIGHT);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = write(&cache, sha256, received) {
                tracing::info!(%sha256, %error, "the archive is not kept in the cache");
            }
        });
        Self { pieces, queued: None }
    }

    /// Queues a message for the next flush, which has to come before the next message is queued.
    pub(in crate::install) fn queue(&mut self, data: Bytes) {
        debug_assert!(self.queued.is_none());
        self.queued = Some(Piece::Data(data));
    }

    /// Sends the queued message. Dropping the future loses nothing.
    pub(in crate::install) async fn flush(&mut self) {
        if self.queued.is_some()
            && let Ok(room) = self.pieces.reserve().await
            && let Some(piece) = self.queued.take()
        {
            room.send(piece);
        }
        // The writing thread has ended, because the archive could not be written.
        self.queued = None;
    }

    /// Says that the archive is complete, and is to be kept.
    pub(in crate::install) async fn keep(mut self, beside: Beside) {
        let last = async {
            self.flush().await;
            self.queued = Some(Piece::Keep(beside));
            self.flush().await;
        };
        // Without the last message the thread deletes it.
        drop(tokio::time::timeout(LAST_WAIT, last).await);
    }
}

fn write(
    cache: &Arc<Cache>,
    sha256: Sha256Digest,
    mut pieces: mpsc::Receiver<Piece>,
) -> std::io::Result<()> {
    let mut incoming = cache.receive()?;
    loop {
        match pieces.blocking_recv() {
            Some(Piece::Data(bytes)) => incoming.write(&bytes)?,
            Some(Piece::Keep(beside)) => return incoming.keep(sha256, &beside),
            // The installation was cancelled, and reports that itself.
            None => return Ok(()),
        }
    }
}
