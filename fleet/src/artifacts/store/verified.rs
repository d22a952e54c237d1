//! Bytes that come from somewhere else and are checked against their digest on their way through.
//!
//! The last bytes are held back until all others were hashed. So nobody ever receives the whole of
//! an artifact that is not the one they asked for: the bytes end with an error before.

use std::io;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use sha2::{Digest as _, Sha256};

use super::{Outgoing, Part};
use crate::artifacts::digest::Digest;

struct Checking<N> {
    bytes: Outgoing,
    hasher: Sha256,
    /// Bytes that came so far.
    at: u64,
    held: Option<Bytes>,
    part: Part,
    digest: Digest,
    /// Called once all is right.
    note: Option<N>,
}

/// The part of `bytes`, which are the whole artifact.
pub(super) fn verified(
    bytes: Outgoing,
    digest: Digest,
    part: Part,
    note: impl FnOnce() + Send + 'static,
) -> Outgoing {
    let (hasher, note) = (Sha256::new(), Some(note));
    let checking = Checking { bytes, hasher, at: 0, held: None, part, digest, note };
    stream::try_unfold(checking, |mut checking| async move {
        Ok::<_, io::Error>(checking.next().await?.map(|chunk| (chunk, checking)))
    })
    .boxed()
}

impl<N: FnOnce()> Checking<N> {
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        while let Some(chunk) = self.bytes.next().await {
            let chunk = chunk?;
            self.hasher.update(&chunk);
            let piece = self.clip(&chunk);
            self.at += chunk.len() as u64;
            if !piece.is_empty()
                && let Some(held) = self.held.replace(piece)
            {
                return Ok(Some(held));
            }
        }
        if let Some(note) = self.note.take() {
            let found = Digest::finish(std::mem::take(&mut self.hasher));
            if found != self.digest {
                let digest = self.digest;
                tracing::error!(%digest, %found, "an artifact has other bytes than its digest says");
                let problem = "the bytes are not those of the digest";
                return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
            }
            note();
        }
        Ok(self.held.take())
    }

    /// What of a chunk belongs to the part.
    fn clip(&self, chunk: &Bytes) -> Bytes {
        let within = |at: u64| {
            let inside = at.saturating_sub(self.at).min(chunk.len() as u64);
            usize::try_from(inside).unwrap_or(chunk.len())
        };
        let end = self.part.first.saturating_add(self.part.length);
        chunk.slice(within(self.part.first)..within(end))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::TryStreamExt;

    use super::*;

    /// What comes through of chunks of `size` bytes, and whether all was right.
    async fn through(text: &[u8], size: usize, digest: Digest, part: Part) -> (Vec<u8>, bool) {
        let chunks: Vec<_> =
            text.chunks(size).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
        let noted = Arc::new(AtomicUsize::new(0));
        let note = Arc::clone(&noted);
        let mut bytes = verified(stream::iter(chunks).boxed(), digest, part, move || {
            note.fetch_add(1, Ordering::SeqCst);
        });
        let mut got = Vec::new();
        while let Ok(Some(chunk)) = bytes.try_next().await {
            got.extend_from_slice(&chunk);
        }
        (got, noted.load(Ordering::SeqCst) == 1)
    }

    #[tokio::test]
    async fn every_part_of_the_right_artifact_comes_through() {
        let text = b"0123456789";
        for size in 1..=11 {
            for first in 0..10 {
                for length in 1..=(10 - first) {
                    let part = Part { first, length };
                    let (got, is_right) = through(text, size, Digest::of(text), part).await;
                    let from = usize::try_from(first).expect("small");
                    let to = usize::try_from(first + length).expect("small");
                    assert_eq!((got.as_slice(), is_right), (&text[from..to], true), "{part:?}");
                }
            }
        }
    }

    #[tokio::test]
    async fn of_a_wrong_artifact_the_last_bytes_never_come() {
        let whole = Part { first: 0, length: 10 };
        for size in 1..=11 {
            let (got, is_right) = through(b"0123456789", size, Digest::of(b"other"), whole).await;
            assert!(got.len() < 10 && !is_right, "{size}: {}", got.len());
        }
    }

    #[tokio::test]
    async fn nothing_is_nothing() {
        let part = Part { first: 0, length: 0 };
        assert_eq!(through(b"", 1, Digest::of(b""), part).await, (Vec::new(), true));
        assert_eq!(through(b"", 1, Digest::of(b"x"), part).await, (Vec::new(), false));
    }
}
