//! How it goes on with drifted agents of an assignment. Key: `repair/<assignment>`, in the bucket of the
//! configuration. And drift, as journals and rows of the index have it.

use guest_fleet_core::drift::{Drift, Lack, OwnersChange, OwnersKind};
use guest_fleet_core::repair::{Repair, Stop};
use guest_fleet_core::time::Seconds;

use super::{Numbered, RecordError};
use crate::numbered;

pub use super::generated::{DriftPart, LeavePart, RepairRecord, StopPart, UnknownPart};

/// The beginning of the keys of repairs.
pub const REPAIR: &str = "repair/";

const WENT_BACK: u32 = 1;
const DIFFERS: u32 = 2;
const BY_OWNER: u32 = 3;

const MANY: u32 = 1;
const LEDGER_WENT_BACK: u32 = 2;
const UNREADABLE: u32 = 3;

numbered! {
    OwnersKind {
        1 => Removed,
        2 => Installed,
        3 => RolledBack,
        4 => Configured,
        5 => Stopped,
    }
}

/// Key of the repair of an assignment.
#[must_use]
pub fn repair_key(assignment: &str) -> String {
    format!("{REPAIR}{assignment}")
}

fn damaged(key: &str, problem: &str) -> RecordError {
    RecordError::Damaged { key: key.to_owned(), problem: problem.to_owned() }
}

// === impl RepairRecord ===

versioned!(RepairRecord: 1);

impl RepairRecord {
    /// The record of a repair.
    #[must_use]
    pub fn of(repair: &Repair) -> Self {
        let leave = repair.leave.iter();
        Self {
            version: 1,
            leave: leave
                .map(|(agent, generation)| LeavePart {
                    agent: agent.clone(),
                    generation: *generation,
                })
                .collect(),
            at: repair.at.0,
            stop: repair.stop.as_ref().map(StopPart::of),
            is_resumed: repair.is_resumed,
            accepted: repair.accepted,
            last: repair.last.clone(),
        }
    }

    /// The repair.
    ///
    /// # Errors
    /// The cause of a stop does not exist.
    pub fn repair(self, key: &str) -> Result<Repair, RecordError> {
        let leave = self.leave.into_iter().map(|it| (it.agent, it.generation));
        Ok(Repair {
            leave: leave.collect(),
            at: Seconds(self.at),
            stop: self.stop.map(|stop| stop.stop(key)).transpose()?,
            is_resumed: self.is_resumed,
            accepted: self.accepted,
            last: self.last,
        })
    }
}

// === impl StopPart ===

impl StopPart {
    fn of(stop: &Stop) -> Self {
        match stop {
            Stop::Many { drifted, of } => {
                Self { cause: MANY, drifted: *drifted, of: *of, ..Self::default() }
            }
            Stop::LedgerWentBack { agent, generation } => Self {
                cause: LEDGER_WENT_BACK,
                agent: agent.clone(),
                generation: *generation,
                ..Self::default()
            },
            Stop::Unreadable => Self { cause: UNREADABLE, ..Self::default() },
        }
    }

    fn stop(self, key: &str) -> Result<Stop, RecordError> {
        match self.cause {
            MANY => Ok(Stop::Many { drifted: self.drifted, of: self.of }),
            LEDGER_WENT_BACK => {
                Ok(Stop::LedgerWentBack { agent: self.agent, generation: self.generation })
            }
            UNREADABLE => Ok(Stop::Unreadable),
            _ => Err(damaged(key, "the cause of a stop does not exist")),
        }
    }
}

// === impl DriftPart ===

impl DriftPart {
    /// The part of a record.
    #[must_use]
    pub fn of(drift: &Drift) -> Self {
        let since = drift.since.0;
        match &drift.lack {
            Lack::WentBack => Self { lack: WENT_BACK, since, ..Self::default() },
            Lack::Differs => Self { lack: DIFFERS, since, ..Self::default() },
            Lack::ByOwner(OwnersChange { kind, by }) => {
                Self { lack: BY_OWNER, since, change: kind.number(), by: by.clone() }
            }
        }
    }

    /// The drift.
    ///
    /// # Errors
    /// A number in it does not exist.
    pub fn drift(&self, key: &str) -> Result<Drift, RecordError> {
        let lack = match self.lack {
            WENT_BACK => Lack::WentBack,
            DIFFERS => Lack::Differs,
            BY_OWNER => {
                let kind = OwnersKind::of_number(self.change);
                let kind = kind.ok_or_else(|| damaged(key, "a person's change does not exist"))?;
                Lack::ByOwner(OwnersChange { kind, by: self.by.clone() })
            }
            _ => return Err(damaged(key, "the cause of drift does not exist")),
        };
        Ok(Drift { lack, since: Seconds(self.since) })
    }
}
