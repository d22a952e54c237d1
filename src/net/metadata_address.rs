//! Where the metadata server is.

use std::fmt;
use std::str::FromStr;

use reqwest::Url;

/// The link-local address that every host of the kind has.
const WELL_KNOWN: &str = "http://169.254.169.254";

/// Base URL of a metadata server: plain HTTP, a host and perhaps a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataAddress(String);

/// Why a text is not the address of a metadata server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not `http://`; the server has no certificate.
    #[error("http://HOST or http://HOST:PORT is expected")]
    NotHttp,
    /// No host, or one with characters that none has, or more than host and port.
    #[error("it is not a host with an optional port; write http://HOST:PORT")]
    NotHost,
}

// === impl MetadataAddress ===

impl MetadataAddress {
    /// Whether a URL leads to this server.
    pub(crate) fn is_of(&self, url: &Url) -> bool {
        Url::parse(&self.0).is_ok_and(|own| {
            own.host() == url.host() && own.port_or_known_default() == url.port_or_known_default()
        })
    }
}

impl FromStr for MetadataAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let rest = text.strip_prefix("http://").ok_or(AddressError::NotHttp)?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let plain = authority.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b));
        if authority.is_empty() || authority.len() > 255 || !plain {
            return Err(AddressError::NotHost);
        }
        let url = Url::parse(&format!("http://{authority}"));
        let url = url.map_err(|_| AddressError::NotHost)?;
        if url.host().is_none() {
            return Err(AddressError::NotHost);
        }
        Ok(Self(format!("http://{authority}")))
    }
}

impl Default for MetadataAddress {
    fn default() -> Self {
        Self(WELL_KNOWN.to_owned())
    }
}

impl fmt::Display for MetadataAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_with_and_without_a_port_are_taken() {
        for text in
            ["http://169.254.169.254", "http://metadata.google.internal:80", "http://[::1]:1"]
        {
            assert_eq!(text.parse::<MetadataAddress>().map(|a| a.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("http://h/".parse::<MetadataAddress>().map(|a| a.0), Ok("http://h".to_owned()));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "https://h",
            "h:80",
            "http://",
            "http://a/b",
            "http://u@h",
            "http://h?x",
            "http://h:99999",
            "http://h h",
        ] {
            assert!(text.parse::<MetadataAddress>().is_err(), "{text}");
        }
    }
}
