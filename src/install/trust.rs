//! Which signatures an archive needs to be installed.
//!
//! ```text
//! [trust] keys, key_files ─► Keyring ─┐
//! <archive URL>.minisig ─► Signature ─┴─► judge ─► Check: fed with the bytes as they arrive ─► passed
//! ```
//!
//! Signatures are minisign's: Ed25519 over the BLAKE2b digest of the archive, and over a comment
//! that is trusted with it. Keys come from this machine's configuration alone, so all of this works
//! offline. Nothing here reads the network, decides when a signature is fetched (the pipeline
//! does), or looks at what is installed already: keys that change stop updates, never what runs.

use std::io::Read;
use std::path::{Path, PathBuf};

use guest_agent_actors::error::Chain;
use guest_agent_actors::model::id::{PluginName, RevisionId};
use minisign_verify::{PublicKey, StreamVerifier};

use super::error::SignatureError;
use crate::config::trust_key::{KeyError, KeyId, parse_key};
use crate::config::{Binding, TrustConfig};
use crate::install::unpack::member::escaped;

mod signature;

pub(super) use signature::{SIGNATURE_MAX, Signature};

/// The ending of the file beside an archive that holds its signature.
pub const SUFFIX: &str = ".minisig";

/// Most bytes of a file with keys.
const KEY_FILE_MAX: u64 = 64 << 10;

/// Most keys of one machine. Rotating one needs two.
const KEYS_MAX: usize = 256;

/// The signers whose archives the agent installs.
#[derive(Debug)]
pub enum Trust {
    /// Any signer: no key is configured, so the agent checks only the checksum that the order
    /// states.
    Anybody,
    /// One of these keys must have signed the archive.
    Keys(Keyring),
    /// No signature is trusted: keys are configured, but the agent cannot read them, for this
    /// reason.
    Unreadable(String),
}

/// The keys of this machine.
#[derive(Debug)]
pub struct Keyring {
    keys: Vec<(KeyId, PublicKey)>,
    binding: Binding,
}

/// A signature whose archive the agent has not read yet.
pub(super) struct Check<'a> {
    key: KeyId,
    signature: &'a Signature,
    verifier: StreamVerifier<'a>,
}

// === impl Trust ===

impl Trust {
    /// Reads the configured keys. Blocks.
    ///
    /// # Errors
    /// A key cannot be used, or a file with keys cannot be read.
    pub fn load(config: &TrustConfig) -> Result<Self, KeyError> {
        let mut keys = Vec::new();
        for text in &config.keys {
            keys.push(parse_key(text)?);
        }
        for path in &config.key_files {
            let in_file = |source: KeyError| KeyError::InFile {
                path: path.clone(),
                source: Box::new(source),
            };
            keys.extend(parse_keys(&read(path)?).map_err(in_file)?);
        }
        keys.sort_by_key(|(id, _)| *id);
        keys.dedup();
        if keys.len() > KEYS_MAX {
            return Err(KeyError::TooMany { most: KEYS_MAX });
        }
        if config.keys.is_empty() && config.key_files.is_empty() {
            return Ok(Self::Anybody);
        }
        Ok(Self::Keys(Keyring { keys, binding: config.binding }))
    }

    /// The same, but keys that cannot be read make no signature trusted.
    #[must_use]
    pub fn load_or_nobody(config: &TrustConfig) -> Self {
        Self::load(config).unwrap_or_else(|error| Self::Unreadable(Chain(&error).to_string()))
    }

    /// Whether something is installed only with a signature.
    #[must_use]
    pub fn demands_signatures(&self) -> bool {
        !matches!(self, Self::Anybody)
    }

    /// Checks the signature of a file beside an archive of this revision, which is signed as the
    /// archive is. `place` says where the signature was found.
    ///
    /// # Errors
    /// No trusted key signed these bytes for this revision.
    pub fn verify(
        &self,
        bytes: &[u8],
        signature: &[u8],
        place: &str,
        name: &PluginName,
        revision: &RevisionId,
    ) -> Result<(), SignatureError> {
        let Some(keyring) = self.keyring()? else { return Ok(()) };
        let malformed = |reason| SignatureError::Malformed { place: place.to_owned(), reason };
        let signature = Signature::parse(signature).map_err(malformed)?;
        let mut check = keyring.judge(&signature, name, revision)?;
        check.update(bytes);
        check.finish()
    }

    /// The keys, where a signature is necessary.
    pub(super) fn keyring(&self) -> Result<Option<&Keyring>, SignatureError> {
        match self {
            Self::Anybody => Ok(None),
            Self::Keys(keyring) => Ok(Some(keyring)),
            Self::Unreadable(why) => Err(SignatureError::Keys { why: why.clone() }),
        }
    }
}

// === impl Keyring ===

impl Keyring {
    /// Whether this can be the signature of this revision's archive, as far as the agent can tell
    /// before it has the archive's bytes.
    pub(super) fn judge<'a>(
        &'a self,
        signature: &'a Signature,
        name: &PluginName,
        revision: &RevisionId,
    ) -> Result<Check<'a>, SignatureError> {
        let key = signature.key();
        let Some((_, public)) = self.keys.iter().find(|(id, _)| *id == key) else {
            let trusted = self.keys.iter().map(|(id, _)| id.to_string()).collect();
            return Err(SignatureError::UnknownKey { found: key, trusted });
        };
        if !signature.is_prehashed() {
            return Err(SignatureError::Legacy { key });
        }
        let must = |field| match field {
            "plugin" => self.binding != Binding::None,
            _ => self.binding == Binding::Revision,
        };
        for (field, ordered) in [("plugin", name.as_str()), ("revision", revision.as_str())] {
            let stated: Vec<&str> = signature.stated(field).collect();
            let comment = || escaped(signature.trusted_comment().as_bytes());
            let ordered = || ordered.to_owned();
            if stated.is_empty() && must(field) {
                let comment = comment();
                return Err(SignatureError::Unbound { key, field, ordered: ordered(), comment });
            }
            if !stated.is_empty() && !stated.contains(&ordered().as_str()) {
                let comment = comment();
                return Err(SignatureError::Other { key, field, ordered: ordered(), comment });
            }
        }
        let verifier =
            public.verify_stream(signature.parsed()).map_err(|_| SignatureError::Wrong { key })?;
        Ok(Check { key, signature, verifier })
    }
}

// === impl Check ===

impl Check<'_> {
    /// Adds the next bytes of the archive.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.verifier.update(bytes);
    }

    /// Whether the key signed this archive and this trusted comment. Call it once, after the last
    /// byte.
    pub(super) fn finish(&mut self) -> Result<(), SignatureError> {
        self.verifier.finalize().map_err(|_| SignatureError::Wrong { key: self.key })
    }

    /// The key that signed it.
    pub(super) fn key(&self) -> KeyId {
        self.key
    }

    /// The signature.
    pub(super) fn signature(&self) -> &Signature {
        self.signature
    }
}

/// Checks that bytes have the form of a signature, and returns the id of the key that it names.
///
/// # Errors
/// The bytes do not have that form; the text names the mistake.
pub fn check_signature(bytes: &[u8]) -> Result<KeyId, &'static str> {
    Signature::parse(bytes).map(|signature| signature.key())
}

/// All keys of a file: one in each line, between comments.
fn parse_keys(text: &str) -> Result<Vec<(KeyId, PublicKey)>, KeyError> {
    let is_comment = |line: &&str| {
        line.trim().is_empty() || line.starts_with('#') || line.starts_with("untrusted comment:")
    };
    let keys: Result<Vec<_>, _> =
        text.lines().filter(|line| !is_comment(line)).map(parse_key).collect();
    match keys {
        Ok(keys) if keys.is_empty() => Err(KeyError::Empty),
        keys => keys,
    }
}

fn read(path: &Path) -> Result<String, KeyError> {
    let failed = |source| KeyError::Read { path: PathBuf::from(path), source };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(KEY_FILE_MAX).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

pub mod sign;
#[cfg(test)]
mod tests;
