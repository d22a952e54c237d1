//! The lab's servers and, through them, the sessions that fleets run, as agents see them: a raw client of
//! the generated service, real sockets on loopback.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "lab/artifacts.rs"]
mod artifacts;
#[path = "support/client.rs"]
mod client;
#[path = "lab/delivery.rs"]
mod delivery;
#[path = "lab/events.rs"]
mod events;
#[path = "lab/faults.rs"]
mod faults;
#[path = "lab/pressure.rs"]
mod pressure;
#[path = "lab/registration.rs"]
mod registration;
