//! The check of one token. Pure: the caller brings keys and time.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use super::keys::{Algorithm, Keys};

/// The audience of the tokens that Google's metadata server gives out for its own service.
pub const GOOGLE_AUDIENCE: &str = "agentcommunication.googleapis.com";
/// Longest token, in bytes.
const TOKEN_BYTES: usize = 16 << 10;
/// How far the clocks of issuer and gateway may differ.
const LEEWAY: Duration = Duration::from_secs(60);

/// What a token has to say.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) audience: String,
    pub(super) issuer: Option<String>,
}

/// A token that was checked.
#[derive(Debug)]
pub(super) struct Verified {
    pub(super) claims: Value,
    pub(super) ends: SystemTime,
}

/// Why a token admits nobody.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum VerifyError {
    #[error("the token has {0} bytes, and at most {TOKEN_BYTES} are allowed")]
    TooLarge(usize),
    #[error("the token is no JWT in compact form")]
    Malformed,
    #[error("the token is signed with `{0}`, and only RS256 and ES256 are taken")]
    Algorithm(String),
    #[error("the token has extensions that have to be understood, and are not")]
    Critical,
    #[error("the token's key {0} is not among those of the issuer")]
    UnknownKey(String),
    #[error("the signature of the token is wrong")]
    Signature,
    #[error("the token does not say when it ends")]
    NoEnd,
    #[error("the token has ended")]
    Ended,
    #[error("the token is not valid yet: compare the clocks of both machines")]
    Early,
    #[error("the token is for {found}, and has to be for `{wanted}`: have the agent ask for it")]
    Audience { found: String, wanted: String },
    #[error(
        "the token is for `{GOOGLE_AUDIENCE}`, for which tokens can be replayed, and has to be for \
         `{0}`: have the agent ask for it"
    )]
    GoogleAudience(String),
    #[error("the token was issued by {found}, and has to be by `{wanted}`")]
    Issuer { found: String, wanted: String },
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

/// Checks a token.
pub(super) fn verify(
    token: &str,
    keys: &Keys,
    rules: &Rules,
    now: SystemTime,
) -> Result<Verified, VerifyError> {
    if token.len() > TOKEN_BYTES {
        return Err(VerifyError::TooLarge(token.len()));
    }
    let (message, signature) = token.rsplit_once('.').ok_or(VerifyError::Malformed)?;
    let (header, claims) = message.split_once('.').ok_or(VerifyError::Malformed)?;
    let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| VerifyError::Malformed);
    let header: Header =
        serde_json::from_slice(&decode(header)?).map_err(|_| VerifyError::Malformed)?;
    let shown: String = header.alg.escape_debug().take(32).collect();
    let algorithm = Algorithm::read(&header.alg).ok_or(VerifyError::Algorithm(shown))?;
    if header.crit.is_some() {
        return Err(VerifyError::Critical);
    }
    let key = keys.find(header.kid.as_deref(), algorithm).ok_or_else(|| {
        VerifyError::UnknownKey(header.kid.map_or_else(|| "(unnamed)".into(), |id| shorten(&id)))
    })?;
    if !key.signed(message.as_bytes(), &decode(signature)?) {
        return Err(VerifyError::Signature);
    }
    let claims: Value =
        serde_json::from_slice(&decode(claims)?).map_err(|_| VerifyError::Malformed)?;
    let ends = check(&claims, rules, now)?;
    Ok(Verified { claims, ends })
}

/// Checks claims that were signed; returns when they end.
fn check(claims: &Value, rules: &Rules, now: SystemTime) -> Result<SystemTime, VerifyError> {
    let ends = time(&claims["exp"]).ok_or(VerifyError::NoEnd)? + LEEWAY;
    if ends <= now {
        return Err(VerifyError::Ended);
    }
    for claim in ["nbf", "iat"] {
        if time(&claims[claim]).is_some_and(|begins| begins > now + LEEWAY) {
            return Err(VerifyError::Early);
        }
    }
    let audience = &claims["aud"];
    let is_for = |wanted: &str| match audience {
        Value::String(one) => one == wanted,
        Value::Array(several) => several.iter().any(|one| one == wanted),
        _ => false,
    };
    if !is_for(&rules.audience) {
        let wanted = rules.audience.clone();
        if is_for(GOOGLE_AUDIENCE) || is_for(&format!("https://{GOOGLE_AUDIENCE}")) {
            return Err(VerifyError::GoogleAudience(wanted));
        }
        return Err(VerifyError::Audience { found: shorten(&audience.to_string()), wanted });
    }
    if let Some(wanted) = &rules.issuer
        && claims["iss"] != *wanted.as_str()
    {
        let (found, wanted) = (shorten(&claims["iss"].to_string()), wanted.clone());
        return Err(VerifyError::Issuer { found, wanted });
    }
    Ok(ends)
}

/// A time of a claim: seconds since 1970, perhaps with a fraction.
fn time(claim: &Value) -> Option<SystemTime> {
    let seconds = claim.as_f64().filter(|seconds| (0.0..1e11).contains(seconds))?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds))
}

/// A text of the token for an error, which is shown to its sender and in logs.
fn shorten(text: &str) -> String {
    text.escape_debug().take(100).collect()
}

#[cfg(test)]
pub(in crate::admission) mod tests;
