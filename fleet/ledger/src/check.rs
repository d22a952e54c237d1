//! What every engine refuses before it does anything: the bounds of the contract, and names that
//! are empty or stand twice in a batch.

use std::collections::BTreeSet;

use thiserror::Error;

use super::{Write, WriteError, bounds};

/// A write that no engine takes, whatever its size.
#[derive(Debug, Error)]
enum Malformed {
    #[error("a batch has to write something, and this one is empty")]
    EmptyBatch,
    #[error("{0} has to have at least one character, and it is empty")]
    Empty(&'static str),
    #[error("a batch writes each key once, and this one writes `{0}` twice")]
    Twice(String),
}

/// Whether a batch keeps the bounds. Returns its bytes, keys and values together.
pub(super) fn batch(batch: &[Write]) -> Result<usize, WriteError> {
    at_most("a batch", batch.len(), bounds::BATCH)?;
    if batch.is_empty() {
        return Err(refused(Malformed::EmptyBatch));
    }
    let mut keys = BTreeSet::new();
    let mut bytes = 0;
    for write in batch {
        name("a key", &write.key)?;
        let value = write.value.as_ref().map_or(0, |value| value.len());
        at_most("a value", value, bounds::VALUE_BYTES)?;
        bytes += write.key.len() + value;
        if !keys.insert(&write.key) {
            return Err(refused(Malformed::Twice(write.key.clone())));
        }
    }
    at_most("the content of a batch", bytes, bounds::BATCH_BYTES)?;
    Ok(bytes)
}

/// Whether an entry keeps the bounds. Returns its bytes.
pub(super) fn entry(subject: &str, id: &str, value: &[u8]) -> Result<usize, WriteError> {
    name("a subject", subject)?;
    name("the id of an entry", id)?;
    at_most("the value of an entry", value.len(), bounds::VALUE_BYTES)?;
    Ok(subject.len() + id.len() + value.len())
}

/// How many records or entries a page of this limit has at most.
pub(super) fn page(limit: usize) -> usize {
    limit.clamp(1, bounds::PAGE)
}

fn name(what: &'static str, name: &str) -> Result<(), WriteError> {
    if name.is_empty() {
        return Err(refused(Malformed::Empty(what)));
    }
    at_most(what, name.len(), bounds::KEY_BYTES)
}

fn at_most(what: &'static str, size: usize, bound: usize) -> Result<(), WriteError> {
    if size > bound { Err(WriteError::TooLarge { what, size, bound }) } else { Ok(()) }
}

fn refused(malformed: Malformed) -> WriteError {
    WriteError::Refused(Box::new(malformed))
}
