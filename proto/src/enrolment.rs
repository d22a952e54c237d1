//! What agents and the enrolment server send each other over HTTPS, as JSON.

use serde::{Deserialize, Serialize};

/// Path to enrol at.
pub const ENROLL: &str = "/v1/enroll";
/// Path to renew a certificate at.
pub const RENEW: &str = "/v1/renew";
/// Path of the trust bundle.
pub const TRUST: &str = "/v1/trust";

/// A machine asks to become an agent. The join token is in the body, or in the header
/// `Authorization: Bearer`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct EnrollRequest {
    /// The join token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The request for a certificate (PKCS #10), PEM.
    pub csr: String,
    /// The id that the machine wants; without one the server chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// An agent that shows its certificate asks for the next one.
#[derive(Debug, Serialize, Deserialize)]
pub struct RenewRequest {
    /// The request for a certificate (PKCS #10), PEM.
    pub csr: String,
}

/// The answer to both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// Id of the agent, and the resource id of its streams.
    pub agent_id: String,
    /// Id of the fleet.
    pub fleet_id: String,
    /// The agent's certificate, PEM.
    pub certificate: String,
    /// Certificates that lead from it to a former authority, PEM; mostly empty.
    pub chain: String,
    /// The authorities that the agent shall trust, PEM.
    pub trust: String,
    /// Where agents of the fleet connect, such as `https://HOST:PORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// When the certificate ends, in seconds since 1970.
    pub ends: u64,
    /// When it shall be renewed, in seconds since 1970.
    pub renew_at: u64,
}

/// The trust bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trust {
    /// Id of the fleet.
    pub fleet_id: String,
    /// The authorities that agents shall trust, PEM.
    pub trust: String,
}

/// An answer that is no success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// What went wrong.
    pub error: Problem,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// A word for programs; it does not change.
    pub code: String,
    /// A sentence for people.
    pub message: String,
    /// What to do about it.
    pub fix: String,
}
