//! A signature file of minisign, from any source. Pure.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::config::trust_key::KeyId;

/// Most bytes of a signature file. The comments of minisign have up to 8 KiB.
pub(in crate::install) const SIGNATURE_MAX: usize = 16 << 10;

/// A well-formed signature. Its form does not prove which key made it.
pub(in crate::install) struct Signature {
    key: KeyId,
    prehashed: bool,
    parsed: minisign_verify::Signature,
    text: String,
}

// === impl Signature ===

impl Signature {
    /// Reads a signature file.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub(in crate::install) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() > SIGNATURE_MAX {
            return Err("it is too long");
        }
        let text = str::from_utf8(bytes).map_err(|_| "it is not text")?;
        let parsed = minisign_verify::Signature::decode(text).map_err(|_| {
            if text.trim_start().starts_with('<') {
                "it looks like a web page"
            } else {
                "it does not have the four lines of one"
            }
        })?;
        // The crate does not give out the key's id.
        let line = text.lines().nth(1).unwrap_or_default();
        let bytes = STANDARD.decode(line).map_err(|_| "its second line is not base64")?;
        let id = bytes.get(2..10).and_then(|id| id.try_into().ok());
        let id = id.ok_or("its second line is too short")?;
        let prehashed = bytes.starts_with(b"ED");
        Ok(Self { key: KeyId::from_bytes(id), prehashed, parsed, text: text.to_owned() })
    }

    /// The id of the key that the signature names as its signer.
    pub(in crate::install) fn key(&self) -> KeyId {
        self.key
    }

    /// Whether the signature covers a digest of the archive, which the agent computes while it
    /// downloads the archive.
    pub(super) fn is_prehashed(&self) -> bool {
        self.prehashed
    }

    /// The trusted comment. It can be trusted only after the signature was verified.
    pub(in crate::install) fn trusted_comment(&self) -> &str {
        self.parsed.trusted_comment()
    }

    /// The values that the trusted comment gives to a field, as in `plugin:monitor`.
    pub(super) fn stated<'a>(&'a self, field: &'a str) -> impl Iterator<Item = &'a str> {
        let words = self.trusted_comment().split_ascii_whitespace();
        words.filter_map(move |word| word.strip_prefix(field)?.strip_prefix(':'))
    }

    pub(in crate::install) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn parsed(&self) -> &minisign_verify::Signature {
        &self.parsed
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signature").field("key", &self.key).finish_non_exhaustive()
    }
}
