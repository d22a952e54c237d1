//! What the agent asks the fleet's server, over HTTPS.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_proto::enrolment::{self, EnrollRequest, Granted, Problem, Refused, RenewRequest};
use reqwest::{Url, redirect};
use rustls::ClientConfig;
use rustls::crypto::ring;
use serde::Serialize;

use super::fingerprint::Fingerprint;
use crate::net::tls::{self, ClientCertificate, TlsError, TlsFiles};

/// How long a request may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// Largest answer that is read, in bytes.
const ANSWER_BYTES: usize = 256 << 10;

/// How the server is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// One of the system's authorities vouches for it.
    System,
    /// An authority of this file (PEM) does.
    File(PathBuf),
    /// The authority with this SHA-256 does.
    Fingerprint(Sha256Digest),
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The address is not valid.
    #[error("`{0}` is no address of a server: it begins with https:// and has no path")]
    Address(String),
    /// The certificates cannot be used.
    #[error("the connection cannot be secured")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The server cannot be reached, or is another one.
    #[error("the server did not answer")]
    Send(#[source] reqwest::Error),
    /// The server refused.
    #[error("the server refused: {}", .0.message)]
    Refused(Problem),
    /// The answer is not one of such a server.
    #[error("the answer with the status {status} is not one of a fleet's server: {problem}")]
    Answer {
        /// Status of the answer.
        status: u16,
        /// What is wrong with it.
        problem: String,
    },
}

/// The fleet's server as one knows it.
pub struct Server {
    base: Url,
    http: reqwest::Client,
}

impl From<TlsError> for RequestError {
    fn from(error: TlsError) -> Self {
        Self::Tls(Box::new(error))
    }
}

// === impl Server ===

impl Server {
    /// The server at this address; `shown` is what the agent shows of itself.
    ///
    /// # Errors
    /// The address is not valid, or the certificates cannot be used.
    pub async fn new(
        address: &str,
        trust: &Trust,
        shown: Option<ClientCertificate>,
    ) -> Result<Self, RequestError> {
        let bad = || RequestError::Address(address.to_owned());
        let base = Url::parse(address).map_err(|_| bad())?;
        let is_bare = base.path() == "/" && base.query().is_none() && base.fragment().is_none();
        if base.scheme() != "https" || !is_bare || !base.username().is_empty() {
            return Err(bad());
        }
        let mut config = match trust {
            Trust::System => {
                tls::client_config(&TlsFiles { authorities: None, client: shown }).await?
            }
            Trust::File(file) => {
                let files = TlsFiles { authorities: Some(file.clone()), client: shown };
                tls::client_config(&files).await?
            }
            Trust::Fingerprint(digest) => pinned(digest)?,
        };
        config.alpn_protocols.clear();
        let http = reqwest::Client::builder()
            .user_agent(concat!("guest-agent/", env!("CARGO_PKG_VERSION")))
            .tls_backend_preconfigured(config)
            // A redirect would take the token elsewhere.
            .redirect(redirect::Policy::none())
            .timeout(DEADLINE)
            .build()
            .map_err(|error| RequestError::Tls(error.into()))?;
        Ok(Self { base, http })
    }

    /// Asks to become an agent.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn enroll(&self, request: &EnrollRequest) -> Result<Granted, RequestError> {
        self.post(enrolment::ENROLL, request).await
    }

    /// Asks for the next certificate.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn renew(&self, csr: String) -> Result<Granted, RequestError> {
        self.post(enrolment::RENEW, &RenewRequest { csr }).await
    }

    async fn post(&self, path: &str, body: &impl Serialize) -> Result<Granted, RequestError> {
        let failed = |error: reqwest::Error| RequestError::Send(error.without_url());
        let url = self.base.join(path).map_err(|_| RequestError::Address(self.base.to_string()))?;
        let body = serde_json::to_vec(body).map_err(|error| RequestError::Answer {
            status: 0,
            problem: format!("the request cannot be written: {error}"),
        })?;
        let request = self.http.post(url).header("content-type", "application/json").body(body);
        let response = request.send().await.map_err(failed)?;
        let status = response.status();
        let odd = |problem: String| RequestError::Answer { status: status.as_u16(), problem };
        let mut answer = Vec::new();
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            answer.extend_from_slice(&chunk.map_err(failed)?);
            if answer.len() > ANSWER_BYTES {
                return Err(odd(format!("it is longer than {ANSWER_BYTES} bytes")));
            }
        }
        if status.is_success() {
            return serde_json::from_slice(&answer).map_err(|error| odd(error.to_string()));
        }
        match serde_json::from_slice::<Refused>(&answer) {
            Ok(refused) => Err(RequestError::Refused(printable(refused.error))),
            Err(_) => Err(odd("it has no reason".to_owned())),
        }
    }
}

/// The texts of a server are shown on terminals and written to logs.
fn printable(problem: Problem) -> Problem {
    let clean = |text: String| text.chars().filter(|it| !it.is_control()).take(1000).collect();
    Problem { code: clean(problem.code), message: clean(problem.message), fix: clean(problem.fix) }
}

fn pinned(digest: &Sha256Digest) -> Result<ClientConfig, RequestError> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(Fingerprint::new(*digest, provider.clone()));
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| RequestError::Tls(error.into()))?;
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}
