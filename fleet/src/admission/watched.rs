//! Revocation, in every mode: an agent that an operator revoked is admitted by nothing.

use std::sync::Arc;

use async_trait::async_trait;
use guest_fleet_sessions::admission::{Admission, Admitted, Peer};
use tokio::sync::watch;
use tonic::Status;

use crate::enroll::{Revocations, Standing};

/// Admits whom `inner` admits and nobody revoked.
pub struct Watched {
    inner: Arc<dyn Admission>,
    revocations: Revocations,
}

impl Watched {
    /// With a view that somebody keeps current ([`Revocations::follow`]).
    #[must_use]
    pub fn new(inner: Arc<dyn Admission>, revocations: Revocations) -> Self {
        Self { inner, revocations }
    }
}

#[async_trait]
impl Admission for Watched {
    async fn admit(&self, peer: &Peer<'_>, resource: &str) -> Result<Admitted, Status> {
        let admitted = self.inner.admit(peer, resource).await?;
        match self.revocations.standing(&admitted.agent, admitted.certificate.as_ref()) {
            Ok(Standing::Good) => Ok(admitted),
            Ok(Standing::Quarantined(why)) => Ok(Admitted { quarantine: Some(why), ..admitted }),
            Ok(Standing::Revoked) => Err(revoked(&admitted)),
            Ok(Standing::Unreadable) => Err(unreadable()),
            Err(stale) => Err(Status::unavailable(stale.to_string())),
        }
    }

    fn still(&self, admitted: &Admitted) -> Result<(), Status> {
        self.inner.still(admitted)?;
        match self.revocations.standing(&admitted.agent, admitted.certificate.as_ref()) {
            Ok(Standing::Revoked) => Err(revoked(admitted)),
            Ok(Standing::Unreadable) => Err(unreadable()),
            // On an old view no order is handed over either; the stream may stay.
            Ok(Standing::Good | Standing::Quarantined(_)) | Err(_) => Ok(()),
        }
    }

    fn changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.revocations.changes())
    }
}

fn revoked(admitted: &Admitted) -> Status {
    Status::permission_denied(format!(
        "the agent `{}` was revoked: an operator has to enrol it anew",
        admitted.agent.escape_debug()
    ))
}

/// It may be revoked, and comes again: an operator mends the record, not the agent.
fn unreadable() -> Status {
    Status::unavailable("the agent's records cannot be read now")
}
