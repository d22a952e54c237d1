//! What a selector says, and whether it holds for an agent.

use crate::labels::Labels;

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
            Self::Percent(steps, salt) => place(salt, agent) < *steps,
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
