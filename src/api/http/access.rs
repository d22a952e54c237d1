//! What a request may do, by the token that it brings.
//!
//! ```text
//!   http_token_file, http_admin_token_file (a token each) ─┐
//!   http_tokens_file (names, scopes, digests) ─────────────┴─► Keys ─► TokenStore ─► Grant: access, name
//! ```
//!
//! Tokens are kept and compared as digests: how long a comparison takes says nothing about them.

use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::http::request::Parts;
use guest_agent_actors::error::Chain;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::refusal::Refusal;
use crate::config::ApiConfig;
use crate::config::http_tokens::{ADMIN, HttpToken, HttpTokens, READER};
use crate::net::token::{FileToken, TokenSource};

/// Fewest characters of a token: an attacker could try all shorter ones.
const TOKEN_MIN: usize = 16;

/// Most lines of the file of tokens whose mistakes are reported one by one, and most tokens whose ends
/// are.
const TROUBLES_MAX: usize = 8;

/// How often it is looked whether a token has ended: the clock may be set forward.
const BEAT: Duration = Duration::from_secs(60);

/// What a request may do. As an extractor it is the access of this request; a request without
/// access is refused, unless the handler takes an `Option`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Look.
    Read,
    /// Change things, and look.
    Act,
}

/// What a request may do, and by which token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// What it may do.
    pub access: Access,
    /// The name of the token; `None` where requests need no token.
    pub token: Option<Arc<str>>,
}

/// What [`access_check`](super::access_check) found that a request may do.
#[derive(Clone, Debug)]
pub(super) struct Granted(pub(super) Option<Grant>);

/// The tokens that are in force now.
#[derive(Debug)]
pub struct TokenStore {
    keys: watch::Sender<Arc<Keys>>,
    /// The troubles that were reported last.
    reported: Mutex<Vec<String>>,
}

/// The tokens, as they were read.
#[derive(Debug, Default)]
pub struct Keys {
    /// Whether a request without a token may look.
    strangers: Strangers,
    /// That of `api.http_admin_token_file` before that of `api.http_token_file`, and then the others.
    plain: Vec<Plain>,
    named: Vec<HttpToken>,
    troubles: Vec<String>,
}

/// Requests without a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Strangers {
    /// They may look.
    #[default]
    Look,
    /// They are refused.
    Refused,
}

/// The token of a file of its own.
#[derive(Debug)]
struct Plain {
    name: &'static str,
    access: Access,
    digest: [u8; 32],
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
        granted(parts).map(|grant| grant.access).ok_or_else(Refusal::unknown)
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Access {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(granted(parts).map(|grant| grant.access))
    }
}

/// What [`access_check`](super::access_check) found that a request may do; `None` for nothing.
pub(crate) fn granted(parts: &Parts) -> Option<Grant> {
    parts.extensions.get::<Granted>().and_then(|granted| granted.0.clone())
}

// === impl TokenStore ===

impl Default for TokenStore {
    fn default() -> Self {
        Self { keys: watch::Sender::new(Arc::default()), reported: Mutex::default() }
    }
}

impl TokenStore {
    /// Replaces the tokens in force; returns their troubles.
    pub(super) fn use_keys(&self, keys: Keys) -> Vec<String> {
        let troubles = keys.troubles(SystemTime::now());
        self.keys.send_replace(Arc::new(keys));
        self.reported.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&troubles);
        troubles
    }

    /// Resolves when a token may have ended, or may have to be reported.
    pub(super) async fn time_passes(&self) {
        let now = SystemTime::now();
        let next = self.keys.borrow().next_change(now);
        match next.map(|at| at.duration_since(now).unwrap_or_default()) {
            Some(wait) => tokio::time::sleep(wait.min(BEAT)).await,
            None => std::future::pending().await,
        }
    }

    /// Looks at the tokens again. Where their troubles are others than before, returns those before and
    /// those now, and streams check again who reads them.
    pub(super) fn look_again(&self) -> Option<(Vec<String>, Vec<String>)> {
        let keys = self.keys.borrow().clone();
        let troubles = keys.troubles(SystemTime::now());
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if *reported == troubles {
            return None;
        }
        self.keys.send_replace(keys);
        Some((std::mem::replace(&mut reported, troubles.clone()), troubles))
    }

    /// The tokens in force. They change when the configuration does, and when one ends: a stream that
    /// older tokens allowed has to end then.
    pub fn watch(&self) -> watch::Receiver<Arc<Keys>> {
        self.keys.subscribe()
    }

    /// What a request with this token, or without a token, may do.
    pub fn grant_of(&self, token: Option<&str>) -> Option<Grant> {
        self.keys.borrow().grant_of(token)
    }

    /// What the token with this digest allows.
    pub(crate) fn grant_of_digest(&self, digest: &[u8; 32]) -> Option<Grant> {
        self.keys.borrow().grant_of_digest(digest, SystemTime::now())
    }
}

// === impl Keys ===

impl Keys {
    /// Reads the configured files.
    pub(super) async fn read(api: &ApiConfig) -> Self {
        let mut keys = Self::default();
        let admin = ("api.http_admin_token_file", ADMIN, Access::Act);
        keys.add_plain(admin, &api.http_admin_token_file).await;
        let reader = ("api.http_token_file", READER, Access::Read);
        keys.add_plain(reader, &api.http_token_file).await;
        if !api.http_token_file.is_empty() {
            keys.strangers = Strangers::Refused;
        }
        if !api.http_tokens_file.is_empty() {
            keys.add_named(&api.http_tokens_file).await;
        }
        keys
    }

    async fn add_plain(&mut self, (key, name, access): (&str, &'static str, Access), file: &str) {
        if file.is_empty() {
            return;
        }
        match read(Path::new(file)).await {
            Ok(digest) => self.plain.push(Plain { name, access, digest }),
            Err(why) => self.troubles.push(format!(
                "the token of {key} is not usable, so no request with it is accepted: {why}; write \
                 a new one with `openssl rand -hex 32`, and send SIGHUP"
            )),
        }
    }

    async fn add_named(&mut self, file: &str) {
        let path = file.to_owned();
        let reading = tokio::task::spawn_blocking(move || HttpTokens::read(Path::new(&path)));
        let found = match reading.await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return self.shut(file, &Chain(&error)),
            Err(error) => return self.shut(file, &error),
        };
        let mut mistakes: Vec<String> = found.mistakes.iter().map(ToString::to_string).collect();
        let closed = found.keep_strangers_out();
        for token in found.tokens {
            match self.plain.iter().find(|plain| plain.digest == *token.digest.as_bytes()) {
                None => self.named.push(token),
                Some(Plain { name, .. }) => mistakes.push(format!(
                    "line {} gives nobody access: its token is that of {name} as well",
                    token.line
                )),
            }
        }
        if closed || !mistakes.is_empty() {
            self.strangers = Strangers::Refused;
        }
        let more = mistakes.len().saturating_sub(TROUBLES_MAX);
        let shown = mistakes.into_iter().take(TROUBLES_MAX).map(|mistake| {
            format!("{file} (api.http_tokens_file): {mistake}; correct it, and send SIGHUP")
        });
        self.troubles.extend(shown);
        if more > 0 {
            self.troubles.push(format!(
                "{file} (api.http_tokens_file): {more} more lines give nobody access; see them with \
                 `guest-agent http-token list`"
            ));
        }
    }

    /// Nothing in the file opens anything.
    fn shut(&mut self, file: &str, why: &dyn std::fmt::Display) {
        self.strangers = Strangers::Refused;
        self.troubles.push(format!(
            "no token of api.http_tokens_file = \"{file}\" is accepted: {why}; make one with \
             `guest-agent http-token new`, and send SIGHUP"
        ));
    }

    /// Why tokens cannot be used, and which end soon or have ended: a sentence each.
    pub(super) fn troubles(&self, now: SystemTime) -> Vec<String> {
        let mut ends: Vec<String> =
            self.named.iter().filter_map(|token| token.trouble(now)).collect();
        if let Some(more) = ends.len().checked_sub(TROUBLES_MAX).filter(|more| *more > 0) {
            ends.truncate(TROUBLES_MAX);
            ends.push(format!(
                "{more} more HTTP tokens have ended or end soon; see them with `guest-agent \
                 http-token list`"
            ));
        }
        self.troubles.iter().cloned().chain(ends).collect()
    }

    /// When tokens end that do, by their names.
    pub(super) fn expiries(&self) -> Vec<(Arc<str>, SystemTime)> {
        let ends = |token: &HttpToken| Some((token.name.clone(), token.expires?));
        self.named.iter().filter_map(ends).collect()
    }

    /// When a token ends next, or is to be reported.
    fn next_change(&self, now: SystemTime) -> Option<SystemTime> {
        self.named.iter().filter_map(|token| token.next_change(now)).min()
    }

    /// Whether there is a usable token that allows acting. Without one, every action is refused.
    pub fn may_anybody_act(&self) -> bool {
        let now = SystemTime::now();
        self.plain.iter().any(|plain| plain.access == Access::Act)
            || self.named.iter().any(|token| token.scopes.can_act() && !token.has_ended(now))
    }

    /// Returns the access of a request. A wrong token is refused even where requests without a
    /// token may read: its sender expects to be recognised.
    pub fn grant_of(&self, token: Option<&str>) -> Option<Grant> {
        let Some(token) = token else {
            let may_look = self.strangers == Strangers::Look;
            return may_look.then_some(Grant { access: Access::Read, token: None });
        };
        self.grant_of_digest(&digest(token), SystemTime::now())
    }

    fn grant_of_digest(&self, digest: &[u8; 32], now: SystemTime) -> Option<Grant> {
        if let Some(plain) = self.plain.iter().find(|plain| plain.digest == *digest) {
            return Some(Grant { access: plain.access, token: Some(plain.name.into()) });
        }
        let token = self.named.iter().find(|token| token.digest.as_bytes() == digest)?;
        if token.has_ended(now) {
            return None;
        }
        let access = if token.scopes.can_act() { Access::Act } else { Access::Read };
        Some(Grant { access, token: Some(token.name.clone()) })
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
    use guest_agent_actors::model::id::Sha256Digest;

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

    fn access(keys: &Keys, token: Option<&str>) -> Option<Access> {
        keys.grant_of(token).map(|grant| grant.access)
    }

    /// The keys of a file of tokens with this text.
    async fn named(text: &str) -> Keys {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        let http_tokens_file = file(dir.path(), "tokens", text);
        let mode = PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&http_tokens_file, mode).expect("set");
        Keys::read(&ApiConfig { http_tokens_file, ..ApiConfig::default() }).await
    }

    /// A line of a file of tokens.
    fn line(name: &str, scopes: &str, token: &str, more: &str) -> String {
        format!("{name} {scopes} sha256:{}{more}\n", Sha256Digest::of(token.as_bytes()))
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
            assert_eq!(access(&keys, None), none, "{keys:?}");
            assert_eq!(access(&keys, Some(READ)), with_read, "{keys:?}");
            assert_eq!(access(&keys, Some(ACT)), with_act, "{keys:?}");
            assert_eq!(access(&keys, Some("")), None, "{keys:?}");
            assert_eq!(access(&keys, Some("wrong-wrong-wrong")), None, "{keys:?}");
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
            assert_eq!(access(&keys, None), None, "{text:?}");
            assert_eq!(access(&keys, Some(text)), None, "{text:?}");
            let troubles = keys.troubles(SystemTime::now());
            let [trouble] = troubles.as_slice() else { panic!("{text:?}: {troubles:?}") };
            assert!(trouble.contains("api.http_token_file") && trouble.contains("openssl rand"));
            assert!(text.is_empty() || !trouble.contains(text), "{trouble}");
        }
        let keys = keys("", "/nonexistent/token").await;
        assert_eq!(access(&keys, None), Some(Access::Read), "reading needs no token here");
        assert!(!keys.may_anybody_act());
        let troubles = keys.troubles(SystemTime::now());
        assert!(troubles[0].contains("/nonexistent/token"), "{troubles:?}");
    }

    #[tokio::test]
    async fn a_named_token_gives_what_its_scopes_say_under_its_name() {
        let text = line("grafana", "read", READ, "") + &line("alice", "act", ACT, "");
        let keys = named(&text).await;
        let grant = |access, name: &str| Some(Grant { access, token: Some(name.into()) });
        assert_eq!(keys.grant_of(Some(READ)), grant(Access::Read, "grafana"));
        assert_eq!(keys.grant_of(Some(ACT)), grant(Access::Act, "alice"));
        assert_eq!(keys.grant_of(None), None, "a line says read");
        assert_eq!(keys.troubles(SystemTime::now()), [""; 0]);
        assert!(keys.may_anybody_act());
        let keys = named(&line("alice", "act", ACT, "")).await;
        assert_eq!(access(&keys, None), Some(Access::Read), "no line says read");
    }

    #[tokio::test]
    async fn a_token_that_has_ended_opens_nothing_and_closes_what_it_closed() {
        let ended = line("old", "read,act", ACT, " expires 2001-01-01T00:00:00Z");
        let keys = named(&ended).await;
        assert_eq!(keys.grant_of(Some(ACT)), None);
        assert_eq!(keys.grant_of(None), None);
        assert!(!keys.may_anybody_act());
        let troubles = keys.troubles(SystemTime::now());
        assert!(troubles[0].contains("old has ended"), "{troubles:?}");
        assert_eq!(keys.expiries().len(), 1);
        assert_eq!(keys.next_change(SystemTime::now()), None);
    }

    #[tokio::test]
    async fn a_file_or_a_line_that_cannot_be_used_opens_nothing_and_is_reported() {
        let good = line("alice", "act", ACT, "");
        let keys = named(&format!("nonsense\n{good}")).await;
        assert_eq!(access(&keys, Some(ACT)), Some(Access::Act), "the other lines count");
        assert_eq!(keys.grant_of(None), None, "a doubt opens nothing");
        let troubles = keys.troubles(SystemTime::now());
        assert!(troubles[0].contains("line 1 gives nobody access"), "{troubles:?}");
        let keys = named(&"nonsense\n".repeat(1000)).await;
        assert_eq!(keys.troubles(SystemTime::now()).len(), TROUBLES_MAX + 1);
        let missing =
            ApiConfig { http_tokens_file: "/nonexistent/t".into(), ..ApiConfig::default() };
        let keys = Keys::read(&missing).await;
        assert_eq!(keys.grant_of(None), None);
        let troubles = keys.troubles(SystemTime::now());
        assert!(troubles[0].contains("/nonexistent/t") && troubles[0].contains("http-token new"));
    }

    #[tokio::test]
    async fn a_secret_that_a_plain_file_has_as_well_is_no_named_token() {
        let dir = tempfile::tempdir().expect("a directory");
        let text = line("alice", "act", READ, "");
        let http_tokens_file = file(dir.path(), "tokens", &text);
        let http_token_file = file(dir.path(), "read", READ);
        let api = ApiConfig { http_tokens_file, http_token_file, ..ApiConfig::default() };
        let keys = Keys::read(&api).await;
        let expected = Grant { access: Access::Read, token: Some(READER.into()) };
        assert_eq!(keys.grant_of(Some(READ)), Some(expected), "it gives no more than before");
        let troubles = keys.troubles(SystemTime::now());
        assert!(troubles[0].contains("is that of reader as well"), "{troubles:?}");
    }
}
