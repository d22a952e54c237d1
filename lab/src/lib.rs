//! The surroundings of a machine, for `guest-agent dev`, tests and game days: a control plane that calls
//! steer, a server of archives, a metadata server. All of them can fail in ways that a caller chooses.
//!
//! ```text
//!   agents ══ stream ══► wire ─► sessions, as fleets run them ─► desk ─► Store   (desired state, events, reports)
//!                         │                                      │ ▲
//!                  faults, frames                           outbox └─ ControlPlane   (configure, list, wait, events)
//!   agents ── HTTP ────► ArtifactServer, MetadataServer
//! ```
//!
//! A [`ControlPlane`] serves agents with the sessions of [`guest_fleet_sessions`] and decides nothing:
//! what a caller configures goes to the agent. The [`store::Store`] keeps the plugins that agents should
//! run and the messages that agents sent. No fleet runs it, so it separates no users and spreads over
//! no machines.

#![warn(missing_docs)]

mod artifacts;
mod control_plane;
mod delivery;
mod desk;
mod error;
mod event;
mod faults;
mod frame;
pub mod metadata;
mod operations;
mod outbox;
pub mod store;
mod wire;

pub use artifacts::{
    ArtifactCounters, ArtifactFaults, ArtifactServer, ArtifactStartError, CutOff, PublishError,
    StatusFault,
};
pub use control_plane::{Builder, ControlPlane, StartError, Timings};
pub use delivery::{Acknowledged, Delivery, DeliveryError};
pub use desk::Deaf;
pub use error::{ConfigureError, NotConnected, RequestError, SendRawError, WaitError};
pub use event::AgentEvent;
pub use faults::{EndStream, Faults, RefusalForm, RefuseRegistrations};
pub use frame::{Frame, FrameContent};
pub use guest_agent_serve_kit::tls::ServerTls;
pub use guest_fleet_sessions::{AgentConnection, Limits, RateLimits, messages};
pub use metadata::MetadataServer;
/// gRPC status codes, as faults and [`ControlPlane::disconnect`] take them.
pub use tonic::Code;
