//! The control plane as agents see it: a raw client of the generated service, real sockets on
//! loopback.

mod archive;
mod artifacts;
mod binary;
mod client;
mod delivery;
mod drain;
mod events;
mod faults;
mod hostile;
mod identities;
mod observe;
mod pressure;
mod public;
mod registration;
mod secrets;
mod tls;
mod traces;

use std::time::Duration;

/// Longer than anything takes; only a failing test waits for all of it.
const LONG: Duration = Duration::from_secs(20);

/// An agent's resource id.
const AGENT: &str = "projects/1/zones/z/instances/7";

/// The default channel of agents, which breaks the documented pattern for channels.
const CHANNEL: &str = "compute.googleapis.com/google-guest-agent";
