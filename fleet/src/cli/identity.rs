//! `agent revoke` and `agent release`: what an operator does about the identity of an agent.
//!
//! As with labels, the entry of the audit record is written first.

use clap::Args;

use super::context::Context;
use super::document::ChangeJson;
use super::failure::{Exit, Failure};
use super::sees::unknown;
use crate::configuration::change::{self, Becomes, ChangeError, Decision, Edit};
use crate::enroll::AgentId;
use crate::enroll::agents;
use crate::ledger::Bucket;
use crate::records;
use crate::records::agent::AgentRecord;

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
    let changed = revoked(options, context).await?;
    changed.print(context)?;
    Ok(Exit::Done)
}

/// The same, and prints nothing.
///
/// # Errors
/// See [`revoke`].
pub(crate) async fn revoked(
    options: &Options,
    context: &Context<'_>,
) -> Result<ChangeJson, Failure> {
    let record = read(options, context).await?;
    let before = match (&record.revoked, record.certificates.len()) {
        (Some(_), _) => return Ok(nothing()),
        (None, 0) => "admitted, without certificates".to_owned(),
        (None, certificates) => format!("admitted, certificates {certificates}"),
    };
    let edit = edit(options, before, "revoked");
    let entry = tell(options, context, "agent revoke", &edit).await?;
    let now = context.now.into();
    agents::revoke(context.ledger, &options.id, now).await.map_err(failed)?;
    Ok(ChangeJson::of(entry, &[edit]))
}

/// Takes an agent out of quarantine.
///
/// # Errors
/// There is no such agent, or the ledger did not take it.
pub async fn release(options: &Options, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let changed = released(options, context).await?;
    changed.print(context)?;
    Ok(Exit::Done)
}

/// The same, and prints nothing.
///
/// # Errors
/// See [`release`].
pub(crate) async fn released(
    options: &Options,
    context: &Context<'_>,
) -> Result<ChangeJson, Failure> {
    let record = read(options, context).await?;
    if record.quarantine.is_empty() {
        return Ok(nothing());
    }
    let edit = edit(options, format!("in quarantine: {}", record.quarantine), "gets orders");
    let entry = tell(options, context, "agent release", &edit).await?;
    agents::release(context.ledger, &options.id).await.map_err(failed)?;
    Ok(ChangeJson::of(entry, &[edit]))
}

pub(super) async fn read(options: &Options, context: &Context<'_>) -> Result<AgentRecord, Failure> {
    let key = options.id.as_str();
    let found = context.ledger.get(Bucket::Agents, key).await?.ok_or_else(|| unknown(key))?;
    let record: AgentRecord = records::decode(key, &found.value)?;
    context.sees.check_agent(key, &record.labels())?;
    Ok(record)
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
    intend(context, &decision, edit).await
}

/// Writes the entry of a change that is made after it, in another bucket. Where the same request wrote it already, and
/// perhaps came no further, its number.
pub(super) async fn intend(
    context: &Context<'_>,
    decision: &Decision,
    edit: &Edit,
) -> Result<Option<u64>, Failure> {
    let plan = |_: &_| Ok::<_, Failure>((vec![edit.clone()], ()));
    match change::change(context.ledger, decision, plan).await {
        Ok(changed) => Ok(changed.entry),
        Err(ChangeError::Repeated(entry)) => Ok(Some(entry)),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn nothing() -> ChangeJson {
    ChangeJson::of(None, &[])
}

pub(super) fn failed(error: agents::AgentError) -> Failure {
    Failure::of(Exit::Failed, &error).hint("the audit record has the intention: try again")
}
