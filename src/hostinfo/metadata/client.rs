//! Sends requests to the metadata server over HTTP.

use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{ETAG, HeaderMap};
use reqwest::{Response, StatusCode, redirect};

use super::error::MetadataError;
use super::tree::{Etag, Fetched, Tree, TreeError};
use super::watch::Source;
use crate::net::metadata_address::MetadataAddress;

/// The header that requests and answers must have: another server may listen at the address.
const FLAVOR: &str = "metadata-flavor";
const FLAVOR_VALUE: &str = "Google";

/// Largest value that is read, in bytes.
const TEXT_MAX: usize = 64 << 10;

/// Largest tree that is read, in bytes; the real server's attributes are at most 512 KB.
pub(super) const TREE_MAX: usize = 4 << 20;

/// For a connection: the server is on the link, or does not exist.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The deadline for an answer without long polling.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the server may wait for a change before it answers.
const WAIT: Duration = Duration::from_secs(60);

/// How much later than that the answer may arrive.
const WAIT_SLACK: Duration = Duration::from_secs(15);

/// A client of one metadata server. Cheap to clone; it connects with the first request.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    address: MetadataAddress,
}

// === impl Client ===

impl Client {
    /// A client of the server at this address.
    ///
    /// # Errors
    /// The HTTP client cannot be made. That says nothing about the server.
    pub fn new(address: MetadataAddress) -> Result<Self, MetadataError> {
        let failed = |source| MetadataError::Client { source };
        // Plain HTTP: without this the client would read the machine's certificates for nothing.
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(error.into()))?
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let http = reqwest::Client::builder()
            .user_agent(concat!("guest-agent/", env!("CARGO_PKG_VERSION")))
            .tls_backend_preconfigured(tls)
            // A proxy would answer for its own machine.
            .no_proxy()
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_max_idle_per_host(1)
            .build()
            .map_err(|error| failed(error.into()))?;
        Ok(Self { http, address })
    }

    /// The base URL of the server.
    #[must_use]
    pub fn address(&self) -> &MetadataAddress {
        &self.address
    }

    /// The text at a path below `/computeMetadata/v1/`, without white space around it.
    ///
    /// # Errors
    /// See [`MetadataError`]. One attempt.
    pub async fn text(&self, path: &str) -> Result<String, MetadataError> {
        let read = async {
            let response = self.ask(path).await?;
            let text = body(response, TEXT_MAX).await?;
            let text = String::from_utf8(text).map_err(|_| MetadataError::NotText)?;
            Ok(text.trim().to_owned())
        };
        within(ANSWER_TIMEOUT, read).await
    }

    pub(super) async fn ask(&self, path: &str) -> Result<Response, MetadataError> {
        let url = format!("{}/computeMetadata/v1/{path}", self.address);
        let request = self.http.get(url).header(FLAVOR, FLAVOR_VALUE);
        let response = request.send().await.map_err(MetadataError::unreachable)?;
        if !has_flavor(response.headers()) {
            return Err(MetadataError::NotOne);
        }
        match response.status() {
            StatusCode::OK => Ok(response),
            StatusCode::NOT_FOUND => Err(MetadataError::NotThere),
            status => Err(MetadataError::Status { status: status.as_u16() }),
        }
    }
}

#[async_trait]
impl Source for Client {
    async fn tree(&self, known: Option<&Etag>) -> Result<Fetched, MetadataError> {
        let (query, patience) = match known {
            None => ("?alt=json&recursive=true".to_owned(), ANSWER_TIMEOUT),
            Some(etag) => {
                let seconds = WAIT.as_secs();
                let wait = format!(
                    "wait_for_change=true&last_etag={}&timeout_sec={seconds}",
                    etag.as_str()
                );
                (format!("?alt=json&recursive=true&{wait}"), WAIT + WAIT_SLACK)
            }
        };
        let read = async {
            let response = self.ask(&query).await?;
            let etag = response.headers().get(ETAG).and_then(|etag| Etag::new(etag.to_str().ok()?));
            let text = body(response, TREE_MAX).await?;
            Ok((text, etag))
        };
        let (text, etag) = within(patience, read).await?;
        // Reading megabytes of JSON would block the event loop.
        let parsed = tokio::task::spawn_blocking(move || Tree::parse(&text)).await;
        let tree = parsed.unwrap_or(Err(TreeError::NotJson))?;
        Ok(Fetched { tree, etag })
    }

    fn address(&self) -> String {
        self.address.to_string()
    }
}

fn has_flavor(headers: &HeaderMap) -> bool {
    headers.get(FLAVOR).is_some_and(|value| value == FLAVOR_VALUE)
}

/// The whole body, if it is not longer than that.
async fn body(mut response: Response, max: usize) -> Result<Vec<u8>, MetadataError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(MetadataError::unreachable)? {
        if bytes.len() + chunk.len() > max {
            return Err(MetadataError::TooLarge { max });
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

async fn within<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, MetadataError>>,
) -> Result<T, MetadataError> {
    let timed_out = MetadataError::TimedOut { seconds: patience.as_secs() };
    tokio::time::timeout(patience, answer).await.unwrap_or(Err(timed_out))
}
