//! What a certificate says: whose it is, which one, how long.

use std::time::Duration;

use guest_agent_serve_kit::certificate::{Damaged, Facts, parsed};
use rustls::pki_types::CertificateDer;
use thiserror::Error;
use x509_parser::prelude::GeneralName;

use super::id::{AgentId, FleetId, IdError, parse_uri};

/// A certificate is valid from a little earlier: the clocks of machines differ.
pub(super) const BACKDATED: Duration = Duration::from_secs(300);

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
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// It names nobody, or several.
    #[error("the certificate has {0} names of the form `guest-fleet://FLEET/agent/AGENT`, not one")]
    Names(usize),
    /// Its name is malformed.
    #[error("the name in the certificate is malformed")]
    Name(#[source] IdError),
}

// === impl AgentCertificate ===

impl AgentCertificate {
    /// Reads a certificate.
    ///
    /// # Errors
    /// It is damaged, or names no agent.
    pub fn read(der: &CertificateDer<'_>) -> Result<Self, CertificateError> {
        let certificate = parsed(der)?;
        let names = certificate
            .subject_alternative_name()
            .map_err(|_| Damaged)?
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
