//! What the pages of the HTTP server are made from.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::access::TokenStore;
use super::scheme::Scheme;
use super::session::Sessions;
use crate::api::local::LocalApi;
use crate::config::Config;
use crate::observe::metrics::Sources;

/// What pages have access to. Cheap to clone.
#[derive(Clone)]
pub struct Site {
    /// The layer behind the local socket.
    pub api: LocalApi,
    /// What metrics are made from.
    pub sources: Sources,
    /// The configuration in effect.
    pub config: watch::Receiver<Arc<Config>>,
    /// The tokens in force.
    pub tokens: Arc<TokenStore>,
    /// The sessions of browsers that are logged in.
    pub(crate) sessions: Arc<Sessions>,
    /// Who can reach the listener.
    pub reach: Reach,
    /// Whether it has TLS.
    pub(crate) scheme: Scheme,
    /// Cancelled when the server ends, so that responses that stream end as well.
    pub ending: CancellationToken,
}

/// Who can reach a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Users of this machine, and every page that their browsers show.
    Loopback,
    /// Users of this machine, whom the kernel names; with a forwarded connection (`ssh -L`) also the
    /// pages that a browser elsewhere shows.
    Socket,
    /// Other machines too.
    Network,
}
