//! The durable form of a plugin's state, and the way back.
//!
//! Effects in flight are not stored: a record remembers *that* one was in flight, and [`recover`]
//! begins it again under a new number. Only this file knows the record types.

use std::iter;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_agent_proto::record as rec;
use prost::Message;

use self::error::VERSION;
use crate::model::act::{BY_MAX, HeldOrder, Left, Person};
use crate::model::exit::ExitCause;
use crate::model::id::{Attempt, BootId, Endpoint, Generation, PluginName, Process, RevisionId};
use crate::model::runs::Due;
use crate::model::spec::PluginSpec;
use crate::plugin::event::{Event, Found, Transition};
use crate::plugin::machine::transition;
use crate::plugin::restart::Restarts;
use crate::plugin::state::{
    Change, EXECUTION_SLICES, FailedAt, Newer, Next, Owed, PROBATION_SLICES, Pause, Phase, Resume,
    Shutdown, Standing, State, Target, Then, Trial,
};
use crate::plugin::transition_log::TransitionLog;
use crate::text::shortened;

mod beside;
mod error;
mod health;
mod held;
mod runs;
mod spec;

pub use beside::Beside;
pub use error::SnapshotError;

use health::{health_of, health_record};
use held::{check_hold, held_order_of, held_order_record};
pub(crate) use held::{hold_of, hold_record, limit_override_of, limit_override_record};
use runs::{
    moves_record, operation_of, operation_record, runs_of, runs_record, story_of, trouble_record,
    unenforced_of, unenforced_record,
};
use spec::{config_of, config_record, spec_of, spec_record};

/// A state with the times that commands show to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The state.
    pub state: State,
    /// When the last process ended.
    pub last_exit_at: Option<SystemTime>,
    /// When the running process was started.
    pub started_at: Option<SystemTime>,
    /// What is remembered for people.
    pub story: TransitionLog,
}

/// Continues from a snapshot after a restart of the agent: calls [`transition`] with
/// [`Event::Recovered`], which means that everything in flight is lost and names the process that
/// was found running.
pub fn recover(snapshot: &Snapshot, found: Found) -> Transition {
    transition(&snapshot.state, Event::Recovered(found))
}

// === impl Snapshot ===

impl Snapshot {
    /// A state of which nothing is remembered for people.
    #[must_use]
    pub fn of(state: State) -> Self {
        Self { state, last_exit_at: None, started_at: None, story: TransitionLog::default() }
    }

    /// The record's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let state = &self.state;
        rec::PluginRecord {
            version: VERSION,
            name: state.name.to_string(),
            generation: state.generation.0,
            spec: Some(spec_record(&state.spec)),
            phase: Some(rec::Phase { phase: Some(phase_record(&state.phase, state.shutdown)) }),
            next: next_record(&state.next).map(|next| rec::Next { next: Some(next) }),
            trial: state.trial.as_ref().map(|trial| rec::Trial {
                last_good: Some(spec_record(&trial.last_good)),
                slices_left: trial.slices_left,
                taken_back: trial.taken_back.as_deref().map(str::to_owned),
            }),
            proven: state.standing == Standing::Proven,
            owes_install: state.owed.install == Due::Yes,
            owes_apply: state.owed.apply == Due::Yes,
            apply_of: state.apply_of.as_ref().map(ToString::to_string).unwrap_or_default(),
            attempt: state.attempt.0,
            restarts_total: state.restarts.total,
            restarts_in_a_row: state.restarts.in_a_row,
            last_exit: state.last_exit.map(exit_record),
            last_exit_at: self.last_exit_at.map(Into::into),
            started_at: self.started_at.map(Into::into),
            runs: runs_record(&state.runs),
            last_output: self.story.last_output.to_string(),
            moves: moves_record(&self.story),
            trouble: trouble_record(&self.story),
            local: state.local.as_deref().map(spec_record),
            unenforced: unenforced_record(&self.story),
            errand: self.story.operation.as_ref().map(operation_record),
            removal_trouble: state.removal_trouble.as_deref().map(str::to_owned),
            crashes: self.story.crashes.iter().map(|crash| crash.at.into()).collect(),
            crash_runs: self
                .story
                .crashes
                .iter()
                .map(|crash| crash.ran.try_into().unwrap_or_default())
                .collect(),
            changed_at: self.story.changed_at.map(Into::into),
            failed_at: self.story.failed_at.map(Into::into),
            crash_reason: self.story.crash_reason.to_string(),
            crash_line: self.story.last_line.to_string(),
            health: health_record(&self.story.health),
            former: state.former.as_deref().map(spec_record),
            stopped_by: state.person.stopped.as_deref().map(str::to_owned),
            left: state.person.left.as_ref().map(|left| rec::Left {
                revision: left.revision.to_string(),
                by: left.by.to_string(),
            }),
            hold: state.person.hold.as_ref().map(hold_record),
            held_order: state.person.held_order.as_ref().map(held_order_record),
            limit_override: state.person.limits.as_ref().map(limit_override_record),
            limits_due: state.limiting.is_some(),
        }
        .encode_to_vec()
    }

    /// Reads a record's bytes.
    ///
    /// # Errors
    /// Says what is wrong with the record. It is not trusted: it may be damaged, or be written by
    /// another user.
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let record = rec::PluginRecord::decode(bytes).map_err(SnapshotError::Decode)?;
        if record.version != VERSION {
            return Err(SnapshotError::Version(record.version));
        }
        let name: PluginName = record.name.parse().map_err(SnapshotError::Id)?;
        let attempt = Attempt(record.attempt);
        let trial = record.trial.map(|trial| {
            let last_good = spec_of(trial.last_good)?;
            Ok(Trial {
                last_good,
                slices_left: trial.slices_left.clamp(1, PROBATION_SLICES),
                taken_back: trial.taken_back.map(Into::into),
            })
        });
        let phase = record.phase.and_then(|phase| phase.phase);
        let shutdown = shutdown_of(phase.as_ref());
        let state = State {
            name,
            generation: Generation(record.generation),
            spec: spec_of(record.spec)?,
            phase: phase_of(phase, attempt)?,
            next: next_of(record.next.and_then(|next| next.next), attempt)?,
            trial: trial.transpose()?,
            standing: if record.proven { Standing::Proven } else { Standing::Unproven },
            owed: Owed { install: due(record.owes_install), apply: due(record.owes_apply) },
            apply_of: revision_of(&record.apply_of)?,
            attempt,
            restarts: Restarts { total: record.restarts_total, in_a_row: record.restarts_in_a_row },
            last_exit: record.last_exit.map(exit_of),
            runs: runs_of(record.runs),
            local: record.local.map(local_of).transpose()?,
            shutdown,
            former: record.former.map(|spec| spec_of(Some(spec))).transpose()?,
            person: Person {
                stopped: record.stopped_by.map(|by| shortened(&by, BY_MAX).into()),
                left: record.left.map(left_of).transpose()?,
                limits: record.limit_override.map(limit_override_of),
                hold: record.hold.map(hold_of),
                held_order: record.held_order.map(held_order_of).transpose()?,
            },
            limiting: record.limits_due.then_some(attempt),
            removal_trouble: record.removal_trouble.map(Into::into),
        };
        check_names(&state)?;
        check_hold(&state)?;
        let mut story = story_of(record.moves, &record.last_output, record.trouble);
        let runs = record.crash_runs.into_iter().map(|ran| ran.try_into().unwrap_or_default());
        let crashes = record.crashes.into_iter().zip(runs.chain(iter::repeat(Duration::ZERO)));
        for (at, ran) in crashes {
            if let Ok(at) = at.try_into() {
                story.crashed(at, ran, &record.crash_reason);
            }
        }
        story.wrote_last(&record.crash_line);
        let time = |at: Option<prost_types::Timestamp>| at.and_then(|at| at.try_into().ok());
        Ok(Self {
            state,
            last_exit_at: record.last_exit_at.and_then(|at| at.try_into().ok()),
            started_at: record.started_at.and_then(|at| at.try_into().ok()),
            story: TransitionLog {
                unenforced: unenforced_of(record.unenforced),
                operation: record.errand.and_then(operation_of),
                changed_at: time(record.changed_at),
                failed_at: time(record.failed_at),
                health: record.health.map(health_of).unwrap_or_default(),
                ..story
            },
        })
    }
}

fn left_of(record: rec::Left) -> Result<Left, SnapshotError> {
    let revision = record.revision.parse().map_err(SnapshotError::Id)?;
    Ok(Left { revision, by: shortened(&record.by, BY_MAX).into() })
}

/// A damaged record must not make one plugin act under the name of another.
fn check_names(state: &State) -> Result<(), SnapshotError> {
    let next = match &state.next {
        Next::Preparing { spec, .. } | Next::Ready { spec } | Next::AfterRemoval { spec } => {
            Some(spec)
        }
        Next::Nothing | Next::Failed { .. } => None,
    };
    let trial = state.trial.as_ref().map(|trial| &trial.last_good);
    let held = match &state.person.held_order {
        Some(HeldOrder::Install(spec)) => Some(spec),
        Some(HeldOrder::Remove { .. } | HeldOrder::Apply { .. }) | None => None,
    };
    let (local, former) = (state.local.as_ref(), state.former.as_ref());
    let foreign = [Some(&state.spec), next, trial, local, former, held]
        .into_iter()
        .flatten()
        .find(|spec| spec.name != state.name);
    match foreign {
        Some(spec) => Err(SnapshotError::OtherPlugin(state.name.clone(), spec.name.clone())),
        None => Ok(()),
    }
}

// === Phases ===

fn phase_record(phase: &Phase, shutdown: Shutdown) -> rec::phase::Phase {
    use rec::phase as p;
    let rest = |reason: &Arc<str>| p::Rest { reason: reason.to_string(), after_shutdown: false };
    match phase {
        Phase::Installing { .. } => p::Phase::Installing(p::Installing {}),
        Phase::InstallFailed { reason } => p::Phase::InstallFailed(rest(reason)),
        Phase::Starting { tries, process, .. } => p::Phase::Starting(p::Starting {
            tries: *tries,
            process: process.as_ref().map(process_record),
        }),
        Phase::Pausing { tries, reason } => {
            p::Phase::Pausing(p::Pausing { tries: *tries, reason: reason.to_string() })
        }
        Phase::Running { process, endpoint, change } => p::Phase::Running(p::Running {
            process: Some(process_record(process)),
            endpoint: endpoint.to_string(),
            applying: match change {
                Change::None | Change::Limiting { .. } => None,
                Change::Applying { config, answers, newer, .. } => Some(p::Applying {
                    config: config.as_ref().map(config_record),
                    answers_install: answers.install == Due::Yes,
                    answers_apply: Some(answers.apply == Due::Yes),
                    newer: newer.as_ref().map(|Newer { config, limits }| p::Newer {
                        config: config.as_ref().map(config_record),
                        limits: *limits == Due::Yes,
                    }),
                }),
            },
            limiting: match change {
                Change::None | Change::Applying { .. } => None,
                Change::Limiting { config, .. } => {
                    Some(p::Limiting { config: config.as_ref().map(config_record) })
                }
            },
            took_shutdown: shutdown == Shutdown::Taken,
        }),
        Phase::BackingOff { reason, pause } => p::Phase::BackingOff(p::Rest {
            reason: reason.to_string(),
            after_shutdown: *pause == Pause::AfterShutdown,
        }),
        Phase::Stopping { target, then, .. } => p::Phase::Stopping(p::Stopping {
            process: target.process.as_ref().map(process_record),
            endpoint: target.endpoint.as_ref().map(ToString::to_string).unwrap_or_default(),
            then: Some(then_record(then)),
        }),
        Phase::Stopped { then } => p::Phase::Stopped(then_record(&match then {
            Resume::Start => Then::Start,
            Resume::Swap => Then::Swap,
        })),
        Phase::Crashed { reason } => p::Phase::Crashed(rest(reason)),
        Phase::Removing { failures, .. } => p::Phase::Removing(p::Removing { failures: *failures }),
        Phase::Gone => p::Phase::Gone(p::Gone {}),
        Phase::Executing { process, slices_left } => p::Phase::Executing(p::Executing {
            process: Some(process_record(process)),
            slices_left: *slices_left,
        }),
        Phase::Idle => p::Phase::Idle(p::Idle {}),
        Phase::Disabled { reason } => p::Phase::Disabled(rest(reason)),
        Phase::Held => p::Phase::Held(p::Held {}),
    }
}

fn phase_of(record: Option<rec::phase::Phase>, attempt: Attempt) -> Result<Phase, SnapshotError> {
    use rec::phase::Phase as P;
    Ok(match record.ok_or(SnapshotError::Missing("phase"))? {
        P::Installing(_) => Phase::Installing { attempt },
        P::InstallFailed(rest) => Phase::InstallFailed { reason: rest.reason.into() },
        P::Starting(starting) => Phase::Starting {
            attempt,
            tries: starting.tries.max(1),
            process: starting.process.map(process_of),
        },
        P::Pausing(pausing) => {
            Phase::Pausing { tries: pausing.tries.max(1), reason: pausing.reason.into() }
        }
        P::Running(running) => Phase::Running {
            process: process_of(running.process.ok_or(SnapshotError::Missing("process"))?),
            endpoint: Endpoint::from_stored(&running.endpoint),
            change: match (running.applying, running.limiting) {
                (None, None) => Change::None,
                (None, Some(limiting)) => {
                    Change::Limiting { attempt, config: limiting.config.and_then(config_of) }
                }
                (Some(applying), _) => Change::Applying {
                    attempt,
                    config: applying.config.and_then(config_of),
                    answers: Owed {
                        install: due(applying.answers_install),
                        apply: due(applying.answers_apply.unwrap_or(!applying.answers_install)),
                    },
                    newer: applying.newer.map(|newer| Newer {
                        config: newer.config.and_then(config_of),
                        limits: due(newer.limits),
                    }),
                },
            },
        },
        P::BackingOff(rest) => Phase::BackingOff {
            reason: rest.reason.into(),
            pause: if rest.after_shutdown { Pause::AfterShutdown } else { Pause::AfterCrash },
        },
        P::Stopping(stopping) => Phase::Stopping {
            attempt,
            target: Target {
                process: stopping.process.map(process_of),
                endpoint: (!stopping.endpoint.is_empty())
                    .then(|| Endpoint::from_stored(&stopping.endpoint)),
            },
            then: then_of(stopping.then)?,
        },
        P::Stopped(then) => Phase::Stopped {
            then: match then_of(Some(then))? {
                Then::Swap => Resume::Swap,
                Then::Start
                | Then::Return { .. }
                | Then::BackOff { .. }
                | Then::Rest { .. }
                | Then::Fail { .. }
                | Then::Disable { .. }
                | Then::Remove => Resume::Start,
            },
        },
        P::Crashed(rest) => Phase::Crashed { reason: rest.reason.into() },
        P::Removing(removing) => Phase::Removing { attempt, failures: removing.failures },
        P::Gone(_) => Phase::Gone,
        P::Executing(executing) => Phase::Executing {
            process: process_of(executing.process.ok_or(SnapshotError::Missing("process"))?),
            slices_left: executing.slices_left.clamp(1, EXECUTION_SLICES),
        },
        P::Idle(_) => Phase::Idle,
        P::Disabled(rest) => Phase::Disabled { reason: rest.reason.into() },
        P::Held(_) => Phase::Held,
    })
}

/// Part of the phase on disk, because it belongs to the process that runs.
fn shutdown_of(record: Option<&rec::phase::Phase>) -> Shutdown {
    match record {
        Some(rec::phase::Phase::Running(running)) if running.took_shutdown => Shutdown::Taken,
        _other => Shutdown::NotTaken,
    }
}

fn then_record(then: &Then) -> rec::Then {
    use rec::then::Kind;
    let (kind, reason) = match then {
        Then::Start => (Kind::Start, None),
        Then::Swap => (Kind::Swap, None),
        Then::Return { reason } => (Kind::Return, Some(reason)),
        Then::BackOff { reason } => (Kind::BackOff, Some(reason)),
        Then::Rest { reason } => (Kind::Rest, Some(reason)),
        Then::Remove => (Kind::Remove, None),
        Then::Fail { reason } => (Kind::Fail, Some(reason)),
        Then::Disable { reason } => (Kind::Disable, Some(reason)),
    };
    rec::Then { kind: kind.into(), reason: reason.map(ToString::to_string).unwrap_or_default() }
}

fn then_of(record: Option<rec::Then>) -> Result<Then, SnapshotError> {
    use rec::then::Kind;
    let record = record.ok_or(SnapshotError::Missing("what follows the stop"))?;
    let reason: Arc<str> = record.reason.into();
    match Kind::try_from(record.kind) {
        Ok(Kind::Start) => Ok(Then::Start),
        Ok(Kind::Swap) => Ok(Then::Swap),
        Ok(Kind::Return) => Ok(Then::Return { reason }),
        Ok(Kind::BackOff) => Ok(Then::BackOff { reason }),
        Ok(Kind::Rest) => Ok(Then::Rest { reason }),
        Ok(Kind::Remove) => Ok(Then::Remove),
        Ok(Kind::Fail) => Ok(Then::Fail { reason }),
        Ok(Kind::Disable) => Ok(Then::Disable { reason }),
        Ok(Kind::Unspecified) | Err(_) => Err(SnapshotError::Range("kind of what follows")),
    }
}

fn next_record(next: &Next) -> Option<rec::next::Next> {
    use rec::next as n;
    match next {
        Next::Nothing => None,
        Next::Preparing { spec, .. } => Some(n::Next::Preparing(spec_record(spec))),
        Next::Ready { spec } => Some(n::Next::Ready(spec_record(spec))),
        Next::AfterRemoval { spec } => Some(n::Next::AfterRemoval(spec_record(spec))),
        Next::Failed { revision, at, reason, dismissed } => Some(n::Next::Failed(n::Failed {
            revision: revision.to_string(),
            at_run: *at == FailedAt::Run,
            reason: reason.to_string(),
            dismissed_by: dismissed.as_deref().map(str::to_owned),
        })),
    }
}

fn next_of(record: Option<rec::next::Next>, attempt: Attempt) -> Result<Next, SnapshotError> {
    use rec::next::Next as N;
    Ok(match record {
        None => Next::Nothing,
        Some(N::Preparing(spec)) => Next::Preparing { spec: spec_of(Some(spec))?, attempt },
        Some(N::Ready(spec)) => Next::Ready { spec: spec_of(Some(spec))? },
        Some(N::AfterRemoval(spec)) => Next::AfterRemoval { spec: spec_of(Some(spec))? },
        Some(N::Failed(failed)) => Next::Failed {
            revision: failed.revision.parse::<RevisionId>().map_err(SnapshotError::Id)?,
            at: if failed.at_run { FailedAt::Run } else { FailedAt::Install },
            reason: failed.reason.into(),
            dismissed: failed.dismissed_by.map(|by| shortened(&by, BY_MAX).into()),
        },
    })
}

// === Small parts ===

/// The version that came with the machine. An archive in its place would be installed as if it had.
fn local_of(record: rec::Spec) -> Result<Arc<PluginSpec>, SnapshotError> {
    let spec = spec_of(Some(record))?;
    if spec.is_local() {
        Ok(spec)
    } else {
        Err(SnapshotError::Missing("folder of the local version"))
    }
}

pub(crate) fn process_record(process: &Process) -> rec::Process {
    rec::Process {
        pid: process.pid,
        start_ticks: process.start_ticks,
        boot: process.boot.0.to_string(),
    }
}

pub(crate) fn process_of(record: rec::Process) -> Process {
    Process { pid: record.pid, start_ticks: record.start_ticks, boot: BootId(record.boot.into()) }
}

fn exit_record(cause: ExitCause) -> rec::ExitCause {
    use rec::exit_cause::Cause;
    let peak_bytes = cause.memory_peak();
    let cause = match cause {
        ExitCause::Exited(code) => Cause::Exited(code),
        ExitCause::Signaled(signal) => Cause::Signaled(signal),
        ExitCause::OutOfMemory { .. } => Cause::OutOfMemory(true),
        ExitCause::OverMemoryLimit { .. } => Cause::OverMemoryLimit(true),
        ExitCause::Unknown => Cause::Unknown(true),
    };
    rec::ExitCause { cause: Some(cause), peak_bytes }
}

fn exit_of(record: rec::ExitCause) -> ExitCause {
    use rec::exit_cause::Cause;
    match record.cause {
        Some(Cause::Exited(code)) => ExitCause::Exited(code),
        Some(Cause::Signaled(signal)) => ExitCause::Signaled(signal),
        Some(Cause::OutOfMemory(_)) => ExitCause::OutOfMemory { peak: record.peak_bytes },
        Some(Cause::OverMemoryLimit(_)) => ExitCause::OverMemoryLimit { peak: record.peak_bytes },
        Some(Cause::Unknown(_)) | None => ExitCause::Unknown,
    }
}

/// A revision, where there is one.
fn revision_of(record: &str) -> Result<Option<RevisionId>, SnapshotError> {
    (!record.is_empty()).then(|| record.parse().map_err(SnapshotError::Id)).transpose()
}

fn due(owed: bool) -> Due {
    if owed { Due::Yes } else { Due::No }
}

#[cfg(test)]
mod tests;
