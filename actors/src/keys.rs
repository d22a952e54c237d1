//! The keys of numbered records.

/// The key of a numbered record: big-endian, so that keys sort by number.
#[must_use]
pub fn number_key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// The number of a key made by [`number_key`].
#[must_use]
pub fn key_number(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.try_into().ok()?))
}
