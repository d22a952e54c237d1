//! Pages of records, changes and entries.
//!
//! Pages come from the replica that the connection's server has, so they may be behind, and each
//! is of one moment. What a page shows of `changes` says how far that replica has come, because
//! the newest message of a bucket is always there; a page that is not as far as was asked for is
//! asked for again.

use std::time::Duration;

use guest_agent_serve_kit::lock::lock;
use thiserror::Error;

use super::api::{Patience, RawPage, Stored};
use super::engine::{Engine, unavailable};
use super::envelope::{Content, EntryContent};
use super::forget;
use super::names;
use crate::{Bucket, Change, Changes, Entry, Log, Page, ReadError, Record, Revision, bounds};

/// How long a replica has to come as far as was asked for.
const REACH: Duration = Duration::from_secs(10);

/// Pages without any record of the prefix that one call looks at.
const ROUNDS: usize = 16;

/// Messages of one request where the beginning of a batch is looked for.
const ACROSS: usize = 128;

/// Room for what messages have beside values, so that a whole batch is in one page.
const BESIDE: usize = 4 << 20;

/// The bucket does not reach a revision.
#[derive(Debug, Error)]
#[error("the newest revision is {newest}, and {asked} was asked for")]
struct NotReached {
    newest: u64,
    asked: u64,
}

/// A text that no page gave out as the beginning of the next one.
#[derive(Debug, Error)]
#[error("`{0}` is not where a page ended: begin the scan again")]
struct NoCursor(String);

pub(super) async fn get(
    engine: &Engine,
    bucket: Bucket,
    key: &str,
) -> Result<Option<Record>, ReadError> {
    if !is_name(key) {
        return Ok(None);
    }
    let stream = &engine.records(bucket).stream;
    match engine.last(stream, key).await? {
        Some((_, Content::Value { key, value }, revision)) => {
            Ok(Some(Record { key, revision: Revision(revision), value }))
        }
        Some((_, Content::Tombstone { .. }, _)) | None => Ok(None),
        Some((stored, _, _)) => Err(stored.damaged("it is no record")),
    }
}

/// Records in the order of their last writes, so that one that changes meanwhile is seen again
/// rather than missed. The cursor is a sequence.
pub(super) async fn scan(
    engine: &Engine,
    bucket: Bucket,
    prefix: &str,
    next: Option<&str>,
    limit: usize,
) -> Result<Page, ReadError> {
    let mut page = Page::default();
    if prefix.len() > bounds::KEY_BYTES {
        return Ok(page);
    }
    let mut from = match next {
        Some(next) => next.parse().map_err(|_| {
            ReadError::Unavailable(Box::new(NoCursor(next.chars().take(40).collect())))
        })?,
        None => 1,
    };
    let stream = &engine.records(bucket).stream;
    engine.refresh(stream).await?;
    let filter = names::filter_of(&stream.base, prefix);
    let mut bytes = 0;
    for _ in 0..ROUNDS {
        let (count, room) = (limit - page.records.len(), bounds::PAGE_BYTES - bytes);
        let raw = engine.api.page(&stream.name, Some(&filter), from, count, room).await;
        let raw = raw.map_err(unavailable)?;
        for stored in &raw.messages {
            from = stored.seq + 1;
            let (content, place) = stored.content()?;
            match content {
                Content::Value { key, value } if key.starts_with(prefix) => {
                    bytes += key.len() + value.len();
                    let revision = Revision(place.revision(stored.seq));
                    page.records.push(Record { key, revision, value });
                }
                Content::Value { .. } | Content::Tombstone { .. } => {}
                _ => return Err(stored.damaged("it is no record")),
            }
        }
        if !raw.more || raw.messages.is_empty() {
            return Ok(page);
        }
        if page.records.len() >= limit || bytes >= bounds::PAGE_BYTES {
            break;
        }
    }
    page.next = Some(from.to_string());
    Ok(page)
}

pub(super) async fn changes(
    engine: &Engine,
    bucket: Bucket,
    after: Revision,
    at_least: Revision,
) -> Result<Changes, ReadError> {
    let stream = &engine.records(bucket).stream;
    // What this process has written itself is not news to it.
    let asked = after.0.max(at_least.0).max(stream.floor());
    let mut patience = Patience::new(REACH);
    loop {
        // The message at `after`, or one after it, shows that the replica knows of it.
        let raw = engine
            .api
            .page(&stream.name, None, after.0, bounds::PAGE + 2, bounds::PAGE_BYTES + BESIDE)
            .await
            .map_err(unavailable)?;
        let is_known = after == Revision::ABSENT || !raw.messages.is_empty();
        let mut raw = raw;
        if !engine.records(bucket).is_given(after.0) {
            raw.messages.splice(..0, across(engine, bucket, after).await?);
        }
        let mut page = page_of(raw, after)?;
        if is_known && (page.more && page.through > after || page.through.0 >= asked) {
            stream.saw(page.through.0);
            engine.records(bucket).gave(page.through.0);
            // Read after the page, so that it says of every deletion that the page lacks.
            page.forgotten = forget::forgotten(engine, bucket).await?;
            return Ok(page);
        }
        let newest = engine.api.last_sequence(&stream.name).await.map_err(unavailable)?;
        if newest < asked || !patience.wait().await {
            let newest = newest.min(page.through.0);
            return Err(ReadError::Unavailable(Box::new(NotReached { newest, asked })));
        }
    }
}

/// The beginning of a batch that reaches over a number: one that this process was not given may be
/// in the middle of it. It was written to another bucket, or is a cursor that was stored.
async fn across(
    engine: &Engine,
    bucket: Bucket,
    after: Revision,
) -> Result<Vec<Stored>, ReadError> {
    let stream = &engine.records(bucket).stream;
    let mut found = Vec::new();
    let mut from = after.0.saturating_sub(bounds::BATCH as u64 - 2);
    while from < after.0 {
        let raw = engine.api.page(&stream.name, None, from, ACROSS, bounds::PAGE_BYTES).await;
        let raw = raw.map_err(unavailable)?;
        let Some(last) = raw.messages.last() else { break };
        from = last.seq + 1;
        for stored in raw.messages {
            if stored.seq < after.0 && stored.content()?.1.revision(stored.seq) > after.0 {
                found.push(stored);
            }
        }
    }
    Ok(found)
}

/// The whole batches of a page, at most as many as a page has.
fn page_of(raw: RawPage, after: Revision) -> Result<Changes, ReadError> {
    let mut page = Changes { through: after, more: raw.more, ..Changes::default() };
    // Where the batch that is not whole yet begins, and its revision.
    let mut begin = 0;
    let mut open: Option<u64> = None;
    for stored in raw.messages {
        let (content, place) = stored.content()?;
        let revision = place.revision(stored.seq);
        if revision <= after.0 {
            continue;
        }
        if open.is_some_and(|open| open != revision) {
            // The rest of that batch was replaced since.
            page.through = Revision(open.unwrap_or_default());
            begin = page.changes.len();
        }
        open = Some(revision);
        let (key, value) = match content {
            Content::Value { key, value } => (Some(key), Some(value)),
            Content::Tombstone { key, .. } => (Some(key), None),
            Content::Marker | Content::Forgotten(_) | Content::Grave(_) => (None, None),
            Content::Entry(_) => return Err(stored.damaged("it is no record")),
        };
        if let Some(key) = key {
            if page.changes.len() == bounds::PAGE {
                page.more = true;
                break;
            }
            page.changes.push(Change { key, revision: Revision(revision), value });
        }
        if place.is_last() {
            page.through = Revision(revision);
            begin = page.changes.len();
            open = None;
        }
    }
    // What would be the first part of a batch waits for the next page.
    page.changes.truncate(begin);
    page.more |= open.is_some();
    Ok(page)
}

pub(super) async fn last(
    engine: &Engine,
    log: Log,
    subject: &str,
) -> Result<Option<Entry>, ReadError> {
    if !is_name(subject) {
        return Ok(None);
    }
    match engine.last(&engine.entries(log).stream, subject).await? {
        Some((stored, Content::Entry(entry), _)) => Ok(Some(entry_of(&stored, entry))),
        Some((stored, _, _)) => Err(stored.damaged("it is no entry")),
        None => Ok(None),
    }
}

/// Entries after a position. The position of an entry is its sequence, but where it was restored:
/// there it keeps the one it had, which is below the first sequence of the stream.
pub(super) async fn read(
    engine: &Engine,
    log: Log,
    prefix: &str,
    after: u64,
    limit: usize,
) -> Result<Vec<Entry>, ReadError> {
    let mut entries: Vec<Entry> = Vec::new();
    let Some(mut from) = after.checked_add(1).filter(|_| prefix.len() <= bounds::KEY_BYTES) else {
        return Ok(entries);
    };
    let state = engine.entries(log);
    engine.refresh(&state.stream).await?;
    let (position, seq) = *lock(&state.hint);
    if position == after {
        from = from.max(seq + 1);
    }
    let filter = names::filter_of(&state.stream.base, prefix);
    let mut bytes = 0;
    while entries.len() < limit && bytes < bounds::PAGE_BYTES {
        let (count, room) = (limit - entries.len(), bounds::PAGE_BYTES - bytes);
        let raw = engine.api.page(&state.stream.name, Some(&filter), from, count, room).await;
        let raw = raw.map_err(unavailable)?;
        let is_end = !raw.more || raw.messages.is_empty();
        for stored in raw.messages {
            from = stored.seq + 1;
            let (Content::Entry(entry), _) = stored.content()? else {
                return Err(stored.damaged("it is no entry"));
            };
            let entry = entry_of(&stored, entry);
            if entry.position > after && entry.subject.starts_with(prefix) {
                bytes += entry.subject.len() + entry.id.len() + entry.value.len();
                entries.push(entry);
            } else if entry.position == after {
                // The next read of this reader need not come by here again.
                *lock(&state.hint) = (after, stored.seq);
            }
        }
        if is_end {
            break;
        }
    }
    Ok(entries)
}

pub(super) fn entry_of(stored: &Stored, entry: EntryContent) -> Entry {
    let EntryContent { subject, id, number, position, value } = entry;
    let position = if position == 0 { stored.seq } else { position };
    Entry { subject, position, number, id, value }
}

/// Whether anything can have this name.
fn is_name(name: &str) -> bool {
    (1..=bounds::KEY_BYTES).contains(&name.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jetstream::envelope::{Place, encode};
    use bytes::Bytes;

    fn stored(seq: u64, content: &Content, place: Place) -> Stored {
        Stored { subject: "s".into(), seq, time_ms: 0, data: encode(content, place) }
    }

    fn value(seq: u64, index: u16, size: u16) -> Stored {
        let content = Content::Value { key: format!("k{seq}"), value: Bytes::new() };
        stored(seq, &content, Place { index, size })
    }

    fn revisions(page: &Changes) -> Vec<u64> {
        page.changes.iter().map(|it| it.revision.0).collect()
    }

    #[test]
    fn a_batch_that_is_not_whole_waits_for_the_next_page() {
        let messages = vec![value(3, 0, 1), value(4, 0, 3), value(5, 1, 3)];
        let page = page_of(RawPage { messages, more: true }, Revision(2)).unwrap();
        assert_eq!((revisions(&page), page.through, page.more), (vec![3], Revision(3), true));
        // The same where the replica says that there is no more: it will have.
        let messages = vec![value(4, 0, 3), value(5, 1, 3)];
        let page = page_of(RawPage { messages, more: false }, Revision(3)).unwrap();
        assert_eq!((revisions(&page), page.through, page.more), (vec![], Revision(3), true));
    }

    #[test]
    fn a_batch_whose_end_was_replaced_is_whole_when_another_message_follows() {
        let messages = vec![value(4, 0, 3), value(9, 0, 1)];
        let page = page_of(RawPage { messages, more: false }, Revision(4 - 1)).unwrap();
        assert_eq!((revisions(&page), page.through, page.more), (vec![6, 9], Revision(9), false));
    }

    #[test]
    fn the_engines_own_messages_are_no_changes_and_count_as_seen() {
        let messages = vec![
            value(4, 0, 1),
            stored(5, &Content::Forgotten(3), Place::ALONE),
            stored(6, &Content::Marker, Place { index: 0, size: 2 }),
            value(7, 1, 2),
            stored(8, &Content::Grave(vec!["k".into()]), Place::ALONE),
        ];
        let page = page_of(RawPage { messages, more: false }, Revision(4)).unwrap();
        assert_eq!((revisions(&page), page.through, page.more), (vec![7], Revision(8), false));
    }

    #[test]
    fn a_page_has_a_bound_at_which_no_batch_is_torn() {
        let mut messages: Vec<Stored> =
            (0..999).map(|index| value(u64::from(index) + 1, index, 999)).collect();
        messages.extend([value(1000, 0, 2), value(1001, 1, 2)]);
        let page = page_of(RawPage { messages, more: false }, Revision(0)).unwrap();
        assert_eq!((page.changes.len(), page.through, page.more), (999, Revision(999), true));
    }

    #[test]
    fn a_damaged_message_is_named() {
        let damaged = Stored { data: Bytes::from_static(b"\x01"), ..value(4, 0, 1) };
        let page = RawPage { messages: vec![damaged], more: false };
        match page_of(page, Revision(0)) {
            Err(ReadError::Damaged { key, problem }) => {
                assert!(
                    key.contains("sequence 4") && problem.contains("ends too early"),
                    "{key} {problem}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
}
