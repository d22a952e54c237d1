//! Who is logged in. A session stands for what it was begun with, such as a token, and never allows
//! more or lasts longer than that: the server asks again with each request.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use maud::{Markup, html};
use rand::RngCore;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::time::Instant;

/// The name of the cookie that holds a session.
const COOKIE: &str = "guest-agent-session";

/// How long a session lasts.
const LASTS: Duration = Duration::from_secs(8 * 3600);

/// Most sessions. One more ends the oldest.
const SESSIONS_MAX: usize = 32;

/// The sessions of all browsers. They end with the process. `T` is what a session stands for.
#[derive(Debug)]
pub struct Sessions<T> {
    open: Mutex<VecDeque<Session<T>>>,
    /// Changes whenever a session was ended.
    ended: watch::Sender<()>,
}

/// A browser that is logged in.
#[derive(Clone, PartialEq, Eq)]
pub struct Session<T> {
    /// Digest of the secret in the cookie: a reader of this memory cannot log in with it.
    id: [u8; 32],
    /// What the session stands for.
    pub of: T,
    /// What forms have to bring along, so that no other page can send them.
    csrf: String,
    until: Instant,
}

// === impl Session ===

impl<T> std::fmt::Debug for Session<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("until", &self.until).finish_non_exhaustive()
    }
}

impl<T> Session<T> {
    /// Whether a form was sent from a page of this session.
    #[must_use]
    pub fn has_sent(&self, csrf: &str) -> bool {
        digest(csrf) == digest(&self.csrf)
    }

    /// The field that makes a form one of this session.
    #[must_use]
    pub fn field(&self) -> Markup {
        html! { input type="hidden" name="csrf" value=(self.csrf); }
    }
}

// === impl Sessions ===

impl<T> Default for Sessions<T> {
    fn default() -> Self {
        Self { open: Mutex::default(), ended: watch::Sender::new(()) }
    }
}

impl<T: Clone> Sessions<T> {
    /// Begins a session; returns its cookie.
    pub fn begin(&self, of: T) -> String {
        let (secret, csrf) = (random(), random());
        let until = Instant::now() + LASTS;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        while open.len() >= SESSIONS_MAX {
            open.pop_front();
        }
        open.push_back(Session { id: digest(&secret), of, csrf, until });
        cookie(&secret, LASTS)
    }

    /// The session whose cookie a request has.
    pub fn find(&self, headers: &HeaderMap) -> Option<Session<T>> {
        let now = Instant::now();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.is_empty() {
            return None;
        }
        open.retain(|session| session.until > now);
        let ids: Vec<_> = secrets(headers).take(4).map(digest).collect();
        open.iter().find(|session| ids.contains(&session.id)).cloned()
    }

    /// Ends a session; returns the cookie that replaces its own.
    pub fn end(&self, session: &Session<T>) -> String {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|other| other.id != session.id);
        drop(open);
        self.ended.send_replace(());
        cookie("", Duration::ZERO)
    }

    /// Changes whenever a session was ended, so that streams check again who reads them.
    pub fn watch(&self) -> watch::Receiver<()> {
        self.ended.subscribe()
    }
}

fn cookie(value: &str, lasts: Duration) -> String {
    format!("{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}", lasts.as_secs())
}

fn secrets(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = cookies.flat_map(|value| value.split(';'));
    pairs.filter_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}

/// What secrets are kept and compared by.
fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
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
        let sessions = Sessions::<[u8; 32]>::default();
        assert_eq!(sessions.find(&HeaderMap::new()), None);
        let cookie = sessions.begin([7; 32]);
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"));
        let session = sessions.find(&with(&cookie)).expect("a session");
        assert_eq!(session.of, [7; 32]);
        assert!(session.has_sent(&session.csrf) && !session.has_sent(""));
        assert!(!format!("{sessions:?}").contains(&session.csrf), "no secret is shown");
        assert_eq!(sessions.find(&with(&format!("{COOKIE}=wrong"))), None);
        let gone = sessions.end(&session);
        assert!(gone.contains("Max-Age=0"));
        assert_eq!(sessions.find(&with(&cookie)), None);
        let cookie = sessions.begin([7; 32]);
        tokio::time::advance(LASTS).await;
        assert_eq!(sessions.find(&with(&cookie)), None, "its time is over");
    }

    #[tokio::test]
    async fn one_session_too_many_ends_the_oldest() {
        let sessions = Sessions::<[u8; 32]>::default();
        let cookies: Vec<_> = (0..=SESSIONS_MAX).map(|_| sessions.begin([1; 32])).collect();
        assert_eq!(sessions.find(&with(&cookies[0])), None);
        assert!(cookies[1..].iter().all(|cookie| sessions.find(&with(cookie)).is_some()));
    }
}
