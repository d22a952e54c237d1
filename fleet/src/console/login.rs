//! What a session stands for, and where a login may lead.

use std::fmt;
use std::sync::Arc;

use guest_agent_console_kit::session;

/// The page on which people log in.
pub(super) const LOGIN: &str = "/console/login";
/// From where a browser goes to the identity provider.
pub(super) const PROVIDER: &str = "/console/login/provider";
/// Where the identity provider sends a browser back.
pub(super) const CALLBACK: &str = "/console/login/callback";

/// What a session stands for. The server asks with every request whose it is, so a session ends with what it
/// stands for and never allows more.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Login {
    /// A token of the API.
    Token(Arc<str>),
    /// A session of a person, whom the identity provider knows: its secret.
    Person(Arc<str>),
}

/// A session of a browser.
pub(super) type Session = session::Session<Login>;

/// The sessions of all browsers.
pub(super) type Sessions = session::Sessions<Login>;

// === impl Login ===

impl Login {
    /// A login with a token.
    pub(super) fn of_token(token: &str) -> Self {
        Self::Token(token.into())
    }

    /// A login by the identity provider.
    pub(super) fn of_person(secret: &str) -> Self {
        Self::Person(secret.into())
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login")
    }
}

/// Longest address that a login leads to, in bytes.
const TARGET_BYTES: usize = 1024;

/// Where a login leads: to the page that was asked for, if it is one of the console. Everything else leads to
/// the first page, so that no link to a login can lead elsewhere.
pub(super) fn target(asked: &str) -> &str {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~%?=&:".contains(&byte);
    let is_page = asked.strip_prefix("/console/").is_some_and(|rest| {
        !rest.starts_with(['/', '.']) && !rest.contains("..") && rest.bytes().all(is_safe)
    });
    if is_page && asked.len() <= TARGET_BYTES { asked } else { "/" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leads_to_no_other_site() {
        for good in
            ["/console/rollout?of=spring", "/console/agents?select=env%20%3D%20prod&after=a"]
        {
            assert_eq!(target(good), good);
        }
        let bad = [
            "",
            "/",
            "https://example.com/console/",
            "//example.com/console/",
            "/\\example.com",
            "/console/../evil",
            "/console//example.com",
            "/console/\r\nset-cookie: a=b",
            "/console/@example.com",
            "javascript:alert(1)",
            " /console/x",
            "/v1/agents",
            &format!("/console/{}", "x".repeat(TARGET_BYTES)),
        ];
        for bad in bad {
            assert_eq!(target(bad), "/", "{bad}");
        }
    }

    #[test]
    fn no_token_is_printed() {
        assert_eq!(format!("{:?}", Login::of_token("secret")), "Login");
        assert_eq!(format!("{:?}", Login::of_person("secret")), "Login");
    }
}
