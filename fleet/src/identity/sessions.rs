//! Sessions of people in the console.
//!
//! ```text
//!   begin(login) ─► cookie        principal(cookie) ─┬─► idle, or too old: ended
//!                                                    ├─► the provider was not asked for 10 minutes: ask again
//!                                                    └─► the roles that the person has now
//! ```
//!
//! Roles are looked up with every request, so one that was revoked in this fleet is lost at once. What the
//! provider says, above all the groups, is at most [`CHECKED`] old: the provider is asked again by a refresh
//! token, and without one the browser has to log in again, which a provider does without a question while
//! the person is logged in there. Who serves a stream asks for the principal again while it lasts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha2::{Digest, Sha256};
use thiserror::Error;
use tokio::time::Instant;

use super::directory::{Directory, Stale};
use super::oidc::{Login, Oidc};
use super::principal::Principal;
use crate::chain::Chain;
use crate::enroll::random;
use crate::lock::lock;

/// How long a session lasts.
pub const LASTS: Duration = Duration::from_secs(8 * 3600);
/// How long it lasts without a request.
pub const IDLE: Duration = Duration::from_secs(3600);
/// Age from which on what the provider said is not believed any more.
pub const CHECKED: Duration = Duration::from_secs(15 * 60);
/// Age from which on the provider is asked again.
const CHECK: Duration = Duration::from_secs(10 * 60);
/// How often it is asked for one session at most.
const PAUSE: Duration = Duration::from_secs(30);
/// Most sessions. One more ends the one that was idle for the longest time.
pub const SESSIONS: usize = 1000;

/// The sessions of this process; they end with it.
pub struct Sessions {
    oidc: Arc<Oidc>,
    directory: Directory,
    open: Arc<Open>,
}

/// By the digest of the secret in the cookie: a reader of this memory cannot log in with it.
type Open = Mutex<BTreeMap<[u8; 32], Session>>;

struct Session {
    login: Login,
    began: Instant,
    used: Instant,
    /// When the provider said what is in `login`.
    checked: Instant,
    /// When it was asked last.
    asked: Option<Instant>,
}

/// Why a session is of no use.
#[derive(Debug, Error)]
pub enum SessionEnd {
    /// It is over, or there was none such.
    #[error("the session is over: log in again")]
    Over,
    /// The person has no role any more.
    #[error("{0} has no role in this fleet: an admin grants one with `guest-fleet access grant`")]
    NoRole(String),
    /// It is not known what people may do.
    #[error(transparent)]
    Unavailable(#[from] Stale),
}

// === impl Sessions ===

impl Sessions {
    /// No sessions yet.
    #[must_use]
    pub fn new(oidc: Arc<Oidc>, directory: Directory) -> Self {
        Self { oidc, directory, open: Arc::default() }
    }

    /// Begins a session of a person that logged in; answers what its cookie holds. `former` is the cookie that
    /// the browser had before: that session ends, so nobody can have a person log in to theirs.
    ///
    /// # Errors
    /// The person has no role.
    pub fn begin(&self, login: Login, former: Option<&str>) -> Result<String, SessionEnd> {
        if login.principal(&self.directory)?.best_role().is_none() {
            return Err(SessionEnd::NoRole(login.name));
        }
        let secret = random::text::<52>();
        let now = Instant::now();
        let mut open = lock(&self.open);
        if let Some(former) = former {
            open.remove(&digest(former));
        }
        open.retain(|_, session| session.lasts(now));
        while open.len() >= SESSIONS {
            let idle = open.iter().min_by_key(|(_, session)| session.used).map(|(id, _)| *id);
            if let Some(idle) = idle {
                open.remove(&idle);
            }
        }
        let session = Session { login, began: now, used: now, checked: now, asked: None };
        open.insert(digest(&secret), session);
        Ok(secret)
    }

    /// Who has this cookie, with the roles of now.
    ///
    /// # Errors
    /// See [`SessionEnd`].
    pub async fn principal(&self, cookie: &str) -> Result<Principal, SessionEnd> {
        let id = digest(cookie);
        let (mut login, is_due) = self.used(&id)?;
        if is_due {
            // The answer is noted though the browser may have gone: a refresh token is of use once.
            let checking = check(self.oidc.clone(), self.open.clone(), id, login);
            login = tokio::spawn(checking).await.unwrap_or(Err(SessionEnd::Over))?;
        }
        let principal = login.principal(&self.directory)?;
        if principal.best_role().is_none() {
            self.close(&id);
            return Err(SessionEnd::NoRole(principal.name));
        }
        Ok(principal)
    }

    /// Ends a session.
    pub fn end(&self, cookie: &str) {
        self.close(&digest(cookie));
    }

    /// How many sessions are open.
    #[must_use]
    pub fn count(&self) -> usize {
        lock(&self.open).len()
    }

    /// Notes a use; whether the provider has to be asked now.
    fn used(&self, id: &[u8; 32]) -> Result<(Login, bool), SessionEnd> {
        let now = Instant::now();
        let mut open = lock(&self.open);
        let session = open.get_mut(id).ok_or(SessionEnd::Over)?;
        let is_old = now - session.checked >= CHECKED;
        let is_due = now - session.checked >= CHECK
            && session.login.can_be_renewed()
            && session.asked.is_none_or(|at| now - at >= PAUSE);
        if !session.lasts(now) || (is_old && !is_due) {
            open.remove(id);
            return Err(SessionEnd::Over);
        }
        session.used = now;
        if is_due {
            session.asked = Some(now);
        }
        Ok((session.login.clone(), is_due))
    }

    fn close(&self, id: &[u8; 32]) {
        lock(&self.open).remove(id);
    }
}

// === impl Session ===

impl Session {
    fn lasts(&self, now: Instant) -> bool {
        now - self.began < LASTS && now - self.used < IDLE
    }
}

/// Asks the provider again who this is.
async fn check(
    oidc: Arc<Oidc>,
    open: Arc<Open>,
    id: [u8; 32],
    login: Login,
) -> Result<Login, SessionEnd> {
    let asked = Instant::now();
    let renewed = oidc.renew(&login).await;
    let mut open = lock(&open);
    let session = open.get_mut(&id).ok_or(SessionEnd::Over)?;
    match renewed {
        Ok(renewed) => {
            session.login = renewed.clone();
            session.checked = asked;
            Ok(renewed)
        }
        Err(error) if error.is_refusal() || asked - session.checked >= CHECKED => {
            tracing::info!(name = login.name, error = %Chain(&error), "a session ended");
            open.remove(&id);
            Err(SessionEnd::Over)
        }
        Err(error) => {
            tracing::warn!(error = %Chain(&error), "the identity provider cannot be asked");
            Ok(login)
        }
    }
}

fn digest(secret: &str) -> [u8; 32] {
    Sha256::digest(secret).into()
}
