//! What a request may do, by the token that it brings.
//!
//! Tokens are kept and compared as digests: how long a comparison takes says nothing about them.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::http::request::Parts;
use guest_agent_actors::error::Chain;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::refusal::Refusal;
use crate::config::ApiConfig;
use crate::net::token::{FileToken, TokenSource};

/// Fewest characters of a token: an attacker could try all shorter ones.
const TOKEN_MIN: usize = 16;

/// What a request may do. As an extractor it is the access of this request; a request without
/// access is refused, unless the handler takes an `Option`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Look.
    Read,
    /// Change things, and look.
    Act,
}

/// What [`access_check`](super::access_check) found that a request may do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted(pub(super) Option<Access>);

/// The tokens that are in force now.
#[derive(Debug)]
pub struct TokenStore(watch::Sender<Arc<Keys>>);

/// The tokens, as they were read.
#[derive(Debug, Default)]
pub struct Keys {
    reading: Lock,
    acting: Lock,
    troubles: Vec<String>,
}

/// What a request needs for one kind of access.
#[derive(Debug, Default)]
enum Lock {
    /// No token is configured.
    #[default]
    None,
    /// The token with this digest.
    Token([u8; 32]),
    /// A token is configured and cannot be used, so nobody has access.
    Shut,
}

// === impl Access ===

impl Access {
    /// Whether this access is enough.
    ///
    /// # Errors
    /// Refused, with the token that would be enough.
    pub fn require(self, needed: Self) -> Result<(), Refusal> {
        if self >= needed { Ok(()) } else { Err(Refusal::only_reads()) }
    }
}

impl<S: Sync> FromRequestParts<S> for Access {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        granted(parts).ok_or_else(Refusal::unknown)
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Access {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(granted(parts))
    }
}

/// What [`access_check`](super::access_check) found that a request may do; `None` for nothing.
pub(crate) fn granted(parts: &Parts) -> Option<Access> {
    parts.extensions.get::<Granted>().and_then(|granted| granted.0)
}

// === impl TokenStore ===

impl Default for TokenStore {
    fn default() -> Self {
        Self(watch::Sender::new(Arc::new(Keys::default())))
    }
}

impl TokenStore {
    /// Replaces the tokens in force.
    pub(super) fn use_keys(&self, keys: Keys) {
        self.0.send_replace(Arc::new(keys));
    }

    /// The tokens in force. They change when the configuration does: a stream that older tokens
    /// allowed has to end then.
    pub fn watch(&self) -> watch::Receiver<Arc<Keys>> {
        self.0.subscribe()
    }

    /// What a request with this token, or without a token, may do.
    pub fn access_of(&self, token: Option<&str>) -> Option<Access> {
        self.0.borrow().access_of(token)
    }

    /// What the token with this digest allows.
    pub(crate) fn access_of_digest(&self, digest: &[u8; 32]) -> Option<Access> {
        self.0.borrow().access_of_digest(digest)
    }
}

// === impl Keys ===

impl Keys {
    /// Reads the configured files.
    pub(super) async fn read(api: &ApiConfig) -> Self {
        let mut troubles = Vec::new();
        let reading = lock("api.http_token_file", &api.http_token_file, &mut troubles).await;
        let acting =
            lock("api.http_admin_token_file", &api.http_admin_token_file, &mut troubles).await;
        Self { reading, acting, troubles }
    }

    /// Why tokens cannot be used, a sentence each.
    pub(super) fn troubles(&self) -> &[String] {
        &self.troubles
    }

    /// Whether `api.http_admin_token_file` holds a usable token. Without one, every action is
    /// refused.
    pub fn may_anybody_act(&self) -> bool {
        matches!(self.acting, Lock::Token(_))
    }

    /// Returns the access of a request. A wrong token is refused even where requests without a
    /// token may read: its sender expects to be recognised.
    pub fn access_of(&self, token: Option<&str>) -> Option<Access> {
        let Some(token) = token else {
            return matches!(self.reading, Lock::None).then_some(Access::Read);
        };
        self.access_of_digest(&digest(token))
    }

    fn access_of_digest(&self, digest: &[u8; 32]) -> Option<Access> {
        let opens = |lock: &Lock| matches!(lock, Lock::Token(expected) if expected == digest);
        if opens(&self.acting) {
            return Some(Access::Act);
        }
        opens(&self.reading).then_some(Access::Read)
    }
}

async fn lock(key: &str, file: &str, troubles: &mut Vec<String>) -> Lock {
    if file.is_empty() {
        return Lock::None;
    }
    match read(Path::new(file)).await {
        Ok(digest) => Lock::Token(digest),
        Err(why) => {
            troubles.push(format!(
                "the token of {key} is not usable, so no request with it is accepted: {why}; write \
                 a new one with `openssl rand -hex 32`, and send SIGHUP"
            ));
            Lock::Shut
        }
    }
}

async fn read(file: &Path) -> Result<[u8; 32], String> {
    let token = FileToken::new(file.to_owned()).token().await;
    let token = token.map_err(|error| Chain(&error).to_string())?.unwrap_or_default();
    if token.len() < TOKEN_MIN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "{} does not hold {TOKEN_MIN} or more visible ASCII characters without a space",
            file.display()
        ));
    }
    Ok(digest(&token))
}

/// What tokens are kept and compared by.
pub(crate) fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: &str = "read-read-read-read";
    const ACT: &str = "act-act-act-act-act";

    fn file(dir: &Path, name: &str, text: &str) -> String {
        let path = dir.join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    }

    async fn keys(reading: &str, acting: &str) -> Keys {
        Keys::read(&ApiConfig {
            http_token_file: reading.to_owned(),
            http_admin_token_file: acting.to_owned(),
            ..ApiConfig::default()
        })
        .await
    }

    #[test]
    fn who_may_act_may_look_and_not_the_other_way_round() {
        assert_eq!(Access::Act.require(Access::Act), Ok(()));
        assert_eq!(Access::Act.require(Access::Read), Ok(()));
        assert_eq!(Access::Read.require(Access::Read), Ok(()));
        assert_eq!(Access::Read.require(Access::Act), Err(Refusal::only_reads()));
    }

    #[tokio::test]
    async fn a_token_gives_what_it_was_made_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let reading = file(dir.path(), "read", &format!("{READ}\n"));
        let acting = file(dir.path(), "act", ACT);
        let (read, act) = (Some(Access::Read), Some(Access::Act));
        for (keys, none, with_read, with_act) in [
            (keys("", "").await, read, None, None),
            (keys(&reading, "").await, None, read, None),
            (keys("", &acting).await, read, None, act),
            (keys(&reading, &acting).await, None, read, act),
        ] {
            assert_eq!(keys.access_of(None), none, "{keys:?}");
            assert_eq!(keys.access_of(Some(READ)), with_read, "{keys:?}");
            assert_eq!(keys.access_of(Some(ACT)), with_act, "{keys:?}");
            assert_eq!(keys.access_of(Some("")), None, "{keys:?}");
            assert_eq!(keys.access_of(Some("wrong-wrong-wrong")), None, "{keys:?}");
            assert_eq!(keys.may_anybody_act(), with_act == act);
            assert!(!format!("{keys:?}").contains(READ), "no secret is shown");
        }
    }

    #[tokio::test]
    async fn a_token_that_cannot_be_used_opens_nothing_and_is_told_without_being_shown() {
        let dir = tempfile::tempdir().expect("a directory");
        for text in [
            "",
            "short",
            "with a space in between",
            "two-lines-of-text\nand-another",
            "ééééééééééé",
        ] {
            let bad = file(dir.path(), "bad", text);
            let keys = keys(&bad, "").await;
            assert_eq!(keys.access_of(None), None, "{text:?}");
            assert_eq!(keys.access_of(Some(text)), None, "{text:?}");
            let [trouble] = keys.troubles() else { panic!("{text:?}: {:?}", keys.troubles()) };
            assert!(trouble.contains("api.http_token_file") && trouble.contains("openssl rand"));
            assert!(text.is_empty() || !trouble.contains(text), "{trouble}");
        }
        let keys = keys("", "/nonexistent/token").await;
        assert_eq!(keys.access_of(None), Some(Access::Read), "reading needs no token here");
        assert!(!keys.may_anybody_act());
        assert!(keys.troubles()[0].contains("/nonexistent/token"), "{:?}", keys.troubles());
    }
}
