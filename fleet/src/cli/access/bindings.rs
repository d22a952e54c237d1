//! `access grant`, `access list` and `access revoke`.

use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::context::{Context, Output};
use super::super::document::ChangeJson;
use super::super::failure::{Exit, Failure};
use super::super::text::table;
use super::roles::{RoleJson, granted, role, scope};
use crate::configuration::Configuration;
use crate::identity::Role;
use crate::identity::bindings::{self, BindingError};
use crate::records::access::{BindingRecord, Subject};

/// Who a role is of.
#[derive(Clone, Debug, Args)]
#[group(id = "subject", required = true, multiple = false)]
pub struct SubjectOptions {
    /// Name of a person, as the identity provider says it.
    pub name: Option<String>,
    /// Name of a group, as the identity provider says it.
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,
}

/// The options of `access grant`.
#[derive(Clone, Debug, Args)]
pub struct GrantOptions {
    /// Who gets the role.
    #[command(flatten)]
    pub subject: SubjectOptions,
    /// The role: viewer, operator, approver or admin; each may what those before it may.
    #[arg(long, value_name = "ROLE", value_parser = role)]
    pub role: Role,
    /// Where it holds: a selector over labels that operators set. `all` is also the fleet as a whole.
    #[arg(long, value_name = "SELECTOR", default_value = "all", value_parser = scope)]
    pub scope: String,
    /// Why, for the audit record.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub reason: String,
}

/// The options of `access revoke`.
#[derive(Clone, Debug, Args)]
pub struct RevokeOptions {
    /// Who loses the role.
    #[command(flatten)]
    pub subject: SubjectOptions,
    /// Only the role in this scope; without it, all.
    #[arg(long, value_name = "SELECTOR")]
    pub scope: Option<String>,
    /// Why, for the audit record.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub reason: String,
}

/// Which roles persons and groups have.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AccessJson {
    /// Groups first, by name.
    pub bindings: Vec<BindingJson>,
}

/// The roles of a person or a group.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BindingJson {
    /// Whether it is a group.
    pub is_group: bool,
    /// Its name, as the identity provider says it.
    pub name: String,
    /// Its roles.
    pub roles: Vec<RoleJson>,
}

pub(super) async fn grant(
    options: &GrantOptions,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    let subject = options.subject.read();
    let wanted = granted(options.role, &options.scope)?;
    let decision = context.decision("access grant", &options.reason);
    let changed = bindings::grant(context.ledger, &decision, &subject, &wanted).await?;
    ChangeJson::of(changed.entry, &changed.answer).print(context)?;
    Ok(Exit::Done)
}

pub(super) async fn revoke(
    options: &RevokeOptions,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    let subject = options.subject.read();
    let decision = context.decision("access revoke", &options.reason);
    let scope = options.scope.as_deref();
    let changed = bindings::revoke(context.ledger, &decision, &subject, scope).await?;
    ChangeJson::of(changed.entry, &changed.answer).print(context)?;
    Ok(Exit::Done)
}

pub(super) async fn list(context: &mut Context<'_>) -> Result<Exit, Failure> {
    let configuration = Configuration::load(context.ledger).await?;
    let bindings: Vec<BindingJson> =
        configuration.access().bindings().map(BindingJson::of).collect();
    if context.output == Output::Json {
        context.document(&AccessJson { bindings })?;
        return Ok(Exit::Done);
    }
    let rows: Vec<Vec<String>> = bindings.iter().flat_map(BindingJson::rows).collect();
    for line in table(&["KIND", "NAME", "ROLE", "SCOPE"], &rows) {
        context.say(format_args!("{line}"))?;
    }
    Ok(Exit::Done)
}

// === impl SubjectOptions ===

impl SubjectOptions {
    fn read(&self) -> Subject {
        match (&self.group, &self.name) {
            (Some(group), _) => Subject::Group(group.clone()),
            (None, name) => Subject::Person(name.clone().unwrap_or_default()),
        }
    }
}

// === impl BindingJson ===

impl BindingJson {
    fn of(record: &BindingRecord) -> Self {
        Self {
            is_group: record.is_group,
            name: record.name.clone(),
            roles: record.grants.iter().map(RoleJson::of).collect(),
        }
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let kind = if self.is_group { "group" } else { "person" };
        let row = |role: &RoleJson| {
            let (name, scope) = (self.name.clone(), role.scope.clone());
            vec![kind.to_owned(), name, role.role_words().to_owned(), scope]
        };
        self.roles.iter().map(row).collect()
    }
}

impl From<BindingError> for Failure {
    fn from(error: BindingError) -> Self {
        match &error {
            BindingError::Name(_) => Self::usage(&error),
            _ => Self::failed(&error),
        }
    }
}
