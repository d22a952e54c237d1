//! What is in a message: everything that the ledger knows of a record or an entry, so that no
//! header and no subject has to be trusted.
//!
//! ```text
//!   version 1 │ kind 1 │ place in the batch 2 │ size of the batch 2 │ the kind's own, lengths first │ value
//! ```
//!
//! Numbers are big-endian. A record's revision is the sequence of the last message of its batch.
//! JetStream gives the messages of an atomic batch sequences without a gap, so each of them says
//! how far it is from the last.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::bounds;

/// The version of the layout.
const VERSION: u8 = 1;

/// Most that a message is larger than the value in it: two names of the longest kind and numbers.
pub(super) const OVERHEAD: usize = 4 * bounds::KEY_BYTES;

const VALUE: u8 = 1;
const TOMBSTONE: u8 = 2;
const MARKER: u8 = 3;
const FORGOTTEN: u8 = 4;
const GRAVE: u8 = 5;
const ENTRY: u8 = 6;

/// Where a message is in its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// From 0.
    pub(super) index: u16,
    pub(super) size: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// A record.
    Value { key: String, value: Bytes },
    /// A key was deleted, as the grave with this sequence had announced.
    Tombstone { key: String, grave: u64 },
    /// A write that asserted something and changed nothing.
    Marker,
    /// Deletions up to this revision may be missing.
    Forgotten(u64),
    /// Keys that a batch is about to delete.
    Grave(Vec<String>),
    /// An entry of a log.
    Entry(EntryContent),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EntryContent {
    pub(super) subject: String,
    pub(super) id: String,
    pub(super) number: u64,
    /// Its position where it was restored; 0 where its position is its sequence.
    pub(super) position: u64,
    pub(super) value: Bytes,
}

// === impl Place ===

impl Place {
    /// A message that is not in a batch.
    pub(super) const ALONE: Self = Self { index: 0, size: 1 };

    /// The sequence of the last message of the batch, where the message of this place has `seq`.
    pub(super) fn revision(self, seq: u64) -> u64 {
        seq.saturating_add(u64::from(self.size - 1 - self.index))
    }

    /// Whether it is the last message of its batch.
    pub(super) fn is_last(self) -> bool {
        self.index + 1 == self.size
    }
}

pub(super) fn encode(content: &Content, place: Place) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(VERSION);
    let kind = match content {
        Content::Value { .. } => VALUE,
        Content::Tombstone { .. } => TOMBSTONE,
        Content::Marker => MARKER,
        Content::Forgotten(_) => FORGOTTEN,
        Content::Grave(_) => GRAVE,
        Content::Entry(_) => ENTRY,
    };
    out.put_u8(kind);
    out.put_u16(place.index);
    out.put_u16(place.size);
    match content {
        Content::Value { key, value } => {
            put_text(&mut out, key);
            out.put_slice(value);
        }
        Content::Tombstone { key, grave } => {
            out.put_u64(*grave);
            put_text(&mut out, key);
        }
        Content::Marker => {}
        Content::Forgotten(revision) => out.put_u64(*revision),
        Content::Grave(keys) => {
            for key in keys {
                put_text(&mut out, key);
            }
        }
        Content::Entry(entry) => {
            out.put_u64(entry.number);
            out.put_u64(entry.position);
            put_text(&mut out, &entry.subject);
            put_text(&mut out, &entry.id);
            out.put_slice(&entry.value);
        }
    }
    out.freeze()
}

/// What is in a message, or what is wrong with it.
pub(super) fn decode(mut data: Bytes) -> Result<(Content, Place), &'static str> {
    let version = take(&mut data, Bytes::try_get_u8)?;
    if version != VERSION {
        return Err("a newer program wrote it, or none of this kind: update this program");
    }
    let kind = take(&mut data, Bytes::try_get_u8)?;
    let index = take(&mut data, Bytes::try_get_u16)?;
    let size = take(&mut data, Bytes::try_get_u16)?;
    if index >= size || usize::from(size) > bounds::BATCH {
        return Err("its place in its batch cannot be");
    }
    let content = match kind {
        VALUE => {
            let key = text(&mut data)?;
            Content::Value { key, value: value(&mut data)? }
        }
        TOMBSTONE => {
            let grave = take(&mut data, Bytes::try_get_u64)?;
            Content::Tombstone { key: text(&mut data)?, grave }
        }
        MARKER => Content::Marker,
        FORGOTTEN => Content::Forgotten(take(&mut data, Bytes::try_get_u64)?),
        GRAVE => {
            let mut keys = Vec::new();
            while data.has_remaining() {
                if keys.len() == bounds::BATCH {
                    return Err("it deletes more keys than a batch has");
                }
                keys.push(text(&mut data)?);
            }
            Content::Grave(keys)
        }
        ENTRY => {
            let number = take(&mut data, Bytes::try_get_u64)?;
            let position = take(&mut data, Bytes::try_get_u64)?;
            let subject = text(&mut data)?;
            let id = text(&mut data)?;
            let value = value(&mut data)?;
            Content::Entry(EntryContent { subject, id, number, position, value })
        }
        _ => return Err("it is of no known kind"),
    };
    if data.has_remaining() {
        return Err("it is longer than what is in it");
    }
    Ok((content, Place { index, size }))
}

fn put_text(out: &mut BytesMut, text: &str) {
    // Names have at most 512 bytes, which was checked before.
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    out.put_u16(length);
    out.put_slice(&text.as_bytes()[..usize::from(length)]);
}

fn take<T>(
    data: &mut Bytes,
    read: impl FnOnce(&mut Bytes) -> Result<T, bytes::TryGetError>,
) -> Result<T, &'static str> {
    read(data).map_err(|_| "it ends too early")
}

fn text(data: &mut Bytes) -> Result<String, &'static str> {
    let length = usize::from(take(data, Bytes::try_get_u16)?);
    if length == 0 || length > bounds::KEY_BYTES {
        return Err("a name in it is empty or too long");
    }
    if data.remaining() < length {
        return Err("it ends too early");
    }
    let text = data.split_to(length);
    std::str::from_utf8(&text).map(str::to_owned).map_err(|_| "a name in it is no text")
}

fn value(data: &mut Bytes) -> Result<Bytes, &'static str> {
    if data.remaining() > bounds::VALUE_BYTES {
        return Err("its value is too large");
    }
    Ok(data.split_to(data.remaining()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn examples() -> Vec<Content> {
        let entry = EntryContent {
            subject: "a.web".into(),
            id: "ä".into(),
            number: 7,
            position: u64::MAX,
            value: Bytes::from_static(b"x"),
        };
        vec![
            Content::Value { key: "k\n".into(), value: Bytes::from_static(&[0, 255]) },
            Content::Value { key: "k".repeat(bounds::KEY_BYTES), value: Bytes::new() },
            Content::Tombstone { key: "k".into(), grave: 8 },
            Content::Marker,
            Content::Forgotten(9),
            Content::Grave(vec!["a".into(), "b".into()]),
            Content::Grave(vec![]),
            Content::Entry(entry),
        ]
    }

    #[test]
    fn what_is_encoded_decodes_to_the_same_and_nothing_shorter_does() {
        for content in examples() {
            let place = Place { index: 3, size: 1000 };
            let data = encode(&content, place);
            assert_eq!(decode(data.clone()), Ok((content.clone(), place)));
            let fixed = match content {
                // The end of a value is the end of the message, and a grave ends after any key.
                Content::Value { .. } | Content::Entry(_) | Content::Grave(_) => 6,
                _ => data.len(),
            };
            for length in 0..fixed {
                assert!(decode(data.slice(..length)).is_err(), "{content:?} cut to {length}");
            }
        }
    }

    #[test]
    fn a_revision_is_the_sequence_of_the_last_message() {
        assert_eq!(Place::ALONE.revision(5), 5);
        assert_eq!(Place { index: 0, size: 3 }.revision(5), 7);
        assert!(Place { index: 2, size: 3 }.is_last() && !Place { index: 1, size: 3 }.is_last());
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_refused_or_understood(data in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok((content, place)) = decode(data.clone().into()) {
                prop_assert_eq!(&encode(&content, place)[..], &data[..]);
            }
        }
    }
}
