//! Whether browsers reach the console over TLS, and what follows from it for its cookies.

use guest_agent_console_kit::session::{Cookie, SameSite};

/// Whether the listener has TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// It has not.
    Http,
    /// It has.
    Https,
}

// === impl Scheme ===

impl Scheme {
    /// The scheme as URLs begin with it.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// The name of the cookie that holds a session. Browsers let only pages of the same host over TLS set one
    /// with the prefix.
    pub(super) const fn cookie_name(self) -> &'static str {
        match self {
            Self::Http => "guest-fleet-session",
            Self::Https => "__Host-guest-fleet-session",
        }
    }

    /// The name of the cookie that holds a login at the identity provider until it comes back.
    pub(super) const fn login_name(self) -> &'static str {
        match self {
            Self::Http => "guest-fleet-login",
            Self::Https => "__Host-guest-fleet-login",
        }
    }

    /// The cookie of a session as the header of a response sets it.
    pub(super) fn cookie(self, cookie: Cookie) -> String {
        cookie.header(self.cookie_name(), SameSite::Strict, self == Self::Https)
    }

    /// The cookie of a login. A strict one would not come with the navigation from the page of the provider.
    pub(super) fn login_cookie(self, cookie: Cookie) -> String {
        cookie.header(self.login_name(), SameSite::Lax, self == Self::Https)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_cookie_is_sent_to_this_host_only_and_over_tls_where_there_is_tls() {
        let cookie = |scheme: Scheme| {
            scheme.cookie(Cookie { value: "secret".to_owned(), lasts: Duration::from_secs(60) })
        };
        let plain = cookie(Scheme::Http);
        assert!(plain.starts_with("guest-fleet-session=secret; Path=/; HttpOnly; SameSite=Strict"));
        assert!(plain.contains("Max-Age=60") && !plain.contains("Secure"), "{plain}");
        let secure = cookie(Scheme::Https);
        assert!(secure.starts_with("__Host-guest-fleet-session=secret; Path=/;"), "{secure}");
        assert!(secure.ends_with("; Secure"), "{secure}");
        let login =
            Scheme::Https.login_cookie(Cookie { value: "x".to_owned(), lasts: Duration::ZERO });
        assert_eq!(
            login,
            "__Host-guest-fleet-login=x; Path=/; HttpOnly; SameSite=Lax; Max-Age=0; Secure"
        );
    }
}
