//! Where the keys of an issuer come from, and how long they are used.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_agent_serve_kit::lock::lock;
use tokio::io::AsyncReadExt;
use tokio::time::Instant;

use super::keys::{Keys, KeysError, SET_BYTES};
use crate::chain::Chain;
use crate::net::outbound::{self, Document, FetchError, Target};

/// How long keys are used before they are read again.
const FRESH: Duration = Duration::from_secs(600);
/// How long they are used while they cannot be read again.
const USABLE: Duration = Duration::from_secs(24 * 3600);
/// How often they are read at most: tokens with keys that nobody has would otherwise make the
/// gateway ask the issuer again and again.
const PAUSE: Duration = Duration::from_secs(30);

/// Where the keys of an issuer are, as a JSON Web Key Set.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// In a file.
    File(PathBuf),
    /// At an `https://` address. It is connected to only at an address that is not link-local and
    /// not a metadata server, and no redirect is followed.
    Url {
        /// The address.
        url: String,
        /// Authorities to trust for it, PEM; without any those of the machine.
        ca: Option<PathBuf>,
    },
}

/// The keys, as they were read last.
pub(super) struct Source {
    place: KeySource,
    state: Mutex<State>,
    /// Held by the one that reads.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    keys: Arc<Keys>,
    read: Option<Instant>,
    tried: Option<Instant>,
}

// === impl Source ===

impl Source {
    /// Checks the place, and reads a file.
    pub(super) async fn open(place: KeySource) -> Result<Self, KeysError> {
        let source =
            Self { place, state: Mutex::default(), reading: tokio::sync::Mutex::default() };
        match &source.place {
            KeySource::File(_) => drop(source.read().await?),
            KeySource::Url { url, .. } => {
                Target::parse(url).map_err(|error| failed(url, error))?;
            }
        }
        Ok(source)
    }

    /// The keys, not much older than what the issuer has.
    pub(super) async fn keys(&self) -> Result<Arc<Keys>, KeysError> {
        let (keys, age) = self.known();
        if age.is_some_and(|age| age < FRESH) {
            return Ok(keys);
        }
        let is_usable = age.is_some_and(|age| age < USABLE);
        if is_usable && self.tried_lately() {
            return Ok(keys);
        }
        match self.read().await {
            Ok(keys) => Ok(keys),
            Err(error) if is_usable => {
                tracing::warn!(error = %Chain(&error), "the issuer's former keys are used");
                Ok(keys)
            }
            Err(error) => Err(error),
        }
    }

    /// The keys, read again unless that was done lately or these are not the ones it would replace.
    pub(super) async fn newer(&self, than: &Arc<Keys>) -> Result<Arc<Keys>, KeysError> {
        let (keys, _) = self.known();
        if !Arc::ptr_eq(&keys, than) || self.tried_lately() {
            return Ok(keys);
        }
        self.read().await
    }

    fn known(&self) -> (Arc<Keys>, Option<Duration>) {
        let state = lock(&self.state);
        (state.keys.clone(), state.read.map(|at| at.elapsed()))
    }

    fn tried_lately(&self) -> bool {
        lock(&self.state).tried.is_some_and(|at| at.elapsed() < PAUSE)
    }

    async fn read(&self) -> Result<Arc<Keys>, KeysError> {
        let before = lock(&self.state).tried;
        let _one = self.reading.lock().await;
        {
            let mut state = lock(&self.state);
            // Somebody else read them meanwhile.
            if state.tried != before && state.read.is_some() {
                return Ok(state.keys.clone());
            }
            state.tried = Some(Instant::now());
        }
        let json = match &self.place {
            KeySource::File(path) => read_file(path)
                .await
                .map_err(|source| KeysError::File { path: path.display().to_string(), source })?,
            KeySource::Url { url, ca } => {
                outbound::get(&Document { url, ca: ca.as_deref(), most: SET_BYTES })
                    .await
                    .map_err(|error| failed(url, error))?
                    .to_vec()
            }
        };
        let keys = Arc::new(Keys::parse(&json)?);
        let mut state = lock(&self.state);
        (state.keys, state.read) = (keys.clone(), Some(Instant::now()));
        Ok(keys)
    }
}

async fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut json = Vec::new();
    let most = u64::try_from(SET_BYTES).unwrap_or(u64::MAX) + 1;
    tokio::fs::File::open(path).await?.take(most).read_to_end(&mut json).await?;
    Ok(json)
}

fn failed(url: &str, source: FetchError) -> KeysError {
    KeysError::Fetch { url: url.to_owned(), source }
}

#[cfg(test)]
mod tests;
