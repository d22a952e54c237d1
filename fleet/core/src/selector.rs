//! Selectors: which agents a declaration is about.
//!
//! ```text
//!   env = prod and zone in (eu-1, eu-2) and not canary exists
//!   all                          every agent
//!   percent(10, spring)          a tenth of the agents, the same ones every time for one salt
//!   self.rack = r7               a label that the machine claims itself; see Labels
//! ```
//!
//! `and` binds closer than `or`. A value with other characters than letters, digits and `._/:-` stands in double
//! quotes. `key != value` also selects agents without the key, as Kubernetes has it.

mod expression;
mod parse;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::labels::{Labels, OWN_PREFIX};

use expression::Expression;

pub use expression::{DEPTH, TEXT_BYTES};
pub use parse::ParseError;

/// A parsed selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    text: String,
    expression: Expression,
}

/// Whether labels that agents claim themselves may select.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnLabels {
    /// A selector that names one selects nothing.
    #[default]
    Ignored,
    /// They count like others.
    Trusted,
}

// === impl Selector ===

impl Selector {
    /// A selector of every agent.
    #[must_use]
    pub fn all() -> Self {
        Self { text: "all".to_owned(), expression: Expression::All }
    }

    /// Parses a selector.
    ///
    /// # Errors
    /// Names the place and what was expected there.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        Ok(Self { text: text.trim().to_owned(), expression: parse::parse(text)? })
    }

    /// Whether the selector names a label that agents claim themselves.
    #[must_use]
    pub fn names_own_labels(&self) -> bool {
        self.expression.any_key(&|key| key.starts_with(OWN_PREFIX))
    }

    /// Whether it selects every agent, whatever there is. `env = a or env != a` does so, too, and is not
    /// recognised.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.expression == Expression::All
    }

    /// Whether it has a part that selects by the id of an agent: a percentage.
    #[must_use]
    pub fn names_percentages(&self) -> bool {
        self.expression.has_percentage()
    }

    /// Whether every agent that it selects is one that `scope` selects, whatever agents there are: it has
    /// each part of the scope as well. Where that takes more than comparing parts, it is not recognised.
    #[must_use]
    pub fn is_within(&self, scope: &Self) -> bool {
        self.expression.is_within(&scope.expression)
    }

    /// Whether an agent is selected.
    #[must_use]
    pub fn selects(&self, agent: &str, labels: &Labels, own: OwnLabels) -> bool {
        // Not only the term is false: `not self.x = y` would otherwise select by what is not trusted.
        if own == OwnLabels::Ignored && self.names_own_labels() {
            return false;
        }
        self.expression.holds(agent, labels)
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
