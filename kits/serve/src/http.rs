//! The one loop of HTTP/1.1: connections that come, each served within its deadlines, until the
//! listener is to end.
//!
//! ```text
//!   Connections ─ next ─► a task each ─► Http::converse ─► a service
//!        ending is cancelled: answers are finished, and no further request is read
//! ```

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{HttpService, Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::accept::{Acceptor, Bound, Listener};
use crate::placed::Placed;
use crate::shares::Requested;

/// What a connection may take.
#[derive(Clone, Copy, Debug)]
pub struct Http {
    /// Longest that the head of a request may take, or a connection be idle.
    pub head: Duration,
    /// Most bytes of the head of a request, and of an answer that wait for the client.
    pub buffer_bytes: usize,
    /// How many requests may come over it.
    pub requests: Requests,
    /// Longest that it may live; `None` for as long as its requests go on.
    pub life: Option<Duration>,
}

/// How many requests may come over a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    /// One after the other.
    Many,
    /// One, and the connection ends with its answer.
    One,
}

/// The body of an answer. The connection is idle again when all of it is sent.
struct Answer<B> {
    body: B,
    requested: Requested,
}

/// Why a connection ended before its client or the server was done with it.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The client broke off, was too slow, or did not speak HTTP.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// It lived for as long as it may.
    #[error("the connection lived too long")]
    Life,
}

/// Connections that come, one after the other.
pub trait Connections: Send {
    /// A connection.
    type Connection: Send + 'static;

    /// The next connection; `None` when no more come. Nothing is lost when this is dropped before it
    /// resolves.
    fn next(&mut self) -> impl Future<Output = Option<Self::Connection>> + Send;
}

// === impl Http ===

impl Http {
    /// Serves the requests of one connection. Once `ending` is cancelled, only that which is being
    /// answered.
    ///
    /// # Errors
    /// See [`Broken`].
    pub async fn converse<C, S, B>(
        self,
        connection: C,
        service: S,
        ending: &CancellationToken,
    ) -> Result<(), Broken>
    where
        C: AsyncRead + AsyncWrite + Unpin,
        S: HttpService<Incoming, ResBody = B>,
        S::Error: Into<Box<dyn Error + Send + Sync>>,
        B: Body + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let mut server = http1::Builder::new();
        server
            .timer(TokioTimer::new())
            .header_read_timeout(self.head)
            .max_buf_size(self.buffer_bytes)
            .keep_alive(self.requests == Requests::Many);
        let serving = server.serve_connection(TokioIo::new(connection), service);
        let mut serving = std::pin::pin!(serving);
        let life = async {
            match self.life {
                Some(life) => tokio::time::sleep(life).await,
                None => std::future::pending().await,
            }
        };
        let mut life = std::pin::pin!(life);
        tokio::select! {
            // First, so that an answer which is ready at the same time says that it is the last one.
            biased;
            () = ending.cancelled() => serving.as_mut().graceful_shutdown(),
            ended = serving.as_mut() => return Ok(ended?),
            () = life.as_mut() => return Err(Broken::Life),
        }
        tokio::select! {
            ended = serving => Ok(ended?),
            () = life => Err(Broken::Life),
        }
    }

    /// As [`Http::converse`]. The place of the connection learns when a request came and when its
    /// answer is sent, so that the connection leaves for another one only when it is idle.
    ///
    /// # Errors
    /// See [`Broken`].
    pub async fn converse_placed<C, S, B>(
        self,
        connection: C,
        requested: Requested,
        service: S,
        ending: &CancellationToken,
    ) -> Result<(), Broken>
    where
        C: AsyncRead + AsyncWrite + Unpin,
        S: Service<Request<Incoming>, Response = Response<B>>,
        S::Error: Into<Box<dyn Error + Send + Sync>>,
        B: Body + Unpin + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let noting = service_fn(|request| {
            requested.note();
            let (answer, requested) = (service.call(request), requested.clone());
            async move { Ok::<_, S::Error>(answer.await?.map(|body| Answer { body, requested })) }
        });
        self.converse(connection, noting, ending).await
    }
}

// === impl Answer ===

impl<B: Body + Unpin> Body for Answer<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for Answer<B> {
    /// The server has all of it.
    fn drop(&mut self) {
        self.requested.note_answer();
    }
}

// === impl Connections ===

impl<L: Listener, B: Bound<L::Stream> + Sync> Connections for Acceptor<L, B>
where
    L: Sync,
    L::Stream: Sync,
{
    type Connection = Placed<L::Stream>;

    async fn next(&mut self) -> Option<Self::Connection> {
        Some(Acceptor::next(self).await)
    }
}

impl<C: Send + 'static> Connections for mpsc::Receiver<io::Result<C>> {
    type Connection = C;

    async fn next(&mut self) -> Option<C> {
        loop {
            if let Ok(connection) = self.recv().await? {
                return Some(connection);
            }
        }
    }
}

/// Serves connections, a task each, until `ending` is cancelled or no more come. Those that are open
/// then have `grace` to end; what is left of them is cut.
pub async fn serve<C, F>(
    mut connections: C,
    converse: impl Fn(C::Connection) -> F,
    ending: &CancellationToken,
    grace: Duration,
) where
    C: Connections,
    F: Future<Output = ()> + Send + 'static,
{
    let mut open = JoinSet::new();
    loop {
        let connection = tokio::select! {
            connection = connections.next() => connection,
            // The set forgets connections that ended.
            Some(_) = open.join_next() => continue,
            () = ending.cancelled() => break,
        };
        let Some(connection) = connection else { break };
        open.spawn(converse(connection));
    }
    drop(connections);
    let all_end = async { while open.join_next().await.is_some() {} };
    // The connections that are still open are cut when the set is dropped.
    drop(tokio::time::timeout(grace, all_end).await);
}

#[cfg(test)]
mod tests;
