//! What happened to the plugins of an agent, from the log of events.

use guest_agent_proto::agent_controlplane::PluginEventMessage;
use prost::Message;
use serde::Serialize;

use crate::cli::context::Context;
use crate::cli::facts::Facts;
use crate::cli::failure::Failure;
use crate::cli::text::time;
use crate::ledger::{Log, bounds};
use crate::records;
use crate::records::configuration::escaped;
use crate::records::event::{EventRecord, subject};

/// Some events.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct EventsJson {
    events: Vec<EventJson>,
}

/// Something that happened to a plugin.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct EventJson {
    at: Option<String>,
    details: String,
    plugin: String,
    received: Option<String>,
    revision: String,
    r#type: String,
}

/// The newest events of an agent that the caller sees, of one plugin where the caller names it.
///
/// # Errors
/// There is no such agent that the caller sees, or the ledger cannot be read.
pub(super) async fn newest(
    context: &Context<'_>,
    id: &str,
    plugin: &str,
    limit: usize,
) -> Result<EventsJson, Failure> {
    Facts::seen(context, id).await?;
    let exact = (!plugin.is_empty()).then(|| subject(id, plugin));
    let prefix = exact.clone().unwrap_or_else(|| format!("{}/", escaped(id)));
    let mut found = Vec::new();
    let mut after = 0;
    loop {
        let entries = context.ledger.read(Log::Events, &prefix, after, bounds::PAGE).await?;
        let Some(last) = entries.last() else { break };
        after = last.position;
        let wanted = entries.iter();
        let wanted = wanted.filter(|it| exact.as_ref().is_none_or(|exact| it.subject == *exact));
        found.extend(wanted.filter_map(|it| of_value(&it.subject, &it.value)));
        // A log keeps some hundred entries of each plugin; of those that are read, the newest stay.
        let beyond = found.len().saturating_sub(limit);
        found.drain(..beyond);
    }
    found.reverse();
    Ok(EventsJson { events: found })
}

/// An entry that cannot be read is left out.
fn of_value(subject: &str, value: &[u8]) -> Option<EventJson> {
    let record: EventRecord = records::decode(subject, value).ok()?;
    let event = PluginEventMessage::decode(record.event.as_slice()).ok()?;
    Some(EventJson {
        at: time(event.event_timestamp.as_ref()),
        details: String::from_utf8_lossy(event.event_details()).into_owned(),
        r#type: event.event_type().as_str_name().to_owned(),
        plugin: event.plugin_name,
        received: time(record.received.as_ref()),
        revision: event.revision_id,
    })
}
