//! Identity tokens, with which the control plane can check the identity of this machine.
//!
//! A token is kept until ten minutes before it expires, and only its expiry is read. It is in no
//! log and in no error text.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::client::Client;
use super::error::MetadataError;
use crate::net::token::{TokenError, TokenSource};

const PATH: &str = "instance/service-accounts/default/identity?audience=agentcommunication.googleapis.com&format=full";

/// How long before its expiry a token is replaced.
const EARLY: Duration = Duration::from_secs(600);

/// A token whose expiry cannot be read, or is nearer than that, is kept for this time: the
/// agent does not fetch one for every message.
const SHORTEST: Duration = Duration::from_secs(10);

/// Longest time that a token is kept, whatever its expiry.
const LONGEST: Duration = Duration::from_secs(3600);

/// Shortest time between two fresh tokens that refusals cause.
const REFUSAL_GAP: Duration = Duration::from_secs(5);

/// Base64 for URLs, as tokens are written; padding is not wanted and not minded.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Provides the link with tokens of the metadata server.
pub struct IdentityToken {
    client: Client,
    /// Only one task at a time sends the request; the others use its result.
    asking: tokio::sync::Mutex<()>,
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    token: Option<Cached>,
    /// When a refused token was last dropped.
    refused_at: Option<Instant>,
}

struct Cached {
    text: String,
    /// When to replace it.
    until: SystemTime,
    /// When it expires; `None` if it does not say.
    expires: Option<SystemTime>,
}

// === impl IdentityToken ===

impl IdentityToken {
    /// No request was sent yet.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, asking: tokio::sync::Mutex::default(), cache: Mutex::default() }
    }

    fn cached(&self, now: SystemTime) -> Option<String> {
        let cache = self.cache();
        cache.token.as_ref().filter(|cached| now < cached.until).map(|cached| cached.text.clone())
    }

    /// A token that should be replaced, and is still valid.
    fn last_resort(&self, now: SystemTime) -> Option<String> {
        let cache = self.cache();
        let cached = cache.token.as_ref()?;
        cached.expires.filter(|expires| now < *expires).map(|_| cached.text.clone())
    }

    fn keep(&self, text: &str, now: SystemTime) {
        let expires = expiry(text);
        let until = kept_until(now, expires);
        self.cache().token = Some(Cached { text: text.to_owned(), until, expires });
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl TokenSource for IdentityToken {
    async fn token(&self) -> Result<Option<String>, TokenError> {
        let _one_at_a_time = self.asking.lock().await;
        let now = SystemTime::now();
        if let Some(token) = self.cached(now) {
            return Ok(Some(token));
        }
        let failed = |cause: MetadataError| TokenError {
            source_name: "the metadata server".to_owned(),
            cause: cause.into(),
        };
        match self.client.text(PATH).await {
            Ok(token) if is_token(&token) => {
                self.keep(&token, now);
                Ok(Some(token))
            }
            Ok(_) => Err(failed(MetadataError::Value {
                what: "the identity token",
                problem: "it is empty or has characters that are not valid in a token",
            })),
            Err(error) => match self.last_resort(now) {
                Some(token) => {
                    tracing::debug!(
                        %error, "the token could not be renewed, but it is still valid"
                    );
                    Ok(Some(token))
                }
                None => Err(failed(error)),
            },
        }
    }

    fn refused(&self) {
        let mut cache = self.cache();
        let now = Instant::now();
        if cache.refused_at.is_none_or(|at| now.duration_since(at) >= REFUSAL_GAP) {
            cache.refused_at = Some(now);
            cache.token = None;
        }
    }
}

/// Whether it is a valid header value.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic())
}

/// When to replace a token with this expiry.
fn kept_until(now: SystemTime, expires: Option<SystemTime>) -> SystemTime {
    let shortest = now + SHORTEST;
    let early = expires.and_then(|expires| expires.checked_sub(EARLY));
    early.map_or(shortest, |early| early.clamp(shortest, now + LONGEST))
}

/// The claim `exp` of a token (RFC 7519), where it can be read.
fn expiry(token: &str) -> Option<SystemTime> {
    #[derive(serde::Deserialize)]
    struct Claims {
        exp: serde_json::Number,
    }
    let claims = token.split('.').nth(1)?;
    let claims: Claims = serde_json::from_slice(&BASE64.decode(claims).ok()?).ok()?;
    let exp = claims.exp.as_f64().filter(|exp| exp.is_finite() && *exp > 0.0)?;
    UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(exp).ok()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with_claims(claims: &str) -> String {
        format!("e30.{}.c2ln", BASE64.encode(claims))
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn the_expiry_is_read_and_nonsense_is_none() {
        assert_eq!(
            expiry(&with_claims(r#"{"exp": 1700000000, "aud": "x"}"#)),
            Some(at(1_700_000_000))
        );
        assert_eq!(expiry(&with_claims(r#"{"exp": 1.5e9}"#)), Some(at(1_500_000_000)));
        for nonsense in
            ["{}", r#"{"exp": "soon"}"#, r#"{"exp": -1}"#, r#"{"exp": 1e300}"#, "no", ""]
        {
            assert_eq!(expiry(&with_claims(nonsense)), None, "{nonsense}");
        }
        for nonsense in ["", "a", "a.b", "a.!.c", ".."] {
            assert_eq!(expiry(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_token_is_kept_until_ten_minutes_before_its_end() {
        let now = at(1_000_000);
        assert_eq!(kept_until(now, Some(at(1_003_600))), at(1_003_000));
        for short in [None, Some(at(0)), Some(at(1_000_300))] {
            assert_eq!(kept_until(now, short), now + SHORTEST);
        }
        assert_eq!(kept_until(now, Some(at(9_000_000))), now + LONGEST);
    }

    #[test]
    fn what_no_header_may_have_is_no_token() {
        for bad in ["", "a b", "a\nb", "ä"] {
            assert!(!is_token(bad), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn law_hostile_tokens_never_panic(token in ".{0,200}", claims in ".{0,200}", now in 0..u64::from(u32::MAX)) {
            for token in [token.clone(), with_claims(&claims), format!("{token}.{claims}.x")] {
                let until = kept_until(at(now), expiry(&token));
                prop_assert!(until >= at(now) + SHORTEST && until <= at(now) + LONGEST);
            }
        }

        #[test]
        fn law_any_expiry_is_bounded(exp in any::<f64>(), now in 0..u64::from(u32::MAX)) {
            let token = with_claims(&format!(r#"{{"exp": {exp}}}"#));
            let until = kept_until(at(now), expiry(&token));
            prop_assert!(until <= at(now) + LONGEST);
        }
    }
}
