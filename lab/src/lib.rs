//! The surroundings of a machine, for `guest-agent dev`, tests and game days: a control plane that calls
//! steer, a server of archives, a metadata server. All of them can fail in ways that a caller chooses.
//!
//! ```text
//!   agents ══ stream ══► wire ─► sessions, as fleets run them ─► recorder ─► the desk that decides
//!                         │                                       ▲
//!                  faults, frames                                 └─ ControlPlane   (configure, list, wait, events)
//!   agents ── HTTP ────► ArtifactServer, MetadataServer
//! ```
//!
//! A [`ControlPlane`] serves agents with the sessions of [`guest_fleet_sessions`]. A caller gives it the
//! desk that decides what agents should run, a fleet's orders for one; without it nothing is decided,
//! and the agent gets what a caller configures. It keeps nothing that outlives it: what agents sent is in
//! memory, and what has to last is in the ledger of a fleet.

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
mod wire;

pub use artifacts::{
    ArtifactCounters, ArtifactFaults, ArtifactServer, ArtifactStartError, CutOff, PublishError,
    StatusFault,
};
pub use control_plane::{Builder, ControlPlane, StartError, Timings};
pub use delivery::{Acknowledged, Delivery, DeliveryError};
pub use desk::{Deaf, Reported, Reports};
pub use error::{ConfigureError, NotConnected, RequestError, SendRawError};
pub use event::AgentEvent;
pub use faults::{EndStream, Faults, RefusalForm, RefuseRegistrations};
pub use frame::{Frame, FrameContent};
pub use guest_agent_serve_kit::tls::ServerTls;
pub use guest_fleet_sessions::{AgentConnection, Limits, NotWithin, RateLimits, messages};
pub use metadata::MetadataServer;
/// gRPC status codes, as faults and [`ControlPlane::disconnect`] take them.
pub use tonic::Code;
