//! What a certificate says: whose it is, which one, how long.

use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest, Sha256};
use thiserror::Error;
use x509_parser::prelude::{GeneralName, X509Certificate};
use x509_parser::time::ASN1Time;

use super::id::{AgentId, FleetId, IdError, parse_uri};
use crate::hex::hex;

/// A certificate is valid from a little earlier: the clocks of machines differ.
pub(super) const BACKDATED: Duration = Duration::from_secs(300);

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

/// The certificate of an agent. Whether an authority of the fleet signed it was checked before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentCertificate {
    /// The fleet that it names.
    pub fleet: FleetId,
    /// The agent that it names.
    pub agent: AgentId,
    /// What else it says.
    pub facts: Facts,
}

/// Why a certificate does not say whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CertificateError {
    /// It cannot be read.
    #[error("the certificate is damaged")]
    Damaged,
    /// It names nobody, or several.
    #[error("the certificate has {0} names of the form `guest-fleet://FLEET/agent/AGENT`, not one")]
    Names(usize),
    /// Its name is malformed.
    #[error("the name in the certificate is malformed")]
    Name(#[source] IdError),
}

// === impl Facts ===

impl Facts {
    /// Reads a certificate.
    ///
    /// # Errors
    /// It is damaged.
    pub fn read(der: &CertificateDer<'_>) -> Result<Self, CertificateError> {
        Ok(Self::of(&parse(der)?))
    }

    /// Reads the first certificate of a PEM text; `None` where it has no certificate.
    #[must_use]
    pub fn of_pem(pem: &str) -> Option<Self> {
        let first = CertificateDer::pem_slice_iter(pem.as_bytes()).next()?.ok()?;
        Self::read(&first).ok()
    }

    fn of(certificate: &X509Certificate<'_>) -> Self {
        Self {
            serial: hex(certificate.raw_serial()),
            key_digest: hex(&Sha256::digest(certificate.public_key().raw)),
            begins: system_time(certificate.validity().not_before),
            ends: system_time(certificate.validity().not_after),
        }
    }
}

// === impl AgentCertificate ===

impl AgentCertificate {
    /// Reads a certificate.
    ///
    /// # Errors
    /// It is damaged, or names no agent.
    pub fn read(der: &CertificateDer<'_>) -> Result<Self, CertificateError> {
        let certificate = parse(der)?;
        let names = certificate
            .subject_alternative_name()
            .map_err(|_| CertificateError::Damaged)?
            .map(|extension| extension.value.general_names.as_slice())
            .unwrap_or_default();
        let uris: Vec<&str> = names
            .iter()
            .filter_map(|name| match name {
                GeneralName::URI(uri) if uri.starts_with("guest-fleet:") => Some(*uri),
                _ => None,
            })
            .collect();
        let [uri] = uris[..] else { return Err(CertificateError::Names(uris.len())) };
        let (fleet, agent) = parse_uri(uri).map_err(CertificateError::Name)?;
        Ok(Self { fleet, agent, facts: Facts::of(&certificate) })
    }
}

/// A certificate as PEM.
pub(crate) fn pem(der: &CertificateDer<'_>) -> String {
    use base64::Engine;

    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        pem.push_str(line);
        pem.push('\n');
        rest = after;
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, CertificateError> {
    match x509_parser::parse_x509_certificate(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) | Err(_) => Err(CertificateError::Damaged),
    }
}

fn system_time(time: ASN1Time) -> SystemTime {
    let seconds = u64::try_from(time.timestamp()).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}
