//! Sends artifacts to a listener: the other end of its `PUT`.

use std::error::Error;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use guest_agent_proto::artifact;
use guest_agent_serve_kit::backoff::{Jitter, Schedule};
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Body, Certificate, Client, StatusCode, Url};
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio_util::io::ReaderStream;

use super::digest::Digest;

const HASH_CHUNK: usize = 256 << 10;
const SEND_CHUNK: usize = 64 << 10;
const CONNECTING: Duration = Duration::from_secs(10);
/// An upload may take so long, and a second more for so many bytes.
const PATIENCE: Duration = Duration::from_secs(120);
const BYTES_PER_SECOND: u64 = 64 << 10;
/// How often an upload is begun when the server cannot be reached or is busy.
const ATTEMPTS: u32 = 4;
const PAUSES: Schedule =
    Schedule::doubling(Duration::from_secs(1), Duration::from_secs(4), Jitter::UpperHalf);
/// Longest answer of a server that is read, in bytes.
const MAX_ANSWER: usize = 64 << 10;

/// A listener that artifacts are sent to.
#[derive(Clone, Debug)]
pub struct Remote {
    server: Url,
    authorization: HeaderValue,
    client: Client,
}

/// A file that was read to its end once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hashed {
    /// Where it is.
    pub path: PathBuf,
    /// Its digest.
    pub digest: Digest,
    /// Its length in bytes.
    pub length: u64,
}

/// Why an artifact was not sent.
#[derive(Debug, Error)]
pub enum PushError {
    /// The file cannot be read.
    #[error("failed to read `{}`", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The file has no bytes.
    #[error("`{}` is empty; give the archive that agents are to install", .0.display())]
    Empty(PathBuf),
    /// The server's URL cannot be used.
    #[error("`{0}` is not the URL of a server; begin it with https://, or on this machine http://")]
    Server(String),
    /// The token cannot be a header.
    #[error(
        "the token is empty or has characters that a header cannot have; put one line into its file"
    )]
    Token,
    /// TLS cannot be set up.
    #[error("the authorities of the server cannot be used; give certificates in PEM")]
    Authorities(#[source] reqwest::Error),
    /// The server cannot be reached, or broke the connection.
    #[error("failed to send the artifact to {server}")]
    Unreachable {
        /// The server.
        server: Url,
        /// What went wrong last.
        #[source]
        source: reqwest::Error,
    },
    /// The server refused the artifact.
    #[error("{server} refused the artifact ({status}): {message}")]
    Refused {
        /// The server.
        server: Url,
        /// HTTP status.
        status: u16,
        /// What the server says, with the fix.
        message: String,
    },
}

impl Hashed {
    /// Reads a file and finds its digest.
    ///
    /// # Errors
    /// The file cannot be read, or is empty.
    pub async fn read(path: impl Into<PathBuf>) -> Result<Self, PushError> {
        let path = path.into();
        let of = path.clone();
        let read = tokio::task::spawn_blocking(move || hash(&of)).await.map_err(io::Error::other);
        match read.flatten() {
            Ok((_, 0)) => Err(PushError::Empty(path)),
            Ok((digest, length)) => Ok(Self { path, digest, length }),
            Err(source) => Err(PushError::File { path, source }),
        }
    }
}

impl Remote {
    /// A listener at this URL. `authorities` are certificates of further authorities that it may
    /// be known by, PEM.
    ///
    /// # Errors
    /// The URL, the token or the certificates cannot be used.
    pub fn new(server: &str, token: &str, authorities: Option<&str>) -> Result<Self, PushError> {
        let bad = || PushError::Server(server.to_owned());
        let url: Url = server.parse().map_err(|_| bad())?;
        let is_on_this_machine = match url.host_str().ok_or_else(bad)? {
            "localhost" => true,
            host => host
                .trim_matches(['[', ']'])
                .parse::<std::net::IpAddr>()
                .is_ok_and(|address| address.is_loopback()),
        };
        if url.scheme() != "https" && !(url.scheme() == "http" && is_on_this_machine) {
            return Err(bad());
        }
        let token = token.trim();
        let authorization = HeaderValue::from_str(&format!("Bearer {token}"));
        let mut authorization = authorization.map_err(|_| PushError::Token)?;
        if token.is_empty() {
            return Err(PushError::Token);
        }
        authorization.set_sensitive(true);
        // The HTTP client takes the provider of the process. Somebody may have set it already.
        drop(rustls::crypto::ring::default_provider().install_default());
        let certificates = Certificate::from_pem_bundle(authorities.unwrap_or_default().as_bytes());
        let client = Client::builder()
            .connect_timeout(CONNECTING)
            // The token is for this server.
            .redirect(Policy::none())
            .tls_certs_merge(certificates.map_err(PushError::Authorities)?)
            .build()
            .map_err(PushError::Authorities)?;
        Ok(Self { server: url, authorization, client })
    }

    /// Sends an artifact. What is there already is sent again: so it is as new as any other, and
    /// is not deleted before a release names it.
    ///
    /// # Errors
    /// See [`PushError`].
    pub async fn put(&self, plugin: &str, file: &Hashed) -> Result<(), PushError> {
        let mut attempt = 1;
        loop {
            let error = match self.attempt(plugin, file).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if attempt == ATTEMPTS || !is_transient(&error) {
                return Err(error);
            }
            tokio::time::sleep(PAUSES.wait(attempt - 1, rand::random())).await;
            attempt += 1;
        }
    }

    async fn attempt(&self, plugin: &str, file: &Hashed) -> Result<(), PushError> {
        let failed = |source| PushError::File { path: file.path.clone(), source };
        let opened = tokio::fs::File::open(&file.path).await.map_err(failed)?;
        let path = artifact::path(plugin, file.digest);
        let url =
            self.server.join(&path).map_err(|_| PushError::Server(self.server.to_string()))?;
        let unreachable = |source| PushError::Unreachable { server: self.server.clone(), source };
        let answer = self
            .client
            .put(url)
            .header(AUTHORIZATION, self.authorization.clone())
            .header(CONTENT_LENGTH, file.length)
            .timeout(PATIENCE + Duration::from_secs(file.length / BYTES_PER_SECOND))
            .body(Body::wrap_stream(ReaderStream::with_capacity(opened, SEND_CHUNK)))
            .send()
            .await
            .map_err(|error| unreachable(error.without_url()))?;
        if answer.status().is_success() {
            return Ok(());
        }
        Err(self.refused(answer).await)
    }

    async fn refused(&self, mut answer: reqwest::Response) -> PushError {
        let status = answer.status();
        let mut text = Vec::new();
        while let Ok(Some(chunk)) = answer.chunk().await
            && text.len() + chunk.len() <= MAX_ANSWER
        {
            text.extend_from_slice(&chunk);
        }
        let message = said(&text).unwrap_or_else(|| {
            "it is not the artifact listener of a fleet, or something in front of it answered; \
             check the URL"
                .to_owned()
        });
        PushError::Refused { server: self.server.clone(), status: status.as_u16(), message }
    }
}

/// Whether the same may succeed in a moment.
fn is_transient(error: &PushError) -> bool {
    match error {
        PushError::Unreachable { source, .. } => !is_about_trust(source),
        PushError::Refused { status, .. } => {
            *status == StatusCode::SERVICE_UNAVAILABLE.as_u16()
                || *status == StatusCode::BAD_GATEWAY.as_u16()
                || *status == StatusCode::TOO_MANY_REQUESTS.as_u16()
        }
        PushError::File { .. }
        | PushError::Empty(_)
        | PushError::Server(_)
        | PushError::Token
        | PushError::Authorities(_) => false,
    }
}

/// A certificate that is not trusted will not be in a moment.
fn is_about_trust(error: &reqwest::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if error.is::<rustls::Error>() {
            return true;
        }
        let io = error.downcast_ref::<io::Error>();
        if io.and_then(io::Error::get_ref).is_some_and(|inner| inner.is::<rustls::Error>()) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The message and the fix in an answer.
fn said(text: &[u8]) -> Option<String> {
    let document: serde_json::Value = serde_json::from_slice(text).ok()?;
    let part = |name: &str| document["error"][name].as_str();
    let text = format!("{}; {}", part("message")?, part("fix")?);
    Some(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
}

fn hash(path: &Path) -> io::Result<(Digest, u64)> {
    let mut file = File::open(path)?;
    let (mut hasher, mut length, mut chunk) = (Sha256::new(), 0, vec![0; HASH_CHUNK]);
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok((Digest::finish(hasher), length)),
            read => {
                hasher.update(&chunk[..read]);
                length += read as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_over_tls_or_stays_on_this_machine() {
        for good in ["https://fleet.example:7443", "http://127.0.0.1:7080", "http://[::1]:7080"] {
            assert!(Remote::new(good, "token", None).is_ok(), "{good}");
        }
        for bad in ["http://fleet.example", "ftp://127.0.0.1", "fleet.example", ""] {
            let error = Remote::new(bad, "token", None).expect_err(bad);
            assert!(matches!(error, PushError::Server(_)), "{bad}: {error}");
        }
        for bad in ["", "two\nlines"] {
            let error = Remote::new("https://fleet.example", bad, None).expect_err(bad);
            assert!(matches!(error, PushError::Token), "{bad}: {error}");
        }
    }

    #[test]
    fn an_answer_is_shown_without_control_characters() {
        let text = br#"{"error":{"code":"x","message":"no\u001b[31m","fix":"yes"}}"#;
        assert_eq!(said(text).as_deref(), Some("no [31m; yes"));
        assert_eq!(said(b"<html>"), None);
        assert_eq!(said(b"{}"), None);
    }
}
