//! What people ask of a rollout.

use std::error::Error;
use std::fmt;

use super::{Cause, Former, Rollout, Stage, State};
use crate::listed;
use crate::time::Seconds;

/// What a person asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Begin.
    Start,
    /// Give nobody else the new target for now.
    Pause,
    /// Go on.
    Resume {
        /// Why that is right; needed where the rollout halted.
        reason: String,
    },
    /// Let no order for the new target leave.
    Halt {
        /// Why.
        reason: String,
    },
    /// Give the agents that have the new target the former one.
    RollBack,
    /// Begin the next wave.
    Approve,
    /// End it where it is.
    Abort,
}

listed! {
    /// The kind of a [`State`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum StateKind {
        /// It was not started.
        Draft = "draft",
        /// Agents are given the new target.
        Running = "running",
        /// All agents of the wave that could be reached settled; problems may still show.
        Soaking = "soaking",
        /// A person has to approve the next wave.
        Waiting = "waiting for approval",
        /// It waits for a person; agents that were given the new target go on.
        Paused = "paused",
        /// It stopped itself, or a person did.
        Halted = "halted",
        /// The agents that have the new target are given the former one.
        RollingBack = "rolling back",
        /// They have it.
        RolledBack = "rolled back",
        /// All agents that could be reached have the new target.
        Done = "done",
        /// A person ended it where it was.
        Aborted = "aborted",
    }
}

/// Why it cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The state does not allow it.
    State {
        /// What was asked.
        verb: &'static str,
        /// The state.
        state: &'static str,
        /// What can be asked there.
        allowed: &'static [&'static str],
    },
    /// A reason is needed.
    NoReason,
    /// A rollout that is done goes back by a new one.
    Finished,
}

// === impl Rollout ===

impl Rollout {
    /// Does what a person asks.
    ///
    /// # Errors
    /// Where the state does not allow it, or a reason is needed; the rollout is as it was.
    pub fn ask(&mut self, verb: &Verb, now: Seconds) -> Result<(), Refused> {
        let next = match (verb, &self.state) {
            (Verb::Start, State::Draft) => {
                self.began = vec![now];
                State::Running(Stage::Reaching)
            }
            (Verb::Pause, State::Running(stage)) => State::Paused(*stage),
            (Verb::Resume { .. }, State::Paused(stage)) => State::Running(*stage),
            (Verb::Resume { reason }, State::Halted(cause)) => {
                if reason.trim().is_empty() {
                    return Err(Refused::NoReason);
                }
                // What halted it would halt it again. A restore is no failure of the release, so what
                // agents told before it still counts.
                if *cause != Cause::Restored {
                    self.epoch = self.epoch.saturating_add(1);
                    self.resumed = now;
                }
                State::Running(Stage::Reaching)
            }
            (Verb::Halt { reason }, State::Running(_) | State::Paused(_)) => {
                if reason.trim().is_empty() {
                    return Err(Refused::NoReason);
                }
                State::Halted(Cause::Person(reason.clone()))
            }
            (Verb::RollBack, State::Running(_) | State::Paused(_) | State::Halted(_)) => {
                State::RollingBack
            }
            // Where each agent had its own, one new target for all the other way does not exist.
            (Verb::RollBack, State::Done) if self.from == Former::Each => State::RollingBack,
            (Verb::RollBack, State::Done) => return Err(Refused::Finished),
            (Verb::Approve, State::Running(Stage::Approval)) => {
                self.next_wave(now);
                State::Running(Stage::Reaching)
            }
            (Verb::Abort, State::Draft | State::Paused(_) | State::Halted(_)) => State::Aborted,
            _ => {
                return Err(Refused::State {
                    verb: verb.name(),
                    state: self.state.name(),
                    allowed: self.state.verbs(),
                });
            }
        };
        self.close();
        match next {
            State::Halted(cause) => self.halt(cause, now),
            next => self.state = next,
        }
        Ok(())
    }

    /// The names of the verbs that a person can ask of it. The way back of one that is done is a new rollout
    /// where all agents had the same before.
    #[must_use]
    pub fn verbs(&self) -> &'static [&'static str] {
        if self.state == State::Done { &["rollback"] } else { self.state.verbs() }
    }

    /// What becomes of it when the ledger is restored from a copy: agents may have gone further, or
    /// back, since the copy was made, so that nothing is ordered until a person has looked. Whether that
    /// changes anything.
    pub fn restore(&mut self) -> bool {
        let is_moving =
            matches!(self.state, State::Running(_) | State::Paused(_) | State::RollingBack);
        if is_moving {
            self.state = State::Halted(Cause::Restored);
            self.forget_grants();
        }
        is_moving
    }

    /// Ends it where it is, because its assignment is deleted. Whether that changes anything.
    pub fn abandon(&mut self) -> bool {
        let is_live = self.state.is_live();
        if is_live {
            self.close();
            self.state = State::Aborted;
        }
        is_live
    }
}

// === impl Verb ===

impl Verb {
    /// Its name, as the command line has it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Pause => "pause",
            Self::Resume { .. } => "resume",
            Self::Halt { .. } => "halt",
            Self::RollBack => "rollback",
            Self::Approve => "approve",
            Self::Abort => "abort",
        }
    }
}

// === impl State ===

impl State {
    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> StateKind {
        match self {
            Self::Draft => StateKind::Draft,
            Self::Running(Stage::Reaching) => StateKind::Running,
            Self::Running(Stage::Soaking { .. }) => StateKind::Soaking,
            Self::Running(Stage::Approval) => StateKind::Waiting,
            Self::Paused(_) => StateKind::Paused,
            Self::Halted(_) => StateKind::Halted,
            Self::RollingBack => StateKind::RollingBack,
            Self::RolledBack => StateKind::RolledBack,
            Self::Done => StateKind::Done,
            Self::Aborted => StateKind::Aborted,
        }
    }

    /// The name of its kind.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Whether it has not ended.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !matches!(self, Self::RolledBack | Self::Done | Self::Aborted)
    }

    /// Whether agents are given the new target, or may be again.
    #[must_use]
    pub fn is_forward(&self) -> bool {
        self.is_live() && *self != Self::RollingBack
    }

    /// The names of the verbs that it allows.
    #[must_use]
    pub fn verbs(&self) -> &'static [&'static str] {
        match self {
            Self::Draft => &["start", "abort"],
            Self::Running(Stage::Approval) => &["approve", "pause", "halt", "rollback"],
            Self::Running(_) => &["pause", "halt", "rollback"],
            Self::Paused(_) => &["resume", "halt", "rollback", "abort"],
            Self::Halted(_) => &["resume", "rollback", "abort"],
            Self::RollingBack | Self::RolledBack | Self::Done | Self::Aborted => &[],
        }
    }
}

// === impl Refused ===

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State { verb, state, allowed: [] } => {
                write!(f, "`{verb}` is not possible: the rollout is {state}, and has ended")
            }
            Self::State { verb, state, allowed } => {
                let allowed = allowed.join("`, `");
                write!(f, "`{verb}` is not possible while the rollout is {state}; `{allowed}` are")
            }
            Self::NoReason => f.write_str("a reason is needed: add --reason"),
            Self::Finished => f.write_str("the rollout is done: the way back is a new rollout"),
        }
    }
}

impl Error for Refused {}
