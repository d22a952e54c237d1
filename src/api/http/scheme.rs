//! The scheme of a listener, and what follows from it for the cookies of its pages.

use std::time::Duration;

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

    /// The cookie that holds a session with this value for some time.
    pub(crate) fn cookie(self, value: &str, lasts: Duration) -> String {
        let name = self.cookie_name();
        let secure = match self {
            Self::Http => "",
            Self::Https => "; Secure",
        };
        let seconds = lasts.as_secs();
        format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}")
    }
}
