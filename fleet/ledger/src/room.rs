//! Room for operations that are on their way to an engine, by their bytes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// All of the room, in bytes, and what the smallest operation takes of it; so at most 4,096 operations are
/// on their way.
const BYTES: usize = 64 << 20;
pub(super) const LEAST: usize = BYTES / 4096;
/// Bytes of one permit.
pub(super) const UNIT: usize = 1024;
/// All permits.
pub(super) const ALL: usize = BYTES / UNIT;

/// How long an operation waits for room.
pub(super) const TURN: Duration = Duration::from_secs(5);

/// Why an operation gets no room.
pub(super) enum NoRoom {
    /// It waited for [`TURN`].
    Busy,
    /// The ledger was closed.
    Closed(AcquireError),
}

/// The room of one engine.
pub(super) fn room() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(ALL))
}

/// Waits for room for an operation of so many bytes.
pub(super) async fn take(
    room: &Arc<Semaphore>,
    bytes: usize,
) -> Result<OwnedSemaphorePermit, NoRoom> {
    let units = u32::try_from(bytes.max(LEAST).div_ceil(UNIT)).unwrap_or(u32::MAX);
    match timeout(TURN, Arc::clone(room).acquire_many_owned(units)).await {
        Ok(Ok(permit)) => Ok(permit),
        Ok(Err(closed)) => Err(NoRoom::Closed(closed)),
        Err(_) => Err(NoRoom::Busy),
    }
}
