//! Roles, and where they hold.

use std::fmt;
use std::str::FromStr;

use guest_fleet_core::labels::Labels;
use guest_fleet_core::selector::{OwnLabels, ParseError, Selector};
use thiserror::Error;

/// What somebody may do. A role may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// May see.
    Viewer,
    /// May change what agents should run.
    Operator,
    /// May approve what another person asked for.
    Approver,
    /// May say who may do what, and enrol and revoke machines.
    Admin,
}

/// A role over the agents that a selector selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    role: Role,
    scope: Selector,
}

/// The text is no role.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not a role; write viewer, operator, approver or admin")]
pub struct RoleError(String);

/// The selector cannot be the scope of a role.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScopeError {
    /// It is no selector.
    #[error("the scope does not parse")]
    Parse(#[source] ParseError),
    /// A machine could say by it who may change it.
    #[error(
        "the scope `{0}` names a label that machines claim themselves; use labels that operators set"
    )]
    OwnLabels(String),
    /// A share of the agents is not something that a person is responsible for.
    #[error("the scope `{0}` has a percentage; use labels")]
    Percentage(String),
}

// === impl Role ===

impl Role {
    /// All roles, from the least to the most.
    pub const ALL: [Self; 4] = [Self::Viewer, Self::Operator, Self::Approver, Self::Admin];

    /// Its name, as it is written on the command line and in documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Approver => "approver",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, RoleError> {
        let found = Self::ALL.into_iter().find(|role| role.name() == text);
        found.ok_or_else(|| RoleError(text.to_owned()))
    }
}

// === impl Grant ===

impl Grant {
    /// A role within a scope.
    ///
    /// # Errors
    /// The scope names labels that machines claim themselves, or a percentage.
    pub fn new(role: Role, scope: Selector) -> Result<Self, ScopeError> {
        if scope.names_own_labels() {
            return Err(ScopeError::OwnLabels(scope.to_string()));
        }
        if scope.names_percentages() {
            return Err(ScopeError::Percentage(scope.to_string()));
        }
        Ok(Self { role, scope })
    }

    /// The same, of a scope as it is written.
    ///
    /// # Errors
    /// It does not parse, or see [`Grant::new`].
    pub fn parse(role: Role, scope: &str) -> Result<Self, ScopeError> {
        Self::new(role, Selector::parse(scope).map_err(ScopeError::Parse)?)
    }

    /// A role over every agent, and over the fleet as a whole.
    #[must_use]
    pub fn everywhere(role: Role) -> Self {
        Self { role, scope: Selector::all() }
    }

    /// The role.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Where it holds.
    #[must_use]
    pub fn scope(&self) -> &Selector {
        &self.scope
    }

    /// Whether it holds for every agent, and for the fleet as a whole.
    #[must_use]
    pub fn is_everywhere(&self) -> bool {
        self.scope.is_all()
    }

    /// Whether it holds for an agent with these labels.
    #[must_use]
    pub fn covers(&self, labels: &Labels) -> bool {
        // No scope has a percentage, so the id of the agent decides nothing.
        self.scope.selects("", labels, OwnLabels::Ignored)
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} on {}", self.role, self.scope)
    }
}
