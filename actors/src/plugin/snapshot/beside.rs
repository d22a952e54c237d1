//! What of a plugin's state is kept beside the files of its revision, for an agent that has lost
//! its store.
//!
//! The record has the form of a snapshot, so the way back is [`Snapshot::decode`]. It has less in
//! it: what an agent without a store could not carry on, such as an upgrade half way or the outcome
//! that an order still waits for, is left out, and so is what changes while a plugin only runs.

use std::time::SystemTime;

use super::Snapshot;
use crate::plugin::state::{Change, EXECUTION_SLICES, Next, Owed, Phase, State, Then};

/// What is to become of the record beside a plugin's current revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beside {
    /// It has these bytes from now on.
    Keep(Vec<u8>),
    /// It has these bytes if the revision has no record yet.
    KeepFirst(Vec<u8>),
    /// It stays as it is.
    Unchanged,
    /// It is deleted: the plugin is being removed, and must not come back.
    Delete,
}

impl Beside {
    /// What follows from this state, and from when its process was started and its last one ended.
    #[must_use]
    pub fn of(state: &State, times: (Option<SystemTime>, Option<SystemTime>)) -> Self {
        if state.spec.is_local() {
            // It comes back from its own folder.
            return Self::Unchanged;
        }
        let phase = match &state.phase {
            Phase::Running { process, endpoint, change: _ } => Phase::Running {
                process: process.clone(),
                endpoint: endpoint.clone(),
                change: Change::None,
            },
            Phase::Executing { process, slices_left: _ } => {
                Phase::Executing { process: process.clone(), slices_left: EXECUTION_SLICES }
            }
            Phase::Idle | Phase::Disabled { .. } | Phase::Crashed { .. } => state.phase.clone(),
            Phase::Starting { attempt, .. } => {
                let phase = Phase::Starting { attempt: *attempt, tries: 1, process: None };
                return Self::KeepFirst(record(state, phase, times));
            }
            Phase::Stopping { then: Then::Remove, .. } | Phase::Removing { .. } | Phase::Gone => {
                return Self::Delete;
            }
            Phase::Installing { .. }
            | Phase::Held
            | Phase::InstallFailed { .. }
            | Phase::Pausing { .. }
            | Phase::BackingOff { .. }
            | Phase::Stopping { .. }
            | Phase::Stopped { .. } => return Self::Unchanged,
        };
        Self::Keep(record(state, phase, times))
    }
}

fn record(
    state: &State,
    phase: Phase,
    (started_at, last_exit_at): (Option<SystemTime>, Option<SystemTime>),
) -> Vec<u8> {
    let state = State {
        phase,
        next: Next::Nothing,
        trial: None,
        owed: Owed::default(),
        apply_of: None,
        removal_trouble: None,
        former: None,
        ..state.clone()
    };
    Snapshot { started_at, last_exit_at, ..Snapshot::of(state) }.encode()
}
