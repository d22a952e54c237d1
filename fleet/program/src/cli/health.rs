//! Faults of plugins, in words and in documents.

use guest_fleet_core::health::{Cause, Fault, Level};
use guest_fleet_core::time::Seconds;
use guest_fleet_server::configuration::words;
use schemars::JsonSchema;
use serde::Serialize;

use super::document::Time;
use super::text::ago;

/// The fault of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FaultJson {
    /// Its kind.
    pub cause: FaultCause,
    /// The same for faults of one cause on all machines.
    pub fingerprint: String,
    /// How much the plugin suffers.
    pub level: FaultLevel,
    /// Why, as the agent told it; empty where it did not.
    pub reason: String,
    /// Since when; null where that is not known.
    #[schemars(with = "Option<Time>")]
    pub since: Option<String>,
    /// The fault itself.
    #[serde(skip)]
    pub(super) of: Fault,
}

/// How much a plugin suffers from a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FaultLevel {
    /// It does its work, and something about it is wrong.
    Degraded,
    /// It does not do its work.
    Failing,
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FaultCause {
    /// It crashes again and again.
    CrashLoop,
    /// It crashed, and runs again.
    Crashed,
    /// It was killed for the memory that it used.
    OutOfMemory,
    /// It runs, and says that it is not well.
    Unhealthy,
    /// It ended, and waits for its next start.
    Down,
    /// It could not be started.
    StartFailed,
    /// The last run of a plugin that runs once failed.
    RunFailed,
    /// It could not be installed.
    InstallFailed,
    /// It cannot be removed.
    RemoveFails,
    /// Limits or restrictions of it are not enforced.
    NotEnforced,
    /// Something that a newer agent knows.
    Other,
}

/// `crash loop for 10 minutes: exit code 3`.
pub(super) fn sentence(fault: &Fault, now: Seconds) -> String {
    let cause = fault.cause.text();
    let lasts = fault.since.map(|since| format!(" for {}", ago(now.since(since))));
    let lasts = lasts.unwrap_or_default();
    match fault.reason.as_str() {
        "" => format!("{cause}{lasts}"),
        reason => format!("{cause}{lasts}: {reason}"),
    }
}

// === impl FaultLevel ===

impl FaultLevel {
    /// The word for people.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Degraded => "degraded",
            Self::Failing => "failing",
        }
    }
}

// === impl FaultJson ===

impl From<&Fault> for FaultJson {
    fn from(fault: &Fault) -> Self {
        Self {
            cause: match fault.cause {
                Cause::CrashLoop => FaultCause::CrashLoop,
                Cause::Crashed => FaultCause::Crashed,
                Cause::OutOfMemory => FaultCause::OutOfMemory,
                Cause::Unhealthy => FaultCause::Unhealthy,
                Cause::Down => FaultCause::Down,
                Cause::StartFailed => FaultCause::StartFailed,
                Cause::RunFailed => FaultCause::RunFailed,
                Cause::InstallFailed => FaultCause::InstallFailed,
                Cause::RemoveFails => FaultCause::RemoveFails,
                Cause::NotEnforced => FaultCause::NotEnforced,
                Cause::Other => FaultCause::Other,
            },
            fingerprint: fault.fingerprint(),
            level: match fault.level {
                Level::Degraded => FaultLevel::Degraded,
                Level::Failing => FaultLevel::Failing,
            },
            reason: fault.reason.clone(),
            since: fault.since.map(words::time),
            of: fault.clone(),
        }
    }
}
