//! A server whose authority is known by its fingerprint alone.

use std::sync::Arc;

use guest_agent_actors::model::id::Sha256Digest;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};

/// Trusts the one authority among the certificates that a server shows whose SHA-256 is this, and
/// that authority as any other is trusted: for the names that it vouches for, until its end.
#[derive(Debug)]
pub(super) struct Fingerprint {
    digest: Sha256Digest,
    provider: Arc<CryptoProvider>,
}

/// The server shows no certificate with the fingerprint.
#[derive(Debug, thiserror::Error)]
#[error("no certificate that the server shows has the SHA-256 {0}")]
struct Missing(Sha256Digest);

// === impl Fingerprint ===

impl Fingerprint {
    pub(super) fn new(digest: Sha256Digest, provider: Arc<CryptoProvider>) -> Self {
        Self { digest, provider }
    }
}

impl ServerCertVerifier for Fingerprint {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let is_it = |shown: &&CertificateDer<'_>| Sha256Digest::of(shown) == self.digest;
        let authority = intermediates.iter().find(is_it).ok_or_else(|| {
            let missing = Missing(self.digest);
            Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(missing))))
        })?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let provider = self.provider.clone();
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider)
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
