//! Signed tokens of an identity provider (JWT, RS256 or ES256): an agent is who the claims say.
//!
//! ```text
//!   token ─► verify (pure) ◄── keys (a JWKS, from a file or over HTTPS)
//!              └─► claims ─► template ─► id
//! ```
//!
//! The audience of the tokens has to be this fleet. A token for an audience that others take, too,
//! could be shown here by anybody who got it; so the one that clouds give out by default is refused
//! unless an operator enables it.

mod keys;
mod source;
mod template;
mod verify;

use std::time::SystemTime;

use async_trait::async_trait;
use guest_fleet_sessions::admission::{Admission, Admitted, Peer, foreign, unauthenticated};
use thiserror::Error;
use tonic::Status;

use crate::chain::Chain;
use keys::KeysError;
use source::Source;
use template::{Template, TemplateError};
use verify::{Rules, VerifyError};

#[cfg(test)]
pub(super) use verify::tests as fixture;

pub use source::KeySource;
pub use verify::GOOGLE_AUDIENCE;

/// How tokens are checked.
#[derive(Clone, Debug)]
pub struct JwtSettings {
    /// Who the tokens have to be for.
    pub audience: String,
    /// Who has to have issued them; without it any issuer whose key is known.
    pub issuer: Option<String>,
    /// Claims that a token has to have with exactly these values, such as `tenant` or a JSON pointer: an
    /// issuer that serves many customers signs tokens for all of them.
    pub required: Vec<(String, String)>,
    /// The agent's id by the claims: text with `{CLAIM}`, where a claim in depth is a JSON pointer,
    /// such as `{sub}` or `instances/{/google/compute_engine/instance_id}`.
    pub id: String,
    /// Where the issuer's public keys are.
    pub keys: KeySource,
    /// Takes [`GOOGLE_AUDIENCE`] as an audience. Tokens for it can be replayed.
    pub allows_google_audience: bool,
}

/// Why tokens cannot be checked.
#[derive(Debug, Error)]
pub enum JwtSetupError {
    /// There is no audience.
    #[error("the audience of the tokens is empty: name this fleet, such as its address")]
    NoAudience,
    /// Others take such tokens, too.
    #[error(
        "tokens for `{GOOGLE_AUDIENCE}` are given out for another service, which could show them \
         here: have agents ask for an audience of this fleet, or allow it explicitly"
    )]
    GoogleAudience,
    /// The template of ids is not valid.
    #[error("`{template}` gives no ids")]
    Template {
        /// The template as it was given.
        template: String,
        /// What is wrong with it.
        #[source]
        source: TemplateError,
    },
    /// The place of the keys cannot be used.
    #[error("the keys of the issuer cannot be used")]
    Keys(#[from] KeysError),
}

/// Admits agents by signed tokens.
pub struct Jwt {
    rules: Rules,
    /// Pointers of claims, and the values that they have to have.
    required: Vec<(String, String)>,
    template: Template,
    source: Source,
}

// === impl Jwt ===

impl Jwt {
    /// Checks the settings, and reads the keys where they are in a file.
    ///
    /// # Errors
    /// See [`JwtSetupError`].
    pub async fn new(settings: JwtSettings) -> Result<Self, JwtSetupError> {
        let JwtSettings { audience, issuer, required, id, keys, allows_google_audience } = settings;
        let required =
            required.into_iter().map(|(claim, value)| (template::pointer(&claim), value)).collect();
        let bare = audience.trim_start_matches("https://").trim_end_matches('/');
        if bare.is_empty() {
            return Err(JwtSetupError::NoAudience);
        }
        if bare.eq_ignore_ascii_case(GOOGLE_AUDIENCE) && !allows_google_audience {
            return Err(JwtSetupError::GoogleAudience);
        }
        let template = id
            .parse()
            .map_err(|source| JwtSetupError::Template { template: id.clone(), source })?;
        let source = Source::open(keys).await?;
        Ok(Self { rules: Rules { audience, issuer }, required, template, source })
    }
}

#[async_trait]
impl Admission for Jwt {
    async fn admit(&self, peer: &Peer<'_>, resource: &str) -> Result<Admitted, Status> {
        let token = peer.bearer.ok_or_else(|| unauthenticated("the bearer token is missing"))?;
        let now = SystemTime::now();
        let unavailable = |error: KeysError| {
            tracing::error!(error = %Chain(&error), "the keys of the issuer cannot be read");
            Status::unavailable("the keys of the token's issuer cannot be read now")
        };
        let keys = self.source.keys().await.map_err(unavailable)?;
        let verified = match verify::verify(token, &keys, &self.rules, now) {
            // The issuer may have a new key.
            Err(VerifyError::UnknownKey(_)) => {
                let keys = self.source.newer(&keys).await.map_err(unavailable)?;
                verify::verify(token, &keys, &self.rules, now)
            }
            verified => verified,
        };
        let verified = verified.map_err(|error| unauthenticated(&Chain(&error).to_string()))?;
        for (claim, wanted) in &self.required {
            let found = template::claimed(&verified.claims, claim);
            if found.as_deref() != Some(wanted) {
                return Err(Status::permission_denied(format!(
                    "the claim `{}` of the token is not the one that this fleet requires",
                    claim.escape_debug()
                )));
            }
        }
        let id = self
            .template
            .fill(&verified.claims)
            .map_err(|error| unauthenticated(&Chain(&error).to_string()))?;
        if id != resource {
            return Err(foreign(&id, resource));
        }
        Ok(Admitted { agent: id, ends: Some(verified.ends), ..Admitted::default() })
    }
}
