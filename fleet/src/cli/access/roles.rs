//! Roles and scopes, as the verbs of `access` read and print them.

use schemars::JsonSchema;
use serde::Serialize;

use super::super::failure::{Exit, Failure};
use crate::identity::{Grant, Role};
use crate::records::access::RoleGrantPart;

/// A role within a scope.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RoleJson {
    /// The role; null where a newer program knows it, which allows nothing.
    pub role: Option<RoleName>,
    /// The agents that it is about: a selector. `all` is also the fleet as a whole.
    pub scope: String,
}

/// The name of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RoleName {
    /// May see.
    Viewer,
    /// May change what agents should run.
    Operator,
    /// May approve what another person asked for, too.
    Approver,
    /// May say who may do what, too, and enrol and revoke machines.
    Admin,
}

/// Reads a scope on the command line.
pub(super) fn scope(text: &str) -> Result<String, String> {
    let chained = |error: &dyn std::error::Error| {
        error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
    };
    let grant = Grant::parse(Role::Viewer, text).map_err(|error| chained(&error))?;
    Ok(grant.scope().to_string())
}

/// Reads a role on the command line.
pub(super) fn role(text: &str) -> Result<Role, String> {
    text.parse().map_err(|error: crate::identity::RoleError| error.to_string())
}

/// A role that was read from the command line.
pub(super) fn granted(role: Role, scope: &str) -> Result<Grant, Failure> {
    Grant::parse(role, scope).map_err(|error| Failure::of(Exit::Usage, &error))
}

// === impl RoleJson ===

impl RoleJson {
    pub(super) fn of(part: &RoleGrantPart) -> Self {
        let role = Grant::of_part(part).map(|grant| match grant.role() {
            Role::Viewer => RoleName::Viewer,
            Role::Operator => RoleName::Operator,
            Role::Approver => RoleName::Approver,
            Role::Admin => RoleName::Admin,
        });
        Self { role, scope: part.scope.clone() }
    }

    pub(super) fn role_words(&self) -> &'static str {
        match self.role {
            None => "unknown",
            Some(RoleName::Viewer) => "viewer",
            Some(RoleName::Operator) => "operator",
            Some(RoleName::Approver) => "approver",
            Some(RoleName::Admin) => "admin",
        }
    }
}
