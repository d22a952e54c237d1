//! The last report of an agent. Key: the agent's id, in the bucket of reports. The gateway writes it
//! when it differs from the one before.

use guest_fleet_core::health::{Cause, Fault, Level};
use guest_fleet_core::time::Seconds;

use super::Numbered;
use crate::numbered;

pub use super::generated::{
    DismissedPart, FaultPart, OwnersLimitsPart, ReportRecord, ReportedHold, ReportedPlugin,
};

// === impl ReportRecord ===

versioned!(ReportRecord: 1);

numbered! {
    Level {
        1 => Degraded,
        2 => Failing,
    }
}

// The numbers of reports.
numbered! {
    Cause {
        1 => CrashLoop,
        2 => Crashed,
        3 => OutOfMemory,
        4 => Unhealthy,
        5 => Down,
        6 => StartFailed,
        7 => RunFailed,
        8 => InstallFailed,
        9 => RemoveFails,
        10 => NotEnforced,
        1000 => Other,
    }
}

// === impl FaultPart ===

impl FaultPart {
    /// The part of a record.
    #[must_use]
    pub fn of(fault: &Fault) -> Self {
        Self {
            level: fault.level.number(),
            cause: fault.cause.number(),
            reason: fault.reason.clone(),
            since: fault.since.map(|at| at.0),
            worded: 0,
        }
    }

    /// The fault; `None` where its level does not exist. A cause that does not exist is another one, of a newer
    /// program.
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        Some(Fault {
            level: Level::of_number(self.level)?,
            cause: Cause::of_number(self.cause).unwrap_or(Cause::Other),
            reason: self.reason.clone(),
            since: self.since.map(Seconds),
        })
    }
}
