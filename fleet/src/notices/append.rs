//! Appends notices to the log.

use std::time::Duration;

use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::records::event::EventRecord;
use guest_fleet_ledger::{Ledger, Log, ReadError, WriteError};
use prost::Message;
use prost_types::Timestamp;
use thiserror::Error;

use super::Notice;
use crate::chain::Chain;
use crate::simulated::chance;

/// How often an append is tried that another one was in the way of.
const TRIES: u32 = 5;
/// Longest pause before it is tried again.
const PAUSE: Duration = Duration::from_millis(50);

/// Why a notice was not appended.
#[derive(Debug, Error)]
pub(super) enum AppendError {
    #[error("the last notice was not read")]
    Read(#[from] ReadError),
    #[error("the ledger did not take the notice")]
    Write(#[from] WriteError),
    #[error("others appended to its subject meanwhile, {TRIES} times")]
    Contended,
    #[error("the lease of this process may be over")]
    Lost,
}

/// Appends a notice, unless it is the last entry of its subject. `is_held` says whether this process may still append.
pub(super) async fn append(
    ledger: &dyn Ledger,
    notice: &Notice,
    now: Seconds,
    is_held: impl Fn() -> bool,
) -> Result<(), AppendError> {
    let received = Timestamp { seconds: i64::try_from(now.0).unwrap_or(i64::MAX), nanos: 0 };
    let record = EventRecord::of_notice(Some(received), notice.part.clone());
    let value = bytes::Bytes::from(record.encode_to_vec());
    for _ in 0..TRIES {
        let last = ledger.last(Log::Events, &notice.subject).await?;
        if last.as_ref().is_some_and(|last| last.id == notice.id) {
            return Ok(());
        }
        // An entry that another process appended since is behind `last`, and the append conflicts.
        if !is_held() {
            return Err(AppendError::Lost);
        }
        let number = last.map_or(0, |last| last.number);
        let (subject, id) = (notice.subject.as_str(), notice.id.as_str());
        match ledger.append(Log::Events, subject, number, id, value.clone()).await {
            Ok(_) => return Ok(()),
            // The last entry may have been a stale one.
            Err(WriteError::Conflict { .. }) => tokio::time::sleep(chance::jittered(PAUSE)).await,
            // It never fits, and the notices behind it shall not wait for it.
            Err(error @ WriteError::TooLarge { .. }) => {
                tracing::error!(subject, id, error = %Chain(&error), "a notice is left out");
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(AppendError::Contended)
}
