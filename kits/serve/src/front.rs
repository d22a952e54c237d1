//! The front door of a TCP listener: who may come in, before a byte of TLS costs anything.
//!
//! ```text
//!   accept ─► buckets ─► bound of connections ─► TLS, within a deadline ─► Connection
//!                │ over the limit: closed at once
//! ```
//!
//! A flood takes one accept and one close per connection. A handshake runs in a task of its own, so
//! one client that says nothing keeps nobody waiting.

mod buckets;
mod connection;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::lock::lock;
use crate::renewed::Secured;
use buckets::Buckets;

pub use buckets::Rate;
pub use connection::{Connection, PeerInfo};

/// Pause after a failed accept, which is mostly a lack of descriptors and does not pass at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections that wait to be served.
const QUEUE: usize = 64;
/// How often refused connections are written about.
const REPORT: Duration = Duration::from_secs(60);

/// The bounds of a listener.
#[derive(Clone, Copy, Debug)]
pub struct FrontLimits {
    /// Connections of all clients.
    pub rate: Rate,
    /// Connections of one client: of one IPv4 address, or of one IPv6 network of 64 bits.
    pub rate_per_address: Option<Rate>,
    /// Connections at one time.
    pub connections: usize,
    /// How long a TLS handshake may take.
    pub handshake: Duration,
}

/// A door; clones are the same.
#[derive(Clone)]
pub struct Front {
    limits: FrontLimits,
    buckets: Arc<Mutex<Buckets>>,
    room: Arc<Semaphore>,
    refused: Arc<Mutex<Refused>>,
    count: OnClosed,
}

/// Is called with each connection that is closed before TLS.
pub type OnClosed = Arc<dyn Fn() + Send + Sync>;

/// Connections that were closed at once, since they were written about last.
#[derive(Default)]
struct Refused {
    count: u64,
    reported: Option<Instant>,
}

/// A place for one connection.
pub type Place = OwnedSemaphorePermit;

// === impl Front ===

impl Front {
    /// A door with these bounds.
    #[must_use]
    pub fn new(limits: FrontLimits) -> Self {
        Self {
            limits,
            buckets: Arc::new(Mutex::new(Buckets::new(limits.rate, limits.rate_per_address))),
            room: Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS))),
            refused: Arc::default(),
            count: Arc::new(|| {}),
        }
    }

    /// Counts the connections that are closed.
    #[must_use]
    pub fn counting(self, count: OnClosed) -> Self {
        Self { count, ..self }
    }

    /// A place for a connection from this address, if it may come in.
    pub fn admit(&self, from: SocketAddr) -> Option<Place> {
        let place = lock(&self.buckets)
            .take(from.ip(), Instant::now())
            .then(|| self.room.clone().try_acquire_owned().ok())
            .flatten();
        if place.is_none() {
            self.refuse(from);
        }
        place
    }

    fn refuse(&self, from: SocketAddr) {
        (self.count)();
        let mut refused = lock(&self.refused);
        refused.count += 1;
        if refused.reported.is_none_or(|at| at.elapsed() >= REPORT) {
            tracing::warn!(
                connections = refused.count,
                last = %from.ip(),
                "closed connections before TLS: too many came at once"
            );
            *refused = Refused { count: 0, reported: Some(Instant::now()) };
        }
    }

    /// Accepts connections until `shutdown` or until the receiver is dropped; each is secured, and
    /// those that fail are dropped.
    pub fn serve(
        self,
        listener: TcpListener,
        secured: Option<Secured>,
        shutdown: CancellationToken,
    ) -> mpsc::Receiver<io::Result<Connection>> {
        let (out, connections) = mpsc::channel(QUEUE);
        tokio::spawn(async move {
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = shutdown.cancelled() => return,
                    () = out.closed() => return,
                };
                match accepted {
                    Ok((stream, from)) => self.arrived(stream, from, secured.as_ref(), &out),
                    Err(error) => {
                        tracing::warn!(%error, "could not accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        });
        connections
    }

    fn arrived(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        secured: Option<&Secured>,
        out: &mpsc::Sender<io::Result<Connection>>,
    ) {
        let Some(place) = self.admit(from) else { return };
        // Without it a small frame waits for the acknowledgement of the one before.
        drop(stream.set_nodelay(true));
        let config = secured.map(|secured| secured.borrow().clone());
        let (out, deadline) = (out.clone(), self.limits.handshake);
        tokio::spawn(async move {
            let connection = match config {
                None => Connection::plain(stream, from, place),
                Some(config) => {
                    let handshake = TlsAcceptor::from(config).accept(stream);
                    match tokio::time::timeout(deadline, handshake).await {
                        Ok(Ok(stream)) => Connection::tls(stream, from, place),
                        Ok(Err(error)) => {
                            return tracing::debug!(%from, %error, "a TLS handshake failed");
                        }
                        Err(_elapsed) => {
                            return tracing::debug!(%from, "a TLS handshake took too long");
                        }
                    }
                }
            };
            // It fails only when nobody serves any more.
            drop(out.send(Ok(connection)).await);
        });
    }
}
