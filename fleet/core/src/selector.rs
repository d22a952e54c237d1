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

mod parse;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::labels::{Labels, OWN_PREFIX};

pub use parse::ParseError;

/// Longest text of a selector, in bytes.
pub const TEXT_BYTES: usize = 4096;
/// How deep parentheses and `not` may be nested.
pub const DEPTH: usize = 32;

/// Steps of a percentage: hundredths of a percent.
const STEPS: u64 = 10_000;

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

#[derive(Clone, Debug, PartialEq, Eq)]
enum Expression {
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

// === impl Expression ===

impl Expression {
    fn holds(&self, agent: &str, labels: &Labels) -> bool {
        match self {
            Self::All => true,
            Self::Exists(key) => labels.get(key).is_some(),
            Self::Is(key, value) => labels.get(key) == Some(value),
            Self::IsNot(key, value) => labels.get(key) != Some(value),
            Self::In(key, values) => {
                labels.get(key).is_some_and(|found| values.iter().any(|value| value == found))
            }
            Self::Percent(steps, salt) => place(salt, agent) < *steps,
            Self::Not(inner) => !inner.holds(agent, labels),
            Self::And(all) => all.iter().all(|one| one.holds(agent, labels)),
            Self::Or(any) => any.iter().any(|one| one.holds(agent, labels)),
        }
    }

    fn any_key(&self, is_wanted: &impl Fn(&str) -> bool) -> bool {
        match self {
            Self::All | Self::Percent(..) => false,
            Self::Exists(key) | Self::Is(key, _) | Self::IsNot(key, _) | Self::In(key, _) => {
                is_wanted(key)
            }
            Self::Not(inner) => inner.any_key(is_wanted),
            Self::And(all) | Self::Or(all) => all.iter().any(|one| one.any_key(is_wanted)),
        }
    }
}

/// Where an agent stands among all, from 0 to [`STEPS`]: fixed for one salt, and independent between
/// two. FNV-1a over both texts, then the finaliser of splitmix64, because the upper bits of FNV of
/// short texts are much alike.
fn place(salt: &str, agent: &str) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let bytes = salt.bytes().chain([0]).chain(agent.bytes());
    let hash = bytes.fold(BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    let mixed = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) % STEPS
}
