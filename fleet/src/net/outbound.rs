//! Exchanges over HTTP that this process begins: bounded, within a deadline, with an address that was
//! looked at.
//!
//! ```text
//!   URL ─► allowed host? ─► resolve ─► off limits? ─► connect to exactly that ─► TLS ─► one exchange
//! ```
//!
//! The URL is that of an operator's setting, and still the answer may come from elsewhere: a name may
//! lead to a metadata server, a redirect to anything. So the name is resolved here, what it leads to
//! is checked, and exactly that is connected to; redirects are not followed. Keys of issuers are read
//! by it, webhooks are delivered by it, and a collector of spans is connected to by it.

mod address;
mod error;
pub mod grpc;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use guest_agent_serve_kit::tls;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use address::Scheme;

pub use address::{AllowedHost, AllowedHostError, Target};
pub use error::{DEADLINE, FetchError};

/// Most bytes of an answer's head that are read.
const HEAD_BYTES: usize = 16 << 10;

/// A document to get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Document<'a> {
    /// Where it is; with TLS.
    pub(crate) url: &'a str,
    /// Authorities to trust, PEM; without any those of the machine.
    pub(crate) ca: Option<&'a Path>,
    /// Its most bytes.
    pub(crate) most: usize,
}

/// A message to send.
#[derive(Clone, Debug)]
pub(crate) struct Message<'a> {
    /// Where to.
    pub(crate) target: &'a Target,
    /// Authorities to trust, PEM; without any those of the machine.
    pub(crate) ca: Option<&'a Path>,
    /// The hosts that may be sent to; all where the list is empty.
    pub(crate) allowed: &'a [AllowedHost],
    /// Headers beside those that every request has.
    pub(crate) headers: HeaderMap,
    /// The body, which is JSON.
    pub(crate) body: Bytes,
}

/// Gets a document.
///
/// # Errors
/// See [`FetchError`].
pub(crate) async fn get(document: &Document<'_>) -> Result<Bytes, FetchError> {
    let getting = async {
        let target = Target::parse(document.url)?;
        let accept = (header::ACCEPT, HeaderValue::from_static("application/json"));
        let headers = HeaderMap::from_iter([accept]);
        let request = request(&target, Method::GET, headers, Bytes::new())?;
        exchange(&target, document.ca, request, async |response| {
            if response.status() != StatusCode::OK {
                return Err(FetchError::Status(response.status()));
            }
            let body = Limited::new(response.into_body(), document.most).collect().await;
            Ok(body.map_err(FetchError::Body)?.to_bytes())
        })
        .await
    };
    tokio::time::timeout(DEADLINE, getting).await.map_err(|_| FetchError::TooSlow)?
}

/// The answer to a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// Whether the message was taken.
    pub(crate) status: StatusCode,
    /// How long the receiver wants the sender to wait; `None` where it does not say.
    pub(crate) retry_after: Option<Duration>,
}

/// Sends a message. The status of the answer says whether it was taken; its body is not read.
///
/// # Errors
/// See [`FetchError`].
pub(crate) async fn post(message: Message<'_>) -> Result<Answer, FetchError> {
    let Message { target, ca, allowed, mut headers, body } = message;
    if !allowed.is_empty() && !allowed.iter().any(|host| host.allows(target.host())) {
        return Err(FetchError::NotAllowed(target.host().to_owned()));
    }
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let sending = async {
        let request = request(target, Method::POST, headers, body)?;
        exchange(target, ca, request, async |response| {
            let retry_after = response.headers().get(header::RETRY_AFTER);
            let retry_after =
                retry_after.and_then(|value| retry_after_of(value, SystemTime::now()));
            Ok(Answer { status: response.status(), retry_after })
        })
        .await
    };
    tokio::time::timeout(DEADLINE, sending).await.map_err(|_| FetchError::TooSlow)?
}

/// The value of `Retry-After`: a number of seconds or a date (RFC 9110, section 10.2.3).
fn retry_after_of(value: &HeaderValue, now: SystemTime) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
    Some(SystemTime::from(at).duration_since(now).unwrap_or_default())
}

fn request(
    target: &Target,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Request<Full<Bytes>>, FetchError> {
    let path = target.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::builder().method(method).uri(path).body(Full::new(body));
    if let Ok(request) = &mut request {
        *request.headers_mut() = headers;
        let host = target.uri.authority().map_or("", |authority| authority.as_str());
        let host = HeaderValue::from_str(host).map_err(|_| FetchError::Url)?;
        request.headers_mut().insert(header::HOST, host);
    }
    request.map_err(|_| FetchError::Url)
}

async fn exchange<T>(
    target: &Target,
    ca: Option<&Path>,
    request: Request<Full<Bytes>>,
    read: impl AsyncFnOnce(Response<Incoming>) -> Result<T, FetchError>,
) -> Result<T, FetchError> {
    converse(connect(target, ca, &[]).await?, request, read).await
}

/// Connects to an address that was looked at, and secures the stream where the URL says so; one of
/// the protocols is agreed on, where there are any.
async fn connect(
    target: &Target,
    ca: Option<&Path>,
    protocols: &[&[u8]],
) -> Result<Either<TcpStream, TlsStream<TcpStream>>, FetchError> {
    let address = target.resolve().await?;
    if target.scheme == Scheme::Http {
        let stream = TcpStream::connect(address).await.map_err(FetchError::Connect)?;
        return Ok(Either::Left(stream));
    }
    let mut config = ClientConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| FetchError::Authorities(error.to_string()))?
        .with_root_certificates(roots(ca).await?)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    let name = ServerName::try_from(target.host.clone()).map_err(|_| FetchError::Url)?;
    let stream = TcpStream::connect(address).await.map_err(FetchError::Connect)?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(FetchError::Connect)?;
    if !protocols.is_empty() && stream.get_ref().1.alpn_protocol().is_none() {
        return Err(FetchError::Protocol);
    }
    Ok(Either::Right(stream))
}

async fn converse<T>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
    read: impl AsyncFnOnce(Response<Incoming>) -> Result<T, FetchError>,
) -> Result<T, FetchError> {
    let mut http = hyper::client::conn::http1::Builder::new();
    http.max_buf_size(HEAD_BYTES);
    let (mut sender, connection) =
        http.handshake(TokioIo::new(stream)).await.map_err(FetchError::Http)?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(FetchError::Http)?;
        read(response).await
    };
    tokio::pin!(answer, connection);
    tokio::select! {
        answer = &mut answer => answer,
        // The connection may end with its answer.
        ended = &mut connection => match ended {
            Ok(()) => answer.await,
            Err(error) => Err(FetchError::Http(error)),
        },
    }
}

async fn roots(ca: Option<&Path>) -> Result<RootCertStore, FetchError> {
    let failed = |error: &dyn std::fmt::Display| FetchError::Authorities(error.to_string());
    let certificates = match ca {
        Some(path) => {
            let pem = tokio::fs::read_to_string(path).await.map_err(|error| failed(&error))?;
            tls::certificates(&pem).ok_or_else(|| failed(&"the file holds no certificate"))?
        }
        None => {
            let loading = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs);
            loading.await.map_err(|error| failed(&error))?.certs
        }
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates);
    if roots.is_empty() {
        return Err(failed(&"the machine has none: install `ca-certificates`, or name a file"));
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_says_how_long_to_wait_in_seconds_or_as_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let read = |text: &str| {
            retry_after_of(&HeaderValue::from_str(text).expect("a value"), now)
                .map(|it| it.as_secs())
        };
        assert_eq!(read("120"), Some(120));
        assert_eq!(read("Sun, 06 Nov 1994 08:50:37 GMT"), Some(60));
        assert_eq!(read("Sun, 06 Nov 1994 08:48:37 GMT"), Some(0));
        for bad in ["", "-1", "soon", "1.5", "99999999999999999999999"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[tokio::test]
    async fn a_name_that_leads_off_limits_is_not_connected_to() {
        let document = Document { url: "https://169.254.169.254/keys", ca: None, most: 10 };
        let got = get(&document).await;
        assert!(matches!(got, Err(FetchError::OffLimits(_))), "{got:?}");
    }
}
