//! Reads the audit record, and checks its chain.
//!
//! Who can write to the ledger can write a whole new chain. Against that there are heads that were written
//! down elsewhere, signed or not: see [`mod@head`] and [`heads`].

pub mod export;
pub mod head;
pub mod heads;

use thiserror::Error;

use crate::ledger::{Bucket, Ledger, ReadError};
use crate::records::audit::{self, AUDIT, AUDIT_HEAD, AuditHead, AuditRecord, KEPT};
use crate::records::{self, RecordError};

/// Why the audit record cannot be read.
#[derive(Debug, Error)]
pub enum AuditError {
    /// The ledger cannot be read.
    #[error("the ledger cannot be read")]
    Read(#[from] ReadError),
    /// An entry or the head is damaged.
    #[error("the audit record is damaged")]
    Record(#[from] RecordError),
}

/// What a check of the chain found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Number of the newest entry; 0 where there is no entry.
    pub newest: u64,
    /// Digest of the newest entry.
    pub digest: Vec<u8>,
    /// How many entries were checked.
    pub checked: u64,
    /// What is wrong: a sentence each.
    pub problems: Vec<String>,
    /// Numbers of heads that were written down and are older than every entry that is kept, so that nothing
    /// can be compared with them.
    pub older: Vec<u64>,
}

/// A head that somebody wrote down, to be compared with what is there now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Number of the entry.
    pub number: u64,
    /// Its digest.
    pub digest: Vec<u8>,
}

/// The newest entries, the newest first.
///
/// # Errors
/// See [`AuditError`].
pub async fn newest(ledger: &dyn Ledger, limit: u64) -> Result<Vec<AuditRecord>, AuditError> {
    page(ledger, None, limit).await
}

/// The newest entries before a number, the newest first.
///
/// # Errors
/// See [`AuditError`].
pub async fn page(
    ledger: &dyn Ledger,
    before: Option<u64>,
    limit: u64,
) -> Result<Vec<AuditRecord>, AuditError> {
    let head = read_head(ledger).await?;
    let newest = before.map_or(head.number, |before| head.number.min(before.saturating_sub(1)));
    let mut entries = Vec::new();
    let limit = limit.min(KEPT);
    for number in (1..=newest).rev().take(usize::try_from(limit).unwrap_or(usize::MAX)) {
        let key = audit::key(number);
        // Older ones went.
        let Some(found) = ledger.get(Bucket::Configuration, &key).await? else { break };
        entries.push(records::decode(&key, &found.value)?);
    }
    Ok(entries)
}

/// How many of the newest entries are looked through for an id.
pub const REMEMBERED: u64 = 1000;

/// How many entries are asked for at a time.
const AT_A_TIME: usize = 32;

/// The newest entry whose id begins so, among the newest [`REMEMBERED`]. An entry that cannot be read is passed over.
///
/// # Errors
/// The ledger cannot be read.
pub async fn of_id(ledger: &dyn Ledger, id: &str) -> Result<Option<AuditRecord>, ReadError> {
    let found = ledger.get(Bucket::Configuration, AUDIT_HEAD).await?;
    let head = found.and_then(|it| records::decode::<AuditHead>(AUDIT_HEAD, &it.value).ok());
    let newest = head.map_or(0, |head| head.number);
    let numbers: Vec<u64> = (newest.saturating_sub(REMEMBERED) + 1..=newest).rev().collect();
    for some in numbers.chunks(AT_A_TIME) {
        let keys: Vec<String> = some.iter().map(|number| audit::key(*number)).collect();
        let asked = keys.iter().map(|key| ledger.get(Bucket::Configuration, key));
        let found = futures_util::future::try_join_all(asked).await?;
        for (key, found) in keys.iter().zip(found) {
            let entry = found.and_then(|it| records::decode::<AuditRecord>(key, &it.value).ok());
            if let Some(entry) = entry.filter(|entry| entry.id.starts_with(id)) {
                return Ok(Some(entry));
            }
        }
    }
    Ok(None)
}

/// Checks all entries that are there: their numbers, their chain, the head, and heads that were written down
/// before.
///
/// # Errors
/// See [`AuditError`].
pub async fn verify(ledger: &dyn Ledger, known: &[Known]) -> Result<Verdict, AuditError> {
    // The head first: entries that come meanwhile are beyond it.
    let head = read_head(ledger).await?;
    let mut verdict =
        Verdict { newest: head.number, digest: head.digest.clone(), ..Verdict::default() };
    let mut next = None;
    let mut number = head.number;
    let mut expected = head.digest;
    while number > 0 && verdict.checked < KEPT {
        let key = audit::key(number);
        let Some(found) = ledger.get(Bucket::Configuration, &key).await? else { break };
        let digest = audit::digest(&found.value);
        if digest != expected {
            let before = next.map_or("the head".to_owned(), |next| format!("entry {next}"));
            verdict.problems.push(format!("entry {number} is not the one that {before} follows"));
        }
        if known.iter().any(|known| known.number == number && known.digest != digest) {
            verdict.problems.push(format!("entry {number} is not the one that was written down"));
        }
        let entry: AuditRecord = records::decode(&key, &found.value)?;
        if entry.number != number {
            verdict.problems.push(format!("entry {number} says that it is {}", entry.number));
        }
        verdict.checked += 1;
        expected = entry.previous;
        next = Some(number);
        number -= 1;
    }
    if verdict.checked < head.number.min(KEPT) {
        verdict.problems.push(format!("entry {number} is missing"));
    }
    if number == 0 && !expected.is_empty() {
        verdict.problems.push("the first entry follows another one".to_owned());
    }
    for known in known {
        if known.number > head.number {
            verdict.problems.push(truncated(known.number, head.number));
        } else if (1..=number).contains(&known.number) {
            verdict.older.push(known.number);
        }
    }
    Ok(verdict)
}

/// Whether the entry of a head that was written down is there, or is too old to be there.
async fn has(ledger: &dyn Ledger, known: &Known) -> Result<bool, AuditError> {
    let key = audit::key(known.number);
    let found = ledger.get(Bucket::Configuration, &key).await?;
    Ok(found.is_none_or(|found| audit::digest(&found.value) == known.digest))
}

fn truncated(known: u64, newest: u64) -> String {
    format!(
        "entry {known} was written down, and the newest is {newest}: entries at the end are gone"
    )
}

/// The newest entry.
///
/// # Errors
/// See [`AuditError`].
pub async fn read_head(ledger: &dyn Ledger) -> Result<AuditHead, AuditError> {
    match ledger.get(Bucket::Configuration, AUDIT_HEAD).await? {
        Some(found) => Ok(records::decode(AUDIT_HEAD, &found.value)?),
        None => {
            // Without a head there must be no entry.
            let page = ledger.scan(Bucket::Configuration, AUDIT, None, 1).await?;
            match page.records.first() {
                None => Ok(AuditHead::default()),
                Some(entry) => Err(AuditError::Record(RecordError::Damaged {
                    key: AUDIT_HEAD.to_owned(),
                    problem: format!("it is missing, and there is `{}`", entry.key),
                })),
            }
        }
    }
}
