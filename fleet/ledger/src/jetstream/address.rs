//! The address of a ledger on NATS, as `--ledger` takes it.
//!
//! ```text
//!   nats://HOST:PORT[,HOST:PORT…][?OPTION=VALUE[&OPTION=VALUE…]]      tls://… demands TLS
//! ```
//!
//! Everybody on a machine sees its command lines, so secrets are in files that the options name.

use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

use super::names::Prefix;

/// Most servers, and most monitoring pages, that an address names.
const SERVERS: usize = 64;

/// Where a ledger on NATS is, and how to get there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsAddress {
    /// Each with its scheme.
    pub(super) servers: Vec<String>,
    pub(super) demands_tls: bool,
    pub(super) prefix: Prefix,
    pub(super) login: Login,
    /// Authorities that the certificates of servers are from, PEM; else those of this machine.
    pub(super) authority: Option<PathBuf>,
    /// Certificate and key that this program shows, PEM.
    pub(super) certificate: Option<(PathBuf, PathBuf)>,
    pub(super) facts: FactsFrom,
}

/// Who connects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Login {
    /// Nobody, or whom the certificate names.
    #[default]
    Nobody,
    /// A file with a JWT and a seed, as `nsc` writes it.
    Credentials(PathBuf),
    /// A file with the seed of an nkey.
    Seed(PathBuf),
    /// A user, and the file with the password.
    Password(String, PathBuf),
}

/// Where the settings of the servers are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FactsFrom {
    /// The monitoring pages at these hosts and ports.
    Monitoring(Vec<String>),
    /// The system account.
    SystemAccount(Login),
}

/// What is wrong with an address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AddressError {
    /// It is of another kind.
    #[error(
        "a ledger on NATS has an address such as `nats://10.0.0.1:4222,10.0.0.2:4222?monitor=…`"
    )]
    Scheme,
    /// A server cannot be understood. The text may hold a password, so it is not repeated.
    #[error(
        "server {number} of the address is not HOST or HOST:PORT: name it so, separated by commas"
    )]
    Server {
        /// Which one, from 1.
        number: usize,
    },
    /// A password or a token is in the address.
    #[error(
        "the address has a user or a token before `@`, where everybody on this machine can read it: use \
         `creds=FILE`, `nkey=FILE`, or `user=NAME&password-file=FILE`"
    )]
    Secret,
    /// There are too many of something.
    #[error("the address names {found} {what}, and at most {SERVERS} are allowed")]
    TooMany {
        /// What.
        what: &'static str,
        /// How many.
        found: usize,
    },
    /// An option is unknown.
    #[error("the address has the option `{name}`, which does not exist; there are: {OPTIONS}")]
    Unknown {
        /// Its name.
        name: String,
    },
    /// An option is there twice, or has no value.
    #[error("the option `{name}` of the address needs one value")]
    Value {
        /// Its name.
        name: &'static str,
    },
    /// An option needs another one, or excludes it.
    #[error("{0}")]
    Combination(&'static str),
    /// The prefix does not fit into the names of streams.
    #[error("`prefix` of the address has to be 1 to 32 letters, digits, `-` and `_`")]
    Prefix,
}

/// The names of all options.
const OPTIONS: &str = "prefix, creds, nkey, user, password-file, ca, cert, key, monitor, system-creds, \
                       system-nkey, system-user, system-password-file";

/// The options as they are written.
#[derive(Debug, Default)]
struct Options {
    values: Vec<(&'static str, String)>,
}

// === impl NatsAddress ===

impl NatsAddress {
    /// Whether a text is meant as such an address, right or not.
    #[must_use]
    pub fn is_meant_by(text: &str) -> bool {
        text.starts_with("nats://") || text.starts_with("tls://")
    }
}

impl std::fmt::Display for NatsAddress {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.servers.join(","))
    }
}

impl FromStr for NatsAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = text.split_once("://").ok_or(AddressError::Scheme)?;
        if scheme != "nats" && scheme != "tls" {
            return Err(AddressError::Scheme);
        }
        let (hosts, query) = rest.split_once('?').unwrap_or((rest, ""));
        if hosts.contains('@') {
            return Err(AddressError::Secret);
        }
        let hosts = list("servers", hosts.trim_end_matches('/'))?;
        let servers = hosts.into_iter().map(|host| format!("{scheme}://{host}")).collect();
        let mut options = Options::parse(query)?;
        let prefix = options.take("prefix")?.unwrap_or_else(|| "guest-fleet".to_owned());
        let prefix = Prefix::new(&prefix).ok_or(AddressError::Prefix)?;
        let login = options.login(["creds", "nkey", "user", "password-file"])?;
        let system = options.login([
            "system-creds",
            "system-nkey",
            "system-user",
            "system-password-file",
        ])?;
        let authority = options.take("ca")?.map(PathBuf::from);
        let certificate = match (options.take("cert")?, options.take("key")?) {
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            (None, None) => None,
            _ => return Err(AddressError::Combination("`cert` and `key` go together")),
        };
        let facts = match (options.take("monitor")?, system) {
            (Some(hosts), Login::Nobody) => {
                FactsFrom::Monitoring(list("monitoring pages", &hosts)?)
            }
            (None, Login::Nobody) => {
                return Err(AddressError::Combination(
                    "the settings of the servers have to be read, because the default of NATS loses acknowledged writes: \
                     name their monitoring pages with `monitor=HOST:PORT[,HOST:PORT…]`, or a login to the system account \
                     with `system-creds=FILE`",
                ));
            }
            (None, login) => FactsFrom::SystemAccount(login),
            (Some(_), _) => {
                return Err(AddressError::Combination(
                    "`monitor` and the login to the system account are two ways to the same: name one",
                ));
            }
        };
        let demands_tls = scheme == "tls";
        Ok(Self { servers, demands_tls, prefix, login, authority, certificate, facts })
    }
}

// === impl Options ===

impl Options {
    fn parse(query: &str) -> Result<Self, AddressError> {
        let mut values: Vec<(&'static str, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let known = OPTIONS.split(", ").find(|known| *known == name);
            let Some(known) = known else {
                let name = name.chars().take(32).collect();
                return Err(AddressError::Unknown { name });
            };
            if value.is_empty() || values.iter().any(|(other, _)| *other == known) {
                return Err(AddressError::Value { name: known });
            }
            values.push((known, decoded(value).ok_or(AddressError::Value { name: known })?));
        }
        Ok(Self { values })
    }

    fn take(&mut self, name: &'static str) -> Result<Option<String>, AddressError> {
        let at = self.values.iter().position(|(other, _)| *other == name);
        Ok(at.map(|at| self.values.swap_remove(at).1))
    }

    /// A login of the options with these names.
    fn login(&mut self, names: [&'static str; 4]) -> Result<Login, AddressError> {
        let [credentials, seed, user, password] = names;
        let found =
            (self.take(credentials)?, self.take(seed)?, self.take(user)?, self.take(password)?);
        match found {
            (None, None, None, None) => Ok(Login::Nobody),
            (Some(file), None, None, None) => Ok(Login::Credentials(file.into())),
            (None, Some(file), None, None) => Ok(Login::Seed(file.into())),
            (None, None, Some(user), Some(file)) => Ok(Login::Password(user, file.into())),
            _ => Err(AddressError::Combination(
                "a login is one of `creds=FILE`, `nkey=FILE`, and `user=NAME&password-file=FILE`, with `system-` before \
                 each name for the system account",
            )),
        }
    }
}

/// Hosts with ports, separated by commas.
fn list(what: &'static str, text: &str) -> Result<Vec<String>, AddressError> {
    let found = text.split(',').count();
    if found > SERVERS {
        return Err(AddressError::TooMany { what, found });
    }
    let hosts = text.split(',').enumerate().map(|(at, host)| {
        let is_host = !host.is_empty()
            && host.bytes().all(|it| it.is_ascii_alphanumeric() || b".-_:[]".contains(&it));
        is_host.then(|| host.to_owned()).ok_or(AddressError::Server { number: at + 1 })
    });
    hosts.collect()
}

/// A value without its escapes (`%2F`).
fn decoded(value: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_servers_and_files() {
        let text = "tls://a:4222,b:4222?creds=/etc/x%20y&ca=/ca&cert=/c&key=/k&prefix=p&monitor=a:8222,b:8222";
        let address: NatsAddress = text.parse().unwrap();
        assert_eq!(address.servers, ["tls://a:4222", "tls://b:4222"]);
        assert!(address.demands_tls);
        assert_eq!(address.login, Login::Credentials("/etc/x y".into()));
        assert_eq!(address.facts, FactsFrom::Monitoring(vec!["a:8222".into(), "b:8222".into()]));
        assert_eq!(address.to_string(), "tls://a:4222,tls://b:4222");
        let text = "nats://[::1]:4222?user=u&password-file=/p&system-creds=/s";
        let address: NatsAddress = text.parse().unwrap();
        assert_eq!(address.login, Login::Password("u".into(), "/p".into()));
        assert_eq!(address.facts, FactsFrom::SystemAccount(Login::Credentials("/s".into())));
    }

    #[test]
    fn an_address_that_is_wrong_says_what_to_write() {
        for (text, words) in [
            ("http://a", "nats://"),
            ("nats://", "server 1"),
            ("nats://a,?monitor=a", "server 2"),
            ("nats://u:secret@a:1?monitor=a", "creds=FILE"),
            ("nats://a", "monitor="),
            ("nats://a?monitor=a&system-creds=/x", "name one"),
            ("nats://a?monitor=a&creds=/a&nkey=/b", "a login is one of"),
            ("nats://a?monitor=a&user=u", "a login is one of"),
            ("nats://a?monitor=a&cert=/c", "go together"),
            ("nats://a?monitor=a&colour=red", "colour"),
            ("nats://a?monitor=a&monitor=b", "one value"),
            ("nats://a?monitor=", "one value"),
            ("nats://a?monitor=a&creds=%zz", "one value"),
            ("nats://a?monitor=a&prefix=a.b", "prefix"),
        ] {
            let error = text.parse::<NatsAddress>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
        let many = format!("nats://{}?monitor=a", vec!["a"; 65].join(","));
        assert_eq!(
            many.parse::<NatsAddress>(),
            Err(AddressError::TooMany { what: "servers", found: 65 })
        );
    }
}
