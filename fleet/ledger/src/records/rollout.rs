//! A rollout as bytes, in the bucket of the configuration:
//!
//! | key | record |
//! |---|---|
//! | `rollout/<assignment>` | the newest [`RolloutRecord`] of an assignment, under way or ended |
//! | `ended/<assignment>/<time, 12 digits>-<number>` | one whose place another took then |

use std::fmt::Display;
use std::time::Duration;

use guest_fleet_core::account::{Account, DECISIONS, Decided, Failed, RESULTS, Results};
use guest_fleet_core::fold::bounded;
use guest_fleet_core::gate::{Halt, Meter};
use guest_fleet_core::rollout::{
    Cause, Closed, Former, Gives, Grant, HALTS, HaltedRelease, Label, OnHalt, Past, Plan,
    REMEMBERED, Rollout, Size, Stage, State, WAVES, Wave,
};
use guest_fleet_core::selector::OwnLabels;
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::{AssignmentRollout, Before};

use super::configuration::{WeeklyPart, own_labels, selector};
use super::{RecordError, Versioned, revision, target};

pub use super::generated::{
    BeforePart, CausePart, ClosedPart, DecisionPart, FailedPart, FingerprintPart, GrantPart,
    HaltedPart, LabelPart, PastPart, ResultsPart, RolloutRecord, WavePart,
};

/// The beginning of the keys of rollouts.
pub const ROLLOUT: &str = "rollout/";

/// Prefix of the keys of replaced rollouts: another rollout of the assignment took their place.
pub const ENDED: &str = "ended/";

/// Most such rollouts of one assignment; the oldest go first.
pub const ENDED_EACH: usize = 200;

/// Most such rollouts of all assignments together; the oldest go first.
pub const ENDED_ALL: usize = 10_000;

/// How long such a rollout is kept.
pub const ENDED_AGE: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// The states, without their stages and causes. A state's number is its place, from 1.
const DRAFT: u32 = 1;
const RUNNING: u32 = 2;
const PAUSED: u32 = 3;
const HALTED: u32 = 4;
const ROLLING_BACK: u32 = 5;
const ROLLED_BACK: u32 = 6;
const DONE: u32 = 7;
const ABORTED: u32 = 8;

const REACHING: u32 = 1;
const SOAKING: u32 = 2;
const APPROVAL: u32 = 3;

/// Key of the rollout of an assignment.
#[must_use]
pub fn rollout_key(assignment: &str) -> String {
    format!("{ROLLOUT}{assignment}")
}

/// Key of the rollout with a number of its assignment, whose place another one took at this time.
#[must_use]
pub fn ended_key(assignment: &str, number: u32, at: Seconds) -> String {
    format!("{ENDED}{assignment}/{:012}-{number}", at.0)
}

/// The assignment of a rollout whose place another one took, and when that was, from its key; `None` where
/// the key is of nothing such.
#[must_use]
pub fn of_ended_key(key: &str) -> Option<(&str, Seconds)> {
    let (assignment, place) = key.strip_prefix(ENDED)?.split_once('/')?;
    let (at, _) = place.split_once('-')?;
    Some((assignment, Seconds(at.parse().ok()?)))
}

fn damaged(key: &str, problem: impl Display) -> RecordError {
    RecordError::Damaged { key: key.to_owned(), problem: problem.to_string() }
}

fn number(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

// === impl RolloutRecord ===

// A program that knows version 1 would take the former targets of all agents for one, and remove plugins.
versioned!(RolloutRecord: 2);

impl RolloutRecord {
    /// The record of a rollout.
    #[must_use]
    pub fn of(found: &AssignmentRollout) -> Self {
        let rollout = &found.rollout;
        let (state, stage, cause) = match &rollout.state {
            State::Draft => (DRAFT, None, None),
            State::Running(stage) => (RUNNING, Some(stage), None),
            State::Paused(stage) => (PAUSED, Some(stage), None),
            State::Halted(cause) => (HALTED, None, Some(CausePart::of(cause))),
            State::RollingBack => (ROLLING_BACK, None, None),
            State::RolledBack => (ROLLED_BACK, None, None),
            State::Done => (DONE, None, None),
            State::Aborted => (ABORTED, None, None),
        };
        let (stage, soaking_since) = match stage {
            None => (0, 0),
            Some(Stage::Reaching) => (REACHING, 0),
            Some(Stage::Soaking { since }) => (SOAKING, since.0),
            Some(Stage::Approval) => (APPROVAL, 0),
        };
        Self {
            version: Self::VERSION,
            name: found.name.clone(),
            plugin: found.plugin.clone(),
            from: rollout.from.target().map(revision).unwrap_or_default(),
            from_each: rollout.from == Former::Each,
            to: revision(&rollout.to),
            waves: rollout.plan.waves.iter().map(WavePart::of).collect(),
            budget: rollout.plan.budget,
            state,
            stage,
            soaking_since,
            cause,
            wave: number(rollout.wave),
            grant: rollout.grant.as_ref().map(GrantPart::of),
            epoch: rollout.epoch,
            resumed: rollout.resumed.0,
            began: rollout.began.iter().map(|at| at.0).collect(),
            // Programs that do not know of closed grants wait until all have dried.
            is_dry: rollout.closed == Closed::Dry && rollout.grant.is_none(),
            earlier: rollout.earlier.iter().map(PastPart::of).collect(),
            past: rollout.past.as_ref().map(PastPart::of),
            number: found.number,
            before: BeforePart::of(&found.before),
            halted: rollout.halted.iter().map(HaltedPart::of).collect(),
            marks_orders: rollout.marks_orders,
            windows: rollout.plan.windows.iter().map(WeeklyPart::of).collect(),
            goes_back: rollout.plan.on_halt == OnHalt::GoBack,
            decisions: found.account.decisions.iter().map(DecisionPart::of).collect(),
            results: found.account.results.as_ref().map(ResultsPart::of),
            replaced_by: found.account.replaced_by.clone().unwrap_or_default(),
            closed: Some(ClosedPart::of(rollout)),
        }
    }

    /// The rollout.
    ///
    /// # Errors
    /// It has a state, a stage, a wave or a cause that does not exist.
    pub fn rollout(self, key: &str) -> Result<AssignmentRollout, RecordError> {
        if self.waves.is_empty() || self.waves.len() > WAVES {
            return Err(damaged(key, format_args!("it has {} waves", self.waves.len())));
        }
        let waves = self.waves.into_iter().map(|wave| wave.wave(key));
        let waves = waves.collect::<Result<Vec<Wave>, _>>()?;
        let wave = usize::try_from(self.wave).unwrap_or(usize::MAX);
        if wave >= waves.len() {
            return Err(damaged(key, format_args!("it has no wave {wave}")));
        }
        let stage = || match self.stage {
            REACHING => Ok(Stage::Reaching),
            SOAKING => Ok(Stage::Soaking { since: Seconds(self.soaking_since) }),
            APPROVAL => Ok(Stage::Approval),
            other => Err(damaged(key, format_args!("a wave has no stage {other}"))),
        };
        let state = match self.state {
            DRAFT => State::Draft,
            RUNNING => State::Running(stage()?),
            PAUSED => State::Paused(stage()?),
            HALTED => {
                let cause = self.cause.ok_or_else(|| damaged(key, "it halted without a cause"))?;
                State::Halted(cause.cause(key)?)
            }
            ROLLING_BACK => State::RollingBack,
            ROLLED_BACK => State::RolledBack,
            DONE => State::Done,
            ABORTED => State::Aborted,
            other => return Err(damaged(key, format_args!("a rollout has no state {other}"))),
        };
        let windows = self.windows.into_iter().map(|window| window.weekly(key));
        let windows = windows.collect::<Result<Vec<_>, _>>()?;
        let on_halt = if self.goes_back { OnHalt::GoBack } else { OnHalt::Stay };
        let (closed, closings) = match self.closed {
            Some(part) => part.closed(),
            None => (if self.is_dry { Closed::Dry } else { Closed::Any }, 0),
        };
        let halted = self.halted.into_iter().take(HALTS).map(|halted| halted.halted(key));
        let decisions = self.decisions.into_iter().take(DECISIONS);
        Ok(AssignmentRollout {
            name: self.name,
            plugin: self.plugin,
            number: self.number,
            before: self.before.map_or(Ok(Before::Same), |before| before.before(key))?,
            rollout: Rollout {
                from: if self.from_each { Former::Each } else { target(&self.from).into() },
                to: target(&self.to),
                plan: Plan { waves, budget: self.budget, windows, on_halt },
                state,
                wave,
                grant: self.grant.map(GrantPart::grant),
                closed,
                closings,
                epoch: self.epoch,
                resumed: Seconds(self.resumed),
                began: self.began.into_iter().take(WAVES).map(Seconds).collect(),
                earlier: self.earlier.into_iter().take(REMEMBERED).map(PastPart::past).collect(),
                past: self.past.map(PastPart::past),
                halted: halted.collect::<Result<_, _>>()?,
                marks_orders: self.marks_orders,
            },
            account: Account {
                decisions: decisions.map(DecisionPart::decided).collect(),
                results: self.results.map(ResultsPart::results),
                replaced_by: Some(self.replaced_by).filter(|name| !name.is_empty()),
            },
        })
    }
}

// === impl BeforePart ===

impl BeforePart {
    fn of(before: &Before) -> Option<Self> {
        match before {
            Before::Same => None,
            Before::New => Some(Self { is_new: true, ..Self::default() }),
            Before::Selected(selector, own) => Some(Self {
                is_new: false,
                selector: selector.to_string(),
                trusts_own_labels: *own == OwnLabels::Trusted,
            }),
        }
    }

    fn before(self, key: &str) -> Result<Before, RecordError> {
        if self.is_new {
            return Ok(Before::New);
        }
        let selector = selector(key, &self.selector)?;
        Ok(Before::Selected(selector, own_labels(self.trusts_own_labels)))
    }
}

// === impl HaltedPart ===

impl HaltedPart {
    fn of(halted: &HaltedRelease) -> Self {
        let HaltedRelease { target, cause, at } = halted;
        Self { revision: revision(target), at: at.0, cause: Some(CausePart::of(cause)) }
    }

    fn halted(self, key: &str) -> Result<HaltedRelease, RecordError> {
        let cause = self.cause.ok_or_else(|| damaged(key, "a release halted without a cause"))?;
        let (target, at) = (target(&self.revision), Seconds(self.at));
        Ok(HaltedRelease { target, cause: cause.cause(key)?, at })
    }
}

// === impl WavePart ===

impl WavePart {
    pub(super) fn of(wave: &Wave) -> Self {
        let part = Self { soak: wave.soak, needs_approval: wave.needs_approval, ..Self::default() };
        match &wave.size {
            Size::Count(count) => Self { count: *count, ..part },
            Size::Percent(percent) => Self { percent: Some((*percent).into()), ..part },
            Size::Label(label) => Self { label: Some(LabelPart::of(label)), ..part },
        }
    }

    pub(super) fn wave(self, key: &str) -> Result<Wave, RecordError> {
        let size = match (self.label, self.percent) {
            (Some(label), _) => Size::Label(label.label()),
            (None, Some(percent)) => {
                let percent = u8::try_from(percent).ok().filter(|percent| *percent <= 100);
                Size::Percent(percent.ok_or_else(|| damaged(key, "a wave is more than all"))?)
            }
            (None, None) => Size::Count(self.count),
        };
        Ok(Wave { size, soak: self.soak, needs_approval: self.needs_approval })
    }
}

// === impl LabelPart ===

impl LabelPart {
    fn of(label: &Label) -> Self {
        Self { key: label.key.clone(), value: label.value.clone() }
    }

    fn label(self) -> Label {
        Label { key: self.key, value: self.value }
    }
}

// === impl GrantPart ===

impl GrantPart {
    fn of(grant: &Grant) -> Self {
        Self {
            label: grant.label.as_ref().map(LabelPart::of),
            first: grant.first,
            last: grant.last,
            since: grant.since.0,
        }
    }

    fn grant(self) -> Grant {
        Grant {
            label: self.label.map(LabelPart::label),
            first: self.first,
            last: self.last,
            since: Seconds(self.since),
        }
    }
}

// === impl ClosedPart ===

impl ClosedPart {
    /// The closed grants of a rollout.
    #[must_use]
    pub fn of(rollout: &Rollout) -> Self {
        let (gives, grant) = match &rollout.closed {
            Closed::Dry => (0, None),
            Closed::Grant(grant, Gives::New) => (1, Some(grant)),
            Closed::Grant(grant, Gives::Former) => (2, Some(grant)),
            Closed::Grant(grant, Gives::Either) => (3, Some(grant)),
            Closed::Any => (4, None),
        };
        Self { closings: rollout.closings, gives, grant: grant.map(GrantPart::of) }
    }

    /// The closed grants, and how often one was closed. A state that this program does not know may be any.
    fn closed(self) -> (Closed, u32) {
        let closed = match (self.gives, self.grant.map(GrantPart::grant)) {
            (0, None) => Closed::Dry,
            (1, Some(grant)) => Closed::Grant(grant, Gives::New),
            (2, Some(grant)) => Closed::Grant(grant, Gives::Former),
            (3, Some(grant)) => Closed::Grant(grant, Gives::Either),
            _ => Closed::Any,
        };
        (closed, self.closings)
    }
}

// === impl PastPart ===

impl PastPart {
    fn of(past: &Past) -> Self {
        Self {
            name: past.name.clone(),
            began: past.began.0,
            succeeded: past.succeeded,
            failed: past.failed,
        }
    }

    fn past(self) -> Past {
        let Self { name, began, succeeded, failed } = self;
        Past { name: bounded(&name), began: Seconds(began), succeeded, failed }
    }
}

// === impl DecisionPart ===

impl DecisionPart {
    fn of(decided: &Decided) -> Self {
        let Decided { who, what, why, at } = decided;
        Self { who: bounded(who), what: bounded(what), why: bounded(why), at: at.0 }
    }

    fn decided(self) -> Decided {
        let Self { who, what, why, at } = self;
        Decided { who, what, why, at: Seconds(at) }
    }
}

// === impl ResultsPart ===

impl ResultsPart {
    fn of(results: &Results) -> Self {
        let fingerprint =
            |(text, count): &(String, u32)| FingerprintPart { text: bounded(text), count: *count };
        let Results { at, targets, given, failures, fingerprints, failed } = results;
        Self {
            at: at.0,
            targets: *targets,
            given: *given,
            failures: *failures,
            fingerprints: fingerprints.iter().take(RESULTS).map(fingerprint).collect(),
            failed: failed.iter().take(RESULTS).map(FailedPart::of).collect(),
        }
    }

    fn results(self) -> Results {
        let Self { at, targets, given, failures, fingerprints, failed } = self;
        let fingerprints = fingerprints.into_iter().take(RESULTS);
        Results {
            at: Seconds(at),
            targets,
            given,
            failures,
            fingerprints: fingerprints.map(|it| (it.text, it.count)).collect(),
            failed: failed.into_iter().take(RESULTS).map(FailedPart::failed).collect(),
        }
    }
}

// === impl FailedPart ===

impl FailedPart {
    /// The record of an agent on which a target failed.
    #[must_use]
    pub fn of(failed: &Failed) -> Self {
        Self {
            agent: failed.agent.clone(),
            wave: number(failed.wave),
            at: failed.at.0,
            fingerprint: bounded(&failed.fingerprint),
            reason: bounded(&failed.reason),
        }
    }

    /// The agent on which a target failed.
    #[must_use]
    pub fn failed(self) -> Failed {
        let Self { agent, wave, at, fingerprint, reason } = self;
        let wave = usize::try_from(wave).unwrap_or(usize::MAX);
        Failed { agent, wave, at: Seconds(at), fingerprint, reason }
    }
}

// === impl CausePart ===

impl CausePart {
    fn of(cause: &Cause) -> Self {
        let text = |kind, text: &str| Self { kind, text: text.to_owned(), ..Self::default() };
        let meter = |kind, meter: &Meter| Self {
            kind,
            failed: meter.failed,
            expected: meter.expected,
            evidence: meter.evidence,
            limit: meter.limit,
            ..Self::default()
        };
        match cause {
            Cause::Person(reason) => text(1, reason),
            Cause::Gate(Halt::FirstWave { fingerprint }) => text(2, fingerprint),
            Cause::Gate(Halt::TwoInAWave { wave }) => {
                Self { kind: 3, wave: number(*wave), ..Self::default() }
            }
            Cause::Gate(Halt::SeenBefore { fingerprint }) => text(4, fingerprint),
            Cause::Gate(Halt::Installs(found)) => meter(5, found),
            Cause::Gate(Halt::Faults(found)) => meter(6, found),
            Cause::Gate(Halt::BeforeAfter(found)) => meter(7, found),
            Cause::Restored => Self { kind: 8, ..Self::default() },
        }
    }

    fn cause(self, key: &str) -> Result<Cause, RecordError> {
        let Self { failed, expected, evidence, limit, .. } = self;
        let meter = Meter { failed, expected, evidence, limit };
        Ok(match self.kind {
            1 => Cause::Person(self.text),
            2 => Cause::Gate(Halt::FirstWave { fingerprint: self.text }),
            3 => Cause::Gate(Halt::TwoInAWave {
                wave: usize::try_from(self.wave).unwrap_or(usize::MAX),
            }),
            4 => Cause::Gate(Halt::SeenBefore { fingerprint: self.text }),
            5 => Cause::Gate(Halt::Installs(meter)),
            6 => Cause::Gate(Halt::Faults(meter)),
            7 => Cause::Gate(Halt::BeforeAfter(meter)),
            8 => Cause::Restored,
            other => return Err(damaged(key, format_args!("a halt has no cause {other}"))),
        })
    }
}
