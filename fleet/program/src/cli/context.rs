//! What a verb works with: the ledger, where to print, who asks and when.

use std::fmt::Arguments;
use std::io::{Read, Write};

use guest_fleet_core::time::{Seconds, Zones};
use guest_fleet_ledger::Ledger;
use guest_fleet_server::configuration::change::Decision;
use jiff::Timestamp;
use serde::Serialize;

use super::failure::Failure;

/// How a verb prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// Text for people.
    #[default]
    Text,
    /// JSON documents.
    Json,
}

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The user and the machine, such as `alice@ops-1`.
    pub who: String,
    /// The program and where it runs.
    pub from: String,
}

/// What a verb works with.
pub struct Context<'a> {
    /// The ledger.
    pub ledger: &'a dyn Ledger,
    /// Where answers go.
    pub out: &'a mut dyn Write,
    /// Where remarks go.
    pub remarks: &'a mut dyn Write,
    /// What `-f -` reads.
    pub input: &'a mut dyn Read,
    /// How answers are printed.
    pub output: Output,
    /// Who asks.
    pub caller: Caller,
    /// When.
    pub now: Timestamp,
    /// What is known of time zones.
    pub zones: &'a dyn Zones,
}

// === impl Caller ===

impl Caller {
    /// The user that runs this process, on this machine. `sudo` is the user that became another one
    /// for it, as `SUDO_USER` says.
    #[must_use]
    pub fn of_process(sudo: Option<&str>) -> Self {
        let uid = nix::unistd::getuid();
        let user = nix::unistd::User::from_uid(uid).ok().flatten();
        let user = user.map_or_else(|| format!("uid-{uid}"), |user| user.name);
        let host = nix::unistd::gethostname().ok();
        let host = host.and_then(|host| host.into_string().ok()).unwrap_or_default();
        let name = sudo.filter(|name| !name.is_empty() && uid.is_root()).unwrap_or(&user);
        Self {
            who: format!("{name}@{host}"),
            from: format!("guest-fleet {} on {host}, uid {uid}", env!("CARGO_PKG_VERSION")),
        }
    }
}

// === impl Context ===

impl Context<'_> {
    /// Prints a line, unless documents are printed.
    pub(crate) fn say(&mut self, line: Arguments<'_>) -> Result<(), Failure> {
        if self.output == Output::Text {
            writeln!(self.out, "{line}")?;
        }
        Ok(())
    }

    /// Prints a line beside the answer.
    pub(crate) fn remark(&mut self, line: Arguments<'_>) -> Result<(), Failure> {
        Ok(writeln!(self.remarks, "{line}")?)
    }

    /// Prints a document, if documents are printed.
    pub(crate) fn document(&mut self, document: &impl Serialize) -> Result<(), Failure> {
        if self.output == Output::Json {
            let text = serde_json::to_string_pretty(document).expect("plain values");
            writeln!(self.out, "{text}")?;
        }
        Ok(())
    }

    /// Prints one of several documents, on a line of its own.
    pub(crate) fn line(&mut self, document: &impl Serialize) -> Result<(), Failure> {
        if self.output == Output::Json {
            let text = serde_json::to_string(document).expect("plain values");
            writeln!(self.out, "{text}")?;
        }
        Ok(())
    }

    /// What is decided by the caller now.
    pub(crate) fn decision(&self, what: &str, why: &str) -> Decision {
        Decision {
            who: self.caller.who.clone(),
            from: self.caller.from.clone(),
            what: what.to_owned(),
            why: why.to_owned(),
            at: self.now,
        }
    }

    /// The time in seconds.
    pub(crate) fn seconds(&self) -> Seconds {
        Seconds(u64::try_from(self.now.as_second()).unwrap_or(0))
    }
}
