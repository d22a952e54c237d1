//! What a login needs to be finished, as a text that only this process can read and make.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};

use crate::enroll::random;

/// What the sealed text is about, so that no other one is taken for it.
const ABOUT: &[u8] = b"guest-fleet login 1";
/// Longest sealed text, in bytes: browsers keep no longer cookies.
const TEXT_BYTES: usize = 4096;

/// A login that was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Begun {
    pub(super) state: String,
    pub(super) nonce: String,
    /// The secret of PKCE.
    pub(super) verifier: String,
    /// Where the provider sends the browser back.
    pub(super) redirect: String,
    /// What the caller of the beginning gets back at the end.
    pub(super) kept: String,
    /// When it is too late, in seconds since the Unix epoch.
    pub(super) until: u64,
}

/// A key that lives as long as this process.
pub(super) struct Seal(LessSafeKey);

// === impl Seal ===

impl Seal {
    pub(super) fn new() -> Self {
        let key = UnboundKey::new(&AES_256_GCM, &random::bytes::<32>());
        Self(LessSafeKey::new(key.expect("32 bytes are a key")))
    }

    pub(super) fn close(&self, begun: &Begun) -> String {
        let nonce = random::bytes::<NONCE_LEN>();
        let mut sealed = serde_json::to_vec(begun).expect("plain values");
        self.0
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(ABOUT),
                &mut sealed,
            )
            .expect("a login is not too long to be sealed");
        URL_SAFE_NO_PAD.encode([nonce.as_slice(), &sealed].concat())
    }

    /// What was sealed; `None` where another process did so, or nobody.
    pub(super) fn open(&self, text: &str) -> Option<Begun> {
        let mut sealed =
            URL_SAFE_NO_PAD.decode(Some(text).filter(|it| it.len() <= TEXT_BYTES)?).ok()?;
        let (nonce, sealed) = sealed.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let opened = self.0.open_in_place(nonce, Aad::from(ABOUT), sealed).ok()?;
        serde_json::from_slice(opened).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_process_that_sealed_a_login_reads_it_and_no_letter_can_be_changed() {
        let begun = Begun {
            state: "s".to_owned(),
            nonce: "n".to_owned(),
            verifier: "v".to_owned(),
            redirect: "https://fleet.example/callback".to_owned(),
            kept: "/console/agents".to_owned(),
            until: 7,
        };
        let seal = Seal::new();
        let text = seal.close(&begun);
        assert_eq!(seal.open(&text).as_ref(), Some(&begun));
        assert_ne!(seal.close(&begun), text, "the same twice is not the same");
        assert_eq!(Seal::new().open(&text), None);
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            // The last letter may have bits that say nothing; base64 refuses those.
            assert_eq!(seal.open(&changed), None, "changed at {at}");
            assert_eq!(seal.open(&text[..at]), None, "cut at {at}");
        }
        assert_eq!(seal.open(&"A".repeat(TEXT_BYTES + 1)), None);
    }
}
