//! `agent archive` and `agent unarchive`: whether an agent counts though it is silent.
//!
//! Gateways archive what was silent for long, and take out of the archive what connects. As with
//! labels, the entry of the audit record is written first.

use super::context::Context;
use super::document::ChangeJson;
use super::failure::{Exit, Failure};
use super::identity::{Options, edit, failed, nothing, read, tell};
use super::text::time;
use crate::enroll::agents;

/// What there is to say of an agent that was archived.
pub(crate) const COUNTS_AGAIN: &str =
    "it counts again as soon as it connects; `agent revoke` keeps it away";

/// Archives an agent.
///
/// # Errors
/// There is no such agent, or the ledger did not take it.
pub async fn archive(options: &Options, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let changed = archived(options, context).await?;
    tell_archived(&changed, context)
}

/// Prints that an agent was archived.
///
/// # Errors
/// It cannot be printed.
pub(crate) fn tell_archived(
    changed: &ChangeJson,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    if changed.audit.is_some() {
        context.remark(format_args!("{COUNTS_AGAIN}"))?;
    }
    changed.print(context)?;
    Ok(Exit::Done)
}

/// The same, and prints nothing.
///
/// # Errors
/// See [`archive`].
pub(crate) async fn archived(
    options: &Options,
    context: &Context<'_>,
) -> Result<ChangeJson, Failure> {
    let record = read(options, context).await?;
    if record.archived.is_some() {
        return Ok(nothing());
    }
    let seen = time(record.seen.as_ref()).unwrap_or_else(|| "never".to_owned());
    let edit = edit(options, format!("counted, last seen {seen}"), "archived");
    let entry = tell(options, context, "agent archive", &edit).await?;
    agents::archive(context.ledger, &options.id, context.now.into()).await.map_err(failed)?;
    Ok(ChangeJson::of(entry, &[edit]))
}

/// Takes an agent out of the archive.
///
/// # Errors
/// There is no such agent, or the ledger did not take it.
pub async fn unarchive(options: &Options, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let changed = unarchived(options, context).await?;
    changed.print(context)?;
    Ok(Exit::Done)
}

/// The same, and prints nothing.
///
/// # Errors
/// See [`unarchive`].
pub(crate) async fn unarchived(
    options: &Options,
    context: &Context<'_>,
) -> Result<ChangeJson, Failure> {
    let record = read(options, context).await?;
    let Some(since) = time(record.archived.as_ref()) else { return Ok(nothing()) };
    let edit = edit(options, format!("archived since {since}"), "counted");
    let entry = tell(options, context, "agent unarchive", &edit).await?;
    agents::unarchive(context.ledger, &options.id, context.now.into()).await.map_err(failed)?;
    Ok(ChangeJson::of(entry, &[edit]))
}
