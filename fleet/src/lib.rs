//! The self-hosted control plane: the server that guest-agents connect to, as a library.
//!
//! ```text
//!   agents ══ stream ══► service ─► session ─► core ─► Store     (desired state, events, reports)
//!                                      ▲         │
//!                                   outbox ◄── ControlPlane      (configure, list, wait, events)
//!   agents ── HTTPS ───► ArtifactListener ─► ArtifactStore       (a directory or a bucket)
//! ```
//!
//! A [`ControlPlane`] listens on unix sockets and TCP addresses, keeps one session per connected
//! agent and is a handle that is cheap to clone. The [`store::Store`] trait keeps the plugins that
//! agents should run and the messages that agents sent. An
//! [`ArtifactListener`](artifacts::listener::ArtifactListener) hands out the archives that agents
//! install. An [`ArtifactServer`] does so for tests, and a [`MetadataServer`] stands in for the
//! metadata server of a cloud; neither is part of the control plane. `guest-agent dev` and the
//! end-to-end tests embed these.
//!
//! It deliberately does not decide which agent runs which plugin, separate users, or spread over
//! machines. Build those on the handle and on another `Store`.

#![warn(missing_docs)]

pub mod artifacts;
#[cfg(feature = "server")]
mod chance;
#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "server")]
pub mod configuration;
#[cfg(feature = "server")]
pub mod declarations;
pub mod enroll;
#[cfg(feature = "server")]
pub mod fold;
pub mod front;
pub mod gateway;
mod hex;
#[cfg(feature = "server")]
pub mod ledger;
mod lock;
pub mod metadata;
pub mod observe;
#[cfg(feature = "server")]
pub mod outbound;
pub mod records;
#[cfg(feature = "server")]
mod removed;
#[cfg(feature = "server")]
pub mod rollouts;
#[cfg(feature = "server")]
pub mod secrets;
pub mod tls;
#[cfg(feature = "server")]
pub mod webhooks;
#[cfg(feature = "server")]
pub mod zones;

use guest_agent_observe_kit::chain;

pub use artifacts::ArtifactServer;
pub use gateway::{
    Acknowledged, AddressError, AgentConnection, AgentEvent, Builder, Code, ConfigureError,
    ControlPlane, Delivery, DeliveryError, Drain, EndStream, Faults, Frame, FrameContent, Limits,
    Listen, NotConnected, Others, RateLimits, RefusalForm, RefuseRegistrations, RequestError,
    SendRawError, ServerTls, StartError, Timings, WaitError, messages, store,
};
pub use metadata::MetadataServer;
