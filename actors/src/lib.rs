//! The core of guest-agent: one pure machine per plugin, the actors around the machines, and the
//! traits (ports) through which they use files, processes and sockets.
//!
//! ```text
//!   link ─► ControlPlane ─► Manager ─► Plugin ─► (machine) ─► ports: Installer, Launcher, PluginRpc
//!     ▲          local API ───┘  ▲        │ ▲
//!     │                          └────────┘ └── Monitor (exits, health)    Metrics (samples)
//!   Outbox ◄─ Store ◄──────────────── Save {state, events}                VmEvent (which boot)
//! ```
//!
//! Reading order: the ids and specs, the machine, then the shell around it. No file, socket,
//! process or clock is touched here; everything goes through [`ports`].

#![warn(missing_docs)]

pub mod crash_point;
pub mod error;
mod task;
mod text;
pub mod trace;

pub mod plugin;

pub mod keys;
pub mod messages;
pub mod ports;
pub mod records;
pub mod wire;

pub mod admission;
pub mod control_plane;
pub mod manager;
pub mod metrics;
pub mod monitor;
pub mod outbox;
pub mod registry;
pub mod report;
pub mod scheduler;
pub mod store;
pub mod sweep;
pub mod vm_events;

pub mod system;

#[cfg(feature = "fakes")]
pub mod fakes;
pub mod model;
