//! Certificates: an agent is who its certificate says. The listener checked already that an
//! authority of the fleet signed it and that the agent has its key.

use std::time::SystemTime;

use async_trait::async_trait;
use guest_fleet_sessions::admission::{Admission, Admitted, Peer, foreign, unauthenticated};
use tonic::Status;

use crate::chain::Chain;
use crate::enroll::certificate::AgentCertificate;
use crate::enroll::id::FleetId;

/// Admits agents of this fleet by their certificates.
pub struct Mutual {
    fleet: FleetId,
}

impl Mutual {
    /// For this fleet.
    #[must_use]
    pub fn new(fleet: FleetId) -> Self {
        Self { fleet }
    }
}

#[async_trait]
impl Admission for Mutual {
    async fn admit(&self, peer: &Peer<'_>, resource: &str) -> Result<Admitted, Status> {
        let shown = peer.info.certificate.as_ref().ok_or_else(|| {
            unauthenticated(
                "the connection shows no client certificate: enrol the agent (`guest-agent enroll`)",
            )
        })?;
        let shown = AgentCertificate::read(shown)
            .map_err(|error| unauthenticated(&Chain(&error).to_string()))?;
        if shown.fleet != self.fleet {
            return Err(Status::permission_denied(format!(
                "the certificate is of the fleet `{}`, and this is `{}`",
                shown.fleet, self.fleet
            )));
        }
        if shown.agent.as_str() != resource {
            return Err(foreign(shown.agent.as_str(), resource));
        }
        // A connection may live longer than the certificate by which it was made.
        if shown.facts.ends <= SystemTime::now() {
            return Err(unauthenticated("the certificate has ended: connect with the renewed one"));
        }
        Ok(Admitted {
            agent: resource.to_owned(),
            ends: Some(shown.facts.ends),
            certificate: Some(shown.facts),
            quarantine: None,
        })
    }
}
