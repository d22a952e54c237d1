//! How a record looks on disk: `version (1) | checksum (8) | payload`.
//!
//! The checksum is the first eight bytes of a SHA-256 over the version, the record's key and its
//! payload, so that it does not match an undamaged record under another key either. It detects
//! damage, not tampering: a process that can write the file can compute the checksum.

use sha2::{Digest, Sha256};

/// The only format so far.
const VERSION: u8 = 1;

const CHECKSUM_LEN: usize = 8;

const HEADER_LEN: usize = 1 + CHECKSUM_LEN;

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    /// Shorter than a header.
    #[error("the record is {0} bytes long, shorter than its header")]
    TooShort(usize),
    /// A newer version wrote it, or it is damaged.
    #[error("the record has the unknown format {0}")]
    UnknownVersion(u8),
    /// The checksum differs.
    #[error("the record's checksum does not match")]
    BadChecksum,
}

/// The bytes that store `payload` under `key`.
pub(super) fn encode(key: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER_LEN + payload.len());
    frame.push(VERSION);
    frame.extend_from_slice(&checksum(key, payload));
    frame.extend_from_slice(payload);
    frame
}

/// The payload in `frame`, if `frame` was stored under `key`.
pub(super) fn decode<'a>(key: &[u8], frame: &'a [u8]) -> Result<&'a [u8], FrameError> {
    let Some((header, payload)) = frame.split_at_checked(HEADER_LEN) else {
        return Err(FrameError::TooShort(frame.len()));
    };
    let (version, sum) = (header[0], &header[1..]);
    if version != VERSION {
        return Err(FrameError::UnknownVersion(version));
    }
    if sum != checksum(key, payload) {
        return Err(FrameError::BadChecksum);
    }
    Ok(payload)
}

/// A number that stands for a record as it is stored, whole or not.
pub(super) fn fingerprint(key: &[u8], stored: &[u8]) -> u64 {
    u64::from_be_bytes(checksum(key, stored))
}

fn checksum(key: &[u8], payload: &[u8]) -> [u8; CHECKSUM_LEN] {
    let mut hash = Sha256::new();
    hash.update([VERSION]);
    // The length separates the end of the key from the beginning of the payload.
    hash.update((key.len() as u64).to_be_bytes());
    hash.update(key);
    hash.update(payload);
    let digest = hash.finalize();
    let mut sum = [0; CHECKSUM_LEN];
    sum.copy_from_slice(&digest[..CHECKSUM_LEN]);
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_frame_under_another_key_does_not_check_out() {
        let frame = encode(b"ab", b"c");
        assert_eq!(decode(b"ab", &frame), Ok(&b"c"[..]));
        assert_eq!(decode(b"a", &frame), Err(FrameError::BadChecksum));
        assert_eq!(decode(b"a", &encode(b"a", b"bc")), Ok(&b"bc"[..]));
    }

    #[test]
    fn short_and_foreign_bytes_are_told_apart() {
        assert_eq!(decode(b"k", b""), Err(FrameError::TooShort(0)));
        assert_eq!(decode(b"k", &[1; 8]), Err(FrameError::TooShort(8)));
        assert_eq!(decode(b"k", &[2; 20]), Err(FrameError::UnknownVersion(2)));
        assert_eq!(decode(b"k", &[1; 20]), Err(FrameError::BadChecksum));
    }

    proptest! {
        #[test]
        fn law_arbitrary_bytes_are_refused_or_whole(key: Vec<u8>, bytes: Vec<u8>) {
            if let Ok(payload) = decode(&key, &bytes) {
                prop_assert_eq!(encode(&key, payload), bytes);
            }
        }

        #[test]
        fn law_what_was_encoded_is_decoded(key: Vec<u8>, payload: Vec<u8>) {
            let frame = encode(&key, &payload);
            prop_assert_eq!(decode(&key, &frame), Ok(&payload[..]));
        }

        #[test]
        fn law_a_flipped_bit_is_noticed(key: Vec<u8>, payload: Vec<u8>, at: usize, bit in 0..8u8) {
            let mut frame = encode(&key, &payload);
            let at = at % frame.len();
            frame[at] ^= 1 << bit;
            prop_assert!(decode(&key, &frame).is_err());
        }

        #[test]
        fn law_a_truncated_frame_is_noticed(key: Vec<u8>, payload: Vec<u8>, len: usize) {
            let frame = encode(&key, &payload);
            prop_assert!(decode(&key, &frame[..len % frame.len()]).is_err());
        }
    }
}
