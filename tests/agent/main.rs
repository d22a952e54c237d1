//! The agent as its users meet it: the real binary, real plugins, real sockets, all on loopback.
//!
//! `harness.rs` builds the agent, the servers and the folders of a test; every other file tests one
//! side of the agent and reads without knowing how the harness works.

#![expect(clippy::unwrap_used, reason = "a test that unwraps a failure has failed")]

mod access;
mod admission;
mod again;
mod alerts;
mod bundle;
mod cache;
mod cgroup_parent;
mod chaos;
mod cli;
mod command_socket;
mod confined;
mod conformance;
mod console;
mod crash;
mod crash_points;
mod declared;
mod degraded;
mod doctor;
mod download;
mod enrolment;
mod escape;
mod examples;
mod fleet;
mod fleet_alerts;
mod fleet_dev;
mod forwarding;
mod generations;
mod harness;
mod holds;
mod hostile;
mod http;
mod http_socket;
mod https;

mod hung;
mod identity;
mod incident;
mod install;
mod leak;
mod limits;
mod link;
mod local;
mod logging;
mod logs;
mod memory;
mod messages;
mod metadata;
mod notify;
mod one_shot;
mod orders;
mod people;
mod preflight;
mod python;
mod registry;
mod reload;
mod restart;
mod rules;
mod secrets;
mod sockets;
mod start;
mod stop;
mod support_bundle;
mod sweep;
mod top;
mod tracing;
mod transport;
mod trust;
mod unprivileged;
mod upgrade;
mod verdicts;
mod vm;
mod vm_events;
mod waiting;
mod who;

#[path = "../support/fleet_program.rs"]
mod fleet_program;
