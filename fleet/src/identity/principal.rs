//! A person or a program that was authenticated.

use guest_fleet_core::labels::Labels;

use super::role::{Grant, Role};

/// A person or a program that was authenticated, with what it may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// Its name, as the audit record has it: `token/NAME` of an API token, and the name that the
    /// identity provider says of a person.
    pub name: String,
    /// By what it was authenticated, such as `API token ci`. Who answers the request adds the address
    /// that it came from.
    pub from: String,
    /// What it may do, and where; nothing else.
    pub grants: Vec<Grant>,
}

// === impl Principal ===

impl Principal {
    /// Its role for an agent with these labels.
    #[must_use]
    pub fn role_for(&self, labels: &Labels) -> Option<Role> {
        self.grants.iter().filter(|grant| grant.covers(labels)).map(Grant::role).max()
    }

    /// Whether it may do what a role may, to an agent with these labels.
    #[must_use]
    pub fn may(&self, needed: Role, labels: &Labels) -> bool {
        self.role_for(labels) >= Some(needed)
    }

    /// Its role for the fleet as a whole: for what is not about single agents, such as releases, tokens
    /// and roles, and for selectors of which nobody knows whom they will select.
    #[must_use]
    pub fn role_everywhere(&self) -> Option<Role> {
        self.grants.iter().filter(|grant| grant.is_everywhere()).map(Grant::role).max()
    }

    /// Whether it may do what a role may, to the fleet as a whole.
    #[must_use]
    pub fn may_everywhere(&self, needed: Role) -> bool {
        self.role_everywhere() >= Some(needed)
    }

    /// Whether it sees every agent, so that counts of the whole fleet tell it nothing new.
    #[must_use]
    pub fn sees_all(&self) -> bool {
        self.may_everywhere(Role::Viewer)
    }

    /// The most that it may do anywhere; `None` where it may do nothing.
    #[must_use]
    pub fn best_role(&self) -> Option<Role> {
        self.grants.iter().map(Grant::role).max()
    }
}
