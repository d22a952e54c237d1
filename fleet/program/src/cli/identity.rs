//! `agent revoke` and `agent release`: what an operator does about the identity of an agent.
//!
//! As with labels, the entry of the audit record is written first.

use clap::Args;
use guest_fleet_ledger::records::agent::AgentRecord;
use guest_fleet_ledger::{Bucket, records};
use guest_fleet_server::configuration::change::{self, Becomes, Edit};
use guest_fleet_server::enroll::AgentId;
use guest_fleet_server::enroll::agents;

use super::context::Context;
use super::document::ChangeJson;
use super::facts::unknown;
use super::failure::{Exit, Failure};

/// The options of the verbs about one agent.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Id of the agent.
    pub id: AgentId,
    /// Why, for the audit record.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub reason: String,
}

/// Revokes an agent.
///
/// # Errors
/// There is no such agent, or the ledger did not take it.
pub async fn revoke(options: &Options, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let record = read(options, context).await?;
    let before = match (&record.revoked, record.certificates.len()) {
        (Some(_), _) => return nothing(context),
        (None, 0) => "admitted, without certificates".to_owned(),
        (None, certificates) => format!("admitted, certificates {certificates}"),
    };
    let edit = edit(options, before, "revoked");
    let entry = tell(options, context, "agent revoke", &edit).await?;
    let now = context.now.into();
    agents::revoke(context.ledger, &options.id, now).await.map_err(failed)?;
    ChangeJson::of(entry, &[edit]).print(context)?;
    Ok(Exit::Done)
}

/// Takes an agent out of quarantine.
///
/// # Errors
/// There is no such agent, or the ledger did not take it.
pub async fn release(options: &Options, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let record = read(options, context).await?;
    if record.quarantine.is_empty() {
        return nothing(context);
    }
    let edit = edit(options, format!("in quarantine: {}", record.quarantine), "gets orders");
    let entry = tell(options, context, "agent release", &edit).await?;
    agents::release(context.ledger, &options.id).await.map_err(failed)?;
    ChangeJson::of(entry, &[edit]).print(context)?;
    Ok(Exit::Done)
}

pub(super) async fn read(options: &Options, context: &Context<'_>) -> Result<AgentRecord, Failure> {
    let key = options.id.as_str();
    let found = context.ledger.get(Bucket::Agents, key).await?.ok_or_else(|| unknown(key))?;
    Ok(records::decode(key, &found.value)?)
}

pub(super) fn edit(options: &Options, before: String, after: &str) -> Edit {
    Edit {
        key: format!("agent/{}", options.id),
        before: Some(before),
        after: Some(after.to_owned()),
        record: Becomes::Elsewhere,
    }
}

pub(super) async fn tell(
    options: &Options,
    context: &Context<'_>,
    what: &str,
    edit: &Edit,
) -> Result<Option<u64>, Failure> {
    let decision = context.decision(what, &options.reason);
    let plan = |_: &_| Ok::<_, Failure>((vec![edit.clone()], ()));
    Ok(change::change(context.ledger, &decision, plan).await?.entry)
}

pub(super) fn nothing(context: &mut Context<'_>) -> Result<Exit, Failure> {
    ChangeJson::of(None, &[]).print(context)?;
    Ok(Exit::Done)
}

pub(super) fn failed(error: agents::AgentError) -> Failure {
    Failure::of(Exit::Failed, &error).hint("the audit record has the intention: try again")
}
