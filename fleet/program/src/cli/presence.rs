//! Who is there: whether agents have a stream, to which gateway, and when they were seen last.

use guest_fleet_core::presence::{Link, Links, OFFLINE_AFTER, Presence, Session};
use guest_fleet_server::configuration::words;
use guest_fleet_server::fold::reader;
use guest_fleet_server::gateways::ends;
use schemars::JsonSchema;
use serde::Serialize;

use super::by_name::InDocuments;
use super::context::Context;
use super::document::Time;
use super::failure::Failure;

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

/// How present an agent is, for people.
pub(super) fn text(presence: Presence) -> String {
    presence.name().replace('_', " ")
}

// === impl Presence ===

impl InDocuments for Presence {
    const SCHEMA: &'static str = "PresenceJson";
    const ABOUT: &'static str = "How present an agent is.";
}
