//! What all requests of the console share, and who sends one.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use guest_agent_console_kit::live::Hub;
use guest_agent_console_kit::session::Cookie;
use tokio::sync::{Mutex, Semaphore};

use super::login::{Login, Session, Sessions};
use super::people::People;
use super::refuse::refuse;
use super::role::May;
use super::scheme::Scheme;
use super::source::Source;
use crate::identity::Principal;

/// What all requests share. Cheap to clone.
#[derive(Clone)]
pub(super) struct Site {
    pub(super) source: Source,
    pub(super) hub: Arc<Hub<Source>>,
    pub(super) sessions: Arc<Sessions>,
    /// How people log in, where there is an identity provider.
    pub(super) people: Option<People>,
    /// Logins that are finished at once: each asks the provider, and anybody can begin one.
    pub(super) finishing: Arc<Semaphore>,
    pub(super) scheme: Scheme,
    /// Names, beside addresses and `localhost`, under which browsers may ask for it.
    pub(super) names: Arc<[String]>,
    /// Held while a login with a wrong token waits for its answer, so that tokens are not tried in parallel.
    pub(super) wrong_tokens: Arc<Mutex<()>>,
}

/// A browser that is logged in.
#[derive(Clone, Debug)]
pub(super) struct Visitor {
    pub(super) session: Session,
    pub(super) who: Arc<Principal>,
}

// === impl Site ===

impl Site {
    /// Ends a session, and that of the person behind it; returns the cookie that replaces its own.
    pub(super) fn end(&self, session: &Session) -> Cookie {
        if let (Login::Person(secret), Some(people)) = (&session.of, &self.people) {
            people.sessions.end(secret);
        }
        self.sessions.end(session)
    }
}

// === impl Visitor ===

impl Visitor {
    /// What they may do.
    pub(super) fn may(&self) -> May {
        May::of_principal(&self.who)
    }
}

impl<S: Sync> FromRequestParts<S> for Visitor {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| {
            refuse(StatusCode::UNAUTHORIZED, "this needs a session; log in at /console/login")
        })
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Visitor {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}
