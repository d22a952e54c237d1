//! A token that all agents share. Who has it can claim to be any of them.

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use tonic::Status;

use super::{Admission, Admitted, Anyone, Peer, unauthenticated};

/// Admits who shows the token as the agent that it claims to be.
pub struct Bearer {
    digest: [u8; 32],
}

impl Bearer {
    /// With this token.
    #[must_use]
    pub fn new(token: &str) -> Self {
        Self { digest: Sha256::digest(token).into() }
    }
}

#[async_trait]
impl Admission for Bearer {
    async fn admit(&self, peer: &Peer<'_>, resource: &str) -> Result<Admitted, Status> {
        let token = peer.bearer.ok_or_else(|| unauthenticated("the bearer token is missing"))?;
        // Digests are compared so that the time taken reveals nothing about the token.
        if <[u8; 32]>::from(Sha256::digest(token)) != self.digest {
            return Err(unauthenticated("the bearer token is wrong"));
        }
        Anyone.admit(peer, resource).await
    }
}
