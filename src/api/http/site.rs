//! What the pages of the HTTP server are made from.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::access::Desk;
use super::session::Sessions;
use crate::api::local::LocalApi;
use crate::observe::metrics::Sources;

/// What pages reach. Cheap to clone.
#[derive(Clone)]
pub struct Site {
    /// The layer behind the local socket.
    pub api: LocalApi,
    /// What metrics are made of.
    pub sources: Sources,
    /// Knows who may do what.
    pub desk: Arc<Desk>,
    /// Who is logged in.
    pub(crate) sessions: Arc<Sessions>,
    /// Who can reach the listener.
    pub reach: Reach,
    /// Cancelled when responses that go on and on are to end.
    pub ending: CancellationToken,
}

/// Who can reach a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Whoever is on this machine, and whatever page their browser shows.
    Loopback,
    /// Other machines too.
    Network,
}
