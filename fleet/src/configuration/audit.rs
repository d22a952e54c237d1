//! Reads the audit record, and checks its chain.

use guest_fleet_ledger::records::audit::{self, AUDIT, AUDIT_HEAD, AuditHead, AuditRecord, KEPT};
use guest_fleet_ledger::records::{self, RecordError};
use guest_fleet_ledger::{Bucket, Ledger, ReadError};
use thiserror::Error;

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
    let head = head(ledger).await?;
    let mut entries = Vec::new();
    let limit = limit.min(KEPT);
    for number in (1..=head.number).rev().take(usize::try_from(limit).unwrap_or(usize::MAX)) {
        let key = audit::key(number);
        // Older ones went.
        let Some(found) = ledger.get(Bucket::Configuration, &key).await? else { break };
        entries.push(records::decode(&key, &found.value)?);
    }
    Ok(entries)
}

/// Checks all entries that are there: their numbers, their chain, the head, and a head that was
/// written down before.
///
/// # Errors
/// See [`AuditError`].
pub async fn verify(ledger: &dyn Ledger, known: Option<&Known>) -> Result<Verdict, AuditError> {
    // The head first: entries that come meanwhile are beyond it.
    let head = head(ledger).await?;
    let mut verdict =
        Verdict { newest: head.number, digest: head.digest.clone(), ..Verdict::default() };
    let mut next = None;
    let mut number = head.number;
    let mut expected = head.digest;
    let is_known = |number: u64| known.filter(|known| known.number == number);
    while number > 0 && verdict.checked < KEPT {
        let key = audit::key(number);
        let Some(found) = ledger.get(Bucket::Configuration, &key).await? else { break };
        let digest = audit::digest(&found.value);
        if digest != expected {
            let before = next.map_or("the head".to_owned(), |next| format!("entry {next}"));
            verdict.problems.push(format!("entry {number} is not the one that {before} follows"));
        }
        if let Some(known) = is_known(number)
            && known.digest != digest
        {
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
    if let Some(known) = known
        && known.number > head.number
    {
        verdict.problems.push(format!(
            "entry {} was written down, and the newest is {}: entries at the end are gone",
            known.number, head.number
        ));
    }
    Ok(verdict)
}

/// The head of the record.
pub(crate) async fn head(ledger: &dyn Ledger) -> Result<AuditHead, AuditError> {
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
