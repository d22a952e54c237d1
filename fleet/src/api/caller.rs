//! Who calls, as a document.

use serde::Serialize;

use crate::identity::Principal;

/// Who calls.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct CallerJson {
    grants: Vec<GrantJson>,
    name: String,
}

/// A role, and the agents for which it holds.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct GrantJson {
    role: String,
    scope: String,
}

// === impl CallerJson ===

impl From<&Principal> for CallerJson {
    fn from(principal: &Principal) -> Self {
        let grants = principal.grants.iter().map(|grant| GrantJson {
            role: grant.role().name().to_owned(),
            scope: grant.scope().to_string(),
        });
        Self { grants: grants.collect(), name: principal.name.clone() }
    }
}
