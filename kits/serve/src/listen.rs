//! The address of a listener, as text and as a type.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// The address of a listener: `unix:/path` or `127.0.0.1:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP address; port 0 takes a free one.
    Tcp(SocketAddr),
}

/// The text is not an address to listen on.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` is neither `unix:/path` nor `ADDRESS:PORT`")]
pub struct AddressError(String);

impl FromStr for Listen {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => Err(AddressError(text.to_owned())),
            None => text.parse().map(Self::Tcp).map_err(|_| AddressError(text.to_owned())),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
            Self::Tcp(address) => write!(formatter, "{address}"),
        }
    }
}
