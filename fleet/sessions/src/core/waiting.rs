//! The messages that wait for the ledger, of all agents: as many as fit, and no more.
//!
//! A session sends one at a time, so no agent fills it. When the ledger is slower than what comes,
//! messages are refused and come again later; without a bound they would fill the memory.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of one permit: a semaphore has fewer permits than a queue may have bytes.
const UNIT: usize = 1 << 10;

/// The room for messages.
#[derive(Debug)]
pub(super) struct Waiting {
    messages: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    units: usize,
}

/// The room that one message takes until it is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    _message: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

// === impl Waiting ===

impl Waiting {
    /// Room for so many messages with so many bytes in all.
    pub(super) fn new(messages: usize, bytes: usize) -> Self {
        let units = (bytes / UNIT).clamp(1, Semaphore::MAX_PERMITS);
        Self {
            messages: Arc::new(Semaphore::new(messages.clamp(1, Semaphore::MAX_PERMITS))),
            bytes: Arc::new(Semaphore::new(units)),
            units,
        }
    }

    /// Room for a message of so many bytes, if there is some now. One that is larger than all of it
    /// waits alone.
    pub(super) fn take(&self, bytes: usize) -> Option<Room> {
        let units = bytes.div_ceil(UNIT).clamp(1, self.units);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let message = self.messages.clone().try_acquire_owned().ok()?;
        let bytes = self.bytes.clone().try_acquire_many_owned(units).ok()?;
        Some(Room { _message: message, _bytes: bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_bytes_are_bounded_and_what_left_makes_room() {
        let waiting = Waiting::new(2, 10 << 10);
        let first = waiting.take(1).expect("room");
        let second = waiting.take(9 << 10).expect("room");
        assert!(waiting.take(1).is_none(), "there are two");
        drop(first);
        assert!(waiting.take(2 << 10).is_none(), "there is one with nine of ten");
        let third = waiting.take(1 << 10).expect("room");
        drop((second, third));
        assert!(waiting.take(1 << 30).is_some(), "a large one waits alone");
    }
}
