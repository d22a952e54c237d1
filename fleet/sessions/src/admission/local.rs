//! No identity: for a control plane on the agents' own machine, and for tests.

use std::net::{IpAddr, SocketAddr};

use async_trait::async_trait;
use tonic::Status;

use super::{Admission, Admitted, Peer};

/// Admits every process of this machine as the agent that it claims to be.
#[derive(Clone, Copy, Debug)]
pub struct Local;

/// Admits everybody as the agent that it claims to be.
#[derive(Clone, Copy, Debug)]
pub struct Anyone;

#[async_trait]
impl Admission for Local {
    async fn admit(&self, peer: &Peer<'_>, resource: &str) -> Result<Admitted, Status> {
        match peer.info.address.as_ref().map(SocketAddr::ip).as_ref().map(IpAddr::to_canonical) {
            Some(address) if !address.is_loopback() => Err(Status::permission_denied(
                "this gateway knows no identities, so it admits agents of its own machine alone",
            )),
            _ => Anyone.admit(peer, resource).await,
        }
    }
}

#[async_trait]
impl Admission for Anyone {
    async fn admit(&self, _: &Peer<'_>, resource: &str) -> Result<Admitted, Status> {
        Ok(Admitted { agent: resource.to_owned(), ..Admitted::default() })
    }
}
