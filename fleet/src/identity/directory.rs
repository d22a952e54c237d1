//! Who may do what now: a view of the records of access that follows the ledger.
//!
//! ```text
//!   ledger ─ changes, every second at the latest ─► Directory ─┬─► authenticate(bearer)   API tokens
//!                                                              └─► grants(person, groups) people
//! ```
//!
//! While the ledger cannot be read for longer than [`STALE`], it answers nothing, so that a token that
//! was revoked is of no use anywhere soon after.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use thiserror::Error;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::credential::Credential;
use super::principal::Principal;
use super::role::Grant;
use super::stored::{Standing, standing};
use super::{Authenticate, Refusal};
use crate::configuration::access::Access;
use crate::ledger::{Bucket, Change, FreshView, Kept, Ledger, ReadError, TooOld};
use crate::records::access::Subject;

/// Age from which on the view answers nothing.
pub const STALE: Duration = Duration::from_secs(30);
/// Most groups of a person that are looked at.
pub const GROUPS: usize = 1000;

/// The view; clones are the same.
#[derive(Clone, Default)]
pub struct Directory {
    access: FreshView<Access>,
}

/// The view is too old to say anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("it is not known who may do what, because the ledger does not answer")]
pub struct Stale;

impl Kept for Access {
    const BUCKET: Bucket = Bucket::Configuration;
    const STALE: Duration = STALE;
    const PATIENCE: Duration = Duration::from_secs(10);
    const WHAT: &'static str = "who may do what";

    fn take(&mut self, Change { key, value, .. }: Change) -> bool {
        if !Self::is_about(&key) {
            return false;
        }
        if let Err(error) = self.take_over(&key, value.as_ref()) {
            tracing::error!(%error, "a record of access cannot be read, and allows nothing");
        }
        true
    }
}

// === impl Directory ===

impl Directory {
    /// Reads everything that changed since the last time.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub async fn refresh(&self, ledger: &dyn Ledger) -> Result<(), ReadError> {
        self.access.refresh(ledger).await
    }

    /// Changes its value when somebody may do something else.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.access.changes()
    }

    /// Keeps the view current until `shutdown`.
    pub async fn follow(self, ledger: Arc<dyn Ledger>, shutdown: CancellationToken) {
        self.access.follow(ledger, shutdown).await;
    }

    /// What a person of these groups may do.
    ///
    /// # Errors
    /// The view is too old.
    pub fn grants(&self, person: &str, groups: &[String]) -> Result<Vec<Grant>, Stale> {
        self.with(|access| {
            let groups = groups.iter().take(GROUPS).cloned().map(Subject::Group);
            let subjects = std::iter::once(Subject::Person(person.to_owned())).chain(groups);
            let mut grants: Vec<Grant> = Vec::new();
            for subject in subjects {
                let found = access.binding(&subject).map(|found| Grant::of_parts(&found.grants));
                for grant in found.unwrap_or_default() {
                    if !grants.contains(&grant) {
                        grants.push(grant);
                    }
                }
            }
            grants
        })
    }

    /// Who has this API token at a time.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn token_at(&self, bearer: &str, now: SystemTime) -> Result<Principal, Refusal> {
        let credential = Credential::parse(bearer).ok_or(Refusal::Unknown)?;
        let name = credential.name.clone();
        self.with(|access| {
            let found = access.token(&name).filter(|found| credential.is_of(&found.digest));
            let found = found.ok_or(Refusal::Unknown)?;
            match standing(found, now) {
                Standing::InForce => Ok(Principal {
                    name: format!("token/{name}"),
                    from: format!("API token {name}"),
                    grants: Grant::of_parts(&found.grants),
                }),
                Standing::Ended => Err(Refusal::Ended(name.clone())),
                Standing::Revoked => Err(Refusal::Revoked(name.clone())),
            }
        })
        .map_err(|stale| Refusal::Unavailable(Box::new(stale)))?
    }

    fn with<T>(&self, ask: impl FnOnce(&Access) -> T) -> Result<T, Stale> {
        self.access.ask(ask).map_err(|TooOld| Stale)
    }
}

#[async_trait]
impl Authenticate for Directory {
    async fn authenticate(&self, bearer: &str) -> Result<Principal, Refusal> {
        self.token_at(bearer, SystemTime::now())
    }
}
