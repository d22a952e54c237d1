//! Writes signed heads of the audit record into a directory, again and again: `head-<number>.json`.
//!
//! The directory should be where those who can write to the ledger cannot: another machine, or storage that
//! only takes new files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use super::head::{HeadError, SignedHead, SigningKey};
use super::{AuditError, read_head};
use crate::chain::Chain;
use crate::enroll::files;
use crate::ledger::Ledger;
use crate::observe::figures::Figures;

/// Newest heads that are kept in a directory.
pub const HEADS: usize = 1000;
/// How long the ledger and the directory are waited for.
const PATIENCE: Duration = Duration::from_secs(30);
const PREFIX: &str = "head-";
const SUFFIX: &str = ".json";

/// Where heads are written, by which key, and how often.
pub struct Heads {
    /// The key that signs.
    pub key: SigningKey,
    /// The directory; it is made.
    pub directory: PathBuf,
    /// How long is waited before the next one.
    pub every: Duration,
}

/// Why no head is written.
#[derive(Debug, Error)]
pub enum HeadsError {
    /// The audit record cannot be read.
    #[error("the audit record cannot be read")]
    Audit(#[from] AuditError),
    /// The directory cannot be used.
    #[error("the directory of signed heads cannot be used")]
    Directory(#[source] io::Error),
    /// A head there is not one.
    #[error("a signed head cannot be read")]
    Head(#[from] HeadError),
    /// The record is shorter than it was, or another one.
    #[error(
        "the audit record does not go on from entry {written}, of which there is a signed head: entries are gone or were \
         written anew, or the ledger was restored from a copy; see `guest-fleet audit verify`"
    )]
    Gone {
        /// Number of the newest head.
        written: u64,
    },
    /// It took too long.
    #[error("it took longer than {PATIENCE:?}")]
    TooSlow,
}

// === impl Heads ===

impl Heads {
    /// Writes heads until `ending`, and a last one then.
    pub async fn run(
        self,
        ledger: Arc<dyn Ledger>,
        figures: Arc<Figures>,
        ending: CancellationToken,
    ) {
        let heads = Arc::new(self);
        let mut is_last = false;
        loop {
            let writing = tokio::time::timeout(PATIENCE, heads.clone().write(&*ledger)).await;
            if let Err(error) = writing.unwrap_or(Err(HeadsError::TooSlow)) {
                figures.audit_head_failed();
                tracing::error!(error = %Chain(&error), "no head of the audit record was signed");
            }
            if is_last {
                return;
            }
            is_last = ending.run_until_cancelled(tokio::time::sleep(heads.every)).await.is_none();
        }
    }

    /// Writes a head if the audit record went on since the newest one. Answers its number where it did.
    ///
    /// # Errors
    /// See [`HeadsError`].
    pub async fn write(self: Arc<Self>, ledger: &dyn Ledger) -> Result<Option<u64>, HeadsError> {
        let newest = {
            let heads = self.clone();
            blocking(move || newest(&heads.directory)).await?
        };
        let head = read_head(ledger).await?;
        if let Some(known) = newest.as_ref().and_then(SignedHead::known) {
            let goes_on = match known.number.cmp(&head.number) {
                std::cmp::Ordering::Greater => false,
                std::cmp::Ordering::Equal => known.digest == head.digest,
                std::cmp::Ordering::Less => super::has(ledger, &known).await?,
            };
            if !goes_on {
                return Err(HeadsError::Gone { written: known.number });
            }
            if known.number == head.number {
                return Ok(None);
            }
        }
        let signed = self.key.sign(head.number, &head.digest, Timestamp::now());
        blocking(move || self.store(&signed)).await?;
        Ok(Some(head.number))
    }

    fn store(&self, head: &SignedHead) -> Result<(), HeadsError> {
        let text = serde_json::to_string_pretty(head).expect("plain values") + "\n";
        let write = || {
            files::replace(&self.directory, &name(head.number), text.as_bytes())?;
            let numbers = numbers(&self.directory)?;
            for number in numbers.iter().rev().skip(HEADS) {
                fs::remove_file(self.directory.join(name(*number)))?;
            }
            Ok(())
        };
        write().map_err(HeadsError::Directory)
    }
}

fn name(number: u64) -> String {
    format!("{PREFIX}{number:020}{SUFFIX}")
}

/// The numbers of the heads in a directory, in order.
fn numbers(directory: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX));
        numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn newest(directory: &Path) -> Result<Option<SignedHead>, HeadsError> {
    files::make(directory).map_err(HeadsError::Directory)?;
    let numbers = numbers(directory).map_err(HeadsError::Directory)?;
    let Some(number) = numbers.last() else { return Ok(None) };
    Ok(Some(SignedHead::read(&directory.join(name(*number)))?))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, HeadsError> + Send + 'static,
) -> Result<T, HeadsError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| HeadsError::Directory(io::Error::other(error)))?
}
