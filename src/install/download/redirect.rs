//! Where a server may send a download. Pure.
//!
//! An order names a URL, and its sender vouches for that. A redirection is chosen by a server,
//! which so chooses what the agent connects to from inside of this machine's network. Therefore it
//! may lead to the same host and to hosts that the configuration names, never from https to http,
//! and never to a link-local address or a metadata server. `fetch` calls this for each redirection;
//! `clients` calls it for each address that a name resolves to.

use std::fmt;
use std::net::IpAddr;

use reqwest::header::{HeaderMap, LOCATION};
use reqwest::{StatusCode, Url};

use crate::config::{Config, NO_METADATA};
use crate::net::host_pattern::HostPattern;
use crate::net::metadata_address::MetadataAddress;
use crate::net::off_limits::OffLimits;

/// How many redirections are followed, one after the other.
pub(in crate::install) const MAX_REDIRECTIONS: usize = 10;

/// Most characters of a host's name that an error shows.
const SHOWN_MAX: usize = 253;

/// Which redirections the agent follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedirectRules {
    /// Hosts that are allowed besides the one of the order.
    hosts: Vec<HostPattern>,
    /// The metadata server that this agent is configured with, where it is not a well-known one.
    metadata: Option<MetadataAddress>,
}

/// Why a redirection is not followed. No text shows more of its target than the host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misdirection {
    /// The server redirected again and again.
    #[error(
        "more than {} follow one another; correct the server, or order the last URL",
        MAX_REDIRECTIONS
    )]
    TooMany,
    /// The target is not a URL.
    #[error("it leads to something that is not a URL; correct the server")]
    NotAUrl,
    /// The target is a URL of another scheme.
    #[error("it leads away from HTTP; order the other URL itself if that is meant")]
    NotHttp,
    /// The target is not encrypted, and the order's URL is.
    #[error(
        "it leads from https to http on {host}, where anybody on the way could change the archive; \
         serve the archive over https"
    )]
    Downgrade { host: Host },
    /// The target is on another host.
    #[error(
        "it leads from {own} to the host {host}, and only the hosts in install.redirect_hosts may be \
         led to; add \"{host}\" there if archives lie on it, or order the URL on {host} itself"
    )]
    OtherHost {
        /// The host that the order names.
        own: Host,
        host: Host,
    },
    /// The target is an address that no redirection may lead to.
    #[error(
        "it leads to {host}, which is {}, and no setting allows that; if it is meant, order that URL \
         itself", what.shown()
    )]
    OffLimits {
        host: Host,
        /// What kind of address it is.
        what: Forbidden,
    },
    /// The name of the host resolves to such an address.
    #[error(
        "it leads to {host}, whose address {address} is that of {}, and no setting allows that; \
         correct the name's addresses", what.shown()
    )]
    OffLimitsAddress {
        host: Host,
        address: IpAddr,
        /// What kind of address it is.
        what: Forbidden,
    },
}

/// The host of a URL, cut to fit into an error.
#[derive(Clone, PartialEq, Eq)]
pub struct Host(String);

/// Why no redirection may lead to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forbidden(OffLimits);

// === impl RedirectRules ===

impl RedirectRules {
    /// The rules of the configuration.
    #[must_use]
    pub fn configured(config: &Config) -> Self {
        let metadata = match config.instance.metadata_url.as_str() {
            "" | NO_METADATA => None,
            url => url.parse().ok(),
        };
        Self { hosts: config.install.redirect_hosts.clone(), metadata }
    }

    /// Whether a redirection may be followed, given the URL of the order and the target of the
    /// redirection before this one. The addresses of a name are checked when it is resolved.
    pub(in crate::install) fn check(&self, trail: &[Url], next: &Url) -> Result<(), Misdirection> {
        let Some(own) = trail.first() else { return Ok(()) };
        if trail.len() > MAX_REDIRECTIONS {
            return Err(Misdirection::TooMany);
        }
        let host = Host::of(next);
        match next.scheme() {
            "https" => {}
            "http" if trail.iter().any(|url| url.scheme() == "https") => {
                return Err(Misdirection::Downgrade { host });
            }
            "http" => {}
            _ => return Err(Misdirection::NotHttp),
        }
        if let Some(what) = self.off_limits(next) {
            return Err(Misdirection::OffLimits { host, what: Forbidden(what) });
        }
        let name = next.host_str().unwrap_or_default();
        if own.host() == next.host() || self.hosts.iter().any(|hosts| hosts.matches(name)) {
            return Ok(());
        }
        Err(Misdirection::OtherHost { own: Host::of(own), host })
    }

    fn off_limits(&self, url: &Url) -> Option<OffLimits> {
        if self.metadata.as_ref().is_some_and(|server| server.is_of(url)) {
            return Some(OffLimits::Metadata);
        }
        let host = url.host_str()?;
        match host.trim_start_matches('[').trim_end_matches(']').parse() {
            Ok(address) => OffLimits::of_address(address),
            Err(_) => OffLimits::of_name(host),
        }
    }
}

// === impl Misdirection ===

impl Misdirection {
    /// Whether a redirection may not lead to this address, which a name was resolved to.
    pub(in crate::install) fn of_address(name: &str, address: IpAddr) -> Option<Self> {
        let what = Forbidden(OffLimits::of_address(address)?);
        Some(Self::OffLimitsAddress { host: Host::cut(name), address, what })
    }

    /// Finds the reason in the error of a client that gave up because of it.
    pub(in crate::install) fn behind(error: &(dyn std::error::Error + 'static)) -> Option<Self> {
        let mut causes = std::iter::successors(Some(error), |error| error.source());
        causes.find_map(|cause| cause.downcast_ref::<Self>().cloned())
    }
}

// === impl Host ===

impl Host {
    fn of(url: &Url) -> Self {
        Self::cut(url.host_str().unwrap_or_default())
    }

    fn cut(name: &str) -> Self {
        Self(name.chars().take(SHOWN_MAX).collect())
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

// === impl Forbidden ===

impl Forbidden {
    fn shown(self) -> &'static str {
        self.0.shown()
    }
}

/// The target of an answer, if it is a redirection that names one.
pub(in crate::install) fn target(
    status: StatusCode,
    headers: &HeaderMap,
    from: &Url,
) -> Option<Result<Url, Misdirection>> {
    if !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = headers.get(LOCATION)?;
    let url = std::str::from_utf8(location.as_bytes()).ok().and_then(|text| from.join(text).ok());
    let Some(mut url) = url else { return Some(Err(Misdirection::NotAUrl)) };
    let is_same_server =
        url.host() == from.host() && url.port_or_known_default() == from.port_or_known_default();
    // The credentials are in the URL that led here; they are not sent to another server.
    if is_same_server && url.username().is_empty() && url.password().is_none() {
        // Both have a host, so this cannot fail.
        url.set_username(from.username()).ok();
        url.set_password(from.password()).ok();
    }
    Some(Ok(url))
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).expect("a URL")
    }

    fn rules(hosts: &[&str]) -> RedirectRules {
        let hosts = hosts.iter().map(|host| host.parse().expect("a host")).collect();
        RedirectRules { hosts, metadata: None }
    }

    fn check(rules: &RedirectRules, trail: &[&str], next: &str) -> Result<(), String> {
        let trail: Vec<Url> = trail.iter().map(|text| url(text)).collect();
        rules.check(&trail, &url(next)).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn refused(rules: &RedirectRules, trail: &[&str], next: &str, part: &str) {
        let error = check(rules, trail, next).expect_err(next);
        assert!(error.contains(part), "{next}: {error}");
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn redirections_never_lead_from_https_to_http() {
        let any = rules(&["*"]);
        for (trail, next) in [
            (&["http://a/"][..], "http://a/"),
            (&["http://a/"], "https://a/"),
            (&["https://a/"], "https://a/"),
        ] {
            assert_eq!(check(&any, trail, next), Ok(()), "{trail:?} {next}");
        }
        refused(&any, &["https://a/"], "http://a/?secret", "from https to http on a");
        refused(
            &any,
            &["http://a/", "https://a/", "https://a/"],
            "http://a/",
            "from https to http",
        );
        refused(&any, &["http://a/"], "file:///a?secret", "away from HTTP");
        assert_eq!(check(&any, &["http://a/"; MAX_REDIRECTIONS], "http://a/"), Ok(()));
        refused(&any, &["http://a/"; MAX_REDIRECTIONS + 1], "http://a/", "more than 10");
    }

    #[test]
    fn redirections_lead_to_the_host_of_the_order_and_to_configured_ones_only() {
        let none = rules(&[]);
        assert_eq!(check(&none, &["http://a/"], "https://A:8443/b"), Ok(()));
        assert_eq!(check(&none, &["http://127.0.0.1:1/"], "http://127.0.0.1:2/"), Ok(()));
        refused(
            &none,
            &["https://a/"],
            "https://u:secret@b:8443/c?secret",
            "from a to the host b,",
        );
        refused(&none, &["https://a/"], "https://b/", "add \"b\"");
        refused(&none, &["https://a/"], "https://b/", "install.redirect_hosts");
        refused(&none, &["https://a/"], "https://127.0.0.1/", "the host 127.0.0.1");
        let some = rules(&["b", "*.store.example"]);
        assert_eq!(check(&some, &["https://a/"], "https://b/"), Ok(()));
        assert_eq!(check(&some, &["https://a/", "https://b/"], "https://a/"), Ok(()));
        assert_eq!(check(&some, &["https://a/"], "https://x.store.example/"), Ok(()));
        // The host of the order is that of the first URL, not of the one before.
        refused(&some, &["https://a/", "https://b/"], "https://c/", "from a to the host c");
    }

    #[test]
    fn no_setting_allows_link_local_addresses_and_metadata_servers() {
        let any = rules(&["*", "169.254.169.254"]);
        for (host, what) in [
            ("169.254.169.254", "a link-local address"),
            ("169.254.1.2:8080", "a link-local address"),
            ("0xa9fea9fe", "a link-local address"),
            ("2852039166", "a link-local address"),
            ("[fe80::1]", "a link-local address"),
            ("[::ffff:169.254.169.254]", "a link-local address"),
            ("[fd00:ec2::254]", "a metadata server"),
            ("metadata.google.internal", "a metadata server"),
            ("METADATA.google.internal.", "a metadata server"),
        ] {
            let next = format!("http://{host}/latest?secret");
            refused(&any, &["http://a/"], &next, what);
            // Also where the order named the same host: a server may not choose the path there.
            refused(&any, &[&format!("http://{host}/a")], &next, what);
        }
    }

    #[test]
    fn the_metadata_server_of_the_configuration_is_one() {
        let mut config = Config::default();
        config.instance.metadata_url = "http://127.0.0.1:4711".to_owned();
        let rules = RedirectRules::configured(&config);
        refused(&rules, &["http://127.0.0.1:1/"], "http://127.0.0.1:4711/", "a metadata server");
        assert_eq!(check(&rules, &["http://127.0.0.1:1/"], "http://127.0.0.1:4712/"), Ok(()));
    }

    #[test]
    fn the_host_in_an_error_is_short() {
        let next = format!("https://{}/", "a.".repeat(5000));
        let error = check(&rules(&[]), &["https://a/"], &next).expect_err("another host");
        assert!(error.len() < 1000, "{} bytes", error.len());
    }

    #[test]
    fn a_target_is_read_like_a_link_on_a_page() {
        let at = |from: &str, status: u16, location: &[u8]| {
            let location = HeaderValue::from_bytes(location).expect("a header");
            let headers = HeaderMap::from_iter([(LOCATION, location)]);
            let status = StatusCode::from_u16(status).expect("a status");
            target(status, &headers, &url(from)).map(|found| found.map(String::from))
        };
        let to = |text: &str| Some(Ok(text.to_owned()));
        assert_eq!(at("http://a/b/c?d", 302, b"e?f"), to("http://a/b/e?f"));
        assert_eq!(at("http://a/b/c?d", 308, b"//e/f"), to("http://e/f"));
        assert_eq!(at("http://a/", 302, b"http://"), Some(Err(Misdirection::NotAUrl)));
        assert_eq!(at("http://a/", 302, b"\xff"), Some(Err(Misdirection::NotAUrl)));
        assert_eq!(at("http://a/", 304, b"/b"), None);
        assert_eq!(target(StatusCode::FOUND, &HeaderMap::new(), &url("http://a/")), None);
    }

    #[test]
    fn credentials_in_a_url_go_to_the_same_server_only() {
        let at = |location: &'static str| {
            let headers = HeaderMap::from_iter([(LOCATION, HeaderValue::from_static(location))]);
            let found = target(StatusCode::FOUND, &headers, &url("http://u:p@a:1/x"));
            found.expect("a redirection").expect("a URL").to_string()
        };
        assert_eq!(at("/y"), "http://u:p@a:1/y");
        assert_eq!(at("http://a:1/y"), "http://u:p@a:1/y");
        assert_eq!(at("http://v:q@a:1/y"), "http://v:q@a:1/y");
        assert_eq!(at("http://a:2/y"), "http://a:2/y");
        assert_eq!(at("http://b:1/y"), "http://b:1/y");
    }
}
