//! Changing one record by compare-and-swap, again and again until nobody else wrote meanwhile.

use std::time::Duration;

use bytes::Bytes;
use guest_fleet_ledger::records::{self, RecordError, Versioned};
use guest_fleet_ledger::{Bucket, Ledger, ReadError, Revision, Write, WriteError};
use thiserror::Error;
use tokio::time::Instant;

/// How long a change is tried.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest pause before the first repetition, in milliseconds; it doubles with each.
const PAUSE_MILLIS: u64 = 4;
/// How often the pause doubles.
const DOUBLINGS: u32 = 6;

/// What becomes of the record that was read.
pub enum Step<R, T> {
    /// It becomes this one.
    Write(R, T),
    /// It stays as it is.
    Leave(T),
}

/// Why the ledger did not take a change.
#[derive(Debug, Error)]
pub enum ChangeError {
    /// It cannot be read.
    #[error("the record `{key}` cannot be read")]
    Read {
        /// Key of the record.
        key: String,
        /// The error of the ledger.
        #[source]
        source: ReadError,
    },
    /// What is there cannot be used.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The ledger refused.
    #[error("the record `{key}` cannot be written")]
    Write {
        /// Key of the record.
        key: String,
        /// The error of the ledger.
        #[source]
        source: WriteError,
    },
    /// Others wrote all the time.
    #[error("the record `{key}` could not be changed within {PATIENCE:?}: others change it, too")]
    Contended {
        /// Key of the record.
        key: String,
    },
}

/// A pause of at most so many milliseconds, so that those who change one record do not meet again.
#[cfg(not(test))]
fn drawn(longest: u64) -> u64 {
    use rand::Rng;

    rand::rng().random_range(0..=longest)
}

/// The same in tests, where a run of the simulation follows from its seed alone: its ledger takes
/// different times for those who meet.
#[cfg(test)]
fn drawn(longest: u64) -> u64 {
    longest / 2
}

/// Changes a record. `change` is called with what is there and may be called several times; after an
/// ambiguous write it may see its own change and has to recognise it.
///
/// # Errors
/// `change` refused, or the ledger did not take the record ([`ChangeError`]).
pub async fn change<R, T, E>(
    ledger: &dyn Ledger,
    bucket: Bucket,
    key: &str,
    mut change: impl FnMut(Option<R>) -> Result<Step<R, T>, E> + Send,
) -> Result<T, E>
where
    R: Versioned + Send,
    T: Send,
    E: From<ChangeError> + Send,
{
    let deadline = Instant::now() + PATIENCE;
    for tried in 0.. {
        let read = ledger.get(bucket, key).await;
        let found = read.map_err(|source| ChangeError::Read { key: key.to_owned(), source })?;
        let expected = found.as_ref().map_or(Revision::ABSENT, |record| record.revision);
        let record = found.map(|record| records::decode(key, &record.value)).transpose();
        let (record, answer) = match change(record.map_err(ChangeError::from)?)? {
            Step::Leave(answer) => return Ok(answer),
            Step::Write(record, answer) => (record, answer),
        };
        let value = Some(Bytes::from(record.encode_to_vec()));
        match ledger.write(bucket, vec![Write { key: key.to_owned(), expected, value }]).await {
            Ok(_) => {
                ledger.wake(bucket);
                return Ok(answer);
            }
            Err(WriteError::Conflict { .. } | WriteError::Ambiguous(_)) => {}
            Err(source) => {
                return Err(ChangeError::Write { key: key.to_owned(), source }.into());
            }
        }
        let longest = PAUSE_MILLIS << u32::min(tried, DOUBLINGS);
        let pause = Duration::from_millis(drawn(longest));
        if Instant::now() + pause > deadline {
            break;
        }
        tokio::time::sleep(pause).await;
    }
    Err(ChangeError::Contended { key: key.to_owned() }.into())
}

/// Removes a record, whatever it holds; it may be gone already.
pub(super) async fn remove(
    ledger: &dyn Ledger,
    bucket: Bucket,
    key: &str,
) -> Result<(), ChangeError> {
    let read = ledger.get(bucket, key).await;
    let found = read.map_err(|source| ChangeError::Read { key: key.to_owned(), source })?;
    let Some(found) = found else { return Ok(()) };
    let write = Write { key: key.to_owned(), expected: found.revision, value: None };
    let written = ledger.write(bucket, vec![write]).await;
    written.map(drop).map_err(|source| ChangeError::Write { key: key.to_owned(), source })
}
