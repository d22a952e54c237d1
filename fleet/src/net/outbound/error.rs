//! Why an exchange has no answer.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use http::StatusCode;
use thiserror::Error;

/// How long all of an exchange may take.
pub const DEADLINE: Duration = Duration::from_secs(5);

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum FetchError {
    /// The address is not valid.
    #[error("it is not of the form `https://HOST[:PORT]/PATH`, without user and password")]
    Url,
    /// The address is not valid, also not as one of this machine.
    #[error(
        "it is neither of the form `https://HOST[:PORT]/PATH` nor, on this machine, `http://HOST[:PORT]/PATH`, \
         without user and password"
    )]
    LocalUrl,
    /// The host is not allowed.
    #[error("its host `{0}` is not among those that are allowed")]
    NotAllowed(String),
    /// The name leads nowhere.
    #[error("its host has no address")]
    Resolve(#[source] io::Error),
    /// The name leads where nothing of the kind is.
    #[error("its host has the address {0}, which is link-local, a metadata server or no host's")]
    OffLimits(IpAddr),
    /// Everybody on the way could read it.
    #[error("its host has the address {0}, which is not of this machine: use https")]
    Plaintext(IpAddr),
    /// The authorities cannot be read.
    #[error("the authorities to trust cannot be read: {0}")]
    Authorities(String),
    /// The connection failed.
    #[error("the connection failed")]
    Connect(#[source] io::Error),
    /// The server speaks another protocol.
    #[error("the server does not offer HTTP/2 in its TLS handshake")]
    Protocol,
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
