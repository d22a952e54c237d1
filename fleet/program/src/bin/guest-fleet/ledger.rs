//! Opens the ledger that `--ledger` names, whichever engine has it.

use std::convert::Infallible;
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use guest_fleet::cli::context::Caller;
use guest_fleet::cli::failure::{Exit, Failure};
use guest_fleet_ledger::{
    AddressError, Existing, JetstreamLedger, NatsAddress, SharedLedger, SqliteLedger, restore,
};
use guest_fleet_server::configuration::change::Decision;
use guest_fleet_server::rollouts::restored;
use tokio_util::sync::CancellationToken;

/// Where a ledger is.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A file of this machine.
    File(PathBuf),
    /// Servers of NATS.
    Nats(Box<NatsAddress>),
    /// An address that is wrong. The error comes when it is used: a parser of command lines would
    /// print the whole address, and what is wrong may be a secret in it.
    Wrong(AddressError),
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
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        if !NatsAddress::is_meant_by(text) {
            return Ok(Self::File(text.into()));
        }
        Ok(match text.parse() {
            Ok(address) => Self::Nats(Box::new(address)),
            Err(error) => Self::Wrong(error),
        })
    }
}

impl Place {
    /// Opens the ledger, and makes it where it is missing.
    pub(crate) async fn open(&self) -> Result<Opened, Failure> {
        match self {
            Self::File(path) => SqliteLedger::open(path)
                .map(Opened::File)
                .map_err(|error| Failure::of(Exit::Unreachable, &error)),
            Self::Nats(address) => JetstreamLedger::open(address)
                .await
                .map(Opened::Nats)
                .map_err(|error| Failure::of(Exit::Unreachable, &error)),
            Self::Wrong(error) => Err(Failure::of(Exit::Usage, error)),
        }
    }

    /// Puts a backup in the place of the ledger.
    ///
    /// Rollouts are halted, and the audit record says so.
    pub(crate) async fn restore(&self, from: PathBuf, replace: bool) -> Result<(), Failure> {
        self.bring(from.clone(), replace).await?;
        let restored = self.open().await?;
        let caller = Caller::of_process(std::env::var("SUDO_USER").ok().as_deref());
        let decision = Decision {
            who: caller.who,
            from: caller.from,
            what: "restore".to_owned(),
            why: String::new(),
            at: jiff::Timestamp::now(),
        };
        let from = std::path::absolute(&from).unwrap_or(from);
        let halted = restored::record(&*restored.shared(), &decision, &from).await;
        restored.close().await;
        let halted = halted.map_err(|error| {
            Failure::of(Exit::Failed, &error)
                .hint("the ledger is restored; only its audit record does not say so")
        })?;
        if !halted.is_empty() {
            let mut remarks = std::io::stderr().lock();
            let names = halted.join(", ");
            writeln!(
                remarks,
                "these rollouts are halted until a person resumes them with a reason, rolls them back or aborts them: {names}"
            )?;
        }
        Ok(())
    }

    async fn bring(&self, from: PathBuf, replace: bool) -> Result<(), Failure> {
        match self {
            Self::File(path) => {
                let to = path.clone();
                let existing = if replace { Existing::Replace } else { Existing::Refuse };
                let restoring = tokio::task::spawn_blocking(move || {
                    restore(&from, &to, existing, restored::amend)
                });
                let restored =
                    restoring.await.map_err(|error| Failure::of(Exit::Failed, &error))?;
                restored.map_err(|error| Failure::of(Exit::Failed, &error))
            }
            Self::Nats(address) => {
                let restored = JetstreamLedger::restore(address, &from, restored::amend).await;
                restored.map_err(|error| Failure::of(Exit::Failed, &error))
            }
            Self::Wrong(error) => Err(Failure::of(Exit::Usage, error)),
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

    /// The name of its engine, as metrics have it.
    pub(crate) fn engine(&self) -> &'static str {
        match self {
            Self::File(_) => "sqlite",
            Self::Nats(_) => "jetstream",
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
        match self.failed_token() {
            Some(failed) => failed.cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// What says that the ledger failed, where an engine can.
    pub(crate) fn failed_token(&self) -> Option<CancellationToken> {
        match self {
            Self::File(ledger) => Some(ledger.failed()),
            Self::Nats(_) => None,
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
