//! Connections to NATS: who connects, with which certificates, within which time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use thiserror::Error;
use tokio::time::timeout;

use super::address::{Login, NatsAddress};
use super::advice::advice;

/// How long all servers of an address together have for the first connection, and one of them for
/// any.
const FIRST: Duration = Duration::from_secs(15);
const EACH: Duration = Duration::from_secs(5);

/// How often a connection is tried for life. Two that are not answered end it, so that a server
/// that was stopped is left within 6 s.
const PING: Duration = Duration::from_secs(3);

/// Longest that this waits before it connects again.
const AGAIN: Duration = Duration::from_secs(2);

/// Messages that wait to be sent, and that wait to be read of one answer.
const QUEUE: usize = 4096;

/// Most bytes of a file with a secret.
const SECRET: u64 = 64 << 10;

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// A file of the address cannot be read.
    #[error("{} cannot be read; the address of the ledger names it", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file has something else in it.
    #[error("{} is not {expected}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What it should be.
        expected: &'static str,
    },
    /// No server takes the connection.
    #[error("no server of {address} takes the connection of {who}; {fix}")]
    Servers {
        /// The servers.
        address: String,
        /// Who connects.
        who: &'static str,
        /// What to change.
        fix: String,
        /// What the last of them says.
        source: async_nats::ConnectError,
    },
    /// No server answered.
    #[error("no server of {address} answered within {} s", FIRST.as_secs())]
    Late {
        /// The servers.
        address: String,
    },
}

/// Who connects, as errors name it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Who {
    Ledger,
    SystemAccount,
}

// === impl Who ===

impl Who {
    fn name(self) -> &'static str {
        match self {
            Self::Ledger => "the ledger",
            Self::SystemAccount => "the system account",
        }
    }

    /// The prefix of the names of the options of its login.
    fn prefix(self) -> &'static str {
        match self {
            Self::Ledger => "",
            Self::SystemAccount => "system-",
        }
    }
}

/// Connects. `events` gets what happens to the connection.
pub(super) async fn connect(
    address: &NatsAddress,
    login: &Login,
    who: Who,
    events: impl Fn(&Event) + Send + Sync + 'static,
) -> Result<Client, ConnectError> {
    let mut options = ConnectOptions::new()
        .name(format!("guest-fleet {}", env!("CARGO_PKG_VERSION")))
        .connection_timeout(EACH)
        .ping_interval(PING)
        .client_capacity(QUEUE)
        .subscription_capacity(QUEUE)
        .request_timeout(None)
        .reconnect_delay_callback(|attempts| {
            // Half of it is chance, so that not all gateways come at once.
            let longest = Duration::from_millis(50 << attempts.min(6)).min(AGAIN);
            longest.mul_f64(0.5 + rand::random::<f64>() / 2.0)
        })
        .require_tls(address.demands_tls)
        .event_callback(move |event| {
            tracing::info!(%event, "connection to NATS");
            events(&event);
            std::future::ready(())
        });
    if let Some(path) = &address.authority {
        let text = read(path).await?;
        // The client would take a file without any for an authority that nobody has.
        if !text.contains("-----BEGIN CERTIFICATE-----") {
            let expected = "a file with certificates of authorities, PEM";
            return Err(ConnectError::Content { path: path.clone(), expected });
        }
        options = options.add_root_certificates(path.clone());
    }
    if let Some((certificate, key)) = &address.certificate {
        read(certificate).await?;
        read(key).await?;
        options = options.add_client_certificate(certificate.clone(), key.clone());
    }
    options = match login {
        Login::Nobody => options,
        Login::Credentials(path) => {
            let text = read(path).await?;
            let expected = "a file with a JWT and a seed, as `nsc generate creds` writes it";
            let secret = |_| ConnectError::Content { path: path.clone(), expected };
            options.credentials(&text).map_err(secret)?
        }
        Login::Seed(path) => {
            let seed = read(path).await?.trim().to_owned();
            if !seed.starts_with("SU") {
                let expected = "the seed of a user's nkey, which begins with SU";
                return Err(ConnectError::Content { path: path.clone(), expected });
            }
            options.nkey(seed)
        }
        Login::Password(user, path) => {
            let password = read(path).await?.trim_end_matches(['\r', '\n']).to_owned();
            options.user_and_password(user.clone(), password)
        }
    };
    let mut servers = Vec::new();
    for (at, server) in address.servers.iter().enumerate() {
        let parsed: Result<ServerAddr, _> = server.parse();
        servers.push(parsed.map_err(|source| ConnectError::File {
            path: format!("server {} of the address", at + 1).into(),
            source,
        })?);
    }
    match timeout(FIRST, options.connect(servers)).await {
        Ok(Ok(client)) => Ok(client),
        Ok(Err(source)) => Err(ConnectError::Servers {
            address: address.to_string(),
            who: who.name(),
            fix: advice(address, login, who.prefix(), &source),
            source,
        }),
        Err(_) => Err(ConnectError::Late { address: address.to_string() }),
    }
}

async fn read(path: &Path) -> Result<String, ConnectError> {
    use tokio::io::AsyncReadExt;
    let failed = |source| ConnectError::File { path: path.to_owned(), source };
    let file = tokio::fs::File::open(path).await.map_err(failed)?;
    let mut text = String::new();
    file.take(SECRET).read_to_string(&mut text).await.map_err(failed)?;
    Ok(text)
}
