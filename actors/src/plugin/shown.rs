//! The part of a plugin that people see beside its state: times, health, progress, and recent changes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use actix::SpawnHandle;
use tokio::sync::watch;

use super::snapshot::Snapshot;
use super::transition_log::TransitionLog;
use crate::model::act::{HeldOrder, Hold};
use crate::model::exit::ExitCause;
use crate::model::history::{Down, History, StartTry};
use crate::model::id::RevisionId;
use crate::model::runs::Outcome;
use crate::model::spec::Difference;
use crate::model::view::{Activity, Held, Outlook, Pending, PluginView, Reported};
use crate::plugin::state::{FailedAt, Next, Pause, Phase, Resume, State, Then};
use crate::ports::{LAST_OUTPUT, Progress, without_output};

/// The part of a plugin that people see beside its state.
pub(super) struct Shown {
    pub(super) started_at: Option<SystemTime>,
    pub(super) last_exit_at: Option<SystemTime>,
    /// Set while the plugin is down.
    pub(super) down: Option<Down>,
    pub(super) progress: Option<(watch::Receiver<Progress>, SpawnHandle)>,
    pub(super) story: TransitionLog,
}

// === impl Shown ===

impl Shown {
    /// Notes when the process changed. `before` is the phase before this state.
    pub(super) fn note_times(&mut self, before: &Phase, state: &State, now: SystemTime) {
        let process = |phase: &Phase| match phase {
            Phase::Running { process, .. } | Phase::Executing { process, .. } => {
                Some(process.clone())
            }
            _ => None,
        };
        let (was, is) = (process(before), process(&state.phase));
        if was != is {
            self.started_at = is.is_some().then_some(now);
            self.story.health.begin(self.started_at);
            if was.is_some() {
                self.last_exit_at = Some(now);
            }
        }
    }

    /// Notes the causes that end or begin a verdict: crashes, changes of what is run, a revision that failed.
    /// `before` is the state before this one, whose process is the one in `started_at`; `output` is what
    /// that wrote last, where it ended unasked.
    pub(super) fn note_causes(
        &mut self,
        before: &State,
        state: &State,
        (now, output): (SystemTime, &str),
    ) {
        self.note_fall(before, state, now);
        if is_changed(before, state) {
            self.story.changed_at = Some(now);
        }
        if failed_next(&before.next) != failed_next(&state.next) {
            self.story.failed_at = failed_next(&state.next).map(|_| now);
        }
        if state.restarts.total > before.restarts.total {
            let ran = self.started_at.and_then(|at| now.duration_since(at).ok());
            let reason = match &state.phase {
                Phase::BackingOff { reason, .. }
                | Phase::Stopping { then: Then::BackOff { reason }, .. } => reason,
                _ => "",
            };
            self.story.crashed(now, ran.unwrap_or_default(), without_output(reason));
            // A failed start quotes the output itself.
            let quoted = reason.split_once(LAST_OUTPUT).map_or("", |(_, quoted)| quoted);
            self.story.wrote_last(if output.is_empty() { quoted } else { output });
        }
    }

    /// Why a plugin of this state is down, as far as its record says it.
    pub(super) fn down_at_first(state: &State, story: &TransitionLog) -> Option<Down> {
        let because = why_down(&state.phase)?.clone();
        Some(Down { since: story.moves.back()?.at, because })
    }

    /// Notes why the plugin is down, until it runs, rests or is another revision.
    fn note_fall(&mut self, before: &State, state: &State, now: SystemTime) {
        if let Some(because) = why_down(&state.phase).cloned() {
            let since = self.down.take().map_or(now, |down| down.since);
            self.down = Some(Down { since, because });
            return;
        }
        let is_started_again = matches!(
            &state.phase,
            Phase::Starting { .. } | Phase::Stopping { then: Then::BackOff { .. }, .. }
        );
        if !is_started_again || before.spec.revision != state.spec.revision {
            self.down = None;
        }
    }

    /// The durable part of the plugin.
    pub(super) fn snapshot(&self, state: &State) -> Snapshot {
        Snapshot {
            state: state.clone(),
            last_exit_at: self.last_exit_at,
            started_at: self.started_at,
            story: self.story.clone(),
        }
    }

    /// The view of the plugin in this state. `is_found` says whether the process of the state is known to
    /// run, and not only read back; `next_start` says when a pause ends.
    #[must_use]
    pub(super) fn view(
        &self,
        state: &State,
        is_found: bool,
        next_start: Option<SystemTime>,
    ) -> PluginView {
        let (revision, reported, reason, pending) = reported(state);
        let (process, endpoint) = match &state.phase {
            Phase::Running { process, endpoint, .. } => (Some(process), Some(endpoint)),
            Phase::Executing { process, .. } => (Some(process), None),
            Phase::Starting { process, .. } => (process.as_ref(), None),
            _ => (None, None),
        };
        PluginView {
            name: state.name.clone(),
            revision,
            state: reported,
            reason,
            pending,
            generation: state.generation,
            activity: if is_found && state.is_settled() {
                Activity::Settled
            } else {
                Activity::Busy
            },
            pid: process.map(|process| process.pid),
            // The endpoint may belong to another program by now, and must not be called.
            endpoint: endpoint.cloned().filter(|_| is_found),
            config_hash: state.spec.config.as_ref().map(crate::model::spec::Config::digest),
            restarts: state.restarts.total,
            last_exit: state.last_exit.map(|cause: ExitCause| (cause, self.last_exit_at)),
            started_at: self.started_at,
            health: self.story.health.last.clone(),
            progress: self.progress.as_ref().map(|(progress, _)| *progress.borrow()),
            metrics: state.spec.metrics,
            spec: state.spec.clone(),
            current: state.current().cloned(),
            runs: state.runs.clone(),
            last_output: self.story.last_output.clone(),
            unenforced: self.story.unenforced.clone(),
            history: self.history(state, next_start),
            limits: state.limits(),
            limit_override: state.person.limits.clone(),
            stopped: state.person.stopped.clone(),
            held: held(state),
            left: state.person.left.clone(),
            on_trial: state.trial.is_some(),
            way_back: state.way_back().map(|spec| spec.revision.clone()),
            needed: needed(state),
            // The actor adds it: it depends on the policy and on timers.
            outlook: Outlook::default(),
        }
    }

    fn history(&self, state: &State, next_start: Option<SystemTime>) -> History {
        let start = match &state.phase {
            Phase::Starting { tries, .. } | Phase::Pausing { tries, .. } => {
                Some(StartTry { attempt: *tries, of: state.spec.start.attempts.max(*tries) })
            }
            _ => None,
        };
        History {
            crashes: self.story.crashes.iter().copied().collect(),
            crash_reason: self.story.crash_reason.clone(),
            last_line: self.story.last_line.clone(),
            down: self.down.clone(),
            changed_at: self.story.changed_at,
            since: self.story.moves.back().map(|step| step.at),
            failed_at: self.story.failed_at,
            dismissed: match &state.next {
                Next::Failed { dismissed, .. } => dismissed.clone(),
                _has_not_failed => None,
            },
            condition: self.story.health.condition,
            next_start,
            start,
        }
    }
}

/// Why a plugin in this phase is down; `None` where it is not, or where its start is under way.
fn why_down(phase: &Phase) -> Option<&Arc<str>> {
    match phase {
        Phase::Pausing { reason, .. } | Phase::BackingOff { reason, pause: Pause::AfterCrash } => {
            Some(reason)
        }
        _ => None,
    }
}

/// The view of a state: current revision, its state, the reason, and the pending revision.
pub(super) fn reported(state: &State) -> (RevisionId, Reported, Arc<str>, Option<Pending>) {
    let none: Arc<str> = "".into();
    // A revision that takes over is pending until it runs; the one before it is current but
    // stopped.
    if let (Some(trial), Phase::Starting { .. } | Phase::Pausing { .. }) =
        (&state.trial, &state.phase)
    {
        let pending = Pending {
            revision: state.spec.revision.clone(),
            state: Reported::Starting,
            error: none.clone(),
        };
        return (trial.last_good.revision.clone(), Reported::Stopped, none, Some(pending));
    }
    let pending = match &state.next {
        Next::Nothing => None,
        Next::Preparing { spec, .. } | Next::AfterRemoval { spec } => Some(Pending {
            revision: spec.revision.clone(),
            state: Reported::Installing,
            error: none.clone(),
        }),
        Next::Ready { spec } => Some(Pending {
            revision: spec.revision.clone(),
            state: Reported::Starting,
            error: none.clone(),
        }),
        Next::Failed { revision, at, reason, dismissed: _ } => Some(Pending {
            revision: revision.clone(),
            state: match at {
                FailedAt::Install => Reported::InstallFailed,
                FailedAt::Run => Reported::Crashed,
            },
            error: reason.clone(),
        }),
    };
    // A failure of before is of an older order than the one that waits.
    let pending = match &state.next {
        Next::Nothing | Next::Failed { .. } => pending_held(state).or(pending),
        Next::Preparing { .. } | Next::Ready { .. } | Next::AfterRemoval { .. } => pending,
    };
    let held = state.person.hold.as_ref().filter(|_| state.person.held_order.is_some());
    let (shown, reason) = match &state.phase {
        Phase::Installing { .. } => (Reported::Installing, none),
        Phase::InstallFailed { reason } => (Reported::InstallFailed, reason.clone()),
        Phase::Starting { .. } => (Reported::Starting, none),
        Phase::Pausing { reason, .. } => (Reported::Starting, reason.clone()),
        Phase::Running { .. } | Phase::Executing { .. } => (Reported::Running, none),
        Phase::Idle => match &state.runs.last {
            Outcome::None => (Reported::Stopped, "it has not run yet".into()),
            Outcome::Completed => (Reported::ExecutionCompleted, none),
            Outcome::Failed { reason } => (Reported::ExecutionFailed, reason.clone()),
        },
        Phase::Disabled { reason } => (Reported::Stopped, reason.clone()),
        Phase::Held => (Reported::Installing, held.map_or(none, Hold::reason)),
        Phase::BackingOff { reason, pause: Pause::AfterShutdown } => {
            (Reported::Stopped, reason.clone())
        }
        Phase::BackingOff { reason, pause: Pause::AfterCrash } | Phase::Crashed { reason } => {
            (Reported::Crashed, reason.clone())
        }
        Phase::Stopping { .. } | Phase::Removing { .. } => {
            (Reported::Stopping, state.removal_trouble.clone().unwrap_or(none))
        }
        Phase::Stopped { then: Resume::Start | Resume::Swap } | Phase::Gone => {
            (Reported::Stopped, none)
        }
    };
    (state.spec.revision.clone(), shown, reason, pending)
}

/// The revision of an INSTALL that waits, beside one that is there.
fn pending_held(state: &State) -> Option<Pending> {
    let hold = state.person.hold.as_ref()?;
    match &state.person.held_order {
        Some(HeldOrder::Install(spec)) if state.phase != Phase::Held => Some(Pending {
            revision: spec.revision.clone(),
            state: Reported::Installing,
            error: hold.reason(),
        }),
        _other => None,
    }
}

fn held(state: &State) -> Option<Held> {
    let hold = state.person.hold.clone()?;
    let waits = state.person.held_order.as_ref().map(|order| order.in_words().into());
    Some(Held { hold, waits })
}

/// Whether an order or a person changed what is run, or the limits of it. A revision on trial has not
/// changed it before it proves itself: one that is taken back leaves the plugin as it was.
fn is_changed(before: &State, state: &State) -> bool {
    if state.trial.is_some() {
        return false;
    }
    if let Some(trial) = &before.trial {
        return !trial.last_good.is_revision_of(&state.spec);
    }
    match before.spec.difference(&state.spec) {
        _ if !before.spec.is_revision_of(&state.spec) => true,
        _ if before.limits() != state.limits() => true,
        Difference::Limits | Difference::Launch | Difference::Archive => true,
        // A control plane may hand over another configuration every minute.
        Difference::Unnoticed | Difference::Config => false,
    }
}

/// The next revision, if it failed, and why.
fn failed_next(next: &Next) -> Option<(&RevisionId, FailedAt, &str)> {
    match next {
        Next::Failed { revision, at, reason, .. } => Some((revision, *at, reason)),
        Next::Nothing | Next::Preparing { .. } | Next::Ready { .. } | Next::AfterRemoval { .. } => {
            None
        }
    }
}

/// The revisions whose files a state may still need: the current one, the one that is being
/// installed or about to take over, and the one to return to.
pub(super) fn needed(state: &State) -> BTreeSet<RevisionId> {
    let next = match &state.next {
        Next::Preparing { spec, .. } | Next::Ready { spec } | Next::AfterRemoval { spec } => {
            Some(spec)
        }
        // Its files are let go when it fails.
        Next::Nothing | Next::Failed { .. } => None,
    };
    let last_good = state.trial.as_ref().map(|trial| &trial.last_good);
    let specs = [Some(&state.spec), next, last_good, state.former.as_ref()].into_iter().flatten();
    specs.map(|spec| spec.revision.clone()).collect()
}
