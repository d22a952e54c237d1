//! Where a control plane is, in the forms the configuration takes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Longest path of a unix socket, in bytes.
const MAX_SOCKET_PATH: usize = 107;

/// The address of a control plane. Never holds a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(pub(crate) Kind);

/// What kind of address it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A unix socket.
    Unix(PathBuf),
    /// A port of this machine, in the clear; the addresses are tried in turn.
    Http { host: String, addresses: Vec<SocketAddr> },
    /// A server behind TLS. An IPv6 host has its brackets.
    Https { host: String, port: u16 },
    /// A port of a hypervisor's or another machine's context.
    Vsock { cid: u32, port: u32 },
}

/// Why a text is not an endpoint. The text is printed without what could be a secret in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("endpoint {text:?} {problem}")]
pub struct EndpointError {
    text: String,
    problem: Problem,
}

/// What is wrong, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Problem {
    #[error(
        "has an unknown form; write unix:/path, vsock:CID:PORT, http://127.0.0.1:PORT or \
         https://HOST:PORT"
    )]
    UnknownForm,
    #[error("has a relative socket path; write unix:/ and the path from the root")]
    RelativePath,
    #[error("has a socket path that is too long; at most {MAX_SOCKET_PATH} bytes are possible")]
    LongPath,
    #[error("has a socket path with a NUL character in it; remove it")]
    NulInPath,
    #[error(
        "would send all data unencrypted to another machine; use https://, or http:// with \
         127.0.0.1, [::1] or localhost"
    )]
    NotLoopback,
    #[error("has no port; write http://HOST:PORT")]
    NoPort,
    #[error("has a port that is not a number from 1 to 65535; write https://HOST:PORT")]
    BadPort,
    #[error("has no valid host; write https://HOST:PORT, an IPv6 address in brackets")]
    BadHost,
    #[error(
        "has a user name or password in it; remove it and configure the credentials under their \
         own keys"
    )]
    UserInfo,
    #[error("has a path or query after the port; remove it")]
    Trailing,
    #[error("does not have two numbers after vsock:; write vsock:CID:PORT, the host is CID 2")]
    BadVsock,
}

// === impl Endpoint ===

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let kind = if let Some(path) = text.strip_prefix("unix:") {
            unix(path)
        } else if let Some(rest) = text.strip_prefix("http://") {
            http(rest)
        } else if let Some(rest) = text.strip_prefix("https://") {
            https(rest)
        } else if let Some(rest) = text.strip_prefix("vsock:") {
            vsock(rest)
        } else {
            Err(Problem::UnknownForm)
        };
        kind.map(Self).map_err(|problem| EndpointError { text: without_secrets(text), problem })
    }
}

impl Endpoint {
    /// Whether what is sent there is encrypted, so that certificates mean something.
    #[must_use]
    pub const fn is_encrypted(&self) -> bool {
        match self.0 {
            Kind::Https { .. } => true,
            Kind::Unix(_) | Kind::Http { .. } | Kind::Vsock { .. } => false,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Unix(path) => write!(f, "unix:{}", path.display()),
            Kind::Http { host, addresses } => {
                write!(f, "http://{host}:{}", addresses.first().map_or(0, SocketAddr::port))
            }
            Kind::Https { host, port } => write!(f, "https://{host}:{port}"),
            Kind::Vsock { cid, port } => write!(f, "vsock:{cid}:{port}"),
        }
    }
}

fn unix(path: &str) -> Result<Kind, Problem> {
    // The URL form with an empty authority means the same.
    let path = path.strip_prefix("//").unwrap_or(path);
    if !Path::new(path).is_absolute() {
        return Err(Problem::RelativePath);
    }
    if path.contains('\0') {
        return Err(Problem::NulInPath);
    }
    if path.len() > MAX_SOCKET_PATH {
        return Err(Problem::LongPath);
    }
    Ok(Kind::Unix(path.into()))
}

fn http(rest: &str) -> Result<Kind, Problem> {
    let (host, port) = authority(rest)?;
    let port = port.ok_or(Problem::NoPort)?;
    let addresses = if host.eq_ignore_ascii_case("localhost") {
        // Not asked of a resolver, which could answer with another machine.
        vec![
            SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port),
            SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port),
        ]
    } else {
        let ip: IpAddr = host.trim_matches(['[', ']']).parse().map_err(|_| Problem::NotLoopback)?;
        if !ip.is_loopback() {
            return Err(Problem::NotLoopback);
        }
        vec![SocketAddr::new(ip, port)]
    };
    Ok(Kind::Http { host, addresses })
}

fn https(rest: &str) -> Result<Kind, Problem> {
    let (host, port) = authority(rest)?;
    Ok(Kind::Https { host, port: port.unwrap_or(443) })
}

/// Takes `HOST[:PORT]` apart, with nothing behind it but a single slash.
fn authority(rest: &str) -> Result<(String, Option<u16>), Problem> {
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(Problem::UserInfo);
    }
    if !matches!(&rest[authority.len()..], "" | "/") {
        return Err(Problem::Trailing);
    }
    let (host, port) = match authority.rfind(']') {
        Some(end) => authority.split_at(end + 1),
        None if authority.starts_with('[') => return Err(Problem::BadHost),
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => None,
        None => return Err(Problem::BadHost),
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => {
            Some(port.parse().ok().filter(|&port: &u16| port != 0).ok_or(Problem::BadPort)?)
        }
        Some(_) => return Err(Problem::BadPort),
    };
    let valid = match host.strip_prefix('[') {
        Some(ip) => ip.strip_suffix(']').is_some_and(|ip| ip.parse::<Ipv6Addr>().is_ok()),
        None => {
            !host.is_empty()
                && host.len() <= 253
                && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
        }
    };
    if valid { Ok((host.to_owned(), port)) } else { Err(Problem::BadHost) }
}

fn vsock(rest: &str) -> Result<Kind, Problem> {
    let (cid, port) = rest.split_once(':').ok_or(Problem::BadVsock)?;
    let number = |text: &str| -> Result<u32, Problem> {
        if text.bytes().all(|b| b.is_ascii_digit()) {
            text.parse().map_err(|_| Problem::BadVsock)
        } else {
            Err(Problem::BadVsock)
        }
    };
    Ok(Kind::Vsock { cid: number(cid)?, port: number(port)? })
}

/// The text without user names, passwords and queries, and not megabytes of it.
fn without_secrets(text: &str) -> String {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    let shown = match (text.split_once("://"), text.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
        (None, Some((_, rest))) => rest.to_owned(),
        _ => text.to_owned(),
    };
    shown.chars().take(120).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn endpoints_are_taken_in_every_documented_form() {
        for (text, shown) in [
            ("unix:/run/cp.sock", "unix:/run/cp.sock"),
            ("unix:///run/cp.sock", "unix:/run/cp.sock"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://127.8.0.1:8080/", "http://127.8.0.1:8080"),
            ("http://localhost:1", "http://localhost:1"),
            ("http://[::1]:8080", "http://[::1]:8080"),
            ("https://cp.example", "https://cp.example:443"),
            ("https://cp.example:8443/", "https://cp.example:8443"),
            ("https://10.0.0.7:1", "https://10.0.0.7:1"),
            ("https://[2001:db8::1]", "https://[2001:db8::1]:443"),
            ("vsock:2:5000", "vsock:2:5000"),
        ] {
            let endpoint: Endpoint = text.parse().unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(endpoint.to_string(), shown);
            assert_eq!(shown.parse(), Ok(endpoint));
        }
    }

    #[test]
    fn what_is_wrong_and_what_to_write_is_said() {
        for (text, problem) in [
            ("", Problem::UnknownForm),
            ("cp.example:443", Problem::UnknownForm),
            ("tcp://127.0.0.1:1", Problem::UnknownForm),
            ("HTTPS://cp.example", Problem::UnknownForm),
            ("unix:", Problem::RelativePath),
            ("unix:cp.sock", Problem::RelativePath),
            ("unix://host", Problem::RelativePath),
            ("unix:/a\0b", Problem::NulInPath),
            ("http://10.0.0.7:80", Problem::NotLoopback),
            ("http://cp.example:80", Problem::NotLoopback),
            ("http://localhost.cp.example:80", Problem::NotLoopback),
            ("http://0.0.0.0:80", Problem::NotLoopback),
            ("http://[::]:80", Problem::NotLoopback),
            ("http://127.0.0.1", Problem::NoPort),
            ("http://127.0.0.1:", Problem::BadPort),
            ("https://cp.example:0", Problem::BadPort),
            ("https://cp.example:65536", Problem::BadPort),
            ("https://cp.example:+1", Problem::BadPort),
            ("https://", Problem::BadHost),
            ("https://:443", Problem::BadHost),
            ("https://a b", Problem::BadHost),
            ("https://[::1", Problem::BadHost),
            ("https://[::1]x", Problem::BadHost),
            ("https://[cp.example]:1", Problem::BadHost),
            ("https://user:secret@cp.example", Problem::UserInfo),
            ("http://127.0.0.1:1@cp.example:80", Problem::UserInfo),
            ("https://cp.example/path", Problem::Trailing),
            ("https://cp.example?token=secret", Problem::Trailing),
            ("vsock:2", Problem::BadVsock),
            ("vsock:two:5000", Problem::BadVsock),
            ("vsock:2:5000:1", Problem::BadVsock),
            ("vsock::", Problem::BadVsock),
            ("vsock:4294967296:1", Problem::BadVsock),
        ] {
            let error = text.parse::<Endpoint>().expect_err(text);
            assert_eq!(error.problem, problem, "{text}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        let long = format!("unix:/{}", "x".repeat(107)).parse::<Endpoint>();
        assert_eq!(long.expect_err("too long").problem, Problem::LongPath);
    }

    proptest! {
        #[test]
        fn law_parsing_never_panics(
            text in "(unix:|http://|https://|vsock:)?(localhost|\\[::1\\]|.{0,20})?(:[0-9]{0,6})?.{0,40}",
        ) {
            if let Ok(endpoint) = text.parse::<Endpoint>() {
                prop_assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
            }
        }
    }
}
