//! What a selector says, and whether it holds for an agent.

use crate::labels::Labels;
use crate::place::place;

/// Longest text of a selector, in bytes.
pub const TEXT_BYTES: usize = 4096;
/// How deep parentheses and `not` may be nested.
pub const DEPTH: usize = 32;

/// Steps of a percentage: hundredths of a percent.
pub(super) const STEPS: u64 = 10_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expression {
    All,
    Exists(String),
    Is(String, String),
    IsNot(String, String),
    In(String, Vec<String>),
    /// Hundredths of a percent, and the salt.
    Percent(u64, String),
    Not(Box<Self>),
    And(Vec<Self>),
    Or(Vec<Self>),
}

// === impl Expression ===

impl Expression {
    pub(super) fn holds(&self, agent: &str, labels: &Labels) -> bool {
        match self {
            Self::All => true,
            Self::Exists(key) => labels.get(key).is_some(),
            Self::Is(key, value) => labels.get(key) == Some(value),
            Self::IsNot(key, value) => labels.get(key) != Some(value),
            Self::In(key, values) => {
                labels.get(key).is_some_and(|found| values.iter().any(|value| value == found))
            }
            Self::Percent(steps, salt) => place(salt, agent) % STEPS < *steps,
            Self::Not(inner) => !inner.holds(agent, labels),
            Self::And(all) => all.iter().all(|one| one.holds(agent, labels)),
            Self::Or(any) => any.iter().any(|one| one.holds(agent, labels)),
        }
    }

    pub(super) fn any_key(&self, is_wanted: &impl Fn(&str) -> bool) -> bool {
        match self {
            Self::All | Self::Percent(..) => false,
            Self::Exists(key) | Self::Is(key, _) | Self::IsNot(key, _) | Self::In(key, _) => {
                is_wanted(key)
            }
            Self::Not(inner) => inner.any_key(is_wanted),
            Self::And(all) | Self::Or(all) => all.iter().any(|one| one.any_key(is_wanted)),
        }
    }

    /// Whether it follows from the parts that whatever this selects, `scope` selects, too.
    pub(super) fn is_within(&self, scope: &Self) -> bool {
        match (self, scope) {
            (_, Self::All) => true,
            (_, Self::And(all)) => all.iter().all(|part| self.is_within(part)),
            (Self::Or(any), _) => any.iter().all(|part| part.is_within(scope)),
            (_, Self::Or(any)) => any.iter().any(|part| self.is_within(part)),
            (Self::And(all), _) => all.iter().any(|part| part.is_within(scope)),
            (Self::Is(key, _) | Self::In(key, _), Self::Exists(of)) => key == of,
            (Self::Is(key, value), Self::In(of, values)) => key == of && values.contains(value),
            (Self::Is(key, value), Self::IsNot(of, other)) => key == of && value != other,
            (Self::In(key, some), Self::In(of, values)) => {
                key == of && some.iter().all(|value| values.contains(value))
            }
            (Self::In(key, some), Self::IsNot(of, other)) => key == of && !some.contains(other),
            (one, other) => one == other,
        }
    }

    pub(super) fn has_percentage(&self) -> bool {
        match self {
            Self::Percent(..) => true,
            Self::All | Self::Exists(_) | Self::Is(..) | Self::IsNot(..) | Self::In(..) => false,
            Self::Not(inner) => inner.has_percentage(),
            Self::And(all) | Self::Or(all) => all.iter().any(Self::has_percentage),
        }
    }
}
