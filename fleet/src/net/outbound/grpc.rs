//! Where a server of gRPC is that this process calls, and connections to it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use guest_agent_observe_kit::otlp::Connection;
use http::{Request, Uri};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tonic::body::Body;

use super::address::Scheme;
use super::error::FetchError;
use super::{Target, connect};

/// What HTTP/2 is called in a handshake.
const ALPN: &[u8] = b"h2";

/// A server of gRPC: behind TLS, or on this machine.
#[derive(Clone, Debug)]
pub struct GrpcServer(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Unix(PathBuf),
    Tcp(Target),
}

/// The text is not the address of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "it is neither `https://HOST[:PORT]` nor, on this machine, `http://HOST:PORT` or `unix:/path`; write no \
     user, password, path or query"
)]
pub struct GrpcServerError;

// === impl GrpcServer ===

impl FromStr for GrpcServer {
    type Err = GrpcServerError;

    fn from_str(text: &str) -> Result<Self, GrpcServerError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let is_path = path.starts_with('/') && !path.contains('\0');
            return is_path.then(|| Self(Kind::Unix(path.into()))).ok_or(GrpcServerError);
        }
        let target = Target::parse_or_local(text).map_err(|_| GrpcServerError)?;
        let is_bare = target.uri.path_and_query().is_none_or(|path| path.as_str() == "/");
        // Port 80 is nowhere a collector's.
        let has_port = target.scheme == Scheme::Https || target.uri.port().is_some();
        (is_bare && has_port).then_some(Self(Kind::Tcp(target))).ok_or(GrpcServerError)
    }
}

impl fmt::Display for GrpcServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Unix(path) => write!(formatter, "unix:{}", path.display()),
            Kind::Tcp(target) => write!(formatter, "{}", target.uri),
        }
    }
}

impl GrpcServer {
    /// Connects, trusting these authorities (PEM), or those of the machine.
    pub(crate) async fn connect(&self, ca: Option<&Path>) -> Result<Connection, FetchError> {
        match &self.0 {
            Kind::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(FetchError::Connect)?;
                open(stream, Uri::from_static("http://localhost")).await
            }
            Kind::Tcp(target) => {
                let stream = connect(target, ca, &[ALPN]).await?;
                open(stream, target.uri.clone()).await
            }
        }
    }
}

/// Speaks HTTP/2 on a stream to the server of an origin. The connection is closed when its last
/// clone and its last call are gone.
async fn open(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    origin: Uri,
) -> Result<Connection, FetchError> {
    let (requests, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .map_err(FetchError::Http)?;
    tokio::spawn(async move {
        // The calls on it fail with the same error.
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection ended");
        }
    });
    Ok(Connection::new(tower::service_fn(move |request| {
        call(requests.clone(), origin.clone(), request)
    })))
}

async fn call(
    mut requests: SendRequest<Body>,
    origin: Uri,
    mut request: Request<Body>,
) -> Result<http::Response<Body>, Box<dyn std::error::Error + Send + Sync>> {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    let origin = origin.into_parts();
    (parts.scheme, parts.authority) = (origin.scheme, origin.authority);
    *request.uri_mut() = Uri::from_parts(parts)?;
    requests.ready().await?;
    Ok(requests.send_request(request).await?.map(Body::new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_in_every_documented_form_and_no_other() {
        for (text, shown) in [
            ("http://127.0.0.1:4317", "http://127.0.0.1:4317/"),
            ("http://[::1]:4317/", "http://[::1]:4317/"),
            ("https://collector.example", "https://collector.example/"),
            ("https://collector.example:4317", "https://collector.example:4317/"),
            ("unix:/run/collector.sock", "unix:/run/collector.sock"),
        ] {
            let read = text.parse::<GrpcServer>().map(|server| server.to_string());
            assert_eq!(read.as_deref(), Ok(shown), "{text}");
        }
        for bad in [
            "",
            "127.0.0.1:4317",
            "http://127.0.0.1",
            "https://user:secret@collector.example",
            "https://collector.example/v1/traces",
            "https://collector.example/?key=secret",
            "unix:collector.sock",
            "unix:/a\0b",
            "ftp://collector.example",
        ] {
            assert_eq!(bad.parse::<GrpcServer>().err(), Some(GrpcServerError), "{bad}");
        }
    }

    #[tokio::test]
    async fn without_tls_no_other_machine_is_connected_to() {
        let server: GrpcServer = "http://192.0.2.1:4317".parse().expect("an address");
        let connected = server.connect(None).await;
        assert!(matches!(connected, Err(FetchError::Plaintext(_))));
    }
}
