//! The URL to which an identity provider sends browsers back.

use axum::http::Uri;
use thiserror::Error;

use super::login::{CALLBACK, PROVIDER};
use super::names::is_own_name;
use super::scheme::Scheme;

/// Longest such URL, in bytes.
const URL_BYTES: usize = 512;

/// The URL to which the identity provider sends browsers back. The provider has to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallbackUrl {
    scheme: Scheme,
    /// Host and port.
    authority: String,
}

/// Why a URL cannot be one to which browsers are sent back.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallbackUrlError {
    /// It has another form.
    #[error(
        "`{0}` is not of the form `https://NAME[:PORT]{CALLBACK}`; of this machine it may be `http://localhost:PORT{CALLBACK}`"
    )]
    Form(String),
    /// The console has nothing there.
    #[error("`{0}` has another path than `{CALLBACK}`, where the console takes browsers back")]
    Path(String),
    /// The console does not answer to this name.
    #[error("the console does not answer to `{0}`; give this name with --api-name as well")]
    Name(String),
}

// === impl CallbackUrl ===

impl CallbackUrl {
    /// Reads one; `names` are those under which browsers may ask for the console.
    ///
    /// # Errors
    /// See [`CallbackUrlError`].
    pub fn parse(text: &str, names: &[String]) -> Result<Self, CallbackUrlError> {
        let form = || CallbackUrlError::Form(text.escape_debug().take(URL_BYTES).collect());
        let fits = text.len() <= URL_BYTES && !text.contains('#');
        let uri: Uri =
            Some(text).filter(|_| fits).and_then(|it| it.parse().ok()).ok_or_else(form)?;
        let authority = uri.authority().filter(|it| !it.as_str().contains('@')).ok_or_else(form)?;
        let is_local = ["localhost", "127.0.0.1", "[::1]"].contains(&authority.host());
        let scheme = match uri.scheme_str() {
            Some("https") => Scheme::Https,
            Some("http") if is_local => Scheme::Http,
            _ => return Err(form()),
        };
        if uri.path_and_query().is_none_or(|it| it.as_str() != CALLBACK) {
            return Err(CallbackUrlError::Path(text.to_owned()));
        }
        if !is_own_name(authority, names) {
            return Err(CallbackUrlError::Name(authority.host().to_owned()));
        }
        Ok(Self { scheme, authority: authority.to_string() })
    }

    /// That of a console with TLS under a name.
    ///
    /// # Errors
    /// It is not the name of a machine.
    pub fn of_name(name: &str, port: u16) -> Result<Self, CallbackUrlError> {
        let port = if port == 443 { String::new() } else { format!(":{port}") };
        Self::parse(&format!("https://{name}{port}{CALLBACK}"), &[name.to_owned()])
    }

    /// Whether browsers come over TLS.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}{CALLBACK}", self.origin())
    }

    /// From where a browser goes to the provider: of the same name, as cookies are of one name.
    pub(super) fn start(&self) -> String {
        format!("{}{PROVIDER}", self.origin())
    }

    fn origin(&self) -> String {
        format!("{}://{}", self.scheme.as_str(), self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsers_come_back_over_tls_or_on_this_machine_to_a_name_of_the_console() {
        let names = ["fleet.example".to_owned()];
        for good in [
            "https://fleet.example/console/login/callback",
            "https://fleet.example:8443/console/login/callback",
            "https://10.0.0.7:8443/console/login/callback",
            "http://localhost:7444/console/login/callback",
            "http://127.0.0.1:7444/console/login/callback",
            "http://[::1]:7444/console/login/callback",
        ] {
            let read = CallbackUrl::parse(good, &names).expect(good);
            assert_eq!(read.url(), good);
            assert!(read.start().ends_with("/console/login/provider"), "{}", read.start());
        }
        let form = |text: &str| CallbackUrlError::Form(text.to_owned());
        for bad in [
            "",
            "fleet.example",
            "http://fleet.example/console/login/callback",
            "ftp://localhost/console/login/callback",
            "https://user@fleet.example/console/login/callback",
            "https://fleet.example/console/login/callback#x",
            "/console/login/callback",
        ] {
            assert_eq!(CallbackUrl::parse(bad, &names), Err(form(bad)));
        }
        for bad in [
            "https://fleet.example",
            "https://fleet.example/",
            "https://fleet.example/console/login/callback?x=1",
            "https://fleet.example/console/login/callback/",
        ] {
            let read = CallbackUrl::parse(bad, &names);
            assert_eq!(read, Err(CallbackUrlError::Path(bad.to_owned())));
        }
        let read = CallbackUrl::parse("https://other.example/console/login/callback", &names);
        assert_eq!(read, Err(CallbackUrlError::Name("other.example".to_owned())));
        let long = format!("https://{}/console/login/callback", "x".repeat(URL_BYTES));
        assert!(CallbackUrl::parse(&long, &names).is_err());
    }

    #[test]
    fn it_follows_from_a_name_and_a_port() {
        let url = |name: &str, port: u16| CallbackUrl::of_name(name, port).map(|it| it.url());
        let of = |origin: &str| Ok(format!("{origin}/console/login/callback"));
        assert_eq!(url("fleet.example", 443), of("https://fleet.example"));
        assert_eq!(url("fleet.example", 7444), of("https://fleet.example:7444"));
        assert!(url("fleet example", 443).is_err());
        assert!(url("evil.example/x?", 443).is_err());
    }
}
