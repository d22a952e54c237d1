//! An identity provider: what it says of itself, and its keys.
//!
//! Its description is used for an hour, and for a day while it cannot be read again.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

use super::error::{OidcError, shorten};
use crate::chain::Chain;
use crate::jwt::KeySource;
use crate::jwt::source::Source;
use crate::lock::lock;
use crate::outbound::{self, Document, Target};

/// How long a description is used before it is read again.
const FRESH: Duration = Duration::from_secs(3600);
/// How long it is used while it cannot be read again.
const USABLE: Duration = Duration::from_secs(24 * 3600);
/// How long after a description could not be read the former one is used without asking.
const PAUSE: Duration = Duration::from_secs(30);
/// How long after a description could not be read nobody asks again who has no former one: requests of
/// browsers are not made into as many of the provider's.
const REFUSED: Duration = Duration::from_secs(1);
/// Largest description, in bytes.
const DESCRIPTION_BYTES: usize = 256 << 10;

/// What a provider says of itself.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Metadata {
    issuer: String,
    pub(super) authorization_endpoint: String,
    pub(super) token_endpoint: String,
    jwks_uri: String,
    code_challenge_methods_supported: Option<Vec<String>>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

pub(super) struct Provider {
    issuer: String,
    is_local: bool,
    ca: Option<PathBuf>,
    state: Mutex<State>,
    /// Held by the one that reads.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    known: Option<(Metadata, Instant)>,
    tried: Option<Instant>,
    /// Why it could not be read the last time, if it could not.
    problem: Option<String>,
    /// The keys, and where they are.
    keys: Option<(String, Arc<Source>)>,
}

// === impl Metadata ===

impl Metadata {
    /// Whether the secret of a client goes into a header. That is so where it says nothing.
    pub(super) fn takes_basic(&self) -> bool {
        let methods = self.token_endpoint_auth_methods_supported.as_deref();
        methods.is_none_or(|all| all.iter().any(|it| it == "client_secret_basic"))
    }

    fn has_pkce(&self) -> bool {
        let methods = self.code_challenge_methods_supported.as_deref();
        methods.is_none_or(|all| all.iter().any(|it| it == "S256"))
    }
}

// === impl Provider ===

impl Provider {
    pub(super) fn new(issuer: &str, ca: Option<PathBuf>) -> Result<Self, OidcError> {
        let failed = |source| OidcError::Url { url: issuer.to_owned(), source };
        Target::parse_or_local(issuer).map_err(failed)?;
        Ok(Self {
            issuer: issuer.to_owned(),
            is_local: Target::parse(issuer).is_err(),
            ca,
            state: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
        })
    }

    /// Reads an address of this provider. Only one of this machine has some without TLS.
    pub(super) fn target(&self, url: &str) -> Result<Target, OidcError> {
        let target = if self.is_local { Target::parse_or_local(url) } else { Target::parse(url) };
        target.map_err(|source| OidcError::Url { url: shorten(url), source })
    }

    /// What it says of itself.
    pub(super) async fn metadata(&self) -> Result<Metadata, OidcError> {
        if let Some(known) = self.known() {
            return Ok(known);
        }
        let _one = self.reading.lock().await;
        // Somebody else read it meanwhile.
        if let Some(known) = self.known() {
            return Ok(known);
        }
        if let Some(problem) = self.problem() {
            return Err(OidcError::Away(problem));
        }
        lock(&self.state).tried = Some(Instant::now());
        match self.read().await {
            Ok(metadata) => {
                let mut state = lock(&self.state);
                state.known = Some((metadata.clone(), Instant::now()));
                state.problem = None;
                Ok(metadata)
            }
            Err(error) => {
                let mut state = lock(&self.state);
                state.tried = Some(Instant::now());
                state.problem = Some(Chain(&error).to_string());
                let known = state.known.as_ref().filter(|(_, at)| at.elapsed() < USABLE);
                let (metadata, _) = known.ok_or_else(|| {
                    tracing::warn!(error = %Chain(&error), "the identity provider cannot be used");
                    error
                })?;
                Ok(metadata.clone())
            }
        }
    }

    /// Its keys.
    pub(super) async fn keys(&self, metadata: &Metadata) -> Result<Arc<Source>, OidcError> {
        let url = &metadata.jwks_uri;
        if let Some((known, keys)) = &lock(&self.state).keys
            && known == url
        {
            return Ok(keys.clone());
        }
        self.target(url)?;
        let place = if Target::parse(url).is_ok() {
            KeySource::Url { url: url.clone(), ca: self.ca.clone() }
        } else {
            KeySource::Local(url.clone())
        };
        let source = Arc::new(Source::open(place).await?);
        lock(&self.state).keys = Some((url.clone(), source.clone()));
        Ok(source)
    }

    /// Whether it did not say what it is when it was asked, and not lately either.
    pub(super) fn is_away(&self) -> bool {
        let state = lock(&self.state);
        let is_usable = state.known.as_ref().is_some_and(|(_, at)| at.elapsed() < USABLE);
        state.problem.is_some() && !is_usable
    }

    /// Why it could not be asked a moment ago.
    fn problem(&self) -> Option<String> {
        let state = lock(&self.state);
        let was_now = state.tried.is_some_and(|at| at.elapsed() < REFUSED);
        state.problem.clone().filter(|_| was_now)
    }

    fn known(&self) -> Option<Metadata> {
        let state = lock(&self.state);
        let was_tried = state.tried.is_some_and(|at| at.elapsed() < PAUSE);
        let lasts = if was_tried { USABLE } else { FRESH };
        state.known.as_ref().filter(|(_, at)| at.elapsed() < lasts).map(|(known, _)| known.clone())
    }

    async fn read(&self) -> Result<Metadata, OidcError> {
        let url = format!("{}/.well-known/openid-configuration", self.issuer.trim_end_matches('/'));
        let (target, ca) = (self.target(&url)?, self.ca.as_deref());
        let document = Document { target: &target, ca, most: DESCRIPTION_BYTES };
        let got = outbound::get(&document).await;
        let got = got.map_err(|source| OidcError::Fetch { url: url.clone(), source })?;
        let metadata: Metadata =
            serde_json::from_slice(&got).map_err(|_| OidcError::Metadata(url.clone()))?;
        if metadata.issuer != self.issuer {
            let (asked, found) = (self.issuer.clone(), shorten(&metadata.issuer));
            return Err(OidcError::Issuer { asked, found });
        }
        if !metadata.has_pkce() {
            return Err(OidcError::Metadata(url));
        }
        for url in [&metadata.authorization_endpoint, &metadata.token_endpoint, &metadata.jwks_uri]
        {
            self.target(url)?;
        }
        Ok(metadata)
    }
}
