//! The authority for tasks: the newest one that its files held.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_agent_serve_kit::lock::lock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Authority, AuthorityError, watched};
use crate::chain::Chain;
use crate::enroll::files::{self, Stamp};

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(2);

/// The authority as its files are; clones are the same. Other processes rotate it.
#[derive(Clone)]
pub struct Authorities {
    directory: Arc<Path>,
    current: Arc<watch::Sender<Arc<Authority>>>,
    stamp: Arc<Mutex<Stamp>>,
}

// === impl Authorities ===

impl Authorities {
    /// Opens the authority in a directory.
    ///
    /// # Errors
    /// See [`Authority::open`].
    pub async fn open(directory: impl Into<PathBuf>) -> Result<Self, AuthorityError> {
        let directory: Arc<Path> = directory.into().into();
        let (stamp, authority) = read(directory.clone()).await?;
        Ok(Self {
            directory,
            current: Arc::new(watch::Sender::new(Arc::new(authority))),
            stamp: Arc::new(Mutex::new(stamp)),
        })
    }

    /// The authority.
    #[must_use]
    pub fn current(&self) -> Arc<Authority> {
        self.current.borrow().clone()
    }

    /// Changes its value when the authority changes.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<Arc<Authority>> {
        self.current.subscribe()
    }

    /// Reads the files, if they changed.
    ///
    /// # Errors
    /// See [`Authority::open`]; the former authority then stays.
    pub async fn refresh(&self) -> Result<(), AuthorityError> {
        let directory = self.directory.clone();
        let looking = tokio::task::spawn_blocking(move || files::stamp(&watched(&directory)));
        if looking.await.map_err(|_| AuthorityError::Aborted)? == *lock(&self.stamp) {
            return Ok(());
        }
        let (stamp, authority) = read(self.directory.clone()).await?;
        *lock(&self.stamp) = stamp;
        self.current.send_replace(Arc::new(authority));
        Ok(())
    }

    /// Looks at the files again and again, until `shutdown`.
    pub async fn keep_current(self, shutdown: CancellationToken) {
        let mut is_failing = false;
        while shutdown.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
            let refreshed = self.refresh().await;
            if let Err(error) = &refreshed
                && !is_failing
            {
                tracing::warn!(error = %Chain(error), "the former authority is used");
            }
            is_failing = refreshed.is_err();
        }
    }
}

/// The authority, and its files before they were read: a change meanwhile is seen the next time.
async fn read(directory: Arc<Path>) -> Result<(Stamp, Authority), AuthorityError> {
    let reading = tokio::task::spawn_blocking(move || {
        let stamp = files::stamp(&watched(&directory));
        Ok((stamp, Authority::open(&directory)?))
    });
    reading.await.map_err(|_| AuthorityError::Aborted)?
}
