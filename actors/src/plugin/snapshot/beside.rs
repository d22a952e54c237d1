//! What of a plugin's state is kept beside the files of its revision, for an agent that has lost
//! its store.
//!
//! The record has the form of a snapshot, so the way back is [`Snapshot::decode`]. It has less in
//! it: what an agent without a store could not carry on, such as an upgrade half way or the outcome
//! that an order still waits for, is left out, and so is what changes while a plugin only runs.

use super::Snapshot;
use crate::plugin::state::{Change, EXECUTION_SLICES, Next, Owed, Phase, State, Then};
use crate::plugin::transition_log::TransitionLog;

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
    /// What follows from this state.
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Self {
        let state = &snapshot.state;
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
                return Self::KeepFirst(record(snapshot, phase));
            }
            Phase::Stopping { then: Then::Remove, .. } | Phase::Removing { .. } | Phase::Gone => {
                return Self::Delete;
            }
            Phase::Installing { .. }
            | Phase::InstallFailed { .. }
            | Phase::Pausing { .. }
            | Phase::BackingOff { .. }
            | Phase::Stopping { .. }
            | Phase::Stopped { .. } => return Self::Unchanged,
        };
        Self::Keep(record(snapshot, phase))
    }
}

fn record(snapshot: &Snapshot, phase: Phase) -> Vec<u8> {
    let state = State {
        phase,
        next: Next::Nothing,
        trial: None,
        owed: Owed::default(),
        apply_of: None,
        removal_trouble: None,
        ..snapshot.state.clone()
    };
    Snapshot {
        state,
        last_exit_at: snapshot.last_exit_at,
        started_at: snapshot.started_at,
        story: TransitionLog::default(),
    }
    .encode()
}
