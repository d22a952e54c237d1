//! What a listener serves, and what its clients may take.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use guest_agent_serve_kit::listen::Listen;

use crate::artifacts::named::Known;
use crate::artifacts::store::ArtifactStore;
use crate::net::tls::{LOOK, PairFiles};

/// How long an address that a bucket signed is good for, by default.
const SIGNED_FOR: Duration = Duration::from_secs(15 * 60);

/// What a listener serves, and how.
#[derive(Clone)]
pub struct ListenerOptions {
    /// Where it listens.
    pub listen: Listen,
    /// Its certificate; without it the address has to be one of this machine.
    pub tls: Option<PairFiles>,
    /// The artifacts.
    pub store: Arc<dyn ArtifactStore>,
    /// Which artifacts agents may fetch.
    pub known: Arc<dyn Known>,
    /// File with the tokens of those who may upload, one per line. It is read for each upload.
    /// Without it nobody may.
    pub upload_tokens: Option<PathBuf>,
    /// How artifacts of a bucket reach agents.
    pub delivery: Delivery,
    /// What clients may take.
    pub limits: Limits,
}

/// How artifacts reach agents from a store that can sign addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// By a redirection to an address that is good for so long. Agents have to allow redirections
    /// to the host of the bucket.
    Redirect(Duration),
    /// Through this process, which verifies them.
    Stream,
}

/// What clients may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most connections at once.
    pub connections: usize,
    /// Most connections at once of one peer: an IPv4 address, a /64 network of IPv6, or a user of
    /// this machine.
    pub per_peer: usize,
    /// Most uploads at once.
    pub uploads: usize,
    /// Longest that a TLS handshake may take.
    pub handshake: Duration,
    /// Longest that the head of a request may take, or a connection be idle.
    pub head: Duration,
    /// Longest that a client may read nothing of an answer, or send nothing of an upload.
    pub stall: Duration,
    /// How often the files of the certificate are looked at.
    pub look: Duration,
    /// Longest that a shutdown waits for requests to end.
    pub end: Duration,
}

impl Default for Delivery {
    fn default() -> Self {
        Self::Redirect(SIGNED_FOR)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            per_peer: 256,
            uploads: 8,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(10),
            stall: Duration::from_secs(60),
            look: LOOK,
            end: Duration::from_secs(5),
        }
    }
}

impl fmt::Debug for ListenerOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { listen, tls, store, delivery, limits, .. } = self;
        formatter
            .debug_struct("ListenerOptions")
            .field("listen", listen)
            .field("tls", tls)
            .field("store", store)
            .field("delivery", delivery)
            .field("limits", limits)
            .finish_non_exhaustive()
    }
}
