//! Grants that were closed, and that gateways with an older view may still act on.
//!
//! A rollout remembers them until they have dried. An agent that they cover and that does not have what they
//! gave counts as if it were in flight, so that the next grant may open beside them. Of two closed grants the
//! range over both is remembered: more agents count than may be given something, and never fewer.

use super::{Counts, DRY, Grant, Has, Rollout, State};
use crate::labels::Labels;

/// Grants that were closed and may still be acted on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Closed {
    /// None.
    #[default]
    Dry,
    /// All of them are within this one.
    Grant(Grant, Gives),
    /// Nobody knows which, such as those of a rollout that this one replaced: its places are others.
    Any,
}

/// The target that a grant gave to agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gives {
    /// The new target.
    New,
    /// The former target, on the way back.
    Former,
    /// Some the one, some the other.
    Either,
}

// === impl Closed ===

impl Closed {
    /// With one more grant.
    #[must_use]
    fn with(self, other: Grant, gave: Gives) -> Self {
        match self {
            Self::Any => Self::Any,
            Self::Dry => Self::Grant(other, gave),
            Self::Grant(grant, gives) => {
                let over_both = Grant {
                    label: grant.label.filter(|label| other.label.as_ref() == Some(label)),
                    first: grant.first.min(other.first),
                    last: grant.last.max(other.last),
                    since: grant.since.max(other.since),
                };
                Self::Grant(over_both, if gives == gave { gives } else { Gives::Either })
            }
        }
    }
}

// === impl Rollout ===

impl Rollout {
    /// It is nobody's turn any more. Gateways may still act on the grant, also where all agents took it up: they
    /// may give it once more to those that go back.
    pub(super) fn close(&mut self) {
        let Some(grant) = self.grant.take() else { return };
        let is_back = self.state == State::RollingBack;
        let gave = if is_back { Gives::Former } else { Gives::New };
        self.closed = std::mem::take(&mut self.closed).with(grant, gave);
        self.closings = self.closings.saturating_add(1);
    }

    /// Nobody knows what was granted.
    pub(super) fn forget_grants(&mut self) {
        self.grant = None;
        self.closed = Closed::Any;
        self.closings = self.closings.saturating_add(1);
    }

    /// Forgets closed grants where they have dried. That belongs before a change: a grant that the change closes
    /// does not have to be remembered together with older ones.
    pub fn forget_dried(&mut self, counts: &Counts) {
        if self.has_dried(counts) {
            self.closed = Closed::Dry;
        }
    }

    /// Whether no gateway acts on a closed grant any more.
    fn has_dried(&self, counts: &Counts) -> bool {
        self.closed == Closed::Dry || counts.age_of_closed >= DRY
    }

    /// How many agents may still be given something by closed grants; `None` where nobody knows.
    pub(super) fn may_take(&self, counts: &Counts) -> Option<u32> {
        // Where all may be in flight, nothing that may still be acted on is too much.
        if self.has_dried(counts) || self.plan.is_at_once() {
            return Some(0);
        }
        match &self.closed {
            Closed::Dry => Some(0),
            Closed::Grant(..) => Some(counts.may_take),
            Closed::Any => None,
        }
    }

    /// Whether a closed grant covers an agent that does not have what it gave.
    #[must_use]
    pub fn may_still_give(&self, place: u64, labels: &Labels, has: Has<'_>) -> bool {
        let Closed::Grant(grant, gave) = &self.closed else { return false };
        let forth = !matches!(has, Has::Given(_) | Has::New);
        let back = self.back(has).is_some();
        let lacks_it = match gave {
            Gives::New => forth,
            Gives::Former => back,
            Gives::Either => forth || back,
        };
        lacks_it && grant.is_for(place, labels)
    }
}
