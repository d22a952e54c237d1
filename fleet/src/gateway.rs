//! Sessions with agents: the Agent Communication Service, one session per stream.
//!
//! ```text
//!   agents ══ stream ══► service ─► session ─► core ─► Store     (desired state, events, reports)
//!                                      ▲         │
//!                                   outbox ◄── ControlPlane      (configure, list, wait, events)
//! ```

pub mod admission;
mod comeback;
mod core;
mod delivery;
pub mod desk;
mod drain;
mod error;
mod event;
mod faults;
mod frame;
pub mod housekeeping;
pub mod messages;
mod operations;
pub mod orders;
mod outbox;
pub mod presence;
mod server;
mod service;
mod session;
mod settings;
pub mod store;

pub use comeback::{Drain, Others};
pub use core::AgentConnection;
pub use delivery::{Acknowledged, Delivery, DeliveryError};
pub use error::{ConfigureError, NotConnected, RequestError, SendRawError, WaitError};
pub use event::AgentEvent;
pub use faults::{EndStream, Faults, RefusalForm, RefuseRegistrations};
pub use frame::{Frame, FrameContent};
pub use server::{AddressError, Builder, ControlPlane, Listen, ServerTls, StartError};
pub(crate) use server::{SocketFile, bind_unix};
pub use settings::{Limits, RateLimits, Timings};
/// gRPC status codes, as faults and [`ControlPlane::disconnect`] take them.
pub use tonic::Code;
