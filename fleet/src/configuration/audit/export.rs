//! The audit record as lines, and the check of such lines without the ledger.
//!
//! A line is an entry with what it is made of, `record`: the bytes that the chain of digests is over. What the
//! line says in words is compared with these bytes, so that nobody can change the words alone.

use std::io::BufRead;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::{AuditError, Known, Verdict, read_head};
use crate::hex::hex;
use crate::ledger::{Bucket, Ledger};
use crate::records;
use crate::records::audit::{self, AuditRecord, KEPT};

/// Longest line that is read, in bytes.
pub const LINE_BYTES: u64 = 32 << 20;
/// Most problems that are said of one export.
const PROBLEMS: usize = 100;

/// A line of an export, without its words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Number of the entry.
    pub number: u64,
    /// The entry as the ledger has it, in Base64.
    pub record: String,
}

/// The entries that are there, the oldest first, with their bytes. Entries that come meanwhile are left out.
///
/// # Errors
/// See [`AuditError`]; or what `take` says.
pub async fn export<E: From<AuditError>>(
    ledger: &dyn Ledger,
    mut take: impl FnMut(&AuditRecord, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let head = read_head(ledger).await?;
    let first = head.number.saturating_sub(KEPT).saturating_add(1);
    for number in first..=head.number {
        let key = audit::key(number);
        let found = ledger.get(Bucket::Configuration, &key).await.map_err(AuditError::from)?;
        // The oldest may go meanwhile; another one that is missing is found by who checks the lines.
        let Some(found) = found else { continue };
        let record = records::decode(&key, &found.value).map_err(AuditError::from)?;
        take(&record, &found.value)?;
    }
    Ok(())
}

/// Checks lines of an export: their numbers, their chain, and heads that were written down. `words` makes the
/// words of a line of an entry; all other members of the line have to be these.
///
/// # Errors
/// The lines cannot be read.
pub fn verify(
    lines: &mut dyn BufRead,
    known: &[Known],
    words: impl Fn(&AuditRecord, &[u8]) -> serde_json::Value,
) -> std::io::Result<Verdict> {
    let mut verdict = Verdict::default();
    let mut seen = vec![false; known.len()];
    let mut oldest = None;
    for at in 1_u64.. {
        let mut line = Vec::new();
        let read = std::io::Read::take(&mut *lines, LINE_BYTES + 1).read_until(b'\n', &mut line)?;
        if read == 0 || verdict.problems.len() >= PROBLEMS {
            break;
        }
        if u64::try_from(read).unwrap_or(u64::MAX) > LINE_BYTES {
            verdict.problems.push(format!("line {at} is longer than {LINE_BYTES} bytes"));
            break;
        }
        let Some((record, bytes, line)) = entry(&line) else {
            verdict.problems.push(format!("line {at} is not an entry of an audit record"));
            continue;
        };
        let number = record.number;
        if line != words(&record, &bytes) {
            verdict.problems.push(format!("line {at} does not say what the entry {number} says"));
        }
        let digest = audit::digest(&bytes);
        let is_next = match oldest {
            None => number == 1 && record.previous.is_empty() || number > 1,
            Some(_) => {
                number == verdict.newest.saturating_add(1) && record.previous == verdict.digest
            }
        };
        if !is_next {
            let before = verdict.newest;
            verdict.problems.push(format!("entry {number} does not follow entry {before}"));
        }
        for (known, seen) in known.iter().zip(&mut seen).filter(|(known, _)| known.number == number)
        {
            *seen = true;
            if known.digest != digest {
                let problem = format!("entry {number} is not the one that was written down");
                verdict.problems.push(problem);
            }
        }
        oldest.get_or_insert(number);
        (verdict.newest, verdict.digest) = (number, digest);
        verdict.checked += 1;
    }
    for (known, _) in known.iter().zip(seen).filter(|(known, seen)| !seen && known.number > 0) {
        if known.number > verdict.newest {
            verdict.problems.push(super::truncated(known.number, verdict.newest));
        } else if oldest.is_none_or(|oldest| known.number < oldest) {
            verdict.older.push(known.number);
        }
    }
    Ok(verdict)
}

/// The bytes of an entry for a line.
#[must_use]
pub fn line(number: u64, bytes: &[u8]) -> Line {
    Line { number, record: STANDARD.encode(bytes) }
}

/// The digest of an entry as lines have it.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    hex(&audit::digest(bytes))
}

fn entry(line: &[u8]) -> Option<(AuditRecord, Vec<u8>, serde_json::Value)> {
    let value: serde_json::Value = serde_json::from_slice(line).ok()?;
    let parts = Line::deserialize(&value).ok()?;
    let bytes = STANDARD.decode(parts.record).ok()?;
    let record: AuditRecord = records::decode(&audit::key(parts.number), &bytes).ok()?;
    (record.number == parts.number).then_some((record, bytes, value))
}
