//! Grants as records have them.

use std::time::SystemTime;

use super::role::{Grant, Role};
use crate::records::access::{ApiTokenRecord, RoleGrantPart};
use crate::records::{number, of_number, time};

// === impl Grant ===

impl Grant {
    /// As a record has it.
    #[must_use]
    pub fn part(&self) -> RoleGrantPart {
        RoleGrantPart { role: number(&Role::ALL, &self.role()), scope: self.scope().to_string() }
    }

    /// What a record has; `None` where its role is of a newer program or its scope is not valid.
    #[must_use]
    pub fn of_part(part: &RoleGrantPart) -> Option<Self> {
        Self::parse(of_number(&Role::ALL, part.role)?, &part.scope).ok()
    }

    /// What records have. A grant that cannot be read allows nothing.
    #[must_use]
    pub fn of_parts(parts: &[RoleGrantPart]) -> Vec<Self> {
        parts.iter().filter_map(Self::of_part).collect()
    }
}

/// `operator on env = prod, viewer on all`.
#[must_use]
pub(super) fn words(grants: &[RoleGrantPart]) -> String {
    let one = |part: &RoleGrantPart| {
        let role = of_number(&Role::ALL, part.role).map_or("an unknown role", Role::name);
        format!("{role} on {}", part.scope)
    };
    grants.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// How an API token stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is in force.
    InForce,
    /// Its time is over.
    Ended,
    /// It was revoked.
    Revoked,
}

/// How an API token stands at a time.
#[must_use]
pub fn standing(token: &ApiTokenRecord, now: SystemTime) -> Standing {
    if token.revoked.is_some() {
        Standing::Revoked
    } else if time(token.ends).is_none_or(|ends| ends <= now) {
        Standing::Ended
    } else {
        Standing::InForce
    }
}
