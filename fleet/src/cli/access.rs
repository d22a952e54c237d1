//! `access`: who may do what in this fleet.
//!
//! Those who reach the ledger by this program may do everything; the roles hold for the API and the
//! console.

mod bindings;
mod roles;
mod tokens;

use clap::Subcommand;

use super::context::Context;
use super::failure::{Exit, Failure};

pub use bindings::{AccessJson, BindingJson, GrantOptions, RevokeOptions};
pub use roles::{RoleJson, RoleName};
pub use tokens::{
    ApiTokenJson, ApiTokensJson, CreateOptions, ListedTokenJson, RevokeTokenOptions, TokenState,
    TokenVerb,
};

/// What to do with access.
#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Give a person or a group a role; another one in the same scope is replaced.
    Grant(GrantOptions),
    /// List which roles persons and groups have.
    List,
    /// Take a role from a person or a group, or all of them.
    Revoke(RevokeOptions),
    /// Make, list and revoke API tokens, by which programs use the API.
    #[command(subcommand)]
    Token(TokenVerb),
}

/// Runs the verb.
///
/// # Errors
/// A value is not valid, what is named is not there, or the ledger did not take it.
pub async fn run(verb: &Verb, context: &mut Context<'_>) -> Result<Exit, Failure> {
    match verb {
        Verb::Grant(options) => bindings::grant(options, context).await,
        Verb::List => bindings::list(context).await,
        Verb::Revoke(options) => bindings::revoke(options, context).await,
        Verb::Token(verb) => tokens::run(verb, context).await,
    }
}
