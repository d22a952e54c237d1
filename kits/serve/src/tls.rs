//! TLS of a listener: who serves, and which clients are let in.
//!
//! A listener takes the newest [`ServerConfig`] of a channel with each connection, so certificates
//! and authorities are replaced while it runs. Sessions are never resumed: a resumed session would
//! keep a client whose authority was forgotten meanwhile.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme,
};
use thiserror::Error;
use tokio::sync::watch;

use crate::certificate::{Facts, consistent};
use crate::renewed::Secured;

/// Which clients a listener lets in.
#[derive(Clone, Debug)]
pub enum Clients {
    /// All; no certificate is asked for.
    Any,
    /// Those that show a certificate of these authorities.
    Known(Vec<CertificateDer<'static>>),
    /// Those that show none, and those that show one of these authorities, be it ended by at most
    /// this long. A caller that reads the certificate has to look at its end, too.
    Lenient(Vec<CertificateDer<'static>>, Duration),
}

/// The texts (PEM) of a listener whose certificate is never renewed.
#[derive(Clone)]
pub struct ServerTls {
    /// Certificate chain, PEM.
    pub certificate: String,
    /// Private key of the certificate, PEM.
    pub key: String,
    /// When set, clients must show a certificate of this authority, PEM.
    pub client_ca: Option<String>,
}

/// Why a listener cannot be secured.
#[derive(Debug, Error)]
pub enum TlsError {
    /// The certificates cannot be read.
    #[error("the certificate chain holds no certificate in PEM, or a broken one")]
    Certificate,
    /// The key cannot be read.
    #[error("the private key is not in PEM, or is encrypted")]
    Key,
    /// The authorities cannot be read.
    #[error("the certificates of the client authority are not in PEM, or broken")]
    Authority,
    /// The authorities cannot be trusted.
    #[error("the client authority cannot be used")]
    Clients(#[source] VerifierBuilderError),
    /// Certificate and key cannot be used together.
    #[error("the certificate and its key cannot be used")]
    Setup(#[source] Error),
}

// === impl ServerTls ===

impl ServerTls {
    /// The configuration of a listener that offers these protocols. It never changes.
    ///
    /// # Errors
    /// A text cannot be used.
    pub fn secured(&self, protocols: &[&[u8]]) -> Result<Secured, TlsError> {
        let clients = match &self.client_ca {
            Some(pem) => Clients::Known(certificates(pem).ok_or(TlsError::Authority)?),
            None => Clients::Any,
        };
        let certified = certified(&self.certificate, &self.key)?;
        let config = server_config(certified, clients, protocols)?;
        Ok(watch::Sender::new(config).subscribe())
    }
}

/// The cryptography of all TLS.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Reads the certificates of a PEM text; at least one.
#[must_use]
pub fn certificates(pem: &str) -> Option<Vec<CertificateDer<'static>>> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    read.ok().filter(|read| !read.is_empty())
}

/// A certificate chain and its key, as PEM texts, ready to be shown.
///
/// # Errors
/// One of them cannot be used.
pub fn certified(chain: &str, key: &str) -> Result<CertifiedKey, TlsError> {
    let chain = certificates(chain).ok_or(TlsError::Certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| TlsError::Key)?;
    let key = ring::sign::any_supported_type(&key).map_err(TlsError::Setup)?;
    let certified = CertifiedKey::new(chain, key);
    consistent(&certified).map_err(TlsError::Setup)?;
    Ok(certified)
}

/// The configuration of a listener.
///
/// # Errors
/// The authorities of the clients cannot be used.
pub fn server_config(
    certified: CertifiedKey,
    clients: Clients,
    protocols: &[&[u8]],
) -> Result<Arc<ServerConfig>, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?;
    let builder = match clients {
        Clients::Any => builder.with_no_client_auth(),
        Clients::Known(roots) => builder.with_client_cert_verifier(verifier(roots)?),
        Clients::Lenient(roots, grace) => {
            builder.with_client_cert_verifier(Arc::new(Lenient { inner: verifier(roots)?, grace }))
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

fn verifier(
    authorities: Vec<CertificateDer<'static>>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities);
    let builder = WebPkiClientVerifier::builder_with_provider(roots.into(), provider());
    builder.build().map_err(TlsError::Clients)
}

/// Lets clients in that show no certificate, or one that ended lately.
#[derive(Debug)]
struct Lenient {
    inner: Arc<dyn ClientCertVerifier>,
    grace: Duration,
}

// === impl Lenient ===

impl ClientCertVerifier for Lenient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let ended = Facts::read(end_entity)
            .ok()
            .and_then(|facts| facts.ends.duration_since(std::time::UNIX_EPOCH).ok());
        let at = match ended {
            Some(end)
                if end.as_secs() < now.as_secs()
                    && now.as_secs() - end.as_secs() <= self.grace.as_secs() =>
            {
                UnixTime::since_unix_epoch(end)
            }
            _ => now,
        };
        self.inner.verify_client_cert(end_entity, intermediates, at)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
