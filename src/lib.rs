//! The adapters of guest-agent and their wiring: everything that knows files, sockets, processes,
//! sled, tonic and clap. The core is in `guest-agent-actors`; `docs/architecture.md` has the map.

pub mod agent;
pub mod api;
pub mod check;
pub mod cli;
pub mod config;
pub mod dev;
mod display;
pub mod doctor;
pub mod enroll;
pub mod forward;
pub mod hostinfo;
pub mod install;
pub mod link;
pub mod manifest;
pub mod net;
pub mod observe;
pub mod os;
pub mod process;
pub mod scaffold;
pub mod store;
pub mod sweep;
