//! `access token`: API tokens, by which programs use the API.

use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use schemars::JsonSchema;
use serde::Serialize;

use super::super::context::{Context, Output};
use super::super::document::{ChangeJson, Time};
use super::super::duration;
use super::super::failure::{Exit, Failure};
use super::super::text::{or_hyphen, table, time};
use super::roles::{RoleJson, granted, role, scope};
use crate::configuration::Configuration;
use crate::identity::Role;
use crate::identity::tokens::{self, NewToken, Standing, TokenError};
use crate::records::access::ApiTokenRecord;

/// What to do with API tokens.
#[derive(Clone, Debug, Subcommand)]
pub enum TokenVerb {
    /// Make an API token and print its text, which is shown once.
    Create(CreateOptions),
    /// List all API tokens, without their secrets.
    List,
    /// Revoke an API token.
    Revoke(RevokeTokenOptions),
}

/// The options of `access token create`.
#[derive(Clone, Debug, Args)]
pub struct CreateOptions {
    /// Name of the token: small letters, digits and hyphens. The audit record calls it token/NAME.
    pub name: String,
    /// The role: viewer, operator, approver or admin; each may what those before it may.
    #[arg(long, value_name = "ROLE", value_parser = role)]
    pub role: Role,
    /// Where it holds: a selector over labels that operators set. `all` is also the fleet as a whole.
    #[arg(long, value_name = "SELECTOR", default_value = "all", value_parser = scope)]
    pub scope: String,
    /// How long it may be used, such as 24h or 90d; at most 366 days.
    #[arg(long, value_name = "DURATION", default_value = "90d", value_parser = duration::parse)]
    pub expires: Duration,
    /// Why, for the audit record.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub reason: String,
}

/// The options of `access token revoke`.
#[derive(Clone, Debug, Args)]
pub struct RevokeTokenOptions {
    /// Name of the token.
    pub name: String,
    /// Why, for the audit record.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub reason: String,
}

/// An API token that was made.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ApiTokenJson {
    /// Number of the audit entry.
    pub audit: Option<u64>,
    /// Its name.
    pub name: String,
    /// Its text, with the secret, which is stored nowhere.
    pub token: String,
}

/// The API tokens.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ApiTokensJson {
    /// All of them, by name.
    pub tokens: Vec<ListedTokenJson>,
}

/// An API token, without its secret.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ListedTokenJson {
    /// Who made it.
    pub by: String,
    /// When it ends.
    #[schemars(with = "Option<Time>")]
    pub ends: Option<String>,
    /// When it was made.
    #[schemars(with = "Option<Time>")]
    pub made: Option<String>,
    /// Its name.
    pub name: String,
    /// What it may do.
    pub roles: Vec<RoleJson>,
    /// Whether it is of use.
    pub state: TokenState,
}

/// Whether an API token is of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenState {
    /// It is.
    InForce,
    /// Its time is over.
    Ended,
    /// It was revoked.
    Revoked,
}

pub(super) async fn run(verb: &TokenVerb, context: &mut Context<'_>) -> Result<Exit, Failure> {
    match verb {
        TokenVerb::Create(options) => create(options, context).await,
        TokenVerb::List => list(context).await,
        TokenVerb::Revoke(options) => revoke(options, context).await,
    }
}

async fn create(options: &CreateOptions, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let new = NewToken {
        name: options.name.clone(),
        grant: granted(options.role, &options.scope)?,
        life: options.expires,
    };
    let decision = context.decision("access token create", &options.reason);
    let changed = tokens::create(context.ledger, &decision, &new).await?;
    let (audit, token) = (changed.entry, changed.answer);
    // Alone on its line, so that a script can take it into a file.
    context.say(format_args!("{token}"))?;
    context.document(&ApiTokenJson { audit, name: new.name, token })?;
    Ok(Exit::Done)
}

async fn list(context: &mut Context<'_>) -> Result<Exit, Failure> {
    let now = context.now.into();
    let configuration = Configuration::load(context.ledger).await?;
    let tokens = configuration.access().tokens();
    let tokens: Vec<ListedTokenJson> = tokens.map(|it| ListedTokenJson::of(it, now)).collect();
    if context.output == Output::Json {
        context.document(&ApiTokensJson { tokens })?;
        return Ok(Exit::Done);
    }
    let rows: Vec<Vec<String>> = tokens.into_iter().map(ListedTokenJson::row).collect();
    for line in table(&["NAME", "STATE", "ROLE", "SCOPE", "ENDS", "BY"], &rows) {
        context.say(format_args!("{line}"))?;
    }
    Ok(Exit::Done)
}

async fn revoke(options: &RevokeTokenOptions, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let decision = context.decision("access token revoke", &options.reason);
    let changed = tokens::revoke(context.ledger, &decision, &options.name).await?;
    ChangeJson::of(changed.entry, &changed.answer).print(context)?;
    Ok(Exit::Done)
}

// === impl ListedTokenJson ===

impl ListedTokenJson {
    fn of(token: &ApiTokenRecord, now: SystemTime) -> Self {
        Self {
            by: token.made_by.clone(),
            ends: time(token.ends.as_ref()),
            made: time(token.made.as_ref()),
            name: token.name.clone(),
            roles: token.grants.iter().map(RoleJson::of).collect(),
            state: match tokens::standing(token, now) {
                Standing::InForce => TokenState::InForce,
                Standing::Ended => TokenState::Ended,
                Standing::Revoked => TokenState::Revoked,
            },
        }
    }

    fn row(self) -> Vec<String> {
        let state = match self.state {
            TokenState::InForce => "in force",
            TokenState::Ended => "ended",
            TokenState::Revoked => "revoked",
        };
        let joined = |part: fn(&RoleJson) -> &str| {
            self.roles.iter().map(part).collect::<Vec<_>>().join("; ")
        };
        let (roles, scopes) = (joined(|it| it.role_words()), joined(|it| &it.scope));
        vec![
            self.name,
            state.to_owned(),
            or_hyphen(roles),
            or_hyphen(scopes),
            or_hyphen(self.ends.unwrap_or_default()),
            or_hyphen(self.by),
        ]
    }
}

impl From<TokenError> for Failure {
    fn from(error: TokenError) -> Self {
        match &error {
            TokenError::Name(_) | TokenError::Life => Self::usage(&error),
            _ => Self::failed(&error),
        }
    }
}
