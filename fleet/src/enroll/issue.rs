//! Certificates of agents and of the fleet's own listeners.

use std::time::{Duration, SystemTime};

use guest_agent_serve_kit::certificate::Facts;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType,
};
use rustls::pki_types::CertificateDer;

use super::ca::{Authority, AuthorityError};
use super::certificate::{self, BACKDATED};
use super::csr::ProvenKey;
use super::id::AgentId;
use super::random::serial;

/// A certificate that was made.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate.
    pub der: CertificateDer<'static>,
    /// What it says.
    pub facts: Facts,
}

// === impl Issued ===

impl Issued {
    /// The certificate as PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        certificate::pem(&self.der)
    }
}

// === impl Authority ===

impl Authority {
    /// Makes a certificate with which an agent shows who it is. It ends with the authority at the
    /// latest.
    ///
    /// # Errors
    /// The authority has ended, or the certificate cannot be made.
    pub fn issue_agent(
        &self,
        key: &ProvenKey,
        agent: &AgentId,
        life: Duration,
        now: SystemTime,
    ) -> Result<Issued, AuthorityError> {
        let uri = self.fleet().uri(agent);
        let uri = uri.try_into().map_err(AuthorityError::Make)?;
        let names = vec![SanType::URI(uri)];
        self.issue(
            &key.public,
            names,
            "guest-agent",
            ExtendedKeyUsagePurpose::ClientAuth,
            life,
            now,
        )
    }

    /// Makes a certificate for a listener that is reached under these DNS names and IP addresses.
    ///
    /// # Errors
    /// A name is not valid, the authority has ended, or the certificate cannot be made.
    pub fn issue_server(
        &self,
        key: &KeyPair,
        names: &[String],
        life: Duration,
        now: SystemTime,
    ) -> Result<Issued, AuthorityError> {
        let san = |name: &String| {
            let bad = || AuthorityError::Name { name: name.clone() };
            if let Ok(address) = name.parse() {
                return Ok(SanType::IpAddress(address));
            }
            rustls::pki_types::DnsName::try_from(name.as_str()).map_err(|_| bad())?;
            Ok(SanType::DnsName(name.as_str().try_into().map_err(|_| bad())?))
        };
        let names = names.iter().map(san).collect::<Result<Vec<_>, AuthorityError>>()?;
        self.issue(key, names, "guest-fleet", ExtendedKeyUsagePurpose::ServerAuth, life, now)
    }

    fn issue(
        &self,
        key: &impl PublicKeyData,
        names: Vec<SanType>,
        subject: &str,
        usage: ExtendedKeyUsagePurpose,
        life: Duration,
        now: SystemTime,
    ) -> Result<Issued, AuthorityError> {
        if self.ends() <= now {
            return Err(AuthorityError::Ended);
        }
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, subject);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(serial());
        params.not_before = (now - BACKDATED).into();
        params.not_after = (now + life).min(self.ends()).into();
        let made = params.signed_by(key, &self.issuer).map_err(AuthorityError::Make)?;
        let der = made.der().clone();
        let facts = Facts::read(&der)
            .map_err(|_| AuthorityError::Make(rcgen::Error::CouldNotParseCertificate))?;
        Ok(Issued { der, facts })
    }
}
