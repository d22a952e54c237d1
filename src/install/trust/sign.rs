//! Signs archives: the other half of `trust`. The verbs `pack` and `keygen` call this; it blocks.
//!
//! Keys and signatures are files of minisign, so each tool can use those of the other. A key with a
//! password is refused: in a build nobody can type it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use guest_agent_actors::model::id::{PluginName, RevisionId};
use minisign::{KeyPair, SecretKey, SecretKeyBox};

use crate::install::error::SignError;

/// Most bytes of a file with a secret key.
const KEY_MAX: u64 = 4096;

/// A secret key.
pub struct SigningKey(SecretKey);

// === impl SigningKey ===

impl SigningKey {
    /// Reads a secret key.
    ///
    /// # Errors
    /// The file cannot be read, or holds no key without a password.
    pub fn read(path: &Path) -> Result<Self, SignError> {
        let failed = |source| SignError::Read { path: path.to_owned(), source };
        let mut text = String::new();
        let file = File::open(path).map_err(failed)?;
        file.take(KEY_MAX).read_to_string(&mut text).map_err(failed)?;
        let key = SecretKeyBox::from(text).into_unencrypted_secret_key();
        // The crate's error text may quote the key.
        key.map(Self).map_err(|_| SignError::Key { path: path.to_owned() })
    }

    /// The signature of an archive, saying which revision of which plugin it is.
    ///
    /// # Errors
    /// The archive cannot be read.
    pub fn sign(
        &self,
        archive: &Path,
        name: &PluginName,
        revision: &RevisionId,
    ) -> Result<String, SignError> {
        let failed = |source| SignError::Read { path: archive.to_owned(), source };
        let file = File::open(archive).map_err(failed)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let comment = format!("plugin:{name} revision:{revision}\ttimestamp:{now}\thashed");
        let untrusted = format!("signature of {name} {revision}");
        minisign::sign(None, &self.0, file, Some(&comment), Some(&untrusted))
            .map(minisign::SignatureBox::into_string)
            .map_err(|error| failed(std::io::Error::other(error)))
    }
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningKey")
    }
}

/// Makes a pair of keys: the secret key in the file `secret`, which must not exist and is readable
/// by its owner alone, and the public key beside it as `.pub`. Returns the path of the public key
/// and the line for a configuration.
///
/// # Errors
/// A file exists already or cannot be written.
pub fn make_key(secret: &Path) -> Result<(PathBuf, String), SignError> {
    let failed = |error| SignError::Random { source: std::io::Error::other(error) };
    let pair = KeyPair::generate_unencrypted_keypair().map_err(failed)?;
    let mut public = secret.as_os_str().to_owned();
    public.push(".pub");
    let public = PathBuf::from(public);
    let public_text = pair.pk.to_box().map_err(failed)?.to_string();
    let secret_text = pair.sk.to_box(None).map_err(failed)?.to_string();
    write_new(secret, 0o600, &secret_text)?;
    if let Err(error) = write_new(&public, 0o644, &public_text) {
        // One key of a pair is of no use.
        drop(std::fs::remove_file(secret));
        return Err(error);
    }
    Ok((public, pair.pk.to_base64()))
}

fn write_new(path: &Path, mode: u32, text: &str) -> Result<(), SignError> {
    let write = || {
        let mut file = File::options().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(text.as_bytes())
    };
    write().map_err(|source| SignError::Write { path: path.to_owned(), source })
}
