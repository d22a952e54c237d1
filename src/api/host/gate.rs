//! Authenticates callers: every call on the host socket needs a ticket.

use std::sync::Arc;

use guest_agent_serve_kit::placed::PlacedInfo;
use tonic::service::Interceptor;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Status};

use crate::api::registry::Caller;
use crate::process::launch::{Holder, ProcessLauncher};

/// The metadata with the ticket, and what stands before it there.
const HEADER: &str = "authorization";
const SCHEME: &str = "Bearer ";

/// Accepts calls of plugins and refuses all others with a reason. The ticket is never logged or
/// sent back.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    pub(super) launcher: Arc<ProcessLauncher>,
}

impl Interceptor for Gate {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let connection = request.extensions().get::<PlacedInfo<UdsConnectInfo>>().cloned();
        let credentials = connection.as_ref().and_then(|connection| connection.info.peer_cred);
        let credentials = credentials.ok_or_else(|| {
            Status::unauthenticated("the kernel does not name the user that connected")
        })?;
        let (uid, gid) = (credentials.uid(), credentials.gid());
        let shown = request.metadata().get(HEADER).ok_or_else(|| {
            Status::unauthenticated(
                "no ticket was shown; send the value of GUEST_AGENT_TICKET as metadata \
                 \"authorization: Bearer <ticket>\"",
            )
        })?;
        let ticket = shown.to_str().ok().and_then(|text| text.strip_prefix(SCHEME));
        let ticket = ticket.ok_or_else(|| {
            Status::unauthenticated("the authorization metadata is not \"Bearer <ticket>\"")
        })?;
        let caller = match self.launcher.holder(ticket.trim()) {
            Holder::Plugin { name, process } => Caller { plugin: name, process, uid, gid },
            Holder::ComingBack(name) => {
                return Err(Status::unavailable(format!(
                    "the agent has just started and does not know yet whether {name} still runs; \
                     try again"
                )));
            }
            Holder::Nobody => {
                tracing::warn!(
                    uid,
                    "a caller on the host socket showed a ticket of no running plugin"
                );
                return Err(Status::permission_denied(
                    "the ticket is not that of a running plugin: it ends with the process that it \
                     was given to; use the GUEST_AGENT_TICKET of the plugin's current process",
                ));
            }
        };
        request.extensions_mut().insert(caller);
        // From now on it is the connection of somebody known.
        if let Some(connection) = connection {
            connection.note_request();
        }
        Ok(request)
    }
}
