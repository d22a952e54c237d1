//! A plugin that listens: it serves calls until its life ends, then finishes the calls in flight.
//!
//! `run` uses it for whole processes, tests use it directly. It leaves the process alone: no signal
//! handler, no panic hook, no exit.

use std::future::{Future, pending};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use guest_agent_proto::plugin_comm::guest_agent_plugin_server::GuestAgentPluginServer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::time::Instant;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::Connected;

use crate::life::Life;
use crate::listener::Listener;
use crate::service::Service;
use crate::{Address, BindError, Cleanup, Plugin, ServeError, StopContext};

/// How long `stop` may take when a signal asks for it, which names no deadline.
const SIGNAL_DEADLINE: Duration = Duration::from_secs(10);

/// After the end, calls in flight get until the stop's deadline, but no less and no more than these
/// two.
const SHORTEST_DRAIN: Duration = Duration::from_millis(200);
const LONGEST_DRAIN: Duration = Duration::from_secs(2);

/// Concurrent calls per connection; further ones wait.
const MAX_CALLS: u32 = 64;

/// A pause after a failed accept. Without it a process out of descriptors would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A plugin bound to its address.
///
/// ```
/// # use guest_agent_plugin::{Address, Plugin, PluginError, Server, StartContext, async_trait};
/// # struct Quiet;
/// # #[async_trait]
/// # impl Plugin for Quiet {
/// #     async fn start(&self, _: StartContext) -> Result<(), PluginError> { Ok(()) }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::bind(Quiet, &Address::parse("tcp", "127.0.0.1:0")?)?;
/// println!("listening on {}", server.address());
/// let enough = async { /* wait for something */ };
/// server.run_until(enough).await?;
/// # Ok(())
/// # }
/// ```
pub struct Server<P> {
    life: Arc<Life<P>>,
    listener: Listener,
    address: Address,
}

// === impl Server ===

impl<P: Plugin> Server<P> {
    /// Listens on the address. Connections wait until [`run`](Server::run).
    ///
    /// # Errors
    ///
    /// [`BindError`] if the address cannot be listened on.
    pub fn bind(plugin: P, address: &Address) -> Result<Server<P>, BindError> {
        let (listener, address) = Listener::bind(address)?;
        Ok(Server { life: Life::new(plugin), listener, address })
    }

    /// The address on which the plugin listens; for port 0 with the port that the kernel chose.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Serves until a Stop call was answered and the other calls in flight are done, though not
    /// long beyond the deadline of the stop.
    ///
    /// # Errors
    ///
    /// [`ServeError::Transport`] if the server failed.
    pub async fn run(self) -> Result<(), ServeError> {
        self.run_until(pending()).await
    }

    /// Like [`run`](Server::run), and stops the plugin (keeping its traces, within 10 s) when `end`
    /// completes.
    ///
    /// # Errors
    ///
    /// [`ServeError::Transport`] if the server failed; [`ServeError::Stop`] if `end` completed and
    /// the plugin's `stop` failed, because no caller receives that error.
    pub async fn run_until(self, end: impl Future<Output = ()> + Send) -> Result<(), ServeError> {
        let Server { life, listener, .. } = self;
        let context = StopContext { cleanup: Cleanup::Keep, deadline: SIGNAL_DEADLINE };
        let asked = AtomicBool::new(false);
        let stop_at_end = async {
            end.await;
            asked.store(true, Ordering::Relaxed);
            // The result is read below; the server may end before this await returns.
            drop(life.stop(context).await);
            pending::<()>().await;
        };
        let overdue = async {
            let deadline = life.ended().await;
            tokio::time::sleep_until(drained_by(Instant::now(), deadline)).await;
        };
        tokio::select! {
            served = serve(&life, listener) => served?,
            () = overdue => {}
            () = stop_at_end => {}
        }
        if asked.load(Ordering::Relaxed) {
            // The plugin has been stopped, so this only reads the result.
            life.stop(context).await.map_err(|error| ServeError::Stop(error.into()))?;
        }
        Ok(())
    }
}

/// Serves on either kind of socket, on both where there are two. The file of a unix socket is
/// removed with the server.
async fn serve<P: Plugin>(life: &Arc<Life<P>>, listener: Listener) -> Result<(), ServeError> {
    match listener {
        Listener::Unix(listener, file) => {
            let listener = UnixListener::from_std(listener).map_err(ServeError::Runtime)?;
            let served = answer(life, UnixListenerStream::new(listener).then(paced)).await;
            drop(file);
            served
        }
        Listener::Tcp(listener) => answer(life, connections(listener)?).await,
        Listener::Loopback([one, other]) => {
            answer(life, connections(one)?.merge(connections(other)?)).await
        }
    }
}

/// The connections of a TCP listener.
fn connections(
    listener: std::net::TcpListener,
) -> Result<impl Stream<Item = io::Result<TcpStream>>, ServeError> {
    let listener = TcpListener::from_std(listener).map_err(ServeError::Runtime)?;
    Ok(TcpListenerStream::new(listener).map(without_delay).then(paced))
}

/// Answers calls until the plugin's life has ended and every connection is closed.
async fn answer<P, C>(
    life: &Arc<Life<P>>,
    incoming: impl Stream<Item = io::Result<C>>,
) -> Result<(), ServeError>
where
    P: Plugin,
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    tonic::transport::Server::builder()
        .max_concurrent_streams(MAX_CALLS)
        .add_service(GuestAgentPluginServer::new(Service::new(Arc::clone(life))))
        .serve_with_incoming_shutdown(incoming, async {
            life.ended().await;
        })
        .await
        .map_err(ServeError::Transport)
}

async fn paced<C>(connection: io::Result<C>) -> io::Result<C> {
    if connection.is_err() {
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
    connection
}

fn without_delay(connection: io::Result<TcpStream>) -> io::Result<TcpStream> {
    let connection = connection?;
    connection.set_nodelay(true)?;
    Ok(connection)
}

fn drained_by(now: Instant, deadline: Instant) -> Instant {
    deadline.clamp(now + SHORTEST_DRAIN, now + LONGEST_DRAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draining_ends_with_the_deadline_but_never_at_once_and_never_late() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        assert_eq!(drained_by(now, now + second), now + second);
        assert_eq!(drained_by(now, now + 30 * second), now + LONGEST_DRAIN);
        assert_eq!(drained_by(now, now), now + SHORTEST_DRAIN);
    }
}
