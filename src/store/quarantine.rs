//! The form of a record in quarantine, and how many are kept.

use std::collections::VecDeque;
use std::time::{Duration, UNIX_EPOCH};

use guest_agent_actors::ports::QuarantinedRecord;

use super::table::{table_of_tag, tag};

/// Most records kept.
pub(super) const MAX_RECORDS: usize = 1_000;

/// Most bytes kept, all records together.
pub(super) const MAX_BYTES: usize = 16 << 20;

/// Most bytes kept of one record's contents.
const MAX_VALUE: usize = 1 << 20;

/// Most bytes kept of a reason.
const MAX_REASON: usize = 500;

/// Which records are in quarantine, oldest first, and how large they are.
#[derive(Debug)]
pub(super) struct Index {
    entries: VecDeque<(u64, usize)>,
    bytes: usize,
    next: u64,
    max_records: usize,
    max_bytes: usize,
}

/// Encodes a quarantined record with its contents, cut to [`MAX_VALUE`], so that a person can
/// investigate them.
pub(super) fn encode(record: &QuarantinedRecord, contents: &[u8]) -> Vec<u8> {
    let millis = record.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let millis = u64::try_from(millis).unwrap_or(u64::MAX);
    let reason = head(record.reason.as_bytes(), MAX_REASON);
    let mut bytes = vec![tag(record.table)];
    bytes.extend_from_slice(&millis.to_be_bytes());
    for part in [reason, &record.key, head(contents, MAX_VALUE)] {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

/// Decodes a quarantined record; `None` when the bytes are not one.
pub(super) fn decode(number: u64, bytes: &[u8]) -> Option<QuarantinedRecord> {
    let (&table, rest) = bytes.split_first()?;
    let (millis, rest) = long(rest)?;
    let (reason, rest) = part(rest)?;
    let (key, _contents) = part(rest)?;
    Some(QuarantinedRecord {
        number,
        table: table_of_tag(table)?,
        key: key.to_vec(),
        reason: String::from_utf8_lossy(reason).into_owned(),
        at: UNIX_EPOCH.checked_add(Duration::from_millis(millis)).unwrap_or(UNIX_EPOCH),
    })
}

// === impl Index ===

impl Index {
    /// An empty index with these bounds.
    pub(super) fn new(max_records: usize, max_bytes: usize) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, next: 0, max_records, max_bytes }
    }

    /// Adds a record that exists. Numbers must come in order.
    pub(super) fn note(&mut self, number: u64, size: usize) {
        self.entries.push_back((number, size));
        self.bytes += size;
        self.next = number.saturating_add(1);
    }

    /// The number for the next record.
    pub(super) fn next_number(&self) -> u64 {
        self.next
    }

    /// How many records there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Removes all records, and returns which they were.
    pub(super) fn clear(&mut self) -> Vec<u64> {
        self.bytes = 0;
        self.entries.drain(..).map(|(number, _)| number).collect()
    }

    /// Removes the oldest records over the bounds, and returns which.
    pub(super) fn evict(&mut self) -> Vec<u64> {
        let mut evicted = Vec::new();
        while self.entries.len() > self.max_records || self.bytes > self.max_bytes {
            let Some((number, size)) = self.entries.pop_front() else { break };
            self.bytes -= size;
            evicted.push(number);
        }
        evicted
    }
}

fn head(bytes: &[u8], max: usize) -> &[u8] {
    &bytes[..bytes.len().min(max)]
}

fn long(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (head, rest) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*head), rest))
}

fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = long(bytes)?;
    rest.split_at_checked(usize::try_from(len).ok()?)
}

#[cfg(test)]
mod tests {
    use guest_agent_actors::ports::Table;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let mut index = Index::new(2, 100);
        for number in 0..3 {
            index.note(number, 10);
        }
        assert_eq!(index.evict(), [0]);
        index.note(3, 95);
        assert_eq!(index.evict(), [1, 2]);
        assert_eq!(index.next_number(), 4);
    }

    #[test]
    fn one_record_above_the_bound_does_not_stay() {
        let mut index = Index::new(2, 100);
        index.note(7, 101);
        assert_eq!(index.evict(), [7]);
        assert_eq!(index.evict(), [0u64; 0]);
    }

    #[test]
    fn a_record_survives_being_encoded() {
        let record = QuarantinedRecord {
            number: 7,
            table: Table::Inbox,
            key: b"key".to_vec(),
            reason: "no such field".to_owned(),
            at: UNIX_EPOCH + Duration::from_millis(1_700_000_000_123),
        };
        assert_eq!(decode(7, &encode(&record, b"contents")), Some(record));
    }

    proptest! {
        #[test]
        fn law_decoding_never_panics(bytes: Vec<u8>) {
            let _: Option<QuarantinedRecord> = decode(0, &bytes);
        }
    }
}
