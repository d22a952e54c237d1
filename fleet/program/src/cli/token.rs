//! `token`: join tokens, by which machines become agents.
//!
//! Machines that enrol write the record of a token, too, and no audit entry; so an entry is written
//! before a token is made or revoked, as with labels. It never has the secret.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use guest_fleet_core::duration;
use guest_fleet_ledger::records;
use guest_fleet_ledger::records::token::TokenRecord;
use guest_fleet_server::configuration::change::{self, Becomes, Edit};
use guest_fleet_server::enroll::AgentId;
use guest_fleet_server::enroll::token::{self, CreateError, ListError, NewToken, RevokeError};
use schemars::JsonSchema;
use serde::Serialize;

use super::context::{Context, Output};
use super::document::{ChangeJson, Time};
use super::failure::{Exit, Failure};
use super::label;
use super::text::{or_hyphen, table, time};

/// What to do with tokens.
#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Make a token and print its text, which is shown once.
    Create(Create),
    /// List all tokens, without their secrets.
    List,
    /// Revoke a token: it enrols nobody any more, and its agents stay.
    Revoke(Revoke),
}

/// The options of `token create`.
#[derive(Clone, Debug, Args)]
pub struct Create {
    /// Name of the token: small letters, digits and hyphens.
    pub name: String,
    /// How many machines it may enrol.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub uses: u32,
    /// How long it may be used, such as 30m, 24h or 7d.
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = duration::parse)]
    pub expires: Duration,
    /// A label that its agents get, `key=value`; may be given several times.
    #[arg(long = "label", value_name = "LABEL")]
    pub labels: Vec<label::Wish>,
    /// Its agents have a short life: they are archived after an hour of silence.
    #[arg(long)]
    pub ephemeral: bool,
    /// Enrol this agent and no other, known already or not; what the former machine has is revoked.
    #[arg(long, value_name = "ID")]
    pub agent: Option<AgentId>,
    /// Why, for the audit record.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub reason: String,
}

/// The options of `token revoke`.
#[derive(Clone, Debug, Args)]
pub struct Revoke {
    /// Name of the token.
    pub name: String,
    /// Why, for the audit record.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub reason: String,
}

/// A token that was made.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TokenJson {
    /// Number of the audit entry.
    pub audit: Option<u64>,
    /// Its name.
    pub name: String,
    /// Its text, with the secret, which is stored nowhere.
    pub token: String,
}

/// The tokens.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TokensJson {
    /// All of them, by name.
    pub tokens: Vec<ListedJson>,
}

/// A token, without its secret.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ListedJson {
    /// The one agent that it enrols; null where it enrols new ones.
    pub agent: Option<String>,
    /// Who made it.
    pub by: String,
    /// When it ends.
    #[schemars(with = "Option<Time>")]
    pub ends: Option<String>,
    /// Whether its agents have a short life.
    pub ephemeral: bool,
    /// Labels that its agents get.
    pub labels: BTreeMap<String, String>,
    /// When it was made.
    #[schemars(with = "Option<Time>")]
    pub made: Option<String>,
    /// Its name.
    pub name: String,
    /// Whether it enrols machines.
    pub state: State,
    /// How many machines it may enrol in all.
    pub uses: u32,
    /// How many of these are left.
    pub uses_left: u32,
}

/// Whether a token enrols machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It does.
    InForce,
    /// Its time is over.
    Ended,
    /// It enrolled as many as it may.
    UsedUp,
    /// An operator revoked it.
    Revoked,
}

/// Runs the verb.
///
/// # Errors
/// The token cannot be made or is not there, or the ledger did not take it.
pub async fn run(verb: &Verb, context: &mut Context<'_>) -> Result<Exit, Failure> {
    match verb {
        Verb::Create(options) => create(options, context).await,
        Verb::List => list(context).await,
        Verb::Revoke(options) => revoke(options, context).await,
    }
}

async fn create(options: &Create, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let mut labels = BTreeMap::new();
    for wish in &options.labels {
        let (key, value) = wish.set().ok_or_else(|| {
            Failure::usage("a token gives labels and takes none away").hint("write `key=value`")
        })?;
        labels.insert(key.to_owned(), value.to_owned());
    }
    let new = NewToken {
        name: options.name.clone(),
        uses: options.uses,
        life: options.expires,
        labels,
        is_ephemeral: options.ephemeral,
        agent: options.agent.clone(),
        made_by: context.caller.who.clone(),
    };
    new.check()?;
    if token::list(context.ledger).await?.iter().any(|known| known.name == new.name) {
        return Err(CreateError::Exists(new.name).into());
    }
    let after = in_words(&new);
    let (edit, decision) =
        (edit(&new.name, None, after), context.decision("token create", &options.reason));
    let plan = |_: &_| Ok::<_, Failure>((vec![edit.clone()], ()));
    let changed = change::change(context.ledger, &decision, plan).await?;
    let (name, now) = (new.name.clone(), context.now.into());
    let token = token::create(context.ledger, new, now).await?;
    // Alone on its line, so that a script can take it into a file.
    context.say(format_args!("{token}"))?;
    context.document(&TokenJson { audit: changed.entry, name, token })?;
    Ok(Exit::Done)
}

async fn list(context: &mut Context<'_>) -> Result<Exit, Failure> {
    let now = context.now.into();
    let tokens = token::list(context.ledger).await?;
    let tokens: Vec<ListedJson> =
        tokens.into_iter().map(|token| ListedJson::of(token, now)).collect();
    if context.output == Output::Json {
        context.document(&TokensJson { tokens })?;
        return Ok(Exit::Done);
    }
    let rows: Vec<Vec<String>> = tokens.into_iter().map(ListedJson::row).collect();
    for line in table(&["NAME", "STATE", "LEFT", "ENDS", "BY", "FOR", "LABELS"], &rows) {
        context.say(format_args!("{line}"))?;
    }
    Ok(Exit::Done)
}

async fn revoke(options: &Revoke, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let name = &options.name;
    let tokens = token::list(context.ledger).await?;
    let found = tokens.iter().find(|token| token.name == *name);
    let found = found.ok_or_else(|| RevokeError::Unknown(name.clone()))?;
    if found.revoked.is_some() {
        ChangeJson::of(None, &[]).print(context)?;
        return Ok(Exit::Done);
    }
    let before = format!("in force, uses left {}", found.uses_left);
    let (edit, decision) = (
        edit(name, Some(before), "revoked".to_owned()),
        context.decision("token revoke", &options.reason),
    );
    let plan = |_: &_| Ok::<_, Failure>((vec![edit.clone()], ()));
    let changed = change::change(context.ledger, &decision, plan).await?;
    token::revoke(context.ledger, name, context.now.into()).await?;
    ChangeJson::of(changed.entry, &[edit]).print(context)?;
    Ok(Exit::Done)
}

fn edit(name: &str, before: Option<String>, after: String) -> Edit {
    Edit { key: TokenRecord::key(name), before, after: Some(after), record: Becomes::Elsewhere }
}

fn in_words(new: &NewToken) -> String {
    let mut words =
        vec![format!("uses {}", new.uses), format!("for {}h", new.life.as_secs() / 3600)];
    words.extend(new.agent.as_ref().map(|agent| format!("agent {agent}")));
    words.extend(new.is_ephemeral.then(|| "ephemeral".to_owned()));
    words.extend(new.labels.iter().map(|(key, value)| format!("{key}={value}")));
    words.join(", ")
}

// === impl ListedJson ===

impl ListedJson {
    fn of(token: TokenRecord, now: SystemTime) -> Self {
        let ends = records::time(token.ends);
        let state = if token.revoked.is_some() {
            State::Revoked
        } else if ends.is_none_or(|ends| ends <= now) {
            State::Ended
        } else if token.uses_left == 0 {
            State::UsedUp
        } else {
            State::InForce
        };
        Self {
            agent: Some(token.agent).filter(|agent| !agent.is_empty()),
            by: token.made_by,
            ends: time(token.ends.as_ref()),
            ephemeral: token.is_ephemeral,
            labels: token.labels,
            made: time(token.made.as_ref()),
            name: token.name,
            state,
            uses: token.uses,
            uses_left: token.uses_left,
        }
    }

    fn row(self) -> Vec<String> {
        let state = match self.state {
            State::InForce => "in force",
            State::Ended => "ended",
            State::UsedUp => "used up",
            State::Revoked => "revoked",
        };
        let labels: Vec<String> =
            self.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let whom = match (&self.agent, self.ephemeral) {
            (Some(agent), _) => agent.clone(),
            (None, true) => "short lives".to_owned(),
            (None, false) => "new agents".to_owned(),
        };
        vec![
            self.name,
            state.to_owned(),
            format!("{} of {}", self.uses_left, self.uses),
            or_hyphen(self.ends.unwrap_or_default()),
            or_hyphen(self.by),
            whom,
            or_hyphen(labels.join(" ")),
        ]
    }
}

impl From<CreateError> for Failure {
    fn from(error: CreateError) -> Self {
        Self::of(Exit::Failed, &error)
    }
}

impl From<ListError> for Failure {
    fn from(error: ListError) -> Self {
        Self::of(Exit::Unreachable, &error)
    }
}

impl From<RevokeError> for Failure {
    fn from(error: RevokeError) -> Self {
        Self::of(Exit::Failed, &error)
    }
}
