//! The entry that a receiver refuses although no other is in the document. Pure.
//!
//! ```text
//!                         refused [`TIMES`] times
//!   Nothing ──► Tried ────────────────────────────► PassedOver ──► Nothing
//!                 ▲                                     │   a document with the gap was taken,
//!                 └─────────────────────────────────────┘   or the entry has gone with its age
//!                      the gap in its place is refused
//! ```

use http::StatusCode;

/// An entry is passed over when the receiver refused it alone so often, with growing pauses between: one that is wrong
/// for a moment may take it yet.
pub(super) const TIMES: u32 = 5;

/// An entry that the receiver refused alone, by its position; and the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) position: u64,
    pub(super) status: StatusCode,
}

/// Which entry the receiver refuses, and how it goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It refuses no entry.
    #[default]
    Nothing,
    /// It refused the entry so many times. The entry is sent again.
    Tried { position: u64, times: u32 },
    /// It refused the entry so many times. A gap is sent in its place.
    PassedOver { entry: Refused, times: u32 },
}

/// A document that was made, or the answer to one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A document was made whose first entry is at this position.
    Made { first: u64 },
    /// The receiver took a document with the gap.
    GapTaken,
    /// The receiver refused a document with the gap alone.
    GapRefused,
    /// The receiver refused a document with the entry alone.
    EntryRefused(Refused),
}

// === impl Refusal ===

impl Refusal {
    /// The entry that a gap is sent for.
    pub(super) fn passed_over(self) -> Option<Refused> {
        match self {
            Self::PassedOver { entry, .. } => Some(entry),
            Self::Nothing | Self::Tried { .. } => None,
        }
    }

    /// The refusal after an event.
    #[must_use]
    pub(super) fn step(self, event: Event) -> Self {
        match event {
            Event::Made { first } => match self {
                Self::PassedOver { entry, .. } if entry.position < first => Self::Nothing,
                Self::PassedOver { .. } | Self::Tried { .. } | Self::Nothing => self,
            },
            Event::GapTaken => Self::Nothing,
            // A receiver that refuses the gap as well refuses everything, and loses nothing by it.
            Event::GapRefused => match self {
                Self::PassedOver { entry: Refused { position, .. }, times } => {
                    Self::Tried { position, times }
                }
                Self::Tried { .. } | Self::Nothing => self,
            },
            Event::EntryRefused(entry) => {
                let times = self.times(entry.position).saturating_add(1);
                if times < TIMES {
                    Self::Tried { position: entry.position, times }
                } else {
                    Self::PassedOver { entry, times }
                }
            }
        }
    }

    /// How often the entry at a position was refused.
    fn times(self, at: u64) -> u32 {
        match self {
            Self::Tried { position, times }
            | Self::PassedOver { entry: Refused { position, .. }, times }
                if position == at =>
            {
                times
            }
            Self::Tried { .. } | Self::PassedOver { .. } | Self::Nothing => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: Refused = Refused { position: 7, status: StatusCode::BAD_REQUEST };
    const PASSED_OVER: Refusal = Refusal::PassedOver { entry: ENTRY, times: TIMES };

    #[track_caller]
    fn check(before: Refusal, event: Event, after: Refusal) {
        assert_eq!(before.step(event), after);
    }

    #[test]
    fn an_entry_is_passed_over_after_so_many_refusals() {
        let mut refusal = Refusal::default();
        for times in 1..TIMES {
            refusal = refusal.step(Event::EntryRefused(ENTRY));
            assert_eq!(refusal, Refusal::Tried { position: 7, times });
            assert_eq!(refusal.passed_over(), None);
            // It is in the next document as well.
            check(refusal, Event::Made { first: 7 }, refusal);
        }
        check(refusal, Event::EntryRefused(ENTRY), PASSED_OVER);
        assert_eq!(PASSED_OVER.passed_over(), Some(ENTRY));
        let other = Refused { position: 8, ..ENTRY };
        let once = Refusal::Tried { position: 8, times: 1 };
        check(refusal, Event::EntryRefused(other), once);
        check(PASSED_OVER, Event::EntryRefused(other), once);
    }

    #[test]
    fn a_gap_stands_for_an_entry_until_it_is_taken_or_refused_or_the_entry_has_gone() {
        check(PASSED_OVER, Event::GapTaken, Refusal::Nothing);
        check(PASSED_OVER, Event::Made { first: 7 }, PASSED_OVER);
        check(PASSED_OVER, Event::Made { first: 8 }, Refusal::Nothing);
        let again = Refusal::Tried { position: 7, times: TIMES };
        check(PASSED_OVER, Event::GapRefused, again);
        // The entry has one more try, with the answer of that.
        let entry = Refused { status: StatusCode::PAYLOAD_TOO_LARGE, ..ENTRY };
        let once_more = Refusal::PassedOver { entry, times: TIMES + 1 };
        check(again, Event::EntryRefused(entry), once_more);
    }
}
