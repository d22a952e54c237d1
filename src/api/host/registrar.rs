//! Registers and withdraws what plugins offer. The gate has found out which plugin calls.

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use guest_agent_actors::error::Chain;
use guest_agent_actors::messages::{Deregister, NotRegistered, Register};
use guest_agent_actors::ports::{ProbeError, Prober};
use guest_agent_actors::registry::RegistryActor;
use guest_agent_actors::registry::entry::{Key, Offer, Registrant};
use guest_agent_proto::host;
use guest_agent_proto::host::registrar_server::Registrar;
use tonic::{Request, Response, Status};

use super::prober::SocketProber;
use crate::api::registry::Caller;
use crate::api::registry::convert::{entry, not_registered, parse, raw_offer};

/// Longest that a change may take to become durable. What takes longer may become so all the same.
const CHANGE_WAIT: Duration = Duration::from_secs(10);

/// The user that may vouch for anybody's socket.
const ROOT: u32 = 0;

/// Serves `Registrar`.
#[derive(Debug)]
pub(super) struct RegistrarService {
    pub(super) registry: Addr<RegistryActor>,
    pub(super) prober: Arc<SocketProber>,
}

#[tonic::async_trait]
impl Registrar for RegistrarService {
    async fn register(
        &self,
        request: Request<host::RegisterRequest>,
    ) -> Result<Response<host::RegisterResponse>, Status> {
        let caller = caller(&request)?;
        let offer = request.into_inner().offer.unwrap_or_default();
        let offer = Offer::parse(raw_offer(offer), &caller.plugin)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let uid = self.vet(&offer, caller.uid).await?;
        let Caller { plugin, process, .. } = caller;
        let by = Registrant { plugin, process, uid };
        let entry = entry(&*in_time(self.registry.send(Register { by, offer })).await?);
        Ok(Response::new(host::RegisterResponse { entry: Some(entry) }))
    }

    async fn deregister(
        &self,
        request: Request<host::DeregisterRequest>,
    ) -> Result<Response<host::DeregisterResponse>, Status> {
        let Caller { plugin, process, uid } = caller(&request)?;
        let host::DeregisterRequest { r#type, name, instance } = request.into_inner();
        let instance = if instance.is_empty() { plugin.as_str() } else { &instance };
        let key = Key { kind: parse(&r#type)?, name: parse(&name)?, instance: parse(instance)? };
        let by = Registrant { plugin, process, uid };
        in_time(self.registry.send(Deregister { by, key })).await?;
        Ok(Response::new(host::DeregisterResponse {}))
    }
}

impl RegistrarService {
    /// The user that answers on the socket, who has to be the one that calls: a plugin offers only
    /// what is its own. Root may offer what it started under another user.
    async fn vet(&self, offer: &Offer, caller: u32) -> Result<u32, Status> {
        let fix = "listen on the socket first, under the user that registers it";
        let refuse =
            |error: ProbeError| Status::failed_precondition(format!("{}; {fix}", Chain(&error)));
        let found = self.prober.probe(offer.socket()).await.map_err(refuse)?;
        if !may_offer(caller, found) {
            let socket = offer.socket().to_owned();
            return Err(refuse(ProbeError::Foreign { socket, found, wanted: caller }));
        }
        Ok(found)
    }
}

/// Whether a user may offer what another one listens on.
const fn may_offer(caller: u32, listener: u32) -> bool {
    caller == listener || caller == ROOT
}

fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| Status::unauthenticated("no ticket was shown"))
}

async fn in_time<T>(
    change: impl Future<Output = Result<Result<T, NotRegistered>, actix::MailboxError>>,
) -> Result<T, Status> {
    match tokio::time::timeout(CHANGE_WAIT, change).await {
        Ok(Ok(Ok(done))) => Ok(done),
        Ok(Ok(Err(error))) => Err(not_registered(&error)),
        Ok(Err(_)) => Err(Status::unavailable("the agent is stopping")),
        Err(_) => Err(Status::deadline_exceeded(
            "the disk is too slow; the registration may be written later, so try again",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_but_root_offers_what_another_user_listens_on() {
        assert!(may_offer(1000, 1000) && may_offer(ROOT, 1000));
        assert!(!may_offer(1000, 1001) && !may_offer(1000, ROOT));
    }
}
