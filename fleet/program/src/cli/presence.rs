//! Who is there: whether agents have a stream, to which gateway, and when they were seen last.

use guest_fleet_core::presence::{Link, Links, OFFLINE_AFTER, Presence, Session};
use guest_fleet_server::configuration::words;
use guest_fleet_server::fold::reader;
use guest_fleet_server::gateways::ends;
use schemars::JsonSchema;
use serde::Serialize;

use super::context::Context;
use super::document::Time;
use super::failure::Failure;

/// How present an agent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PresenceJson {
    /// It has a stream.
    Connected,
    /// It has had no stream for a short while.
    Disconnected,
    /// It has had no stream for longer than `serve --offline-after` says.
    Offline,
    /// It is recorded and never connected.
    NeverSeen,
    /// Two machines use its identity, so it gets no orders.
    Quarantined,
    /// It was silent for so long that no count includes it.
    Archived,
}

/// The stream of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ConnectionJson {
    /// Id of the gateway that has it.
    pub gateway: String,
    /// Since when.
    #[schemars(with = "Time")]
    pub since: String,
}

/// The gateways of the ledger, and when an agent is offline.
pub(super) async fn links(context: &Context<'_>) -> Result<Links, Failure> {
    let offline_after = reader::offline_after(context.ledger).await?;
    let gateways = ends::beats(context.ledger).await?;
    Ok(Links { gateways, offline_after: offline_after.unwrap_or(OFFLINE_AFTER) })
}

/// The stream, where an agent has one.
pub(super) fn connection(link: Link, session: Option<&Session>) -> Option<ConnectionJson> {
    let session = session.filter(|_| matches!(link, Link::Up(_)))?;
    let since = words::time(session.begun);
    Some(ConnectionJson { gateway: session.gateway.clone(), since })
}

// === impl PresenceJson ===

impl PresenceJson {
    /// The word for people.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Disconnected => "disconnected",
            Self::Offline => "offline",
            Self::NeverSeen => "never seen",
            Self::Quarantined => "quarantined",
            Self::Archived => "archived",
        }
    }
}

impl From<Presence> for PresenceJson {
    fn from(presence: Presence) -> Self {
        match presence {
            Presence::Connected => Self::Connected,
            Presence::Disconnected => Self::Disconnected,
            Presence::Offline => Self::Offline,
            Presence::NeverSeen => Self::NeverSeen,
            Presence::Quarantined => Self::Quarantined,
            Presence::Archived => Self::Archived,
        }
    }
}
