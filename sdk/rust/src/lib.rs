//! The crate for plugin authors: implement [`Plugin`], pass it to [`main`], and guest-agent can
//! install, start, configure, watch, upgrade and remove it.
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use guest_agent_plugin::{Plugin, PluginError, StartContext, async_trait};
//!
//! struct Greeter;
//!
//! #[async_trait]
//! impl Plugin for Greeter {
//!     async fn start(&self, context: StartContext) -> Result<(), PluginError> {
//!         let config = context.config.as_ref().and_then(|config| config.as_str());
//!         let greeting = config.unwrap_or("hello");
//!         std::fs::write(context.state_directory.join("greeting"), greeting)?;
//!         Ok(())
//!     }
//! }
//!
//! fn main() -> ExitCode {
//!     guest_agent_plugin::main(Greeter)
//! }
//! ```
//!
//! # The lifecycle of a plugin
//!
//! The agent launches the executable with the plugin's own arguments followed by three of the
//! agent's. The plugin listens on the address in these arguments and answers four calls, each of
//! which becomes a call of a method of [`Plugin`]:
//!
//! ```text
//!   agent ── exec ──►  main / serve: arguments, error log, socket (owner-only)
//!         ── Start ──►      start    once, until it succeeds
//!         ── GetStatus ──►  status   every few seconds, and for every question
//!         ── Apply ──►      apply, vm_event    a new configuration, or news about the VM
//!         ── Stop ──►       stop     once; then the server drains and the process exits 0
//! ```
//!
//! `SIGTERM` and `SIGINT` do the same as Stop. A panic in a method fails that call alone (unless
//! the program is built with `panic = "abort"`). The SDK appends it to the error log, whose last
//! lines the agent puts into its crash events.
//!
//! # Four ways to run
//!
//! | call | for |
//! |---|---|
//! | [`main`] | a plugin whose whole `main` is this one call |
//! | [`serve_blocking`] | a `main` with work of its own before or after |
//! | [`serve`] | a program with a tokio runtime of its own, such as `#[tokio::main]` |
//! | [`serve_with`] | arguments from another source than the command line |
//!
//! All four use [`Server`], which leaves the process alone (no signals, no panic hook): use it in
//! tests.
//! [`testing::Tested`] is an agent around it, for tests of plugins.
//!
//! A plugin that runs to completion instead (`plugin_type` ONE_SHOT) serves nothing: its `main` is
//! one call of [`run_once`].
//!
//! A program that decides which plugins may be deployed on a machine is an admission plugin: see
//! [`admission::run`].
//!
//! # Reading order of the source
//!
//! `plugin` is the trait; `config`, `status` and `error` are the arguments and results of its
//! methods, `health` and `state` help to write them. `arguments`, `address` and `environment` read what the agent hands to the process.
//! `server` ties them together: it binds a `listener` and serves `service` (wire types in and out),
//! which drives `life` (order of calls, panics, deadlines). `registry` is the other direction:
//! calls of plugins to the agent. `admission` is independent of the rest.

#![warn(missing_docs)]

pub mod admission;
mod plugin;

mod config;
mod error;
mod health;
mod state;
mod status;

mod address;
mod arguments;
mod environment;
mod error_log;
#[cfg(feature = "logging")]
mod logging;

mod life;
mod listener;
mod once;
mod run;
mod serve_error;
mod server;
mod service;

pub mod registry;
pub mod testing;

pub use address::{Address, AddressError};
pub use arguments::{Arguments, ArgumentsError};
pub use config::{ConfigError, ServiceConfig, VmEvent};
pub use environment::{Environment, Ticket, Trigger};
pub use error::PluginError;
pub use error_log::ErrorLog;
pub use health::{Health, Heartbeat};
pub use listener::BindError;
#[cfg(feature = "logging")]
pub use logging::log_to_stderr;
pub use once::{RunContext, run_once};
pub use plugin::{Cleanup, Plugin, StartContext, StatusQuery, StopContext};
pub use run::{main, serve, serve_blocking, serve_with};
pub use serve_error::ServeError;
pub use server::Server;
pub use state::StateFiles;
pub use status::PluginStatus;
/// The lowest level of [`log_to_stderr`].
#[cfg(feature = "logging")]
pub use tracing_subscriber::filter::LevelFilter;

/// The attribute for `impl Plugin`; re-exported so that a plugin needs no dependency for it.
pub use async_trait::async_trait;

/// The types inside [`ServiceConfig::Struct`].
pub use prost_types;

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
