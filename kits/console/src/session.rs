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

/// What a cookie is to hold, and for how long. The server gives it a name and attributes by the way
/// that its pages are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// The secret of the session; empty for one that ended.
    pub value: String,
    /// How long a browser is to keep it.
    pub lasts: Duration,
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
    pub fn begin(&self, of: T) -> Cookie {
        let (secret, csrf) = (random(), random());
        let until = Instant::now() + LASTS;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        while open.len() >= SESSIONS_MAX {
            open.pop_front();
        }
        open.push_back(Session { id: digest(&secret), of, csrf, until });
        Cookie { value: secret, lasts: LASTS }
    }

    /// The session whose cookie, of this name, a request has.
    pub fn find(&self, headers: &HeaderMap, name: &str) -> Option<Session<T>> {
        let now = Instant::now();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.is_empty() {
            return None;
        }
        open.retain(|session| session.until > now);
        let ids: Vec<_> = secrets(headers, name).take(4).map(digest).collect();
        open.iter().find(|session| ids.contains(&session.id)).cloned()
    }

    /// Ends a session; returns the cookie that replaces its own.
    pub fn end(&self, session: &Session<T>) -> Cookie {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|other| other.id != session.id);
        drop(open);
        self.ended.send_replace(());
        Cookie { value: String::new(), lasts: Duration::ZERO }
    }

    /// Changes whenever a session was ended, so that streams check again who reads them.
    pub fn watch(&self) -> watch::Receiver<()> {
        self.ended.subscribe()
    }
}

fn secrets<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = &'a str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = cookies.flat_map(|value| value.split(';'));
    pairs.filter_map(move |pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
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

    const NAME: &str = "session";

    fn with(cookie: &Cookie) -> HeaderMap {
        let value = format!("{NAME}={}", cookie.value).parse().expect("a header");
        [(header::COOKIE, value)].into_iter().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_is_found_by_its_cookie_until_it_ends() {
        let sessions = Sessions::<[u8; 32]>::default();
        assert_eq!(sessions.find(&HeaderMap::new(), NAME), None);
        let cookie = sessions.begin([7; 32]);
        let session = sessions.find(&with(&cookie), NAME).expect("a session");
        assert_eq!(session.of, [7; 32]);
        assert!(session.has_sent(&session.csrf) && !session.has_sent(""));
        assert!(!format!("{sessions:?}").contains(&session.csrf), "no secret is shown");
        let wrong = Cookie { value: "wrong".to_owned(), lasts: LASTS };
        assert_eq!(sessions.find(&with(&wrong), NAME), None);
        assert_eq!(sessions.find(&with(&cookie), "other"), None, "of another name");
        let gone = sessions.end(&session);
        assert_eq!((gone.value.as_str(), gone.lasts), ("", Duration::ZERO));
        assert_eq!(sessions.find(&with(&cookie), NAME), None);
        let cookie = sessions.begin([7; 32]);
        tokio::time::advance(LASTS).await;
        assert_eq!(sessions.find(&with(&cookie), NAME), None, "its time is over");
    }

    #[tokio::test]
    async fn one_session_too_many_ends_the_oldest() {
        let sessions = Sessions::<[u8; 32]>::default();
        let cookies: Vec<_> = (0..=SESSIONS_MAX).map(|_| sessions.begin([1; 32])).collect();
        assert_eq!(sessions.find(&with(&cookies[0]), NAME), None);
        assert!(cookies[1..].iter().all(|it| sessions.find(&with(it), NAME).is_some()));
    }
}
