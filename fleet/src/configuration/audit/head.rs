//! A signed head of the audit record: a small file that says how far the record was, and what its newest
//! entry was, at a time.
//!
//! Kept elsewhere, it lets everybody who has the public key find out that entries were removed at the end, or
//! that the whole record was written anew. Keys are of Ed25519, as files in PEM.

use std::io;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::Known;
use crate::enroll::files;
use crate::hex::{hex, unhex};

/// Stands before what is signed, so that no other signature can be taken for one of a head.
const DOMAIN: &str = "guest-fleet audit head 1";
/// What stands before the 32 bytes of a public key of Ed25519 in DER (RFC 8410).
const SPKI: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// A head of the audit record, signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SignedHead {
    /// When it was signed.
    pub at: String,
    /// SHA-256 of the newest entry, in hexadecimal digits; empty where there is no entry.
    pub digest: String,
    /// The first half of the SHA-256 of the public key, in hexadecimal digits.
    pub key: String,
    /// Number of the newest entry; 0 where there is no entry.
    pub number: u64,
    /// The signature, in Base64.
    pub signature: String,
}

/// A key that signs heads.
pub struct SigningKey(Ed25519KeyPair);

/// A key that heads are checked with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey(Vec<u8>);

/// Why a key or a head cannot be used.
#[derive(Debug, Error)]
pub enum HeadError {
    /// The file cannot be read.
    #[error("cannot read `{path}`")]
    Read {
        /// The file.
        path: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write `{path}`")]
    Write {
        /// The file.
        path: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// There is such a file.
    #[error(
        "`{0}` is there already, and is not replaced: heads that it signed could not be checked any more"
    )]
    Exists(String),
    /// Others may read the key.
    #[error("others may read the key `{path}` (mode {mode:03o}): run `chmod go= {path}`")]
    Open {
        /// The file.
        path: String,
        /// Its mode.
        mode: u32,
    },
    /// It is not a key.
    #[error(
        "`{0}` is not a private key of Ed25519 in PEM: `guest-fleet audit create-key FILE` makes one, as does `openssl \
         genpkey -algorithm ed25519`"
    )]
    Private(String),
    /// It is not a public key.
    #[error(
        "`{0}` is not a public key of Ed25519 in PEM, as `guest-fleet audit create-key` prints it"
    )]
    Public(String),
    /// It is not a head.
    #[error("`{0}` is not a signed head of an audit record")]
    Head(String),
    /// Another key signed it.
    #[error("the head was signed by the key {signed}, and this is the key {given}")]
    OtherKey {
        /// The key that it names.
        signed: String,
        /// The key that was given.
        given: String,
    },
    /// The signature is wrong.
    #[error("the signature of the head is wrong: somebody changed the head")]
    Signature,
}

// === impl SigningKey ===

impl SigningKey {
    /// Makes a key in a new file, which its owner alone may read, and returns its public key.
    ///
    /// # Errors
    /// There is such a file, or it cannot be written.
    pub fn create(path: &Path) -> Result<PublicKey, HeadError> {
        let name = path.display().to_string();
        let random = ring::rand::SystemRandom::new();
        let pair =
            Ed25519KeyPair::generate_pkcs8(&random).expect("a Linux kernel gives random bytes");
        let public =
            Self(Ed25519KeyPair::from_pkcs8(pair.as_ref()).expect("it was made so")).public();
        write_new(path, &pem("PRIVATE KEY", pair.as_ref())).map_err(|source| {
            match source.kind() {
                io::ErrorKind::AlreadyExists => HeadError::Exists(name),
                _ => HeadError::Write { path: name, source },
            }
        })?;
        Ok(public)
    }

    /// Reads a key.
    ///
    /// # Errors
    /// The file cannot be read, others may read it, too, or the key is of another kind.
    pub fn read(path: &Path) -> Result<Self, HeadError> {
        let name = || path.display().to_string();
        let text = text(path)?;
        let failed = |source| HeadError::Read { path: name(), source };
        if let Some(mode) = files::open_to_others(path).map_err(failed)? {
            return Err(HeadError::Open { path: name(), mode });
        }
        let wrong = || HeadError::Private(name());
        let der = PrivatePkcs8KeyDer::from_pem_slice(text.as_bytes()).map_err(|_| wrong())?;
        // What openssl writes has no public key beside the private one.
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der());
        pair.map(Self).map_err(|_| wrong())
    }

    /// The key that checks what this one signs.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.public_key().as_ref().to_vec())
    }

    /// Signs a head.
    #[must_use]
    pub fn sign(&self, number: u64, digest: &[u8], at: Timestamp) -> SignedHead {
        let mut head = SignedHead {
            at: at.to_string(),
            digest: hex(digest),
            key: self.public().id(),
            number,
            signature: String::new(),
        };
        head.signature = STANDARD.encode(self.0.sign(head.signed().as_bytes()));
        head
    }
}

// === impl PublicKey ===

impl PublicKey {
    /// Reads a public key.
    ///
    /// # Errors
    /// The file cannot be read, or the key is of another kind.
    pub fn read(path: &Path) -> Result<Self, HeadError> {
        let wrong = || HeadError::Public(path.display().to_string());
        let der = SubjectPublicKeyInfoDer::from_pem_slice(text(path)?.as_bytes());
        let der = der.map_err(|_| wrong())?;
        let key = der.as_ref().strip_prefix(&SPKI).filter(|key| key.len() == 32);
        key.map(|key| Self(key.to_vec())).ok_or_else(wrong)
    }

    /// By what heads name it.
    #[must_use]
    pub fn id(&self) -> String {
        hex(&Sha256::digest(&self.0)[..16])
    }

    /// It as a file in PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        pem("PUBLIC KEY", &[SPKI.as_slice(), &self.0].concat())
    }
}

// === impl SignedHead ===

impl SignedHead {
    /// Reads a head from its file.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub fn read(path: &Path) -> Result<Self, HeadError> {
        let wrong = || HeadError::Head(path.display().to_string());
        let head: Self = serde_json::from_str(&text(path)?).map_err(|_| wrong())?;
        head.known().map(|_| head.clone()).ok_or_else(wrong)
    }

    /// What it says of the audit record. That is true only where [`SignedHead::check`] found nothing wrong.
    #[must_use]
    pub fn known(&self) -> Option<Known> {
        Some(Known { number: self.number, digest: unhex(&self.digest)? })
    }

    /// Checks who signed it.
    ///
    /// # Errors
    /// It was another key, or somebody changed the head.
    pub fn check(&self, key: &PublicKey) -> Result<(), HeadError> {
        if self.key != key.id() {
            let signed = self.key.escape_debug().take(64).collect();
            return Err(HeadError::OtherKey { signed, given: key.id() });
        }
        let signature = STANDARD.decode(&self.signature).map_err(|_| HeadError::Signature)?;
        UnparsedPublicKey::new(&ED25519, &key.0)
            .verify(self.signed().as_bytes(), &signature)
            .map_err(|_| HeadError::Signature)
    }

    /// What is signed: a line for each part, none of which can have a line break that counts.
    fn signed(&self) -> String {
        let Self { at, digest, key, number, .. } = self;
        format!("{DOMAIN}\n{number}\n{digest}\n{at:?}\n{key:?}\n")
    }
}

fn text(path: &Path) -> Result<String, HeadError> {
    let name = || path.display().to_string();
    let read =
        files::read(path).and_then(|text| text.ok_or_else(|| io::ErrorKind::NotFound.into()));
    read.map_err(|source| HeadError::Read { path: name(), source })
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;

    let mut options = std::fs::OpenOptions::new();
    let mut file = options.create_new(true).write(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn pem(label: &str, der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let lines: Vec<&str> = body
        .as_bytes()
        .chunks(64)
        .map(|line| std::str::from_utf8(line).expect("Base64 is ASCII"))
        .collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn at() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().expect("a time")
    }

    #[test]
    fn a_head_is_checked_with_the_key_that_signed_it_and_no_part_can_be_changed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("key.pem");
        let public = SigningKey::create(&path).expect("a key");
        assert!(matches!(SigningKey::create(&path), Err(HeadError::Exists(_))));
        let key = SigningKey::read(&path).expect("a key");
        assert_eq!(key.public(), public);
        let head = key.sign(7, &[9; 32], at());
        head.check(&public).expect("it is right");
        assert_eq!(head.known(), Some(Known { number: 7, digest: vec![9; 32] }));
        let changed = [
            SignedHead { number: 8, ..head.clone() },
            SignedHead { digest: hex(&[8; 32]), ..head.clone() },
            SignedHead { at: "2027-01-01T00:00:00Z".to_owned(), ..head.clone() },
            SignedHead { signature: String::new(), ..head.clone() },
            SignedHead { signature: STANDARD.encode([0; 64]), ..head.clone() },
        ];
        for changed in changed {
            assert!(matches!(changed.check(&public), Err(HeadError::Signature)), "{changed:?}");
        }
        let other = SigningKey::create(&directory.path().join("other.pem")).expect("a key");
        assert!(matches!(head.check(&other), Err(HeadError::OtherKey { .. })));
        // Who writes the other key's id into it has no signature of that key.
        let moved = SignedHead { key: other.id(), ..head };
        assert!(matches!(moved.check(&other), Err(HeadError::Signature)));
    }

    #[test]
    fn heads_and_public_keys_are_read_from_their_files_and_others_are_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).expect("written");
            path
        };
        let path = directory.path().join("key.pem");
        let public = SigningKey::create(&path).expect("a key");
        let found = PublicKey::read(&file("key.pub", &public.pem())).expect("a key");
        assert_eq!(found, public);
        let head = SigningKey::read(&path).expect("a key").sign(0, &[], at());
        let text = serde_json::to_string(&head).expect("plain values");
        let read = SignedHead::read(&file("head.json", &text)).expect("a head");
        assert_eq!(read, head);
        for bad in ["", "{}", "[]", "x", &text.replace("\"digest\":\"\"", "\"digest\":\"0g\"")] {
            assert!(
                matches!(SignedHead::read(&file("bad", bad)), Err(HeadError::Head(_))),
                "{bad}"
            );
            assert!(matches!(PublicKey::read(&file("bad", bad)), Err(HeadError::Public(_))));
        }
        let private = std::fs::read_to_string(&path).expect("read");
        assert!(matches!(PublicKey::read(&file("bad", &private)), Err(HeadError::Public(_))));
        assert!(matches!(
            SignedHead::read(&directory.path().join("none")),
            Err(HeadError::Read { .. })
        ));
    }

    #[test]
    fn a_key_of_openssl_is_taken_and_one_that_others_may_read_is_not() {
        // openssl genpkey -algorithm ed25519
        let text = "-----BEGIN PRIVATE KEY-----\n\
            MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
            -----END PRIVATE KEY-----\n";
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("key.pem");
        std::fs::write(&path, text).expect("written");
        let with_mode = |mode: u32| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
            SigningKey::read(&path)
        };
        assert!(matches!(with_mode(0o644), Err(HeadError::Open { mode: 0o644, .. })));
        let key = with_mode(0o600).expect("a key");
        // The key pair of RFC 8032, section 7.1, test 1.
        let public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
        assert_eq!(hex(&key.public().0), public);
        std::fs::write(&path, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
            .expect("written");
        assert!(matches!(SigningKey::read(&path), Err(HeadError::Private(_))));
    }
}
