//! Secrets that identify the callers of the agent: made once, given out once, kept as a digest.
//!
//! A table of digests is compared in no time that says anything, and gives no ticket away when it
//! is dumped.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use guest_agent_actors::model::id::Sha256Digest;
use rand::TryRngCore;
use rand::rand_core::OsError;

/// Longest text that is looked up: the agent must not hash megabytes for an unknown caller.
const TEXT_MAX: usize = 256;

/// A ticket that was just made.
pub(crate) struct Fresh {
    /// The secret, which only its owner gets.
    pub(crate) text: String,
    /// What is kept of it.
    pub(crate) digest: Sha256Digest,
}

// === impl Fresh ===

impl Fresh {
    /// A ticket of so many random bytes.
    ///
    /// # Errors
    /// The system has no random bytes to give.
    pub(crate) fn new<const BYTES: usize>() -> Result<Self, OsError> {
        let mut bytes = [0u8; BYTES];
        rand::rngs::OsRng.try_fill_bytes(&mut bytes)?;
        let text = STANDARD_NO_PAD.encode(bytes);
        let digest = Sha256Digest::of(text.as_bytes());
        Ok(Self { text, digest })
    }
}

/// The key of a ticket in tables. `None` for a text that is no ticket.
pub(crate) fn digest(text: &[u8]) -> Option<Sha256Digest> {
    (!text.is_empty() && text.len() <= TEXT_MAX).then(|| Sha256Digest::of(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_found_by_its_text() {
        let ticket = Fresh::new::<32>().expect("random bytes");
        assert_eq!(digest(ticket.text.as_bytes()), Some(ticket.digest));
        assert_ne!(Fresh::new::<32>().expect("random bytes").text, ticket.text);
        assert_eq!(ticket.text.len(), 43);
    }

    #[test]
    fn no_ticket_and_one_that_is_too_long_are_not_looked_up() {
        assert_eq!(digest(b""), None);
        assert!(digest(&[b'a'; TEXT_MAX]).is_some());
        assert_eq!(digest(&[b'a'; TEXT_MAX + 1]), None);
    }
}
