//! One document over HTTPS: bounded, within a deadline, from an address that was looked at.
//!
//! The address is that of an operator's setting, and still the answer may come from elsewhere: a
//! name may lead to a metadata server, a redirect to anything. So the name is resolved here, what
//! it leads to is checked, and exactly that is connected to; redirects are not followed.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::tls;

/// How long all of it may take.
const DEADLINE: Duration = Duration::from_secs(5);
const PORT: u16 = 443;
/// Metadata servers outside of the link-local networks: of Azure and of Alibaba Cloud.
const SERVERS: [Ipv4Addr; 2] = [Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(100, 100, 100, 200)];
/// The metadata server of Google's cloud over IPv6.
const GOOGLE: Ipv6Addr = Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254);

/// Why there is no document.
#[derive(Debug, Error)]
pub enum FetchError {
    /// The address is not valid.
    #[error("it is not of the form `https://HOST[:PORT]/PATH`, without user and password")]
    Url,
    /// The name leads nowhere.
    #[error("its host has no address")]
    Resolve(#[source] io::Error),
    /// The name leads where nothing of the kind is.
    #[error("its host has the address {0}, which is link-local, a metadata server or no host's")]
    OffLimits(IpAddr),
    /// The authorities cannot be read.
    #[error("the authorities to trust cannot be read: {0}")]
    Authorities(String),
    /// The connection failed.
    #[error("the connection failed")]
    Connect(#[source] io::Error),
    /// The exchange failed.
    #[error("the exchange failed")]
    Http(#[source] hyper::Error),
    /// The answer is no document.
    #[error("the answer has the status {0}; redirects are not followed")]
    Status(StatusCode),
    /// The document is too large or broke off.
    #[error("the document is too large or broke off")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It took too long.
    #[error("it took longer than {DEADLINE:?}")]
    TooSlow,
}

/// Host and port of an address.
///
/// # Errors
/// The address is not valid.
pub(super) fn check(url: &str) -> Result<(String, u16), FetchError> {
    let uri: Uri = url.parse().map_err(|_| FetchError::Url)?;
    let authority = uri.authority().ok_or(FetchError::Url)?;
    if uri.scheme_str() != Some("https") || authority.as_str().contains('@') {
        return Err(FetchError::Url);
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    Ok((host, authority.port_u16().unwrap_or(PORT)))
}

/// Gets a document of at most so many bytes.
///
/// # Errors
/// See [`FetchError`].
pub(super) async fn get(url: &str, ca: Option<&Path>, most: usize) -> Result<Bytes, FetchError> {
    tokio::time::timeout(DEADLINE, get_slowly(url, ca, most))
        .await
        .map_err(|_| FetchError::TooSlow)?
}

async fn get_slowly(url: &str, ca: Option<&Path>, most: usize) -> Result<Bytes, FetchError> {
    let (host, port) = check(url)?;
    let uri: Uri = url.parse().map_err(|_| FetchError::Url)?;
    let address = resolve(&host, port).await?;
    let config = ClientConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| FetchError::Authorities(error.to_string()))?
        .with_root_certificates(roots(ca).await?)
        .with_no_client_auth();
    let name = ServerName::try_from(host.clone()).map_err(|_| FetchError::Url)?;
    let stream = TcpStream::connect(address).await.map_err(FetchError::Connect)?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(FetchError::Connect)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(FetchError::Http)?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::get(path)
        .header(header::HOST, uri.authority().map_or("", |authority| authority.as_str()))
        .header(header::ACCEPT, "application/json")
        .body(Empty::<Bytes>::new())
        .map_err(|_| FetchError::Url)?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(FetchError::Http)?;
        if response.status() != StatusCode::OK {
            return Err(FetchError::Status(response.status()));
        }
        let body = Limited::new(response.into_body(), most).collect().await;
        Ok(body.map_err(FetchError::Body)?.to_bytes())
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

/// An address of the host. If one of them is off limits, the name is not to be trusted at all.
async fn resolve(host: &str, port: u16) -> Result<SocketAddr, FetchError> {
    let found = tokio::net::lookup_host((host, port)).await.map_err(FetchError::Resolve)?;
    let addresses: Vec<SocketAddr> = found.take(32).collect();
    if let Some(bad) = addresses.iter().find(|address| is_off_limits(address.ip())) {
        return Err(FetchError::OffLimits(bad.ip()));
    }
    addresses.first().copied().ok_or_else(|| {
        FetchError::Resolve(io::Error::new(io::ErrorKind::NotFound, "the name has no address"))
    })
}

fn is_off_limits(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            address.is_link_local()
                || address.is_unspecified()
                || address.is_multicast()
                || address.is_broadcast()
                || SERVERS.contains(&address)
        }
        IpAddr::V6(address) => match address.segments() {
            // What Amazon's machines find their own services at.
            [0xfd00, 0x0ec2, ..] => true,
            // NAT64 (RFC 6052) and the deprecated compatible form lead to an IPv4 address.
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0, 0, 0, 0, 0, 0, high, low] => {
                is_off_limits(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)).into())
            }
            _ => {
                address == GOOGLE
                    || address.is_unicast_link_local()
                    || address.is_unspecified()
                    || address.is_multicast()
            }
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
    fn only_https_without_a_password_is_connected_to() {
        assert_eq!(check("https://issuer.example/keys").ok(), Some(("issuer.example".into(), 443)));
        assert_eq!(check("https://[::1]:8443/keys").ok(), Some(("::1".into(), 8443)));
        for bad in
            ["http://x/", "x", "/keys", "https://u:p@x/", "https:///x", "file:///etc/passwd", ""]
        {
            assert!(check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn metadata_servers_are_off_limits_in_every_spelling() {
        for text in [
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "::a9fe:a9fe",
            "fe80::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "168.63.129.16",
            "100.100.100.200",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "255.255.255.255",
        ] {
            assert!(is_off_limits(text.parse().expect("an address")), "{text}");
        }
        for text in ["127.0.0.1", "::1", "192.0.2.1", "2001:db8::1", "10.0.0.1", "fd00::1"] {
            assert!(!is_off_limits(text.parse().expect("an address")), "{text}");
        }
    }

    #[tokio::test]
    async fn a_name_that_leads_off_limits_is_not_connected_to() {
        let got = get("https://169.254.169.254/keys", None, 10).await;
        assert!(matches!(got, Err(FetchError::OffLimits(_))), "{got:?}");
    }
}
