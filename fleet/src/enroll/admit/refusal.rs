//! Why a request for a certificate is refused, for people and for programs.

use std::time::Duration;

use http::StatusCode;
use thiserror::Error;

use crate::enroll::agents::GrantError;
use crate::enroll::ca::AuthorityError;
use crate::enroll::certificate::CertificateError;
use crate::enroll::csr::CsrError;
use crate::enroll::id::{FleetId, IdError};
use crate::enroll::token::SpendError;

const NEW_TOKEN: &str =
    "ask an operator of the fleet for a new join token (`guest-fleet token create`)";
const BOUND: &str = "ask an operator of the fleet for a join token that is bound to the id \
                     (`guest-fleet token create --agent ID`)";
const LATER: &str =
    "try again in a minute; the operators of the fleet find more in the server's log";

/// Why a request is refused.
#[derive(Debug, Error)]
pub enum Refusal {
    /// There is no token.
    #[error("the request has no join token")]
    NoToken,
    /// The request for a certificate is not valid.
    #[error("the certificate request cannot be used")]
    Csr(#[from] CsrError),
    /// The wanted id is not valid.
    #[error("the wanted id cannot be used")]
    Id(#[from] IdError),
    /// The token admits nobody.
    #[error(transparent)]
    Token(#[from] SpendError),
    /// The agent gets no certificate.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// There is no certificate.
    #[error("the connection shows no certificate of an agent")]
    NoCertificate,
    /// The certificate names no agent.
    #[error("the certificate is not an agent's")]
    Certificate(#[from] CertificateError),
    /// The certificate is of another fleet.
    #[error("the certificate is of the fleet `{theirs}`, which is not this one")]
    OtherFleet {
        /// Fleet that the certificate names.
        theirs: FleetId,
    },
    /// The certificate ended long ago.
    #[error("the certificate ended more than {} days ago", .grace.as_secs() / 86_400)]
    TooLate {
        /// How long after its end it could be renewed.
        grace: Duration,
    },
    /// No certificate can be made.
    #[error("no certificate can be made now")]
    Authority(#[from] AuthorityError),
}

// === impl Refusal ===

impl Refusal {
    /// A word for programs, and the status of the answer.
    #[must_use]
    pub fn code(&self) -> (StatusCode, &'static str) {
        use StatusCode as S;

        match self {
            Self::NoToken => (S::UNAUTHORIZED, "no_token"),
            Self::Csr(_) => (S::BAD_REQUEST, "bad_csr"),
            Self::Id(_) => (S::BAD_REQUEST, "bad_id"),
            Self::Token(SpendError::Unknown) => (S::UNAUTHORIZED, "token_unknown"),
            Self::Token(SpendError::Revoked) => (S::FORBIDDEN, "token_revoked"),
            Self::Token(SpendError::Ended) => (S::FORBIDDEN, "token_ended"),
            Self::Token(SpendError::UsedUp) => (S::FORBIDDEN, "token_used_up"),
            Self::Token(SpendError::OtherAgent { .. }) => (S::FORBIDDEN, "other_agent"),
            Self::Grant(GrantError::Taken(_)) => (S::CONFLICT, "id_taken"),
            Self::Grant(GrantError::Revoked(_)) => (S::FORBIDDEN, "revoked"),
            Self::Grant(GrantError::Quarantined { .. }) => (S::FORBIDDEN, "quarantined"),
            Self::NoCertificate => (S::UNAUTHORIZED, "no_certificate"),
            Self::Certificate(_) => (S::FORBIDDEN, "bad_certificate"),
            Self::OtherFleet { .. } => (S::FORBIDDEN, "other_fleet"),
            Self::TooLate { .. } => (S::FORBIDDEN, "too_late"),
            Self::Token(SpendError::Change(_))
            | Self::Grant(GrantError::Change(_))
            | Self::Authority(_) => (S::SERVICE_UNAVAILABLE, "unavailable"),
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn fix(&self) -> &'static str {
        match self {
            Self::NoToken => "give the token in the body or as `Authorization: Bearer`",
            Self::Csr(_) => "make a key of ECDSA P-256 and a request (PKCS #10, PEM) that it signs",
            Self::Id(_) => "leave the id out, or choose letters, digits and `-._~:/`",
            Self::Token(SpendError::Unknown) => "check that the whole token was given",
            Self::Token(SpendError::Revoked | SpendError::Ended | SpendError::UsedUp) => NEW_TOKEN,
            Self::Token(SpendError::OtherAgent { .. }) => "ask for this id, or for none",
            Self::Grant(GrantError::Taken(_)) => BOUND,
            Self::Grant(GrantError::Revoked(_)) | Self::TooLate { .. } => BOUND,
            Self::Grant(GrantError::Quarantined { .. }) => {
                "enrol one of the two machines anew; an operator then releases the agent \
                 (`guest-fleet agent release ID`)"
            }
            Self::NoCertificate => "connect with the agent's certificate and key",
            Self::Certificate(_) | Self::OtherFleet { .. } => {
                "connect with the certificate that this fleet issued to the agent"
            }
            Self::Token(SpendError::Change(_))
            | Self::Grant(GrantError::Change(_))
            | Self::Authority(_) => LATER,
        }
    }
}
