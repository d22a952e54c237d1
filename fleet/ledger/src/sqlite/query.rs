//! The reads as SQL. Each takes a connection and answers with one page at most.

use bytes::Bytes;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params};
use thiserror::Error;

use super::reader::Failed;
use super::schema::{number_of_bucket, number_of_log};
use crate::{Bucket, Change, Changes, Entry, Log, Page, ReadError, Record, Revision, bounds};

/// The bucket does not reach a revision.
#[derive(Debug, Error)]
#[error("the newest revision is {newest}, and {asked} was asked for")]
struct NotReached {
    newest: u64,
    asked: u64,
}

pub(super) fn get(
    connection: &Connection,
    bucket: Bucket,
    key: &str,
) -> Result<Option<Record>, Failed> {
    let found = connection
        .prepare_cached(
            "SELECT key, revision, value FROM records
             WHERE bucket = ?1 AND key = ?2 AND value IS NOT NULL",
        )?
        .query_row(params![number_of_bucket(bucket), key], record)
        .optional()?;
    Ok(found)
}

/// Records with a prefix in the order of their keys, which begin after the cursor.
pub(super) fn scan(
    connection: &Connection,
    bucket: Bucket,
    prefix: &str,
    next: Option<&str>,
    limit: usize,
) -> Result<Page, Failed> {
    let mut statement = connection.prepare_cached(
        "SELECT key, revision, value FROM records
         WHERE bucket = ?1 AND key >= ?2 AND key < ?3 AND value IS NOT NULL
         ORDER BY key",
    )?;
    // The least text above the last one of the page before.
    let begin = next.map_or_else(String::new, |next| format!("{next}\0"));
    let begin = begin.as_str().max(prefix);
    let mut rows = statement.query(params![number_of_bucket(bucket), begin, end_of(prefix)])?;
    let mut page = Page::default();
    let mut bytes = 0;
    while let Some(row) = rows.next()? {
        if page.records.len() == limit || bytes >= bounds::PAGE_BYTES {
            page.next = page.records.last().map(|last| last.key.clone());
            break;
        }
        let record = record(row)?;
        bytes += record.key.len() + record.value.len();
        page.records.push(record);
    }
    Ok(page)
}

/// What changed after a revision. The counters and the records are read in one transaction.
pub(super) fn changes(
    connection: &mut Connection,
    bucket: Bucket,
    after: Revision,
    at_least: Revision,
) -> Result<Changes, Failed> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Deferred)?;
    let bucket = number_of_bucket(bucket);
    let (newest, forgotten) = transaction
        .prepare_cached("SELECT revision, forgotten FROM buckets WHERE bucket = ?1")?
        .query_row([bucket], |row| Ok((number(row, 0)?, number(row, 1)?)))?;
    let asked = after.0.max(at_least.0);
    if newest < asked {
        let source = Box::new(NotReached { newest, asked });
        return Err(Failed::Answer(ReadError::Unavailable(source)));
    }
    let mut statement = transaction.prepare_cached(
        "SELECT key, revision, value FROM records WHERE bucket = ?1 AND revision > ?2
         ORDER BY revision",
    )?;
    let mut rows = statement.query(params![bucket, i64::try_from(after.0).unwrap_or(i64::MAX)])?;
    let mut changes: Vec<Change> = Vec::new();
    let mut bytes = 0;
    let mut more = false;
    // Where the newest revision of the page begins, and the bytes before it.
    let mut begin = 0;
    while let Some(row) = rows.next()? {
        let change = Change {
            key: row.get(0)?,
            revision: Revision(number(row, 1)?),
            value: row.get::<_, Option<Vec<u8>>>(2)?.map(Bytes::from),
        };
        let is_new = changes.last().is_none_or(|last| last.revision != change.revision);
        if is_new && bytes >= bounds::PAGE_BYTES {
            more = true;
            break;
        }
        // A batch is in one page: what would be the first half of one waits for the next.
        if changes.len() == bounds::PAGE {
            if !is_new {
                changes.truncate(begin);
            }
            more = true;
            break;
        }
        if is_new {
            begin = changes.len();
        }
        bytes += change.key.len() + change.value.as_ref().map_or(0, Bytes::len);
        changes.push(change);
    }
    let through = match changes.last() {
        Some(last) if more => last.revision,
        Some(_) | None => Revision(newest),
    };
    Ok(Changes { changes, through, more, forgotten: Revision(forgotten) })
}

pub(super) fn last(
    connection: &Connection,
    log: Log,
    subject: &str,
) -> Result<Option<Entry>, Failed> {
    let found = connection
        .prepare_cached(
            "SELECT subject, position, number, id, value FROM entries
             WHERE log = ?1 AND subject = ?2 ORDER BY number DESC LIMIT 1",
        )?
        .query_row(params![number_of_log(log), subject], entry)
        .optional()?;
    Ok(found)
}

/// Entries after a position.
pub(super) fn read(
    connection: &Connection,
    log: Log,
    prefix: &str,
    after: u64,
    limit: usize,
) -> Result<Vec<Entry>, Failed> {
    let log = number_of_log(log);
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let most = i64::try_from(limit).unwrap_or(i64::MAX);
    // With a prefix the index of subjects finds the positions, without one they are in order.
    let mut statement = connection.prepare_cached(if prefix.is_empty() {
        "SELECT subject, position, number, id, value FROM entries
         WHERE log = ?1 AND position > ?2 ORDER BY position LIMIT ?3"
    } else {
        "SELECT subject, position, number, id, value FROM entries
         WHERE position IN (
             SELECT position FROM entries INDEXED BY entries_by_subject
             WHERE log = ?1 AND subject >= ?4 AND subject < ?5 AND position > ?2
             ORDER BY position LIMIT ?3)
         ORDER BY position"
    })?;
    let mut rows = if prefix.is_empty() {
        statement.query(params![log, after, most])?
    } else {
        statement.query(params![log, after, most, prefix, end_of(prefix)])?
    };
    let mut entries = Vec::new();
    let mut bytes = 0;
    while bytes < bounds::PAGE_BYTES
        && let Some(row) = rows.next()?
    {
        let entry = entry(row)?;
        bytes += entry.subject.len() + entry.id.len() + entry.value.len();
        entries.push(entry);
    }
    Ok(entries)
}

fn record(row: &Row<'_>) -> rusqlite::Result<Record> {
    let value: Vec<u8> = row.get(2)?;
    Ok(Record { key: row.get(0)?, revision: Revision(number(row, 1)?), value: value.into() })
}

pub(super) fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    let value: Vec<u8> = row.get(4)?;
    Ok(Entry {
        subject: row.get(0)?,
        position: number(row, 1)?,
        number: number(row, 2)?,
        id: row.get(3)?,
        value: value.into(),
    })
}

/// A number that is never negative, but in a damaged file.
fn number(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let number: i64 = row.get(column)?;
    u64::try_from(number).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, number))
}

/// The least value above all texts that begin with the prefix.
fn end_of(prefix: &str) -> Value {
    let mut end: Vec<char> = prefix.chars().collect();
    while let Some(last) = end.pop() {
        let next = match last {
            // What follows in Unicode is no character.
            '\u{d7ff}' => Some('\u{e000}'),
            last => char::from_u32(u32::from(last) + 1),
        };
        if let Some(next) = next {
            end.push(next);
            return Value::Text(end.into_iter().collect());
        }
    }
    // SQLite sorts bytes above all texts.
    Value::Blob(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_texts_ends_above_all_that_begin_with_the_prefix() {
        let cases: [(&str, Option<&str>); 7] = [
            ("", None),
            ("a", Some("b")),
            ("agent.", Some("agent/")),
            ("a\u{10ffff}", Some("b")),
            ("\u{10ffff}", None),
            ("\u{d7ff}", Some("\u{e000}")),
            ("\u{7f}", Some("\u{80}")),
        ];
        for (prefix, end) in cases {
            let end = end.map_or(Value::Blob(Vec::new()), |end| Value::Text(end.to_owned()));
            assert_eq!(end_of(prefix), end, "{prefix:?}");
        }
    }
}
