//! The adapters of guest-agent and their wiring: everything that knows files, sockets, processes,
//! sled, tonic and clap. The core is in `guest-agent-actors`; `docs/architecture.md` has the map.

pub mod admission;
pub mod agent;
pub mod cgroup;
pub mod cli;
pub mod command_socket;
pub mod config;
pub mod confine;
pub mod control_link;
pub mod dev;
pub mod doctor;
pub mod facts;
pub mod finding;
pub mod going_down;
mod guarded;
pub mod host_api;
pub mod install;
mod jitter;
pub mod launch;
pub mod local_api;
pub mod local_plugins;
pub mod logging;
pub mod machine;
pub mod metadata;
pub mod meter;
pub mod notify;
pub mod plugin_logs;
pub mod plugin_rpc;
pub mod preflight;
mod readable;
pub mod reload;
pub mod sample_plugin;
pub mod socket;
pub mod storage;
pub mod sweep;
pub mod telemetry;
mod ticket;
