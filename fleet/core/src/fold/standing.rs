//! Where an agent stands with a plugin, as words with the moments at which they begin.

use super::facts::{OrderFacts, Step};
use super::gates::{Barrier, Mark, Wanted};
use super::tally::Timeline;
use super::word::{Word, probation_until, silent_after};
use crate::health::{Ailment, Cause};
use crate::time::Seconds;
use crate::view::Target;

/// Where an agent stands with a plugin, without the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No assignment gives the agent the plugin.
    NotAssigned,
    /// What is wanted was not ordered.
    KeptBack(Barrier),
    /// It was ordered, and the agent has not said what became of it.
    UnderWay {
        /// How far it is.
        step: Step,
        /// When the agent should have said so.
        silent_after: Seconds,
    },
    /// It was done.
    Done {
        /// Until when the agent may go back; `None` where it was so before.
        probation_until: Option<Seconds>,
    },
    /// The agent could not do it.
    Failed,
    /// It was done, and the agent went back.
    TakenBack,
    /// It was done, and the agent lacks it since.
    Drifted,
    /// It was done, and a person on the machine changed it since.
    ChangedByOwner,
    /// It was done, and the plugin has a fault since.
    Faulty {
        /// The kind of the fault.
        cause: Cause,
        /// When it ends by itself.
        until: Option<Seconds>,
    },
}

// === impl Standing ===

impl Standing {
    /// Where an agent stands, by the release that it should have, its last order, and the fault for which the
    /// plugin does not do its work.
    #[must_use]
    pub fn of(
        wanted: Option<&Wanted>,
        order: Option<&OrderFacts>,
        failing: Option<&Ailment>,
    ) -> Self {
        let Some(wanted) = wanted else { return Self::NotAssigned };
        let current = order
            .filter(|order| *order.target() == wanted.target && order.attempt == wanted.attempt);
        let Some(order) = current else { return Self::KeptBack(wanted.barrier.clone()) };
        let is_done = matches!(order.step, Step::Done | Step::Adopted);
        if let Some(drift) = &order.drift
            && !(is_done && wanted.waits)
        {
            let is_mended = drift.lack.is_mended(wanted.undoes_owners);
            return if is_mended { Self::Drifted } else { Self::ChangedByOwner };
        }
        match order.step {
            Step::Done | Step::Adopted if wanted.waits => Self::KeptBack(Barrier::Wave),
            Step::Done | Step::Adopted if let Some(Ailment { fault, until }) = failing => {
                Self::Faulty { cause: fault.cause, until: *until }
            }
            step @ (Step::Sent | Step::Acknowledged | Step::Begun) => {
                Self::UnderWay { step, silent_after: silent_after(order.since, wanted.patience) }
            }
            Step::Done if *order.target() == Target::Absent => Self::Done { probation_until: None },
            Step::Done => Self::Done { probation_until: Some(probation_until(order.since)) },
            Step::Adopted => Self::Done { probation_until: None },
            Step::Failed => Self::Failed,
            Step::TakenBack => Self::TakenBack,
        }
    }

    /// What it is called when.
    pub(super) fn timeline(&self, archived: Option<Seconds>) -> Timeline<Mark> {
        let word = |word| Timeline::new(Mark::Word(word));
        let words = match self {
            Self::NotAssigned => word(Word::NotAssigned),
            Self::KeptBack(barrier) => Timeline::new(barrier.mark()),
            Self::UnderWay { step, silent_after } => {
                let first = match step {
                    Step::Acknowledged => Word::Acknowledged,
                    Step::Begun => Word::Installing,
                    Step::Sent | Step::Done | Step::Adopted | Step::Failed | Step::TakenBack => {
                        Word::Ordered
                    }
                };
                word(first).then(Some(*silent_after), Mark::Word(Word::Silent))
            }
            Self::Done { probation_until: None } => word(Word::Done),
            Self::Done { probation_until } => {
                word(Word::OnProbation).then(*probation_until, Mark::Word(Word::Done))
            }
            Self::Failed => word(Word::Failed),
            Self::TakenBack => word(Word::TakenBack),
            Self::Drifted => word(Word::Drifted),
            Self::ChangedByOwner => word(Word::ChangedByOwner),
            Self::Faulty { cause, until } => {
                word(Word::of_fault(*cause)).then(*until, Mark::Word(Word::Done))
            }
        };
        words.then(archived, Mark::Word(Word::Archived))
    }
}
