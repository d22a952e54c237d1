//! The signature of a message: HMAC-SHA256 over the time and the body.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use ring::hmac;
use thiserror::Error;

/// Largest secret, in bytes.
const MOST: u64 = 4096;
/// Shortest secret, in bytes: that of a key of 128 bits.
const LEAST: usize = 16;

/// Why a secret cannot be used. The secret itself is in no text.
#[derive(Debug, Error)]
pub(super) enum SecretError {
    #[error("the secret `{}` cannot be read", .0.display())]
    Read(PathBuf, #[source] io::Error),
    #[error("others may read the secret `{}`: run `chmod 600` on it", .0.display())]
    Open(PathBuf),
    #[error("the secret `{}` has fewer than {LEAST} or more than {MOST} bytes", .0.display())]
    Size(PathBuf),
}

/// A secret that messages are signed with.
pub(super) struct Secret(hmac::Key);

// === impl Secret ===

impl Secret {
    /// Reads it, without white space at the ends. Blocks.
    pub(super) fn read(path: &Path) -> Result<Self, SecretError> {
        let failed = |error| SecretError::Read(path.to_owned(), error);
        let file = std::fs::File::open(path).map_err(failed)?;
        let facts = file.metadata().map_err(failed)?;
        if facts.mode() & 0o077 != 0 {
            return Err(SecretError::Open(path.to_owned()));
        }
        let mut bytes = Vec::new();
        file.take(MOST + 1).read_to_end(&mut bytes).map_err(failed)?;
        let secret = bytes.trim_ascii();
        if secret.len() < LEAST || bytes.len() > usize::try_from(MOST).unwrap_or(usize::MAX) {
            return Err(SecretError::Size(path.to_owned()));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, secret)))
    }

    /// The value of the header: `v1=` and the HMAC of the decimal time, a full stop and the body, in
    /// hexadecimal digits. The time is signed so that nobody can send an old message as a new one.
    pub(super) fn sign(&self, seconds: u64, body: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(seconds.to_string().as_bytes());
        context.update(b".");
        context.update(body);
        format!("v1={}", HEXLOWER.encode(context.sign().as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn file(content: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("secret");
        std::fs::write(&path, content).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a mode");
        (folder, path)
    }

    #[test]
    fn a_signature_is_the_one_that_other_programs_compute() {
        // printf '1700000000.{}' | openssl dgst -sha256 -hmac 0123456789abcdef
        let (_folder, path) = file(b"0123456789abcdef\n", 0o600);
        let signed = Secret::read(&path).expect("a secret").sign(1_700_000_000, b"{}");
        assert_eq!(signed, format!("v1={EXPECTED}"));
    }

    const EXPECTED: &str = "e4f8e2ecae2295b2ddb2f0b5584c8275e226c0ebe9b3b819e70156bb67122e3e";

    #[test]
    fn a_secret_that_others_read_or_that_is_no_secret_is_refused() {
        let (_folder, path) = file(b"0123456789abcdef", 0o644);
        assert!(matches!(Secret::read(&path), Err(SecretError::Open(_))));
        for content in [b"short".to_vec(), vec![b'x'; 5000]] {
            let (_folder, path) = file(&content, 0o600);
            let error = Secret::read(&path).err().expect("refused");
            assert!(matches!(error, SecretError::Size(_)), "{error}");
            assert!(!error.to_string().contains("short"));
        }
        assert!(matches!(Secret::read(Path::new("/nonexistent")), Err(SecretError::Read(..))));
    }
}
