//! Where an exchange goes: a URL, the hosts that are allowed, and the address that is connected to.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use http::Uri;
use thiserror::Error;

use super::error::FetchError;

/// Metadata servers outside of the link-local networks: of Azure and of Alibaba Cloud.
const SERVERS: [Ipv4Addr; 2] = [Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(100, 100, 100, 200)];
/// The metadata server of Google's cloud over IPv6.
const GOOGLE: Ipv6Addr = Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254);

/// Longest URL, in bytes.
const URL_BYTES: usize = 2048;

/// Whether an exchange is secured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// In plain text, which stays on this machine.
    Http,
    /// With TLS.
    Https,
}

/// The parts of a URL.
#[derive(Clone, Debug)]
pub struct Target {
    pub(super) scheme: Scheme,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) uri: Uri,
}

/// A host that may be connected to, or all hosts of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedHost {
    /// This one.
    One(String),
    /// Those below this domain, which is not among them.
    Below(String),
}

/// The text is not a host that can be allowed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not a host; write `hooks.example`, `*.example` or an IP address")]
pub struct AllowedHostError(String);

// === impl AllowedHost ===

impl AllowedHost {
    /// Whether a host is one of these.
    #[must_use]
    pub fn allows(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        match self {
            Self::One(name) => host == *name,
            Self::Below(domain) => host
                .strip_suffix(domain.as_str())
                .and_then(|rest| rest.strip_suffix('.'))
                .is_some_and(|rest| !rest.is_empty()),
        }
    }
}

impl FromStr for AllowedHost {
    type Err = AllowedHostError;

    fn from_str(text: &str) -> Result<Self, AllowedHostError> {
        let name = text.trim_end_matches('.').to_ascii_lowercase();
        let (name, below) = match name.strip_prefix("*.") {
            Some(domain) => (domain.to_owned(), true),
            None => (name, false),
        };
        let is_host = !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.:_".contains(&byte));
        match (is_host, below) {
            (false, _) => Err(AllowedHostError(text.to_owned())),
            (true, false) => Ok(Self::One(name)),
            (true, true) => Ok(Self::Below(name)),
        }
    }
}

impl fmt::Display for AllowedHost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(name) => formatter.write_str(name),
            Self::Below(domain) => write!(formatter, "*.{domain}"),
        }
    }
}

// === impl Target ===

impl Target {
    /// Reads a URL that is reached with TLS.
    ///
    /// # Errors
    /// It is not one.
    pub fn parse(url: &str) -> Result<Self, FetchError> {
        Self::read(url).filter(|target| target.scheme == Scheme::Https).ok_or(FetchError::Url)
    }

    /// The same, or one without TLS; that is connected to on this machine alone.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse_or_local(url: &str) -> Result<Self, FetchError> {
        Self::read(url).ok_or(FetchError::LocalUrl)
    }

    /// Its host, without the brackets of an IPv6 address.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Whether it can be connected to, as far as that is known without looking its host up.
    ///
    /// # Errors
    /// Its host is an address that is off limits, or one of another machine without TLS.
    pub(crate) fn check(&self) -> Result<(), FetchError> {
        self.host.parse().map_or(Ok(()), |address| self.check_address(address))
    }

    fn check_address(&self, address: IpAddr) -> Result<(), FetchError> {
        if is_off_limits(address) {
            return Err(FetchError::OffLimits(address));
        }
        if self.scheme == Scheme::Http && !address.to_canonical().is_loopback() {
            return Err(FetchError::Plaintext(address));
        }
        Ok(())
    }

    fn read(url: &str) -> Option<Self> {
        let uri: Uri = Some(url).filter(|url| url.len() <= URL_BYTES)?.parse().ok()?;
        let authority = uri.authority().filter(|it| !it.as_str().contains('@'))?;
        let (scheme, port) = match uri.scheme_str()? {
            "https" => (Scheme::Https, 443),
            "http" => (Scheme::Http, 80),
            _ => return None,
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16().unwrap_or(port);
        (!host.is_empty()).then_some(Self { scheme, host, port, uri })
    }

    /// An address of the host. If one of them is off limits, the name is not to be trusted at all.
    pub(super) async fn resolve(&self) -> Result<SocketAddr, FetchError> {
        let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await;
        let addresses: Vec<SocketAddr> = found.map_err(FetchError::Resolve)?.take(32).collect();
        for address in &addresses {
            self.check_address(address.ip())?;
        }
        addresses.first().copied().ok_or_else(|| {
            FetchError::Resolve(io::Error::new(io::ErrorKind::NotFound, "the name has no address"))
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_https_without_a_password_is_connected_to() {
        let parts = |url: &str| Target::parse(url).ok().map(|it| (it.host, it.port));
        assert_eq!(parts("https://issuer.example/keys"), Some(("issuer.example".into(), 443)));
        assert_eq!(parts("https://[::1]:8443/keys"), Some(("::1".into(), 8443)));
        for bad in
            ["http://x/", "x", "/keys", "https://u:p@x/", "https:///x", "file:///etc/passwd", ""]
        {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
        let long = format!("https://x/{}", "a".repeat(URL_BYTES));
        assert!(Target::parse(&long).is_err() && Target::parse_or_local("ftp://x/").is_err());
    }

    #[tokio::test]
    async fn without_tls_nothing_leaves_this_machine() {
        let resolved =
            async |url: &str| Target::parse_or_local(url).expect("a URL").resolve().await;
        assert!(resolved("http://127.0.0.1:9/").await.is_ok());
        assert!(resolved("http://[::1]:9/").await.is_ok());
        let plain = resolved("http://192.0.2.1/").await;
        assert!(matches!(plain, Err(FetchError::Plaintext(_))), "{plain:?}");
        assert!(resolved("https://192.0.2.1/").await.is_ok());
    }

    #[test]
    fn hosts_are_allowed_by_name_or_by_domain() {
        let one: AllowedHost = "Hooks.example.".parse().expect("a host");
        assert!(one.allows("hooks.EXAMPLE") && !one.allows("a.hooks.example"));
        let below: AllowedHost = "*.example".parse().expect("a domain");
        assert!(below.allows("a.b.example"));
        for other in ["example", "badexample", ".example", "example.org"] {
            assert!(!below.allows(other), "{other}");
        }
        for bad in ["", "*", "*.", "a/b", "*.*.x", "https://x"] {
            assert!(bad.parse::<AllowedHost>().is_err(), "{bad}");
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
}
