//! What a visitor may do, as far as pages show it. The API decides; a page only leaves out the buttons that
//! would be refused anyhow.

use guest_agent_proto::fleet_api::{Caller, Role};

use crate::identity::{Principal, Role as Own};

/// What a visitor may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct May {
    /// The roles that the visitor has somewhere.
    pub(super) best: Option<Role>,
}

// === impl May ===

impl May {
    /// What a caller may do.
    pub(super) fn of(caller: &Caller) -> Self {
        let roles = caller.grants.iter().map(|grant| grant.role());
        Self { best: roles.max_by_key(|role| *role as i32) }
    }

    /// What somebody may do who was authenticated.
    pub(super) fn of_principal(who: &Principal) -> Self {
        let best = who.best_role().map(|role| match role {
            Own::Viewer => Role::Viewer,
            Own::Operator => Role::Operator,
            Own::Approver => Role::Approver,
            Own::Admin => Role::Admin,
        });
        Self { best }
    }

    /// Whether there is a place where they have a role, or one that may more.
    pub(super) fn act_as(&self, role: Role) -> bool {
        self.best.is_some_and(|best| best as i32 >= role as i32)
    }

    /// The best of their roles, as a word.
    pub(super) fn word(&self) -> &'static str {
        match self.best {
            Some(Role::Viewer) => "viewer",
            Some(Role::Operator) => "operator",
            Some(Role::Approver) => "approver",
            Some(Role::Admin) => "admin",
            Some(Role::Unspecified) | None => "without a role",
        }
    }
}

#[cfg(test)]
mod tests {
    use guest_agent_proto::fleet_api::Grant;

    use super::*;

    #[test]
    fn the_best_role_counts_and_none_allows_nothing() {
        let grant = |role: Role| Grant { role: role.into(), scope: "all".to_owned() };
        let of = |roles: &[Role]| {
            let grants = roles.iter().copied().map(grant).collect();
            May::of(&Caller { name: "x".to_owned(), grants })
        };
        assert!(!of(&[]).act_as(Role::Viewer));
        assert!(of(&[Role::Viewer, Role::Operator]).act_as(Role::Operator));
        assert!(!of(&[Role::Operator]).act_as(Role::Approver));
        assert_eq!(of(&[Role::Admin]).word(), "admin");
    }
}
