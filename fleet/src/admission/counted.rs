//! Refusals are counted.

use std::sync::Arc;

use async_trait::async_trait;
use guest_fleet_sessions::admission::{Admission, Admitted, Peer};
use tokio::sync::watch;
use tonic::Status;

use crate::telemetry::figures::Figures;

/// Asks another admission, and counts whom it does not let in, or lets in no longer.
pub struct Counted {
    inner: Arc<dyn Admission>,
    figures: Arc<Figures>,
}

// === impl Counted ===

impl Counted {
    /// With these counts.
    #[must_use]
    pub fn new(inner: Arc<dyn Admission>, figures: Arc<Figures>) -> Self {
        Self { inner, figures }
    }

    fn count<T>(&self, asked: Result<T, Status>) -> Result<T, Status> {
        if let Err(status) = &asked {
            self.figures.refused(status.code());
        }
        asked
    }
}

#[async_trait]
impl Admission for Counted {
    async fn admit(&self, peer: &Peer<'_>, resource: &str) -> Result<Admitted, Status> {
        self.count(self.inner.admit(peer, resource).await)
    }

    fn still(&self, admitted: &Admitted) -> Result<(), Status> {
        self.count(self.inner.still(admitted))
    }

    fn changes(&self) -> Option<watch::Receiver<u64>> {
        self.inner.changes()
    }
}
