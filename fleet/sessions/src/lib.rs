//! The server of the wire: the Agent Communication Service, one session per stream of an agent.
//!
//! ```text
//!   agents ══ stream ══► service ─► admission: who is it? ─► registration ─► session
//!                                                                             │    ▲
//!                                   dyn Desk  ◄── opened, received, answered ─┘    │
//!                                      └───────── OpenSession::hand_over, end ─────┘
//! ```
//!
//! A [`Gateway`] listens on unix sockets and TCP addresses, keeps one session per stream, and keeps to
//! the bounds of [`Limits`] and [`RateLimits`]. It sends nothing by itself and keeps nothing: a
//! [`desk::Desk`] decides what agents are sent, and an agent's message is acknowledged when the desk has
//! taken it. `guest-fleet-server` has the desk of a fleet, `guest-agent-lab` one that is steered by calls.

#![warn(missing_docs)]

pub mod admission;
mod comeback;
mod core;
pub mod desk;
mod drain;
mod gateway;
pub mod messages;
mod refusal;
mod service;
mod session;
mod settings;

pub use comeback::{Drain, Others};
pub use core::AgentConnection;
pub use gateway::{Builder, Gateway, NotWithin, StartError};
pub use refusal::refusal;
pub use service::Service;
pub use session::ToAgent;
pub use settings::{Limits, RateLimits, Timings};
