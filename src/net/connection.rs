//! One HTTP/2 connection to a gRPC server.
//!
//! tonic's channel drops the error that a connection ends with, and nothing else holds the reason
//! that a server gives in GOAWAY: the calls in flight fail as if the network were gone. So the
//! connection is hyper's, and its error is read here.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{HeaderValue, USER_AGENT};
use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tonic::body::Body;
use tower::Service;

use crate::net::keepalive::{self, Keepalive};

/// Longest wait for the end of a connection whose call failed.
const END_WAIT: Duration = Duration::from_millis(100);

const AGENT: &str = concat!("guest-agent/", env!("CARGO_PKG_VERSION"));

/// A connection, which is closed when the last clone and the last call are gone. It is never opened
/// again by itself.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    requests: SendRequest<Body>,
    scheme: Scheme,
    authority: Authority,
    end: watch::Receiver<Option<End>>,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Keepalive pings came too often for the server; the next connections use this interval.
    TooManyPings { from_now_on: Duration },
    /// In any other way.
    Other,
}

/// The server wants fewer pings; this is the interval between them on the connections that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FewerPings(pub(crate) Duration);

// === impl Connection ===

impl Connection {
    /// Speaks HTTP/2 on a stream to the server of `origin`, a scheme and an authority.
    pub(super) async fn open<S>(
        stream: S,
        (scheme, authority): (Scheme, Authority),
        keepalive: &Arc<Keepalive>,
    ) -> hyper::Result<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let interval = keepalive.interval();
        let (requests, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(interval)
            .keep_alive_timeout(keepalive::ANSWER)
            // A server may count every ping without a call as one too many.
            .keep_alive_while_idle(false)
            .handshake(TokioIo::new(stream))
            .await?;
        let keepalive = Arc::clone(keepalive);
        let (ended, end) = watch::channel(None);
        tokio::spawn(async move {
            let how = match (connection.await, interval) {
                (Err(error), Some(used)) if keepalive::is_too_many_pings(&error) => {
                    let from_now_on = keepalive.is_too_short(used);
                    tracing::warn!(
                        used_seconds = used.as_secs_f32(),
                        seconds = from_now_on.as_secs_f32(),
                        "a server ended its connection with too_many_pings; pings it less often"
                    );
                    End::TooManyPings { from_now_on }
                }
                _ => End::Other,
            };
            ended.send_replace(Some(how));
        });
        Ok(Self { requests, scheme, authority, end })
    }

    /// Whether the server ended the connection for being pinged too often. For calls that failed:
    /// waits a moment for the end of the connection, which the call may have noticed first.
    pub(crate) async fn wants_fewer_pings(&self) -> Option<FewerPings> {
        let mut end = self.end.clone();
        let ended = tokio::time::timeout(END_WAIT, end.wait_for(Option::is_some)).await;
        match ended.ok()?.ok().and_then(|end| *end)? {
            End::TooManyPings { from_now_on } => Some(FewerPings(from_now_on)),
            End::Other => None,
        }
    }
}

impl Service<Request<Body>> for Connection {
    type Response = Response<Incoming>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.requests.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let mut parts = std::mem::take(request.uri_mut()).into_parts();
        parts.scheme = Some(self.scheme.clone());
        parts.authority = Some(self.authority.clone());
        match Uri::from_parts(parts) {
            Ok(uri) => *request.uri_mut() = uri,
            Err(error) => return Box::pin(async { Err(error.into()) }),
        }
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(AGENT));
        let answer = self.requests.send_request(request);
        Box::pin(async { Ok(answer.await?) })
    }
}
