//! Uses the same few buffers again and again for the bytes of a download.
//!
//! The download hands each received piece to the digest, to the thread that unpacks and to the
//! cache. The last of them that drops the piece frees its buffer for the next one. With new memory
//! for each piece, the kernel would have to find and clear pages for every received byte; with
//! reused buffers it does so once. `fetch` fills the buffers.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// The size of a buffer, in bytes.
pub(in crate::install) const BUFFER_BYTES: usize = 128 * 1024;

/// Most lent buffers that [`Buffers`] keeps to use again. More can be lent; the holder that drops
/// such a buffer last frees its memory.
const LENT_MAX: usize = 16;

/// The lent buffers, the one that was lent first at the front.
#[derive(Debug, Default)]
pub(in crate::install) struct Buffers {
    lent: VecDeque<BytesMut>,
}

// === impl Buffers ===

impl Buffers {
    /// Returns an empty buffer with room for [`BUFFER_BYTES`]: the one that was lent first if all
    /// its pieces were dropped, else a new one.
    pub(in crate::install) fn take(&mut self) -> BytesMut {
        if let Some(mut oldest) = self.lent.pop_front() {
            if oldest.try_reclaim(BUFFER_BYTES) {
                return oldest;
            }
            if self.lent.len() + 1 < LENT_MAX {
                self.lent.push_front(oldest);
            }
        }
        BytesMut::with_capacity(BUFFER_BYTES)
    }

    /// Returns the bytes of a buffer that [`Self::take`] returned. The buffer can be used again
    /// when no copy of these bytes is left.
    pub(in crate::install) fn lend(&mut self, mut filled: BytesMut) -> Bytes {
        let bytes = filled.split().freeze();
        self.lent.push_back(filled);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn lend(buffers: &mut Buffers, amount: usize) -> Bytes {
        let mut buffer = buffers.take();
        assert!(buffer.is_empty() && buffer.capacity() >= BUFFER_BYTES, "{buffer:?}");
        buffer.resize(amount, 7);
        buffers.lend(buffer)
    }

    #[test]
    fn what_was_given_back_is_lent_again() {
        let mut buffers = Buffers::default();
        let mut places = BTreeSet::new();
        let mut held = VecDeque::new();
        for amount in [1, BUFFER_BYTES, 1000].into_iter().cycle().take(300) {
            let bytes = lend(&mut buffers, amount);
            places.insert(bytes.as_ptr());
            held.push_back(bytes);
            if held.len() > 3 {
                held.pop_front();
            }
        }
        assert!(places.len() <= 4, "{} places for three that are held", places.len());
    }

    #[test]
    fn what_is_kept_for_ever_stays_as_it_is_and_is_not_remembered() {
        let mut buffers = Buffers::default();
        let kept: Vec<Bytes> = (1..100).map(|amount| lend(&mut buffers, amount)).collect();
        assert!(buffers.lent.len() <= LENT_MAX, "{} are waited for", buffers.lent.len());
        let places: BTreeSet<_> = kept.iter().map(|bytes| bytes.as_ptr()).collect();
        assert_eq!(places.len(), kept.len(), "two have the same memory");
        assert!(kept.iter().zip(1..).all(|(bytes, amount)| bytes.len() == amount));
    }
}
