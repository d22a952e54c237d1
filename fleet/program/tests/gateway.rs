//! The gateways of a fleet as agents see them: a raw client of the generated service, real sockets on
//! loopback.

mod archive;
mod binary;
mod changes;
mod drain;
mod events;
mod hostile;
mod identities;
mod observe;
mod public;
mod secrets;
mod tls;
mod traces;

#[path = "../../../lab/tests/support/client.rs"]
mod client;

use std::net::Ipv4Addr;
use std::sync::Arc;

use guest_agent_serve_kit::listen::Listen;
use guest_fleet_sessions::Gateway;
use guest_fleet_sessions::admission::Anyone;
use guest_fleet_sessions::desk::Desk;

use client::{AGENT, CHANNEL, LONG};

/// A gateway with this desk on loopback, to which everybody is the agent that it claims to be.
async fn start(desk: Arc<dyn Desk>) -> Gateway {
    let address = Listen::Tcp((Ipv4Addr::LOCALHOST, 0).into());
    Gateway::builder(desk, Arc::new(Anyone)).listen(address).start().await.unwrap()
}
