//! Who is logged in. A session stands for the token it was begun with and never allows more or
//! lasts longer than that: each request checks again what it may do.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::RngCore;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::api::http::access::{self, Access, digest};
use crate::api::http::refusal::Refusal;
use crate::api::http::scheme::Scheme;
use crate::api::http::socket_peer::SocketPeer;

/// The path of the page on which people log in.
pub(crate) const LOGIN: &str = "/console/login";

/// Paths that need neither a token nor a session: the page on which people log in, and what it
/// loads.
pub(crate) const WITHOUT_SESSION: [&str; 3] = [LOGIN, "/console/style.css", "/console/script.js"];

/// How long a session lasts.
const LASTS: Duration = Duration::from_secs(8 * 3600);

/// Most sessions. One more ends the oldest.
const SESSIONS_MAX: usize = 32;

/// The sessions of all browsers. They end with the agent.
#[derive(Debug)]
pub(crate) struct Sessions {
    open: Mutex<VecDeque<Session>>,
    /// Changes whenever a session was ended.
    ended: watch::Sender<()>,
}

/// A browser that is logged in.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Session {
    /// Digest of the secret in the cookie: a reader of this memory cannot log in with it.
    id: [u8; 32],
    /// Digest of the token that it was begun with.
    pub(crate) token: [u8; 32],
    /// What forms have to bring along, so that no other page can send them.
    pub(crate) csrf: String,
    until: Instant,
}

/// The sender of a request for a page.
#[derive(Clone, Debug)]
pub(crate) struct Visitor {
    /// What they may do.
    pub(crate) access: Access,
    /// What they are shown.
    pub(crate) sight: Sight,
    /// Their session. A program sends a token instead; reading may need neither.
    pub(crate) session: Option<Session>,
}

impl<S: Sync> FromRequestParts<S> for Visitor {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        visitor(parts).ok_or_else(Refusal::unknown)
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Visitor {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(visitor(parts))
    }
}

fn visitor(parts: &Parts) -> Option<Visitor> {
    let session = parts.extensions.get::<Session>().cloned();
    let access = access::granted(parts)?;
    let acts = parts.extensions.get::<SocketPeer>().is_some_and(SocketPeer::acts);
    let is_known = acts || session.is_some() || parts.headers.contains_key(header::AUTHORIZATION);
    let sight = if is_known { Sight::All } else { Sight::WithoutOutput };
    Some(Visitor { access, sight, session })
}

/// What a visitor is shown. Logs are files that not everybody on the machine may read, and pages on
/// loopback are for everybody: so only a visitor with a token sees what plugins print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sight {
    /// Everything but what plugins print.
    WithoutOutput,
    /// Everything.
    All,
}

// === impl Session ===

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("until", &self.until).finish_non_exhaustive()
    }
}

impl Session {
    /// Whether a form was sent from a page of this session.
    pub(crate) fn has_sent(&self, csrf: &str) -> bool {
        digest(csrf) == digest(&self.csrf)
    }
}

// === impl Visitor ===

impl Visitor {
    /// Whether a form came from a page that was made for this visitor. A program, which sends its
    /// token itself, has no such page.
    pub(crate) fn has_sent(&self, csrf: &str) -> bool {
        self.session.as_ref().is_none_or(|session| session.has_sent(csrf))
    }
}

// === impl Sessions ===

impl Default for Sessions {
    fn default() -> Self {
        Self { open: Mutex::default(), ended: watch::Sender::new(()) }
    }
}

impl Sessions {
    /// Begins a session with the access of the token with this digest; returns its cookie for pages
    /// of this scheme.
    pub(crate) fn begin(&self, token: [u8; 32], scheme: Scheme) -> String {
        let (secret, csrf) = (random(), random());
        let until = Instant::now() + LASTS;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        while open.len() >= SESSIONS_MAX {
            open.pop_front();
        }
        open.push_back(Session { id: digest(&secret), token, csrf, until });
        scheme.cookie(&secret, LASTS)
    }

    /// The session whose cookie a request has, which came over this scheme.
    pub(crate) fn find(&self, headers: &HeaderMap, scheme: Scheme) -> Option<Session> {
        let now = Instant::now();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.is_empty() {
            return None;
        }
        open.retain(|session| session.until > now);
        let ids: Vec<_> = secrets(headers, scheme.cookie_name()).take(4).map(digest).collect();
        open.iter().find(|session| ids.contains(&session.id)).cloned()
    }

    /// Ends a session; returns the cookie that replaces its own.
    pub(crate) fn end(&self, session: &Session, scheme: Scheme) -> String {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|other| other.id != session.id);
        drop(open);
        self.ended.send_replace(());
        scheme.cookie("", Duration::ZERO)
    }

    /// Changes whenever a session was ended, so that streams check again who reads them.
    pub(crate) fn watch(&self) -> watch::Receiver<()> {
        self.ended.subscribe()
    }
}

fn secrets<'a>(headers: &'a HeaderMap, name: &'static str) -> impl Iterator<Item = &'a str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = cookies.flat_map(|value| value.split(';'));
    pairs.filter_map(move |pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}

/// 256 random bits as text.
fn random() -> String {
    let mut bytes = [0; 32];
    rand::rng().fill_bytes(&mut bytes);
    URL_SAFE_NO_PAD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(cookie: &str) -> HeaderMap {
        let value = cookie.split(';').next().expect("a cookie").parse().expect("a header");
        [(header::COOKIE, value)].into_iter().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_is_found_by_its_cookie_until_it_ends() {
        let (sessions, name) = (Sessions::default(), Scheme::Http.cookie_name());
        assert_eq!(sessions.find(&HeaderMap::new(), Scheme::Http), None);
        let cookie = sessions.begin([7; 32], Scheme::Http);
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"));
        let session = sessions.find(&with(&cookie), Scheme::Http).expect("a session");
        assert_eq!(session.token, [7; 32]);
        assert!(session.has_sent(&session.csrf) && !session.has_sent(""));
        assert!(!format!("{sessions:?}").contains(&session.csrf), "no secret is shown");
        assert_eq!(sessions.find(&with(&format!("{name}=wrong")), Scheme::Http), None);
        let gone = sessions.end(&session, Scheme::Http);
        assert!(gone.contains("Max-Age=0"));
        assert_eq!(sessions.find(&with(&cookie), Scheme::Http), None);
        let cookie = sessions.begin([7; 32], Scheme::Http);
        tokio::time::advance(LASTS).await;
        assert_eq!(sessions.find(&with(&cookie), Scheme::Http), None, "its time is over");
    }

    #[tokio::test]
    async fn a_session_of_https_is_found_by_its_own_cookie_only() {
        let sessions = Sessions::default();
        let cookie = sessions.begin([7; 32], Scheme::Https);
        assert!(cookie.starts_with("__Host-guest-agent-session="), "{cookie}");
        assert!(cookie.contains("; Secure") && cookie.contains("; Path=/;"), "{cookie}");
        assert!(sessions.find(&with(&cookie), Scheme::Https).is_some());
        assert_eq!(sessions.find(&with(&cookie), Scheme::Http), None);
        // A page of another port of this host could have set that.
        let planted = cookie.replace("__Host-", "");
        assert_eq!(sessions.find(&with(&planted), Scheme::Https), None);
    }

    #[tokio::test]
    async fn one_session_too_many_ends_the_oldest() {
        let sessions = Sessions::default();
        let cookies: Vec<_> =
            (0..=SESSIONS_MAX).map(|_| sessions.begin([1; 32], Scheme::Http)).collect();
        assert_eq!(sessions.find(&with(&cookies[0]), Scheme::Http), None);
        assert!(
            cookies[1..].iter().all(|cookie| sessions.find(&with(cookie), Scheme::Http).is_some())
        );
    }
}
