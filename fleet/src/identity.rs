//! Who people and programs are in a fleet, and what they may do.
//!
//! ```text
//!   bearer ─► Authenticate ─► Principal { name, from, grants }
//!                               │ a grant is a role within a scope, which is a selector
//!                               ├─► role_for(labels of an agent)   what may be done to this agent
//!                               └─► role_everywhere()              what may be done to the fleet as a whole
//! ```
//!
//! | role | may |
//! |---|---|
//! | viewer | see |
//! | operator | change what agents should run: releases, assignments, holds, windows, rollouts |
//! | approver | approve what another person asked for; all of the above |
//! | admin | say who may do what, enrol and revoke machines; all of the above |
//!
//! [`tokens`] and [`bindings`] change who may do what, each in one batch with its audit entry; the
//! [`Directory`] knows what holds now.
//!
//! A scope selects by labels that operators and join tokens gave. What a machine says of itself never
//! decides who may change it.

pub mod bindings;
mod credential;
pub mod directory;
pub mod oidc;
mod principal;
mod role;
pub mod sessions;
mod stored;
#[cfg(test)]
mod tests;
pub mod tokens;

use async_trait::async_trait;
use thiserror::Error;

pub use directory::Directory;
pub use principal::Principal;
pub use role::{Grant, Role, RoleError, ScopeError};

/// Finds out who sends a request.
#[async_trait]
pub trait Authenticate: Send + Sync {
    /// Who has this bearer token: what follows `Bearer ` in the header `authorization`.
    ///
    /// # Errors
    /// See [`Refusal`].
    async fn authenticate(&self, bearer: &str) -> Result<Principal, Refusal>;
}

/// Why a request is nobody's.
///
/// Only who has the secret of a token learns that it ended or was revoked; everything else is
/// [`Refusal::Unknown`].
#[derive(Debug, Error)]
pub enum Refusal {
    /// It is no token, no token has this name, or its secret is another one.
    #[error("the token is unknown")]
    Unknown,
    /// Its time is over.
    #[error("the token `{0}` ended: make another one with `guest-fleet access token create`")]
    Ended(String),
    /// An operator revoked it.
    #[error("the token `{0}` was revoked: make another one with `guest-fleet access token create`")]
    Revoked(String),
    /// It cannot be found out now.
    #[error("it cannot be found out whose the token is; try again")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
}
