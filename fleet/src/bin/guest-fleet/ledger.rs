//! Opens the ledger that `--ledger` names, whichever engine has it.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use guest_fleet::cli::failure::{Exit, Failure};
use guest_fleet::ledger::{
    AddressError, Existing, JetstreamLedger, NatsAddress, SharedLedger, SqliteLedger, restore,
};

/// Where a ledger is.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A file of this machine.
    File(PathBuf),
    /// Servers of NATS.
    Nats(Box<NatsAddress>),
}

/// A ledger that is open.
#[derive(Clone)]
pub(crate) enum Opened {
    /// A file of this machine.
    File(Arc<SqliteLedger>),
    /// Servers of NATS.
    Nats(Arc<JetstreamLedger>),
}

// === impl Place ===

impl FromStr for Place {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if NatsAddress::is_meant_by(text) {
            return Ok(Self::Nats(Box::new(text.parse()?)));
        }
        Ok(Self::File(text.into()))
    }
}

impl Place {
    /// Opens the ledger, and makes it where there is none.
    pub(crate) async fn open(&self) -> Result<Opened, Failure> {
        match self {
            Self::File(path) => SqliteLedger::open(path)
                .map(Opened::File)
                .map_err(|error| Failure::of(Exit::Unreachable, &error)),
            Self::Nats(address) => JetstreamLedger::open(address)
                .await
                .map(Opened::Nats)
                .map_err(|error| Failure::of(Exit::Unreachable, &error)),
        }
    }

    /// Puts a backup in the place of the ledger.
    pub(crate) async fn restore(&self, from: PathBuf, replace: bool) -> Result<(), Failure> {
        match self {
            Self::File(path) => {
                let to = path.clone();
                let existing = if replace { Existing::Replace } else { Existing::Refuse };
                let restoring = tokio::task::spawn_blocking(move || restore(&from, &to, existing));
                let restored =
                    restoring.await.map_err(|error| Failure::of(Exit::Failed, &error))?;
                restored.map_err(|error| Failure::of(Exit::Failed, &error))
            }
            Self::Nats(address) => {
                let restored = JetstreamLedger::restore(address, &from).await;
                restored.map_err(|error| Failure::of(Exit::Failed, &error))
            }
        }
    }
}

// === impl Opened ===

impl Opened {
    pub(crate) fn shared(&self) -> SharedLedger {
        match self {
            Self::File(ledger) => Arc::clone(ledger) as SharedLedger,
            Self::Nats(ledger) => Arc::clone(ledger) as SharedLedger,
        }
    }

    /// Copies the ledger into a file, which is a ledger of this machine.
    pub(crate) async fn backup(&self, to: &std::path::Path) -> Result<(), Failure> {
        match self {
            Self::File(ledger) => {
                ledger.backup(to).await.map_err(|error| Failure::of(Exit::Failed, &error))
            }
            Self::Nats(ledger) => {
                ledger.backup(to).await.map_err(|error| Failure::of(Exit::Failed, &error))
            }
        }
    }

    /// Returns when the ledger failed so that the process has to end. On NATS the servers have what
    /// was written, and a process has nothing that could differ from it.
    pub(crate) async fn failed(&self) {
        match self {
            Self::File(ledger) => ledger.failed().cancelled().await,
            Self::Nats(_) => std::future::pending().await,
        }
    }

    /// Finishes what is under way, and lets go.
    pub(crate) async fn close(&self) {
        match self {
            Self::File(ledger) => ledger.close().await,
            Self::Nats(ledger) => ledger.close().await,
        }
    }
}

impl std::fmt::Display for Opened {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(ledger) => write!(formatter, "{}", ledger.path().display()),
            Self::Nats(ledger) => formatter.write_str(ledger.address()),
        }
    }
}
