//! Labels of an agent, by who gave them.

use std::collections::BTreeMap;

/// What the keys of labels that an agent claims itself begin with, in selectors.
pub const OWN_PREFIX: &str = "self.";

/// Labels of one agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// What an operator set.
    pub operator: BTreeMap<String, String>,
    /// What came with the join token.
    pub token: BTreeMap<String, String>,
    /// What the agent says of itself. Selectors name these with `self.`, and select nothing by them
    /// unless an operator opted in.
    pub own: BTreeMap<String, String>,
}

// === impl Labels ===

impl Labels {
    /// The value of a key as selectors write it. An operator's label hides the token's.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        let found = match key.strip_prefix(OWN_PREFIX) {
            Some(own) => self.own.get(own),
            None => self.operator.get(key).or_else(|| self.token.get(key)),
        };
        found.map(String::as_str)
    }
}
