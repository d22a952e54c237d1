//! How people log in to the console by an identity provider, as the server sets it up.

use std::sync::Arc;

use super::callback::CallbackUrl;
use crate::identity::Directory;
use crate::identity::oidc::Oidc;
use crate::identity::sessions::Sessions;

/// How people log in by an identity provider.
#[derive(Clone)]
pub struct People {
    pub(super) oidc: Arc<Oidc>,
    pub(super) sessions: Arc<Sessions>,
    pub(super) callback: CallbackUrl,
}

// === impl People ===

impl People {
    /// Logins at this provider, which sends browsers back to `callback`. What people may do is in the
    /// `directory`. Who serves it lets [`Oidc::follow`] run.
    #[must_use]
    pub fn new(oidc: Arc<Oidc>, directory: Directory, callback: CallbackUrl) -> Self {
        let sessions = Arc::new(Sessions::new(oidc.clone(), directory));
        Self { oidc, sessions, callback }
    }
}
