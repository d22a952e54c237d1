//! Authenticates callers: every call needs the ticket of a running plugin.
//!
//! The check comes before all services, known or not, so that a caller without a ticket does not
//! learn which services exist. An admission plugin may call all services; any other plugin may call
//! only the log.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use guest_agent_actors::admission::ProcessRun;
use guest_agent_actors::model::id::{PluginName, Sha256Digest};
use guest_agent_actors::ports::QueueRecipients;
use guest_agent_serve_kit::placed::PlacedInfo;
use tonic::transport::server::TcpConnectInfo;
use tonic::{Request, Status};

use crate::net::ticket;

/// Whose ticket this is, among plugins that are no admission plugins.
pub type TicketOwner = Arc<dyn Fn(&str) -> Option<PluginName> + Send + Sync>;

/// The metadata key that carries the ticket of a call.
const TICKET_KEY: &str = "x-plugin-ticket";

/// Random bytes of a ticket.
const TICKET_BYTES: usize = 64;

/// The tickets of the running plugin processes, by digest.
pub(super) struct Door {
    callers: Mutex<HashMap<Sha256Digest, (ProcessRun, Arc<Caller>)>>,
    others: TicketOwner,
}

/// A plugin that calls.
pub(super) enum Caller {
    /// An admission plugin.
    Admission { life: ProcessRun, name: Arc<str>, queue: QueueRecipients },
    /// A plugin of another kind.
    Other { name: Arc<str> },
}

// === impl Door ===

impl Door {
    pub(super) fn new(others: TicketOwner) -> Self {
        Self { callers: Mutex::default(), others }
    }

    /// Makes the ticket of a plugin process.
    ///
    /// # Errors
    /// The system has no random bytes to give.
    pub(super) fn issue(
        &self,
        life: ProcessRun,
        caller: Caller,
    ) -> Result<String, rand::rand_core::OsError> {
        let ticket = ticket::Fresh::new::<TICKET_BYTES>()?;
        self.callers().insert(ticket.digest, (life, Arc::new(caller)));
        Ok(ticket.text)
    }

    /// Revokes the ticket of a plugin process.
    pub(super) fn revoke(&self, life: ProcessRun) {
        self.callers().retain(|_, (owner, _)| *owner != life);
    }

    /// Lets a call in, with its caller attached.
    ///
    /// # Errors
    /// UNAUTHENTICATED without a ticket, PERMISSION_DENIED with an unknown one.
    pub(super) fn admit(&self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let ticket = request.metadata().get(TICKET_KEY).and_then(|value| value.to_str().ok());
        let Some(ticket) = ticket else {
            return Err(Status::unauthenticated(format!(
                "a call needs the ticket of the handshake as {TICKET_KEY:?} in its metadata"
            )));
        };
        let caller = self.caller(ticket).ok_or_else(|| {
            Status::permission_denied(
                "no running admission plugin has this ticket; use that of the last handshake",
            )
        })?;
        request.extensions_mut().insert(caller);
        // From now on the connection is not idle: its caller is known.
        if let Some(connection) = request.extensions().get::<PlacedInfo<TcpConnectInfo>>() {
            connection.note_request();
        }
        Ok(request)
    }

    fn caller(&self, ticket: &str) -> Option<Arc<Caller>> {
        let digest = ticket::digest(ticket.as_bytes())?;
        if let Some((_, caller)) = self.callers().get(&digest) {
            return Some(Arc::clone(caller));
        }
        let name = (self.others)(ticket)?;
        Some(Arc::new(Caller::Other { name: name.as_str().into() }))
    }

    fn callers(&self) -> MutexGuard<'_, HashMap<Sha256Digest, (ProcessRun, Arc<Caller>)>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Caller ===

impl Caller {
    /// The authenticated caller of a call.
    pub(super) fn of<T>(request: &Request<T>) -> Result<Arc<Self>, Status> {
        let caller = request.extensions().get::<Arc<Self>>().cloned();
        caller.ok_or_else(|| Status::internal("the socket of this call is unknown"))
    }

    /// The name of the plugin in the log.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Admission { name, .. } | Self::Other { name } => name,
        }
    }

    /// Whose admission plugin this is, and whom it talks to.
    pub(super) fn admission(&self) -> Result<(ProcessRun, &QueueRecipients), Status> {
        match self {
            Self::Admission { life, queue, .. } => Ok((*life, queue)),
            Self::Other { .. } => {
                Err(Status::unimplemented("this service is offered to admission plugins only"))
            }
        }
    }
}
