//! The fleet's authority: the key that makes certificates, in files outside of the ledger.
//!
//! ```text
//!   fleet.id     the id of the fleet; stays through every rotation
//!   ca.key       the private key, for its owner alone
//!   ca.pem       its certificate
//!   chain.pem    the same key, certified by the former authority: who trusts that one, trusts this
//!   former.pem   former authorities that are trusted still
//!   next.pem     what a rotation is about to put in place; finished by the next one that opens it
//! ```
//!
//! A rotation needs nothing of the agents: listeners show `chain.pem`, so agents that know the
//! former authority alone trust the new one, and the former one is in the trust bundle until its
//! end or until [`Authority::forget`]. Blocks; [`Authorities`] is for tasks.

mod error;
mod handle;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use guest_agent_serve_kit::certificate::Facts;
use guest_agent_serve_kit::replace::{Access, remove_if_there, replace_file};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest, Sha256};

use super::certificate;
use super::files;
use super::id::FleetId;
use super::random::serial;

pub use error::AuthorityError;
pub use handle::Authorities;

/// How long an authority's certificate is valid.
const LIFE: Duration = Duration::from_secs(3650 * 24 * 3600);

const FLEET: &str = "fleet.id";
const KEY: &str = "ca.key";
const CERTIFICATE: &str = "ca.pem";
const CHAIN: &str = "chain.pem";
const FORMER: &str = "former.pem";
const NEXT: &str = "next.pem";

/// The authority as its files were at one moment.
pub struct Authority {
    fleet: FleetId,
    pub(super) issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    ends: SystemTime,
    chain: Vec<CertificateDer<'static>>,
    former: Vec<CertificateDer<'static>>,
}

// === impl Authority ===

impl Authority {
    /// Opens the authority, or makes one if the directory has none yet.
    ///
    /// # Errors
    /// A file cannot be read or written, or holds something else.
    pub fn init(directory: &Path, now: SystemTime) -> Result<Self, AuthorityError> {
        let failed = |source| AuthorityError::File { path: directory.to_owned(), source };
        files::make(directory).map_err(failed)?;
        let _locked = files::lock(directory).map_err(failed)?;
        let path = |name: &str| directory.join(name);
        if !path(CERTIFICATE).exists() && !path(KEY).exists() && !path(NEXT).exists() {
            let fleet = match read(&path(FLEET))? {
                Some(text) => parse_fleet(&path(FLEET), &text)?,
                None => FleetId::random(),
            };
            replace(directory, FLEET, &format!("{fleet}\n"))?;
            let (key, params) = new_key(&fleet, now)?;
            let certificate = params.self_signed(&key).map_err(AuthorityError::Make)?;
            replace(directory, NEXT, &(key.serialize_pem() + &certificate.pem()))?;
        }
        Self::read(directory)
    }

    /// Opens the authority.
    ///
    /// # Errors
    /// The directory has no authority, others may read its key, or a file cannot be used.
    pub fn open(directory: &Path) -> Result<Self, AuthorityError> {
        if !directory.is_dir() {
            return Err(AuthorityError::Missing(directory.to_owned()));
        }
        let failed = |source| AuthorityError::File { path: directory.to_owned(), source };
        let _locked = files::lock(directory).map_err(failed)?;
        Self::read(directory)
    }

    /// Makes a new authority that signs from now on; the present one stays trusted.
    ///
    /// # Errors
    /// As [`Authority::open`], or the files cannot be written. The present authority then goes on.
    pub fn rotate(directory: &Path, now: SystemTime) -> Result<Self, AuthorityError> {
        let failed = |source| AuthorityError::File { path: directory.to_owned(), source };
        let _locked = files::lock(directory).map_err(failed)?;
        let present = Self::read(directory)?;
        let (key, params) = new_key(&present.fleet, now)?;
        let certificate = params.self_signed(&key).map_err(AuthorityError::Make)?;
        let mut crossed = params;
        crossed.serial_number = Some(serial());
        crossed.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        crossed.not_after = crossed.not_after.min(present.ends.into());
        let crossed = crossed.signed_by(&key, &present.issuer).map_err(AuthorityError::Make)?;
        let former: String = present.trust(now).iter().map(certificate::pem).collect();
        replace(directory, FORMER, &former)?;
        replace(directory, NEXT, &(key.serialize_pem() + &certificate.pem() + &crossed.pem()))?;
        Self::read(directory)
    }

    /// Trusts former authorities no longer: those with this fingerprint, or all of them. Returns how
    /// many there were. Agents whose certificates they signed have to be enrolled anew.
    ///
    /// # Errors
    /// As [`Authority::open`], or the files cannot be written.
    pub fn forget(directory: &Path, fingerprint: Option<&str>) -> Result<usize, AuthorityError> {
        let failed = |source| AuthorityError::File { path: directory.to_owned(), source };
        let _locked = files::lock(directory).map_err(failed)?;
        let present = Self::read(directory)?;
        let goes = |former: &&CertificateDer<'_>| {
            fingerprint.is_none_or(|wanted| wanted.eq_ignore_ascii_case(&digest(former)))
        };
        let (going, staying): (Vec<_>, Vec<_>) = present.former.iter().partition(goes);
        if going.is_empty() {
            return Ok(0);
        }
        // The certificate by the former authority leads nobody anywhere any more.
        let chain = directory.join(CHAIN);
        remove_if_there(&chain).map_err(|source| AuthorityError::File { path: chain, source })?;
        replace(directory, FORMER, &staying.into_iter().map(certificate::pem).collect::<String>())?;
        Ok(going.len())
    }

    fn read(directory: &Path) -> Result<Self, AuthorityError> {
        let path = |name: &str| directory.join(name);
        finish(directory)?;
        let Some(key) = read_key(&path(KEY))? else {
            return Err(AuthorityError::Missing(directory.to_owned()));
        };
        let damaged = |name: &str, problem: &str| AuthorityError::Damaged {
            path: directory.join(name),
            problem: problem.to_owned(),
        };
        let key = KeyPair::from_pem(&key).map_err(|_| damaged(KEY, "it holds no private key"))?;
        let text = read(&path(FLEET))?.ok_or_else(|| damaged(FLEET, "it is missing"))?;
        let fleet = parse_fleet(&path(FLEET), &text)?;
        let certificate = read_certificates(&path(CERTIFICATE))?
            .pop()
            .ok_or_else(|| damaged(CERTIFICATE, "it holds no certificate"))?;
        let known =
            Facts::read(&certificate).map_err(|error| damaged(CERTIFICATE, &error.to_string()))?;
        if known.key_digest
            != HEXLOWER.encode(&Sha256::digest(rcgen::PublicKeyData::subject_public_key_info(&key)))
        {
            return Err(AuthorityError::Mismatch(directory.to_owned()));
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(AuthorityError::Make)?;
        let chain = read_certificates(&path(CHAIN))?;
        let former = read_certificates(&path(FORMER))?;
        Ok(Self { fleet, issuer, certificate, ends: known.ends, chain, former })
    }

    /// The id of the fleet.
    #[must_use]
    pub fn fleet(&self) -> &FleetId {
        &self.fleet
    }

    /// When the authority's certificate ends.
    #[must_use]
    pub fn ends(&self) -> SystemTime {
        self.ends
    }

    /// SHA-256 of the authority's certificate, in lower-case hexadecimal digits: what agents are
    /// given to know the server by when they enrol.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        digest(&self.certificate)
    }

    /// The authorities whose certificates are trusted: this one first, then former ones that have
    /// not ended.
    #[must_use]
    pub fn trust(&self, now: SystemTime) -> Vec<CertificateDer<'static>> {
        let holds = |former: &&CertificateDer<'_>| {
            **former != self.certificate && Facts::read(former).is_ok_and(|facts| facts.ends > now)
        };
        std::iter::once(&self.certificate)
            .chain(self.former.iter().filter(holds))
            .cloned()
            .collect()
    }

    /// The trust bundle as PEM.
    #[must_use]
    pub fn trust_pem(&self, now: SystemTime) -> String {
        self.trust(now).iter().map(certificate::pem).collect()
    }

    /// What leads from a certificate of this authority to a former one; empty before the first
    /// rotation.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// The authority's own certificate.
    #[must_use]
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }
}

/// The files that change when the authority does.
fn watched(directory: &Path) -> Vec<PathBuf> {
    [KEY, CERTIFICATE, CHAIN, FORMER, NEXT].map(|name| directory.join(name)).to_vec()
}

fn new_key(
    fleet: &FleetId,
    now: SystemTime,
) -> Result<(KeyPair, CertificateParams), AuthorityError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(AuthorityError::Make)?;
    let mut params = CertificateParams::default();
    // Every authority has a name of its own, so that a certificate names the one that signed it.
    let short = &HEXLOWER.encode(&Sha256::digest(key.public_key_raw()))[..16];
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("guest-fleet {fleet} {short}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(1));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.serial_number = Some(serial());
    params.not_before = (now - certificate::BACKDATED).into();
    params.not_after = (now + LIFE).into();
    Ok((key, params))
}

/// Puts in place what a rotation committed. Repeating it changes nothing.
fn finish(directory: &Path) -> Result<(), AuthorityError> {
    let next = directory.join(NEXT);
    let Some(text) = read_key(&next)? else { return Ok(()) };
    let damaged =
        |problem: &str| AuthorityError::Damaged { path: next.clone(), problem: problem.to_owned() };
    let key = KeyPair::from_pem(&text).map_err(|_| damaged("it holds no private key"))?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let certificates = certificates.map_err(|_| damaged("it holds a broken certificate"))?;
    let (first, chain) =
        certificates.split_first().ok_or_else(|| damaged("it holds no certificate"))?;
    replace(directory, KEY, &key.serialize_pem())?;
    replace(directory, CHAIN, &chain.iter().map(certificate::pem).collect::<String>())?;
    replace(directory, CERTIFICATE, &certificate::pem(first))?;
    remove_if_there(&next).map_err(|source| AuthorityError::File { path: next.clone(), source })
}

fn replace(directory: &Path, name: &str, text: &str) -> Result<(), AuthorityError> {
    let path = directory.join(name);
    replace_file(&path, text.as_bytes(), Access::PRIVATE)
        .map_err(|source| AuthorityError::File { path, source })
}

fn read(path: &Path) -> Result<Option<String>, AuthorityError> {
    files::read(path).map_err(|source| AuthorityError::File { path: path.to_owned(), source })
}

fn read_key(path: &Path) -> Result<Option<String>, AuthorityError> {
    let text = read(path)?;
    if text.is_some() {
        let open = files::open_to_others(path)
            .map_err(|source| AuthorityError::File { path: path.to_owned(), source })?;
        if let Some(mode) = open {
            return Err(AuthorityError::KeyOpen { path: path.to_owned(), mode });
        }
    }
    Ok(text)
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, AuthorityError> {
    let Some(text) = read(path)? else { return Ok(Vec::new()) };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    certificates.map_err(|_| AuthorityError::Damaged {
        path: path.to_owned(),
        problem: "it holds a broken certificate".to_owned(),
    })
}

fn parse_fleet(path: &Path, text: &str) -> Result<FleetId, AuthorityError> {
    text.trim().parse().map_err(|error: super::id::IdError| AuthorityError::Damaged {
        path: path.to_owned(),
        problem: error.to_string(),
    })
}

fn digest(certificate: &CertificateDer<'_>) -> String {
    HEXLOWER.encode(&Sha256::digest(certificate))
}

#[cfg(test)]
mod tests;
