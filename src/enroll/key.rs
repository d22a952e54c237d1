//! The key of this machine, and the proof that it has the key.

use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};

/// A key of ECDSA P-256.
pub(super) struct Key(KeyPair);

// === impl Key ===

impl Key {
    /// A new key.
    pub(super) fn make() -> Result<Self, rcgen::Error> {
        KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map(Self)
    }

    /// The key of a PEM text.
    pub(super) fn read(pem: &str) -> Result<Self, rcgen::Error> {
        KeyPair::from_pem(pem).map(Self)
    }

    /// The key as PEM: a secret.
    pub(super) fn pem(&self) -> String {
        self.0.serialize_pem()
    }

    /// The request for a certificate, PEM. It names nobody: that is for the server to say.
    pub(super) fn request(&self) -> Result<String, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.serialize_request(&self.0)?.pem()
    }

    /// Whether a certificate is for this key.
    pub(super) fn fits(&self, certificate: &x509_parser::certificate::X509Certificate<'_>) -> bool {
        certificate.public_key().raw == rcgen::PublicKeyData::subject_public_key_info(&self.0)
    }
}
