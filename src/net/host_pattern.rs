//! Hosts, as a setting lists them: a name, an address, all names below a domain, or every host.

use std::fmt;
use std::str::FromStr;

use reqwest::Url;
use serde::{Deserialize, Serialize};

/// Longest name of a host (RFC 1035, section 2.3.4).
const NAME_MAX: usize = 253;

/// Which hosts are meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostPattern(Hosts);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Hosts {
    /// `*`: each.
    Every,
    /// `*.example.com`: those whose names end with this, which begins with a dot.
    Below(String),
    /// `example.com`, `192.0.2.7` or `[2001:db8::7]`: this one, as a URL writes it.
    One(String),
}

/// Why a text names no hosts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} names no host; write \"example.com\", \"*.example.com\", an address or \"*\"")]
pub struct HostPatternError {
    text: String,
}

// === impl HostPattern ===

impl HostPattern {
    /// Whether a host is meant. `host` is in the form that [`Url::host_str`] returns.
    #[must_use]
    pub fn matches(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        match &self.0 {
            Hosts::Every => true,
            Hosts::Below(end) => host.len() > end.len() && host.ends_with(end.as_str()),
            Hosts::One(one) => host == one,
        }
    }
}

impl FromStr for HostPattern {
    type Err = HostPatternError;

    fn from_str(text: &str) -> Result<Self, HostPatternError> {
        let wrong = || HostPatternError { text: text.chars().take(NAME_MAX).collect() };
        if text == "*" {
            return Ok(Self(Hosts::Every));
        }
        let (is_below, name) = match text.strip_prefix("*.") {
            Some(domain) => (true, domain),
            None => (false, text),
        };
        // An address of IPv6 may be written without its brackets.
        let bracketed = format!("[{name}]");
        let name =
            if name.contains(':') && !name.contains('[') { bracketed.as_str() } else { name };
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b));
        if name.is_empty() || name.len() > NAME_MAX || !plain {
            return Err(wrong());
        }
        // The client reads URLs in the same way, so both write a host in the same form.
        let url = Url::parse(&format!("https://{name}/")).map_err(|_| wrong())?;
        let host = url.host_str().filter(|_| url.port().is_none()).ok_or_else(wrong)?;
        let host = host.strip_suffix('.').unwrap_or(host);
        let is_name = url.domain().is_some();
        let is_odd = name.starts_with('[') != name.ends_with(']');
        if host.is_empty() || is_odd || (is_below && !is_name) {
            return Err(wrong());
        }
        Ok(Self(if is_below {
            Hosts::Below(format!(".{host}"))
        } else {
            Hosts::One(host.to_owned())
        }))
    }
}

impl TryFrom<String> for HostPattern {
    type Error = HostPatternError;

    fn try_from(text: String) -> Result<Self, HostPatternError> {
        text.parse()
    }
}

impl From<HostPattern> for String {
    fn from(pattern: HostPattern) -> Self {
        pattern.to_string()
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Hosts::Every => f.write_str("*"),
            Hosts::Below(end) => write!(f, "*{end}"),
            Hosts::One(one) => f.write_str(one),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, url: &str) -> bool {
        let pattern: HostPattern = pattern.parse().expect("a pattern");
        let url = Url::parse(url).expect("a URL");
        pattern.matches(url.host_str().expect("a host"))
    }

    #[test]
    fn a_host_is_meant_however_it_is_written() {
        assert!(matches("Example.COM", "https://example.com/a"));
        assert!(matches("example.com.", "https://example.com./a"));
        assert!(matches("10.0.0.1", "http://167772161/"));
        assert!(matches("2001:DB8::7", "http://[2001:db8:0::7]/"));
        assert!(matches("[2001:db8::7]", "http://[2001:db8::7]:8080/"));
        assert!(matches("*", "http://anything/"));
    }

    #[test]
    fn names_below_a_domain_are_meant_and_nothing_that_only_looks_like_them() {
        assert!(matches("*.example.com", "https://a.example.com/"));
        assert!(matches("*.example.com", "https://a.b.EXAMPLE.com/"));
        assert!(!matches("*.example.com", "https://example.com/"));
        assert!(!matches("*.example.com", "https://badexample.com/"));
        assert!(!matches("*.example.com", "https://example.com.evil/"));
        assert!(!matches("example.com", "https://a.example.com/"));
        assert!(!matches("example.com", "https://example.com.evil/"));
    }

    #[test]
    fn what_names_no_host_is_refused() {
        for text in [
            "",
            " ",
            "*.",
            "**",
            "a.*.b",
            "https://a",
            "a/b",
            "a:80",
            "u@h",
            "*.10.0.0.1",
            "[::1]:80",
            "[::1]:443",
        ] {
            assert!(text.parse::<HostPattern>().is_err(), "{text:?} was taken");
        }
        assert!("a".repeat(254).parse::<HostPattern>().is_err());
    }

    #[test]
    fn what_was_read_is_written_as_it_is_meant() {
        for text in ["*", "*.example.com", "example.com", "192.0.2.7", "[::1]"] {
            assert_eq!(text.parse::<HostPattern>().map(String::from), Ok(text.to_owned()));
        }
    }
}
