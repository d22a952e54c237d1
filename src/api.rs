//! The servers of the agent, and the callers of each.
//!
//! ```text
//!   command line ─► local     agent.sock, gRPC       ─┐
//!   plugins ──────► host      host.sock, gRPC         ├─► manager, registry, events, logs
//!   scripts ──────► commands  command.sock, JSON      │
//!   browsers, Prometheus ─► http (+ console)         ─┘
//! ```
//!
//! Each server knows its callers and bounds them, `peers` keeps confined plugins from `local` and
//! `commands`; none of them changes a plugin but through the
//! manager. `registry` answers the same questions on `host.sock` and on `agent.sock`; `principal` says who
//! acts, and `audit` records it.

pub mod audit;
pub mod commands;
pub mod host;
pub mod http;
pub(crate) mod last_output;
pub mod local;
pub mod outcome;
pub(crate) mod peers;
pub(crate) mod principal;
pub(crate) mod registry;
