//! HTTP clients: how they are set up, and which addresses they connect to.
//!
//! No client follows redirections by itself; `fetch` does, and uses another pair of clients for
//! them, which connects to no address that a redirection may not lead to.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, ClientBuilder, Url, redirect};

use super::redirect::Misdirection;
use crate::install::error::FetchError;

/// Resolves the addresses of a name.
type Lookup = fn(String) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Clients that may connect to the same addresses.
#[derive(Debug, Default)]
pub(in crate::install) struct Clients {
    /// The resolver of names; `None` is the client's own.
    resolver: Option<Arc<Resolver>>,
    /// Made at the first use, because it reads the machine's certificates: an agent that installs
    /// only from sockets and files must work on a machine that has no certificates.
    client: OnceLock<Client>,
    /// Trusts no certificate. For plain HTTP on a machine that has no certificates.
    plain: OnceLock<Client>,
}

/// Resolves names, and leaves out addresses that a redirection may not lead to. A server can give
/// its name any address, and another one for each query, so the answer that the connection uses is
/// the one to check.
#[derive(Debug)]
pub(in crate::install) struct Resolver {
    lookup: Lookup,
}

// === impl Clients ===

impl Clients {
    /// For URLs of orders.
    pub(in crate::install) fn of_orders() -> Self {
        Self::default()
    }

    /// For URLs of redirections.
    pub(in crate::install) fn of_redirections(resolver: Resolver) -> Self {
        Self { resolver: Some(Arc::new(resolver)), ..Self::default() }
    }

    /// A client for this URL.
    pub(in crate::install) async fn get(&self, location: &Url) -> Result<Client, FetchError> {
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        let base = self.base();
        let made = tokio::task::spawn_blocking(move || {
            // `main` has done this; without it the builder would panic.
            if rustls::crypto::CryptoProvider::get_default().is_none() {
                rustls::crypto::ring::default_provider().install_default().ok();
            }
            base.build()
        });
        match made.await.map_err(|error| FetchError::Client { source: error.into() })? {
            Ok(client) => Ok(self.client.get_or_init(|| client).clone()),
            // This client needs no certificate.
            Err(_) if location.scheme() == "http" => {
                if let Some(client) = self.plain.get() {
                    return Ok(client.clone());
                }
                let client = without_certificates(self.base())?
                    .build()
                    .map_err(|error| FetchError::Client { source: error.into() })?;
                Ok(self.plain.get_or_init(|| client).clone())
            }
            Err(error) => Err(FetchError::NoAuthorities { source: error.into() }),
        }
    }

    fn base(&self) -> ClientBuilder {
        match &self.resolver {
            Some(resolver) => base().dns_resolver(Arc::clone(resolver)),
            None => base(),
        }
    }
}

// === impl Resolver ===

impl Default for Resolver {
    fn default() -> Self {
        Self::new(|name| {
            Box::pin(async move { Ok(tokio::net::lookup_host((name, 0)).await?.collect()) })
        })
    }
}

impl Resolver {
    pub(in crate::install) fn new(lookup: Lookup) -> Self {
        Self { lookup }
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let name = name.as_str().to_owned();
        let found = (self.lookup)(name.clone());
        Box::pin(async move { Ok(permitted(&name, found.await?)?) })
    }
}

/// The addresses that a redirection may lead to. Fails if there are only others.
fn permitted(name: &str, mut found: Vec<SocketAddr>) -> Result<Addrs, Misdirection> {
    let mut refused = None;
    found.retain(|address| match Misdirection::of_address(name, address.ip()) {
        Some(reason) => {
            refused.get_or_insert(reason);
            false
        }
        None => true,
    });
    match refused {
        Some(reason) if found.is_empty() => Err(reason),
        _ => Ok(Box::new(found.into_iter())),
    }
}

/// The settings of all clients.
fn base() -> ClientBuilder {
    Client::builder()
        .user_agent(concat!("guest-agent/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        // No decompression: the checksum is of the bytes as the server sends them.
        .no_gzip()
        .no_zstd()
        .no_brotli()
        .no_deflate()
        .pool_idle_timeout(Duration::from_secs(10))
}

/// A client whose every connection goes to one socket. No TLS there, so no certificates are read.
pub(in crate::install) fn on_socket(socket: &Path) -> Result<Client, FetchError> {
    without_certificates(base())?
        .unix_socket(socket)
        .build()
        .map_err(|error| FetchError::Client { source: error.into() })
}

/// Reads no certificates, so that no server is trusted over TLS.
fn without_certificates(client: ClientBuilder) -> Result<ClientBuilder, FetchError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| FetchError::Client { source: error.into() })?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    Ok(client.tls_backend_preconfigured(tls))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts
            .iter()
            .map(|text| (text.parse().map(|ip| SocketAddr::new(ip, 0))).expect("one"))
            .collect()
    }

    #[test]
    fn addresses_that_no_redirection_may_lead_to_are_kept_back() {
        let found = addresses(&["169.254.169.254", "192.0.2.1", "fe80::1", "::ffff:169.254.1.1"]);
        let kept: Vec<SocketAddr> = permitted("a", found).map(Iterator::collect).expect("one");
        assert_eq!(kept, addresses(&["192.0.2.1"]));
    }

    #[test]
    fn a_name_with_no_other_address_is_named_with_it() {
        let error = permitted("rebound.example", addresses(&["fd00:ec2::254"])).err();
        let text = error.expect("nothing is left").to_string();
        assert!(text.contains("rebound.example, whose address fd00:ec2::254"), "{text}");
        assert!(permitted("a", Vec::new()).is_ok_and(|mut none| none.next().is_none()));
    }
}
