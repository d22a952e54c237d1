//! What a caller sees of a fleet, and of what it sees, what it may change.
//!
//! ```text
//!   the command line on a ledger ─► All
//!   an API caller ─► Within: its grants, and the role that the call needs
//!                      ├─► agents      whose labels a grant covers
//!                      └─► selectors   that are within the scope of one grant, whatever agents there are
//! ```
//!
//! What is not seen is answered as what does not exist.

use guest_fleet_core::fold::Row;
use guest_fleet_core::labels::Labels;
use guest_fleet_core::selector::Selector;
use guest_fleet_core::view::View;

use super::failure::{Exit, Failure, Kind};
use super::text::one_line;
use crate::identity::{Grant, Role};

/// What a caller sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sees {
    /// Everything, and it may change everything.
    #[default]
    All,
    /// What one of the grants covers.
    Within {
        /// What it was granted.
        grants: Vec<Grant>,
        /// The role that what it asks for needs.
        needed: Role,
    },
}

// === impl Sees ===

impl Sees {
    /// Whether it sees the whole fleet.
    #[must_use]
    pub fn is_all(&self) -> bool {
        match self {
            Self::All => true,
            Self::Within { grants, .. } => grants.iter().any(Grant::is_everywhere),
        }
    }

    /// Whether it sees an agent with these labels.
    #[must_use]
    pub fn agent(&self, labels: &Labels) -> bool {
        match self {
            Self::All => true,
            Self::Within { grants, .. } => grants.iter().any(|grant| grant.covers(labels)),
        }
    }

    /// Whether it sees the agent of a row.
    #[must_use]
    pub fn row(&self, row: &Row) -> bool {
        row.agent.as_ref().is_some_and(|agent| self.agent(&agent.labels))
    }

    /// Whether it sees a declaration that selects so.
    #[must_use]
    pub fn selector(&self, selector: &Selector) -> bool {
        match self {
            Self::All => true,
            Self::Within { grants, .. } => {
                grants.iter().any(|grant| selector.is_within(grant.scope()))
            }
        }
    }

    /// Whether it sees an assignment, and the rollout of it.
    #[must_use]
    pub fn assignment(&self, view: &View, name: &str) -> bool {
        // A rollout whose assignment is gone belongs to nobody's scope.
        let found = view.assignments.get(name);
        self.is_all() || found.is_some_and(|found| self.selector(&found.selector))
    }

    /// Refuses an agent that is not seen, or may not be changed.
    ///
    /// # Errors
    /// It is unknown, or it may not be changed.
    pub fn check_agent(&self, id: &str, labels: &Labels) -> Result<(), Failure> {
        match self {
            _ if !self.agent(labels) => Err(unknown(id)),
            Self::Within { grants, needed }
                if !grants.iter().any(|it| it.role() >= *needed && it.covers(labels)) =>
            {
                Err(denied(*needed, "for this agent"))
            }
            Self::All | Self::Within { .. } => Ok(()),
        }
    }

    /// Refuses to change what selects so, where the caller sees it.
    ///
    /// # Errors
    /// It may not be changed.
    pub fn check_selector(&self, selector: &Selector) -> Result<(), Failure> {
        match self {
            Self::Within { grants, needed }
                if !grants
                    .iter()
                    .any(|it| it.role() >= *needed && selector.is_within(it.scope())) =>
            {
                Err(denied(*needed, "for all agents that it may select"))
            }
            Self::All | Self::Within { .. } => Ok(()),
        }
    }
}

/// The caller has a lesser role.
pub(crate) fn denied(needed: Role, place: &str) -> Failure {
    Failure::new(Exit::Failed, format_args!("this takes the role {needed} {place}"))
        .hint("ask an admin of the fleet for a token with that role")
        .kind(Kind::Denied)
}

/// There is no such agent.
pub(crate) fn unknown(id: &str) -> Failure {
    Failure::failed(format_args!("there is no agent {}", one_line(id)))
        .hint("`guest-fleet agents` lists them")
        .kind(Kind::Absent)
}
