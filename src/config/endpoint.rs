//! Addresses: where the control plane is, and where metrics are served.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Where the control plane listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlEndpoint {
    /// Nothing was said: the regional service of the cloud, named by the metadata server.
    Default,
    /// A unix socket.
    Unix(PathBuf),
    /// The channel between a virtual machine and its host.
    Vsock {
        /// Context id; 2 is the host.
        cid: u32,
        /// Port.
        port: u32,
    },
    /// Plain HTTP/2, to loopback only: `host:port`.
    Http(String),
    /// HTTP/2 over TLS: `host:port`.
    Https(String),
}

/// Why a text is not an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// None of the known forms.
    #[error(
        "the endpoint has none of the known forms; write \"unix:/path\", \"vsock:CID:PORT\", \
         \"http://127.0.0.1:PORT\" or \"https://HOST:PORT\""
    )]
    Form,
    /// Plain HTTP that would leave the machine.
    #[error("plain http is for loopback only, but {host:?} is not loopback; use https://")]
    NotLoopback {
        /// The host that was given.
        host: String,
    },
    /// A relative socket path.
    #[error("the path of a unix endpoint must be absolute")]
    RelativePath,
    /// Host and port cannot be told apart, or there is more than those.
    #[error("HOST:PORT is expected after the scheme, without user, path or query")]
    Authority,
}

// === impl ControlEndpoint ===

impl ControlEndpoint {
    /// Reads an endpoint; an empty text is [`ControlEndpoint::Default`].
    ///
    /// # Errors
    /// Says which form is expected. The text itself is not repeated: it may carry a password.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        if text.is_empty() {
            return Ok(Self::Default);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            let path = Path::new(path);
            return if path.is_absolute() {
                Ok(Self::Unix(path.to_owned()))
            } else {
                Err(EndpointError::RelativePath)
            };
        }
        if let Some(rest) = text.strip_prefix("vsock:") {
            let numbers = rest.split_once(':').and_then(|(cid, port)| {
                Some(Self::Vsock { cid: cid.parse().ok()?, port: port.parse().ok()? })
            });
            return numbers.ok_or(EndpointError::Form);
        }
        if let Some(rest) = text.strip_prefix("http://") {
            let (authority, host) = authority(rest)?;
            return if is_loopback(&host) {
                Ok(Self::Http(authority))
            } else {
                Err(EndpointError::NotLoopback { host })
            };
        }
        let rest = text.strip_prefix("https://").ok_or(EndpointError::Form)?;
        Ok(Self::Https(authority(rest)?.0))
    }
}

impl fmt::Display for ControlEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => Ok(()),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Vsock { cid, port } => write!(f, "vsock:{cid}:{port}"),
            Self::Http(authority) => write!(f, "http://{authority}"),
            Self::Https(authority) => write!(f, "https://{authority}"),
        }
    }
}

impl Serialize for ControlEndpoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ControlEndpoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = ControlEndpoint;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an endpoint, such as \"https://HOST:PORT\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<ControlEndpoint, E> {
                ControlEndpoint::parse(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// Takes `host:port`, with an optional lone slash after it, and returns it with the bare host.
fn authority(rest: &str) -> Result<(String, String), EndpointError> {
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = rest.rsplit_once(':').ok_or(EndpointError::Authority)?;
    let port: u16 = port.parse().map_err(|_| EndpointError::Authority)?;
    let bare = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(v6) if v6.parse::<std::net::Ipv6Addr>().is_ok() => v6,
        Some(_) => return Err(EndpointError::Authority),
        None => host,
    };
    let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if port == 0 || bare.is_empty() || (bare == host && !host.chars().all(name)) {
        return Err(EndpointError::Authority);
    }
    Ok((format!("{host}:{port}"), bare.to_owned()))
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// For `#[serde(with)]`: a socket address, or nothing as an empty text.
pub(super) mod listen {
    use std::fmt;
    use std::net::SocketAddr;

    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    pub(in crate::config) fn serialize<S: Serializer>(
        address: &Option<SocketAddr>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match address {
            Some(address) => serializer.collect_str(address),
            None => serializer.serialize_str(""),
        }
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<SocketAddr>, D::Error> {
        deserializer.deserialize_str(Text)
    }

    struct Text;

    impl Visitor<'_> for Text {
        type Value = Option<SocketAddr>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an address and port, such as \"127.0.0.1:9464\"")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Option<SocketAddr>, E> {
            if text.is_empty() {
                return Ok(None);
            }
            text.parse().map(Some).map_err(|_| {
                E::custom(format_args!(
                    "{text:?} is not an address with a port; write it like \"127.0.0.1:9464\""
                ))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_forms_are_read_and_written_back() {
        for text in [
            "",
            "unix:/run/cp.sock",
            "vsock:2:9000",
            "http://127.0.0.1:80",
            "http://[::1]:80",
            "http://localhost:8080",
            "https://cp.example.com:443",
        ] {
            let endpoint = ControlEndpoint::parse(text).expect(text);
            assert_eq!(endpoint.to_string(), text);
        }
    }

    #[test]
    fn plain_http_never_leaves_the_machine() {
        for host in ["10.0.0.1", "example.com", "127.0.0.1.example.com"] {
            let error = ControlEndpoint::parse(&format!("http://{host}:80")).expect_err(host);
            assert_eq!(error, EndpointError::NotLoopback { host: host.to_owned() });
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "example.com:443",
            "unix:run/cp.sock",
            "vsock:2",
            "vsock:a:b",
            "https://example.com",
            "https://user:secret@example.com:443",
            "https://example.com:443/path",
            "https://:443",
            "https://example.com:0",
            "http://[zz]:80",
        ] {
            let error = ControlEndpoint::parse(text).expect_err(text);
            assert!(!error.to_string().contains("secret"));
        }
    }
}
