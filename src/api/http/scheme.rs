//! The scheme of a listener, and what follows from it for the cookies of its pages.

use guest_agent_console_kit::session::{Cookie, SameSite};

/// Whether a listener has TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// It has not.
    Http,
    /// It has.
    Https,
}

// === impl Scheme ===

impl Scheme {
    /// The scheme as URLs begin with it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// The name of the cookie that holds a session. Browsers let only pages of the same host over TLS
    /// set one with the prefix.
    pub(crate) const fn cookie_name(self) -> &'static str {
        match self {
            Self::Http => "guest-agent-session",
            Self::Https => "__Host-guest-agent-session",
        }
    }

    /// The cookie as the header of a response sets it.
    pub(crate) fn cookie(self, cookie: Cookie) -> String {
        cookie.header(self.cookie_name(), SameSite::Strict, self == Self::Https)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_cookie_is_sent_to_this_host_only_and_over_tls_where_there_is_tls() {
        let cookie = |scheme: Scheme| {
            let lasts = Duration::from_secs(60);
            scheme.cookie(Cookie { value: "secret".to_owned(), lasts })
        };
        let plain = cookie(Scheme::Http);
        assert!(plain.starts_with("guest-agent-session=secret; Path=/; HttpOnly; SameSite=Strict"));
        assert!(plain.contains("Max-Age=60") && !plain.contains("Secure"), "{plain}");
        // A page of another port of this host could set one without the prefix.
        let secure = cookie(Scheme::Https);
        assert!(secure.starts_with("__Host-guest-agent-session=secret; Path=/;"), "{secure}");
        assert!(secure.ends_with("; Secure"), "{secure}");
    }
}
