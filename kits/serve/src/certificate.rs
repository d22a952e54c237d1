//! A certificate and its key in files (PEM): what they hold, how long it is valid, and who may read
//! the key. Blocks.

use std::error::Error;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use rustix::fs::OFlags;
use rustls::InconsistentKeys;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};
use x509_parser::prelude::X509Certificate;
use x509_parser::time::ASN1Time;

/// Largest certificate or key file that is read, in bytes.
const MAX_PEM: u64 = 1 << 20;

/// How long before the end of a certificate people are reminded of it at the earliest.
const REMIND_BEFORE: Duration = Duration::from_secs(14 * 24 * 3600);

/// The files of a certificate and of its key. They may be one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairFiles {
    /// The certificate, with those that lead to its authority.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// When a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// From then on.
    pub from: SystemTime,
    /// Until then.
    pub until: SystemTime,
}

/// A certificate and its key.
#[derive(Debug)]
pub struct Pair {
    /// Both, ready to be shown to clients.
    pub certified: Arc<CertifiedKey>,
    /// When the certificate is valid.
    pub validity: Validity,
    /// Tells this pair from another one.
    pub digest: [u8; 32],
}

/// What any certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Serial number, in lower-case hexadecimal digits.
    pub serial: String,
    /// SHA-256 of the public key, in lower-case hexadecimal digits.
    pub key_digest: String,
    /// From when on it is valid.
    pub begins: SystemTime,
    /// Until when it is valid.
    pub ends: SystemTime,
}

/// The bytes are no certificate in DER.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the certificate is damaged")]
pub struct Damaged;

/// Why a certificate or its key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The file has no certificate.
    #[error("{} holds no certificate in PEM", .0.display())]
    NoCertificate(PathBuf),
    /// The file has no key.
    #[error("{} holds no private key in PEM, or one that is encrypted", .0.display())]
    NoKey(PathBuf),
    /// The content of a file cannot be used.
    #[error("the content of {} cannot be used", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The two do not belong together.
    #[error(
        "the key in {} does not belong to the certificate in {}", key.display(), certificate.display()
    )]
    Mismatch {
        /// File of the certificate.
        certificate: PathBuf,
        /// File of the key.
        key: PathBuf,
    },
}

// === impl Validity ===

impl Validity {
    /// Whether the certificate is valid at this time.
    #[must_use]
    pub fn holds(&self, at: SystemTime) -> bool {
        self.from <= at && at <= self.until
    }

    /// From when on people are reminded of the end: two weeks before, or when a quarter of a shorter
    /// life is left. Programs that renew certificates do so earlier.
    #[must_use]
    pub fn remind_at(&self) -> SystemTime {
        let life = self.until.duration_since(self.from).unwrap_or_default();
        self.until - REMIND_BEFORE.min(life / 4)
    }
}

// === impl Facts ===

impl Facts {
    /// Reads a certificate.
    ///
    /// # Errors
    /// It is damaged.
    pub fn read(der: &CertificateDer<'_>) -> Result<Self, Damaged> {
        Ok(Self::of(&parsed(der)?))
    }

    /// Reads the first certificate of a PEM text; `None` where it has no certificate.
    #[must_use]
    pub fn of_pem(pem: &str) -> Option<Self> {
        let first = CertificateDer::pem_slice_iter(pem.as_bytes()).next()?.ok()?;
        Self::read(&first).ok()
    }

    /// The facts of a certificate that was parsed.
    #[must_use]
    pub fn of(certificate: &X509Certificate<'_>) -> Self {
        let Validity { from, until } = validity_of(certificate);
        Self {
            serial: HEXLOWER.encode(certificate.raw_serial()),
            key_digest: HEXLOWER.encode(&Sha256::digest(certificate.public_key().raw)),
            begins: from,
            ends: until,
        }
    }
}

/// Parses a certificate, of which nothing may be left over.
///
/// # Errors
/// It is damaged.
pub fn parsed<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, Damaged> {
    match x509_parser::parse_x509_certificate(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) | Err(_) => Err(Damaged),
    }
}

fn validity_of(certificate: &X509Certificate<'_>) -> Validity {
    let at = |time: ASN1Time| {
        let seconds = u64::try_from(time.timestamp()).unwrap_or_default();
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    };
    let validity = certificate.validity();
    Validity { from: at(validity.not_before), until: at(validity.not_after) }
}

// === impl Pair ===

impl Pair {
    /// Reads both files. Whether the certificate is valid now is not looked at.
    ///
    /// # Errors
    /// A file cannot be read or used, or the two do not belong together.
    pub fn read(files: &PairFiles) -> Result<Self, PairError> {
        let PairFiles { certificate, key } = files;
        let (certificate_pem, key_pem) = (read_pem(certificate)?, read_pem(key)?);
        let (chain, validity) = chain(certificate, &certificate_pem)?;
        let unusable = |path: &Path, source: rustls::Error| PairError::Unusable {
            path: path.to_owned(),
            source: source.into(),
        };
        let private =
            PrivateKeyDer::from_pem_slice(&key_pem).map_err(|_| PairError::NoKey(key.clone()))?;
        let signing = ring::sign::any_supported_type(&private);
        let certified = CertifiedKey::new(chain, signing.map_err(|error| unusable(key, error))?);
        match consistent(&certified) {
            Ok(()) => {}
            Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
                let (certificate, key) = (certificate.clone(), key.clone());
                return Err(PairError::Mismatch { certificate, key });
            }
            Err(error) => return Err(unusable(certificate, error)),
        }
        let digest = Sha256::new().chain_update(&certificate_pem).chain_update(&key_pem);
        Ok(Self { certified: Arc::new(certified), validity, digest: digest.finalize().into() })
    }
}

/// Whether a key belongs to its certificate. A key that cannot tell is taken as it is.
pub(crate) fn consistent(certified: &CertifiedKey) -> Result<(), rustls::Error> {
    match certified.keys_match() {
        Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(()),
        matched => matched,
    }
}

/// When the first certificate of a file is valid.
///
/// # Errors
/// The file cannot be read, or holds no certificate.
pub fn validity(file: &Path) -> Result<Validity, PairError> {
    chain(file, &read_pem(file)?).map(|(_, validity)| validity)
}

/// The permissions of a file that other users may read, or that anybody but its owner may write.
/// A group may read it: certificates are handed to programs that way.
#[must_use]
pub fn open_to_others(file: &Path) -> Option<u32> {
    let mode = std::fs::metadata(file).ok()?.mode() & 0o7777;
    (mode & 0o026 != 0).then_some(mode)
}

/// Reads a file of certificates or keys.
///
/// # Errors
/// The file cannot be read.
pub fn read_pem(path: &Path) -> Result<Vec<u8>, PairError> {
    let read = || {
        let mut bytes = Vec::new();
        let file = std::fs::OpenOptions::new()
            .read(true)
            // A pipe without a writer would hold on to a thread for ever, one more with each
            // attempt.
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(path)?;
        file.take(MAX_PEM).read_to_end(&mut bytes)?;
        io::Result::Ok(bytes)
    };
    read().map_err(|source| PairError::File { path: path.to_owned(), source })
}

/// The certificates of a file, and when the first of them is valid.
fn chain(file: &Path, pem: &[u8]) -> Result<(Vec<CertificateDer<'static>>, Validity), PairError> {
    let unusable = |source: Box<dyn Error + Send + Sync>| PairError::Unusable {
        path: file.to_owned(),
        source,
    };
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(pem).collect();
    let chain = chain.map_err(|error| unusable(error.into()))?;
    let leaf = chain.first().ok_or_else(|| PairError::NoCertificate(file.to_owned()))?;
    let (_, leaf) = x509_parser::parse_x509_certificate(leaf)
        .map_err(|error| unusable(error.to_string().into()))?;
    let validity = validity_of(&leaf);
    Ok((chain, validity))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use guest_agent_testing_kit::certificate::{self as made, FUTURE, NOW, PAST, Years};

    use super::*;

    fn files(dir: &Path) -> PairFiles {
        PairFiles { certificate: dir.join("tls.crt"), key: dir.join("tls.key") }
    }

    fn write(files: &PairFiles, years: Years) {
        made::write(&files.certificate, &files.key, years);
    }

    #[test]
    fn a_pair_says_when_it_is_valid() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = files(dir.path());
        let now = SystemTime::now();
        for (years, holds) in [(PAST, false), (NOW, true), (FUTURE, false)] {
            write(&files, years);
            let pair = Pair::read(&files).expect("a pair");
            assert_eq!(pair.validity.holds(now), holds, "{years:?}");
            assert_eq!(validity(&files.certificate).expect("a certificate"), pair.validity);
        }
        let seconds = SystemTime::UNIX_EPOCH + Duration::from_secs(1_009_843_200);
        write(&files, PAST);
        let until = Pair::read(&files).expect("a pair").validity.until;
        assert_eq!(until, seconds, "the first of January 2002");
    }

    #[test]
    fn one_file_may_hold_both() {
        let dir = tempfile::tempdir().expect("a directory");
        let two = files(dir.path());
        write(&two, NOW);
        let both = [&two.certificate, &two.key].map(|file| std::fs::read(file).expect("read"));
        let one = dir.path().join("both.pem");
        std::fs::write(&one, both.concat()).expect("written");
        let files = PairFiles { certificate: one.clone(), key: one };
        assert!(Pair::read(&files).is_ok());
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = files(dir.path());
        let error = |files: &PairFiles| Pair::read(files).expect_err("unusable").to_string();
        assert!(error(&files).contains("cannot read") && error(&files).contains("tls.crt"));
        write(&files, NOW);
        let key = std::fs::read_to_string(&files.key).expect("a key");
        let certificate = std::fs::read_to_string(&files.certificate).expect("a certificate");
        std::fs::write(&files.certificate, "").expect("written");
        assert!(error(&files).contains("tls.crt holds no certificate"), "{}", error(&files));
        let torn = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        std::fs::write(&files.certificate, torn).expect("written");
        assert!(error(&files).contains("the content of"), "{}", error(&files));
        std::fs::write(&files.certificate, certificate).expect("written");
        for text in [
            "",
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAA==\n-----END ENCRYPTED PRIVATE KEY-----\n",
        ] {
            std::fs::write(&files.key, text).expect("written");
            assert!(error(&files).contains("tls.key holds no private key"), "{}", error(&files));
        }
        made::write_other_key(&files.key);
        assert!(error(&files).contains("does not belong"), "{}", error(&files));
        std::fs::write(&files.key, key).expect("written");
        assert!(Pair::read(&files).is_ok());
    }

    #[test]
    fn a_key_is_for_its_owner_and_a_group_that_reads_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("key");
        std::fs::write(&file, "").expect("written");
        for (mode, is_open) in
            [(0o600, false), (0o640, false), (0o644, true), (0o620, true), (0o606, true)]
        {
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).expect("set");
            assert_eq!(open_to_others(&file), is_open.then_some(mode), "{mode:o}");
        }
    }
}
