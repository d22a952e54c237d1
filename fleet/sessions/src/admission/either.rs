//! Two ways on one listener: a certificate where the agent shows one, else a token.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;
use tonic::Status;

use super::{Admission, Admitted, Peer, unauthenticated};

/// Admits by the certificate that a peer shows, and those that show none by their token. A peer that
/// shows a certificate is judged by it alone.
pub struct Either {
    certificates: Arc<dyn Admission>,
    tokens: Arc<dyn Admission>,
}

impl Either {
    /// With one way for certificates and one for tokens. Of two that tell of changes, those of the
    /// first are heard; the clock looks after the other.
    #[must_use]
    pub fn new(certificates: Arc<dyn Admission>, tokens: Arc<dyn Admission>) -> Self {
        Self { certificates, tokens }
    }
}

#[async_trait]
impl Admission for Either {
    async fn admit(&self, peer: &Peer<'_>, resource: &str) -> Result<Admitted, Status> {
        match (&peer.info.certificate, peer.bearer) {
            (Some(_), _) => self.certificates.admit(peer, resource).await,
            (None, Some(_)) => self.tokens.admit(peer, resource).await,
            (None, None) => Err(unauthenticated(
                "the agent shows neither a certificate nor a token: enrol it (`guest-agent enroll`), \
                 or set `control_plane.auth`",
            )),
        }
    }

    fn still(&self, admitted: &Admitted) -> Result<(), Status> {
        match admitted.certificate {
            Some(_) => self.certificates.still(admitted),
            None => self.tokens.still(admitted),
        }
    }

    fn changes(&self) -> Option<watch::Receiver<u64>> {
        self.certificates.changes().or_else(|| self.tokens.changes())
    }
}
