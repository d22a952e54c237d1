//! `agent archive` and `agent unarchive`: whether an agent counts though it is silent.
//!
//! Gateways archive what was silent for long, and take out of the archive what connects. As with
//! labels, the entry of the audit record is written first.

use guest_fleet_server::enroll::agents;

use super::context::Context;
use super::document::ChangeJson;
use super::failure::{Exit, Failure};
use super::identity::{Options, edit, failed, nothing, read, tell};
use super::text::time;

/// Archives an agent.
///
/// # Errors
/// There is no such agent, or the ledger did not take it.
pub async fn archive(options: &Options, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let record = read(options, context).await?;
    if record.archived.is_some() {
        return nothing(context);
    }
    let seen = time(record.seen.as_ref()).unwrap_or_else(|| "never".to_owned());
    let edit = edit(options, format!("counted, last seen {seen}"), "archived");
    let entry = tell(options, context, "agent archive", &edit).await?;
    agents::archive(context.ledger, &options.id, context.now.into()).await.map_err(failed)?;
    context.remark(format_args!(
        "it counts again as soon as it connects; `agent revoke` keeps it away"
    ))?;
    ChangeJson::of(entry, &[edit]).print(context)?;
    Ok(Exit::Done)
}

/// Takes an agent out of the archive.
///
/// # Errors
/// There is no such agent, or the ledger did not take it.
pub async fn unarchive(options: &Options, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let record = read(options, context).await?;
    let Some(since) = time(record.archived.as_ref()) else { return nothing(context) };
    let edit = edit(options, format!("archived since {since}"), "counted");
    let entry = tell(options, context, "agent unarchive", &edit).await?;
    agents::unarchive(context.ledger, &options.id, context.now.into()).await.map_err(failed)?;
    ChangeJson::of(entry, &[edit]).print(context)?;
    Ok(Exit::Done)
}
