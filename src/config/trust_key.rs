//! Public keys of minisign, in the form that `[trust]` and files with keys have.

use std::fmt;
use std::io;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use minisign_verify::PublicKey;

/// The id of a key, which minisign writes into the key's comment, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(u64);

/// Why a public key cannot be used. No text here quotes it.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The text is not a minisign public key.
    #[error(
        "a key is not a public key of minisign; write the line of its .pub file that begins with RW"
    )]
    NotAKey,
    /// The text is a secret key instead of a public key.
    #[error(
        "a key is a SECRET key; write the line of its .pub file instead, and make a new pair: this \
         one is in a configuration now"
    )]
    Secret,
    /// The file contains no key.
    #[error("it contains no key")]
    Empty,
    /// There are more keys than the limit.
    #[error("there are more than {most} keys")]
    TooMany {
        /// The limit.
        most: usize,
    },
    /// A file with keys cannot be read.
    #[error("cannot read the keys in {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The content of a file with keys is not valid.
    #[error("the key file {} cannot be used", path.display())]
    InFile {
        path: PathBuf,
        #[source]
        source: Box<KeyError>,
    },
}

// === impl KeyId ===

impl KeyId {
    /// The id, in the form that a key or a signature has.
    pub(crate) fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(u64::from_le_bytes(bytes))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016X}", self.0)
    }
}

/// Whether a text is a public key of minisign.
///
/// # Errors
/// It is not. The text is not quoted: it may be a secret key.
pub fn check_key(text: &str) -> Result<KeyId, KeyError> {
    parse_key(text).map(|(id, _)| id)
}

/// Reads a public key of minisign.
///
/// # Errors
/// It is not one. The text is not quoted.
pub(crate) fn parse_key(text: &str) -> Result<(KeyId, PublicKey), KeyError> {
    const PUBLIC_BYTES: usize = 42;
    const SECRET_BYTES: usize = 158;
    let text = text.trim();
    let bytes = STANDARD.decode(text).map_err(|_| KeyError::NotAKey)?;
    if bytes.len() == SECRET_BYTES {
        return Err(KeyError::Secret);
    }
    let (Some(id), PUBLIC_BYTES) =
        (bytes.get(2..10).and_then(|id| id.try_into().ok()), bytes.len())
    else {
        return Err(KeyError::NotAKey);
    };
    let key = PublicKey::from_base64(text).map_err(|_| KeyError::NotAKey)?;
    Ok((KeyId::from_bytes(id), key))
}
