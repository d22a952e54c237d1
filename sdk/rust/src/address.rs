//! The address of a plugin: a unix socket, or a port of the loopback addresses.
//!
//! Parsed once from `--protocol` and `--address`; a value of the type is an address that a plugin
//! may listen on. `listener` binds it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The longest path the kernel takes for a unix socket, in bytes.
const MAX_SOCKET_PATH: usize = 107;

/// An address a plugin may listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A unix socket at this path. Only its owner can connect.
    Unix(PathBuf),
    /// A TCP port of a loopback address. Every user of the machine can connect to it.
    Tcp(SocketAddr),
    /// A TCP port of both loopback addresses, `::1` and `127.0.0.1`; of one where the machine does
    /// not have the other. Every user of the machine can connect to it.
    Loopback {
        /// The port; 0 lets the kernel choose one.
        port: u16,
    },
}

/// Why an address cannot be listened on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The protocol is neither `unix` nor `tcp`.
    #[error("unknown protocol {given:?}: use --protocol=unix or --protocol=tcp")]
    UnknownProtocol {
        /// The value that was given.
        given: String,
    },
    /// The path is empty or has a NUL byte.
    #[error("{given:?} is not the path of a socket: use an absolute path")]
    NotAPath {
        /// The value that was given.
        given: PathBuf,
    },
    /// The path is longer than the kernel accepts.
    #[error(
        "socket path {} has {length} bytes and the kernel takes {MAX_SOCKET_PATH}: use a shorter one",
        path.display()
    )]
    PathTooLong {
        /// The value that was given.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// The text is neither `IP:PORT` nor `localhost:PORT`.
    #[error("{given:?} is not an address and a port: use 127.0.0.1:PORT or [::1]:PORT")]
    NotAnAddress {
        /// The value that was given.
        given: String,
    },
    /// The address is not a loopback address, so other machines could connect.
    #[error(
        "{given} can be reached from other machines and the plugin protocol has no authentication: \
         use 127.0.0.1:{port}, or better --protocol=unix",
        port = given.port()
    )]
    NotLoopback {
        /// The value that was given.
        given: SocketAddr,
    },
}

// === impl Address ===

impl Address {
    /// Reads the values of `--protocol` and `--address`.
    ///
    /// # Errors
    ///
    /// [`AddressError`], each with what to use instead.
    pub fn parse(protocol: &str, address: &str) -> Result<Address, AddressError> {
        match protocol {
            "unix" => Address::unix(address),
            "tcp" => Address::tcp(parse_socket_address(address)?),
            other => Err(AddressError::UnknownProtocol { given: other.to_owned() }),
        }
    }

    /// A unix socket at `path`.
    ///
    /// # Errors
    ///
    /// If the path is empty, contains a NUL byte or is longer than the kernel takes.
    pub fn unix(path: impl AsRef<Path>) -> Result<Address, AddressError> {
        let path = path.as_ref();
        let bytes = path.as_os_str().as_bytes();
        if bytes.is_empty() || bytes.contains(&0) {
            return Err(AddressError::NotAPath { given: path.to_owned() });
        }
        if bytes.len() > MAX_SOCKET_PATH {
            return Err(AddressError::PathTooLong { path: path.to_owned(), length: bytes.len() });
        }
        Ok(Address::Unix(path.to_owned()))
    }

    /// A loopback port; port 0 lets the kernel choose one, which [`Server::address`] returns.
    ///
    /// An unspecified address (`[::]` or `0.0.0.0`) means both loopback addresses: Google's guest
    /// agent passes `[::]:PORT` to every plugin and connects from the same machine. All interfaces
    /// would let other machines call the plugin.
    ///
    /// # Errors
    ///
    /// If the address is neither a loopback address nor unspecified.
    ///
    /// [`Server::address`]: crate::Server::address
    pub fn tcp(address: SocketAddr) -> Result<Address, AddressError> {
        // An IPv4-mapped IPv6 address is checked as the IPv4 address that it stands for.
        let ip = address.ip().to_canonical();
        if ip.is_unspecified() {
            return Ok(Address::Loopback { port: address.port() });
        }
        if !ip.is_loopback() {
            return Err(AddressError::NotLoopback { given: address });
        }
        Ok(Address::Tcp(address))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => write!(f, "tcp:{address}"),
            Address::Loopback { port } => write!(f, "tcp:[::1]:{port} and tcp:127.0.0.1:{port}"),
        }
    }
}

/// `localhost` is read without a resolver, which could answer with any address.
fn parse_socket_address(given: &str) -> Result<SocketAddr, AddressError> {
    let local = given
        .strip_prefix("localhost:")
        .and_then(|port| port.parse().ok())
        .map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    local
        .or_else(|| given.parse().ok())
        .ok_or_else(|| AddressError::NotAnAddress { given: given.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn accepted(protocol: &str, address: &str) -> String {
        Address::parse(protocol, address).expect("a good address").to_string()
    }

    #[track_caller]
    fn refused(protocol: &str, address: &str) -> String {
        Address::parse(protocol, address).expect_err("a bad address").to_string()
    }

    #[test]
    fn unix_paths_and_loopback_ports_are_accepted() {
        assert_eq!(accepted("unix", "/run/x.sock"), "unix:/run/x.sock");
        assert_eq!(accepted("tcp", "127.0.0.1:7000"), "tcp:127.0.0.1:7000");
        assert_eq!(accepted("tcp", "127.9.9.9:0"), "tcp:127.9.9.9:0");
        assert_eq!(accepted("tcp", "[::1]:7000"), "tcp:[::1]:7000");
        assert_eq!(accepted("tcp", "localhost:7000"), "tcp:127.0.0.1:7000");
    }

    #[test]
    fn addresses_other_machines_could_reach_are_refused_with_the_reason_and_the_fix() {
        for address in ["10.0.0.1:7000", "192.168.1.2:7000", "[::2]:7000", "[::ffff:8.8.8.8]:7000"]
        {
            let text = refused("tcp", address);
            assert!(text.contains("other machines"), "{text}");
            assert!(text.contains("127.0.0.1:7000"), "{text}");
            assert!(text.contains("--protocol=unix"), "{text}");
        }
    }

    #[test]
    fn an_unspecified_address_means_the_loopback_addresses_and_no_others() {
        for address in ["[::]:7000", "0.0.0.0:7000", "[::ffff:0.0.0.0]:7000"] {
            let parsed = Address::parse("tcp", address);
            assert_eq!(parsed, Ok(Address::Loopback { port: 7000 }), "{address}");
        }
        assert_eq!(accepted("tcp", "[::]:7"), "tcp:[::1]:7 and tcp:127.0.0.1:7");
    }

    #[test]
    fn what_is_no_address_is_named() {
        for address in ["", "localhost", "localhost:99999", "example.org:80", "127.0.0.1"] {
            assert!(refused("tcp", address).contains(&format!("{address:?}")), "{address}");
        }
        assert!(refused("unix", "").contains("not the path"));
        assert!(refused("unix", "/a\0b").contains("not the path"));
        assert!(refused("vsock", "3:1024").contains("\"vsock\""));
    }

    #[test]
    fn a_path_the_kernel_has_no_room_for_is_refused_with_its_length() {
        let fits = format!("/{}", "x".repeat(MAX_SOCKET_PATH - 1));
        assert!(Address::parse("unix", &fits).is_ok());
        assert!(refused("unix", &format!("{fits}x")).contains("108 bytes"));
    }
}
