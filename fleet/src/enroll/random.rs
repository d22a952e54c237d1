//! Random bytes for ids, serial numbers and secrets, and the text that people copy.

use rcgen::SerialNumber;
use ring::rand::{SecureRandom, SystemRandom};

/// Random bytes of the kernel.
pub(super) fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("a Linux kernel gives random bytes");
    bytes
}

/// Random text of `N` characters, five bits each: `a` to `z` and `2` to `7`.
pub(super) fn text<const N: usize>() -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    bytes::<N>().iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)])).collect()
}

/// A serial number with 128 random bits, and a byte before them that keeps it positive.
pub(super) fn serial() -> SerialNumber {
    let mut number = [1; 17];
    number[1..].copy_from_slice(&bytes::<16>());
    SerialNumber::from_slice(&number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_their_length_and_differ() {
        let (first, second) = (text::<26>(), text::<26>());
        assert_eq!(first.len(), 26);
        assert_ne!(first, second);
        assert!(
            first.bytes().all(|byte| byte.is_ascii_lowercase() || (b'2'..=b'7').contains(&byte))
        );
    }
}
