//! How this machine becomes an agent of a fleet.

use guest_agent_proto::enrolment::EnrollRequest;

use super::files::{Enrolled, Identity, IdentityError};
use super::request::{RequestError, Server, Trust};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Join {
    /// Address of the fleet's server.
    pub server: String,
    /// How the server is known.
    pub trust: Trust,
    /// The join token.
    pub token: String,
    /// The id that the machine wants.
    pub id: Option<String>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Joined {
    /// The enrolment.
    pub enrolled: Enrolled,
    /// Where agents of the fleet connect, if the server says so.
    pub gateway: Option<String>,
}

/// Why the machine is no agent of the fleet.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// It is one already.
    #[error("this machine is the agent {} of the fleet {} already", .0.agent_id, .0.fleet_id)]
    Already(Enrolled),
    /// The files cannot be used.
    #[error(transparent)]
    Files(#[from] IdentityError),
    /// The request failed.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Makes this machine an agent. If the answer is lost, the same call again spends no further use of
/// the token.
///
/// # Errors
/// See [`JoinError`].
pub async fn join(identity: &Identity, join: &Join) -> Result<Joined, JoinError> {
    if let Some(enrolled) = identity.enrolled()? {
        return Err(JoinError::Already(enrolled));
    }
    let server = Server::new(&join.server, &join.trust, None).await?;
    let key = identity.key()?;
    let csr = key.request().map_err(IdentityError::Key)?;
    let request = EnrollRequest { token: Some(join.token.clone()), csr, id: join.id.clone() };
    let granted = server.enroll(&request).await?;
    let enrolled = identity.put(&join.server, &key, &granted)?;
    Ok(Joined { enrolled, gateway: granted.gateway })
}
