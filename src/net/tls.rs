//! The TLS of a client: what its files say, read anew for every connection.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use guest_agent_serve_kit::certificate::{PairError, read_pem};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// What HTTP/2 is called in a handshake.
pub(super) const ALPN: &[u8] = b"h2";

/// The files for `https` endpoints, read for every connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities that may have signed the server's certificate (PEM); without it those of the
    /// system.
    pub authorities: Option<PathBuf>,
    /// What the agent shows of itself, for mutual TLS.
    pub client: Option<ClientCertificate>,
}

/// A certificate and its key (PEM).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate, with those that lead to its authority.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// A certificate or a key cannot be read.
    #[error(transparent)]
    File(#[from] PairError),
    /// What a file holds is not what it should be.
    #[error("the TLS files cannot be used")]
    Unusable(#[source] Box<dyn Error + Send + Sync>),
    /// A bug, or the runtime ends: the thread that reads the system's authorities did not finish.
    #[error("the TLS setup was aborted")]
    Aborted,
}

/// What was read.
struct Pem {
    authorities: Option<Vec<u8>>,
    client: Option<(Vec<u8>, Vec<u8>)>,
}

/// What a connection of the link is secured with.
pub(super) async fn config(files: &TlsFiles) -> Result<Arc<rustls::ClientConfig>, TlsError> {
    client_config(files).await.map(Arc::new)
}

/// What a client of HTTP/2 is secured with by these files.
pub(crate) async fn client_config(files: &TlsFiles) -> Result<rustls::ClientConfig, TlsError> {
    let files = files.clone();
    // The system's authorities are read there, too.
    let config = tokio::task::spawn_blocking(move || {
        Pem::read(&files)?.config().map_err(TlsError::Unusable)
    });
    config.await.map_err(|_| TlsError::Aborted)?
}

impl Pem {
    /// Blocks.
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let authorities = files.authorities.as_deref().map(read_pem).transpose()?;
        let client = match &files.client {
            Some(client) => Some((read_pem(&client.certificate)?, read_pem(&client.key)?)),
            None => None,
        };
        Ok(Self { authorities, client })
    }

    /// Blocks.
    fn config(self) -> Result<rustls::ClientConfig, Box<dyn Error + Send + Sync>> {
        let authorities: Vec<CertificateDer> = match self.authorities {
            Some(pem) => CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>()?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        let mut roots = rustls::RootCertStore::empty();
        // A system has authorities of any age, and some of them cannot be read any more.
        let (usable, _) = roots.add_parsable_certificates(authorities);
        if usable == 0 {
            return Err("no certificate of an authority was found".into());
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut config = match self.client {
            Some((certificate, key)) => {
                let chain = CertificateDer::pem_slice_iter(&certificate);
                let key = PrivateKeyDer::from_pem_slice(&key)?;
                builder.with_client_auth_cert(chain.collect::<Result<_, _>>()?, key)?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(config)
    }
}
