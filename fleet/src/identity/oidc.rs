//! Logging in with an identity provider: OpenID Connect with the authorization code, PKCE, nonce and state.
//!
//! ```text
//!   begin ─► URL of the provider, and a sealed cookie ──► browser ──► provider
//!                                                            │ code, state
//!   finish(cookie, callback) ◄───────────────────────────────┘
//!     └─► code for a token, over TLS ─► signature, issuer, audience, time, nonce ─► Login { name, groups }
//! ```
//!
//! What a login needs to be finished is in a cookie of the browser, sealed with a key of this process. So no
//! amount of logins that were begun fills the memory, and nobody can finish a login that another browser
//! began. The cookie has to be sent with the navigation that comes back from the provider: `SameSite=Lax`.

mod claims;
mod error;
mod provider;
mod seal;
mod settings;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::directory::{Directory, Stale};
use super::principal::Principal;
use crate::chance;
use crate::enroll::random;
use crate::jwt::verify::{Rules, VerifyError, verify};
use crate::outbound::{self, Form};
use claims::Person;
use error::shorten;
use provider::{Metadata, Provider};
use seal::{Begun as State, Seal};

pub use error::OidcError;
pub use settings::OidcSettings;

/// How long a login may take.
pub const LOGIN: Duration = Duration::from_secs(600);
/// How often the provider is asked what it is, and how soon and how late again where it is away. Each time is
/// shortened by up to a half, by chance.
const ASK: Duration = Duration::from_secs(1800);
const ASK_FIRST: Duration = Duration::from_secs(1);
const ASK_LAST: Duration = Duration::from_secs(60);
/// Longest code of a provider, in bytes.
const CODE_BYTES: usize = 4096;
/// Largest answer of a token endpoint, in bytes.
const ANSWER_BYTES: usize = 128 << 10;
/// Largest file with a client's secret, in bytes.
const SECRET_BYTES: u64 = 4096;

/// A login that was begun.
#[derive(Debug)]
pub struct Begun {
    /// Where the browser goes.
    pub url: String,
    /// What its cookie holds until it comes back.
    pub cookie: String,
}

/// A login that was finished.
#[derive(Debug)]
pub struct Finished {
    /// Who logged in.
    pub login: Login,
    /// What [`Oidc::begin`] was given to keep.
    pub kept: String,
}

/// What the browser brings back from the provider, as its query has it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Callback<'a> {
    /// `state`.
    pub state: Option<&'a str>,
    /// `code`.
    pub code: Option<&'a str>,
    /// `error`.
    pub error: Option<&'a str>,
    /// `iss`.
    pub issuer: Option<&'a str>,
}

/// A person that logged in, as the provider knows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// Its name, which the audit record has.
    pub name: String,
    /// Its groups.
    pub groups: Vec<String>,
    issuer: String,
    subject: String,
    refresh: Option<String>,
}

/// Logs people in.
pub struct Oidc {
    settings: OidcSettings,
    provider: Provider,
    rules: Rules,
    seal: Seal,
}

/// An answer of a token endpoint.
#[derive(Deserialize)]
struct Answer {
    id_token: Option<String>,
    refresh_token: Option<String>,
    error: Option<String>,
}

// === impl Login ===

impl Login {
    /// Who this is, with the roles that it has now.
    ///
    /// # Errors
    /// It is not known what people may do.
    pub fn principal(&self, directory: &Directory) -> Result<Principal, Stale> {
        Ok(Principal {
            name: self.name.clone(),
            from: format!("login at {} as {}", self.issuer, shorten(&self.subject)),
            grants: directory.grants(&self.name, &self.groups)?,
        })
    }

    /// Whether the provider can be asked again without the browser.
    #[must_use]
    pub fn can_be_renewed(&self) -> bool {
        self.refresh.is_some()
    }
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, groups, .. } = self;
        f.debug_struct("Login").field("name", name).field("groups", groups).finish_non_exhaustive()
    }
}

// === impl Oidc ===

impl Oidc {
    /// Checks the settings. The provider is asked with the first login: one that is away keeps nothing from
    /// starting.
    ///
    /// # Errors
    /// A setting is not valid.
    pub fn new(settings: OidcSettings) -> Result<Self, OidcError> {
        if settings.client_id.is_empty() {
            return Err(OidcError::NoClient);
        }
        let provider = Provider::new(&settings.issuer, settings.ca.clone())?;
        let rules =
            Rules { audience: settings.client_id.clone(), issuer: Some(settings.issuer.clone()) };
        Ok(Self { settings, provider, rules, seal: Seal::new() })
    }

    /// Keeps up with what the provider says of itself until `shutdown`, so that a login waits for nothing. One
    /// that is away is asked again, less and less often.
    pub async fn follow(self: Arc<Self>, shutdown: CancellationToken) {
        let mut longest = ASK_FIRST;
        loop {
            let pause = if self.provider.metadata().await.is_ok() { ASK } else { longest };
            longest = if pause == ASK { ASK_FIRST } else { (longest * 2).min(ASK_LAST) };
            let pause = tokio::time::sleep(chance::jittered(pause));
            if shutdown.run_until_cancelled(pause).await.is_none() {
                return;
            }
        }
    }

    /// The issuer.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.settings.issuer
    }

    /// Whether nobody can log in now, because the provider has not said yet what it is, or not for too long.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.provider.is_away()
    }

    /// Begins a login. `redirect` is the URL of this fleet at which the provider sends the browser back; the
    /// provider has to know it. `kept` is given back at the end of the login; nobody can read or change it
    /// meanwhile.
    ///
    /// # Errors
    /// The provider cannot be asked.
    pub async fn begin(&self, redirect: &str, kept: &str) -> Result<Begun, OidcError> {
        let metadata = self.provider.metadata().await?;
        let state = State {
            state: random::text::<52>(),
            nonce: random::text::<52>(),
            verifier: random::text::<52>(),
            redirect: redirect.to_owned(),
            kept: kept.to_owned(),
            until: seconds(SystemTime::now() + LOGIN),
        };
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&state.verifier));
        let scopes =
            std::iter::once("openid").chain(self.settings.scopes.iter().map(String::as_str));
        let query = encoded(&[
            ("response_type", "code"),
            ("client_id", &self.settings.client_id),
            ("redirect_uri", redirect),
            ("scope", &scopes.collect::<Vec<_>>().join(" ")),
            ("state", &state.state),
            ("nonce", &state.nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        let endpoint = &metadata.authorization_endpoint;
        let joint = if endpoint.contains('?') { '&' } else { '?' };
        Ok(Begun { url: format!("{endpoint}{joint}{query}"), cookie: self.seal.close(&state) })
    }

    /// Finishes a login that this browser began.
    ///
    /// # Errors
    /// The login is not one of this browser, the provider refused it, or what the provider says cannot be
    /// believed.
    pub async fn finish(
        &self,
        cookie: &str,
        callback: Callback<'_>,
    ) -> Result<Finished, OidcError> {
        let begun = self.seal.open(cookie).ok_or(OidcError::NoLogin)?;
        if begun.until <= seconds(SystemTime::now()) || callback.state != Some(&begun.state) {
            return Err(OidcError::NoLogin);
        }
        if callback.issuer.is_some_and(|issuer| issuer != self.settings.issuer) {
            return Err(OidcError::OtherIssuer);
        }
        if let Some(error) = callback.error {
            return Err(OidcError::Refused(shorten(error)));
        }
        let code = callback.code.filter(|code| (1..=CODE_BYTES).contains(&code.len()));
        let code = code.ok_or(OidcError::NoCode)?;
        let fields = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &begun.redirect),
            ("code_verifier", &begun.verifier),
        ];
        let answer = self.ask(&fields).await?;
        let claims = self.verified(&answer).await?;
        if claims["nonce"] != *begun.nonce {
            return Err(OidcError::Nonce);
        }
        let login = self.login(&claims, answer.refresh_token)?;
        Ok(Finished { login, kept: begun.kept })
    }

    /// Asks the provider again who this is, without the browser.
    ///
    /// # Errors
    /// As [`Oidc::finish`]; [`OidcError::is_refusal`] says whether the provider does not want it any more.
    pub async fn renew(&self, login: &Login) -> Result<Login, OidcError> {
        let refresh = login.refresh.as_deref().ok_or(OidcError::NoCode)?;
        let fields = [("grant_type", "refresh_token"), ("refresh_token", refresh)];
        let answer = self.ask(&fields).await?;
        let claims = self.verified(&answer).await?;
        // A provider that gives no new one goes on with the former.
        let next = answer.refresh_token.or_else(|| login.refresh.clone());
        let renewed = self.login(&claims, next)?;
        if renewed.subject != login.subject || renewed.name != login.name {
            return Err(OidcError::OtherPerson);
        }
        Ok(renewed)
    }

    fn login(&self, claims: &Value, refresh: Option<String>) -> Result<Login, OidcError> {
        let Person { name, groups, subject } = claims::person(claims, &self.settings)?;
        Ok(Login { name, groups, subject, refresh, issuer: self.settings.issuer.clone() })
    }

    /// Asks the token endpoint.
    async fn ask(&self, fields: &[(&str, &str)]) -> Result<Answer, OidcError> {
        let metadata = self.provider.metadata().await?;
        let secret = self.secret().await?;
        let client = self.settings.client_id.as_str();
        let mut fields = fields.to_vec();
        let authorization = match &secret {
            Some(secret) if metadata.takes_basic() => {
                let pair = format!("{}:{}", part(client), part(secret));
                let value = format!("Basic {}", STANDARD.encode(pair));
                Some(HeaderValue::from_str(&value).map_err(|_| OidcError::NoClient)?)
            }
            Some(secret) => {
                fields.extend([("client_id", client), ("client_secret", secret)]);
                None
            }
            None => {
                fields.push(("client_id", client));
                None
            }
        };
        let url = &metadata.token_endpoint;
        let form = Form {
            target: &self.provider.target(url)?,
            ca: self.settings.ca.as_deref(),
            authorization,
            body: encoded(&fields).into(),
            most: ANSWER_BYTES,
        };
        let (status, body) = outbound::submit(form)
            .await
            .map_err(|source| OidcError::Fetch { url: url.clone(), source })?;
        let answer: Result<Answer, _> = serde_json::from_slice(&body);
        if status != StatusCode::OK {
            let error = answer.ok().and_then(|answer| answer.error).unwrap_or_default();
            return Err(OidcError::Exchange { status, error: shorten(&error) });
        }
        answer.map_err(|_| OidcError::Answer)
    }

    /// The claims of the token in an answer, once it is sure that they are the provider's, and for this fleet.
    async fn verified(&self, answer: &Answer) -> Result<Value, OidcError> {
        let token = answer.id_token.as_deref().ok_or(OidcError::Answer)?;
        let metadata: Metadata = self.provider.metadata().await?;
        let source = self.provider.keys(&metadata).await?;
        let (keys, now) = (source.keys().await?, SystemTime::now());
        let verified = match verify(token, &keys, &self.rules, now) {
            // The provider may have a new key.
            Err(VerifyError::UnknownKey(_)) => {
                let keys = source.newer(&keys).await?;
                verify(token, &keys, &self.rules, now)
            }
            verified => verified,
        };
        let claims = verified.map_err(|error| OidcError::Token(error.to_string()))?.claims;
        claims::is_for(&claims, &self.settings.client_id)?;
        Ok(claims)
    }

    async fn secret(&self) -> Result<Option<String>, OidcError> {
        let Some(path) = &self.settings.client_secret_file else { return Ok(None) };
        let read = async {
            use tokio::io::AsyncReadExt;

            let mut text = String::new();
            let file = tokio::fs::File::open(path).await?;
            file.take(SECRET_BYTES).read_to_string(&mut text).await?;
            Ok(text.trim().to_owned())
        };
        let file = || path.display().to_string();
        let secret = read.await.map_err(|source| OidcError::SecretFile { path: file(), source })?;
        if secret.is_empty() { Err(OidcError::NoSecret(file())) } else { Ok(Some(secret)) }
    }
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Fields as the query of a URL, or as a form.
fn encoded(fields: &[(&str, &str)]) -> String {
    let pairs = fields.iter().map(|(name, value)| format!("{name}={}", part(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// A text as a part of a URL: letters, digits and `-._~` as they are, other bytes as `%XX`.
fn part(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut all, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            all.push(char::from(byte));
        } else {
            all.push('%');
            all.push_str(&crate::hex::hex(&[byte]).to_ascii_uppercase());
        }
        all
    })
}
