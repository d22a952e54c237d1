//! `events`: what happened to plugins, oldest first.

use guest_agent_actors::model::id::PluginName;
use guest_agent_proto::local::{self, StreamEventsRequest};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::client::{self, Patience};
use super::console::{Console, Tone};
use super::context::Context;
use super::failure::Failure;
use super::format::{one_line, rfc3339, timestamp, when};
use super::json::{EventTypeName, Time};
use super::moment::{Moment, moment};
use crate::display::event_kind;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent events --since 10m
  guest-agent events metrics --since 2030-01-31T12:00:00Z
  guest-agent events --follow --json")]
pub(super) struct Flags {
    /// Only events of this plugin
    name: Option<PluginName>,
    /// Go on with new events as they happen
    #[arg(short, long)]
    follow: bool,
    /// Only events since then: how long ago (10m), or a time (2030-01-31T12:00:00Z)
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    since: Option<Moment>,
}

/// Seconds within which an event is delivered on a healthy link, with a margin.
const UNDER_WAY: i64 = 5;

/// An event as scripts see it; field names never change.
#[derive(Serialize, JsonSchema)]
pub(super) struct EventJson<'a> {
    /// Its number on this machine, which grows.
    seq: u64,
    /// Its id, under which the control plane knows it.
    id: &'a str,
    /// When it happened.
    #[schemars(with = "Option<Time>")]
    at: Option<String>,
    /// The plugin.
    plugin: &'a str,
    /// The revision; empty where it concerns none.
    revision: &'a str,
    /// What happened.
    #[serde(rename = "type")]
    #[schemars(with = "EventTypeName")]
    kind: &'a str,
    /// What happened, in words.
    details: &'a str,
    /// Whether the control plane acknowledged it.
    delivered: bool,
    /// When it was delivered, in the second object about an event that was delivered while it was
    /// followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Time>")]
    delivered_at: Option<String>,
}

/// An event as the line that scripts get.
pub(super) fn as_json(event: &local::Event) -> String {
    serde_json::to_string(&EventJson::from(event)).unwrap_or_default()
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let patience = if flags.follow { Patience::Forever } else { Patience::Soon };
    let mut client = context.connect().await?;
    let console = context.console;
    let name = flags.name.as_ref().map_or("", PluginName::as_str);
    let request = StreamEventsRequest {
        name: name.to_owned(),
        follow: flags.follow,
        since: flags.since.map(|since| since.before((console.now)())),
        // The agent sends an event a second time after its delivery. Scripts need the time of the
        // delivery; a person would read every event twice.
        deliveries: flags.follow && context.global.json(),
    };
    let mut events = match client.stream_events(request).await {
        Ok(answer) => answer.into_inner(),
        Err(error) => return Err(client::about(&mut client, name, error).await),
    };
    let mut is_first = true;
    while let Some(event) = client::next(&mut events, patience).await? {
        is_first = false;
        if context.global.json() {
            console.object(&EventJson::from(&event))?;
        } else {
            let mark = mark(&event, flags.follow, (console.now)());
            let line = line(&event, console);
            console.text(&[&line, mark, "\n"].concat())?;
        }
    }
    if is_first && !flags.follow && !context.global.json() {
        console.line("no events")?;
    }
    Ok(())
}

/// Returns the mark of an event that the control plane has not acknowledged. Without a control plane
/// there is nothing to mark. A follower sees an
/// event before the control plane can have acknowledged it, so a new event has no mark there.
fn mark(event: &local::Event, follows: bool, now: Timestamp) -> &'static str {
    let at = timestamp(event.at.as_ref());
    let is_new = at.is_some_and(|at| now.as_second() - at.as_second() <= UNDER_WAY);
    if event.delivered || event.unaddressed || (follows && is_new) {
        ""
    } else {
        "  (not delivered)"
    }
}

/// The name of an event's type, and its colour.
pub(super) fn kind(event: &local::Event) -> (String, Tone) {
    let (kind, tone) = event_kind(event);
    (one_line(kind), tone)
}

/// `time  TYPE  plugin revision: details`.
pub(super) fn line(event: &local::Event, console: &Console<'_>) -> String {
    let at = when(event.at.as_ref());
    let (kind, tone) = kind(event);
    let kind = console.paint(tone, &format!("{kind:<20}"));
    let colon = if event.details.is_empty() { "" } else { ": " };
    let subject = format!("{} {}{colon}{}", event.plugin, event.revision, event.details);
    format!("{}  {kind}  {}", console.paint(Tone::Quiet, &at), one_line(&subject))
}

// === impl EventJson ===

impl<'a> From<&'a local::Event> for EventJson<'a> {
    fn from(event: &'a local::Event) -> Self {
        Self {
            seq: event.seq,
            id: &event.id,
            at: rfc3339(event.at.as_ref()),
            plugin: &event.plugin,
            revision: &event.revision,
            kind: &event.r#type,
            details: &event.details,
            delivered: event.delivered,
            delivered_at: rfc3339(event.delivered_at.as_ref()),
        }
    }
}
