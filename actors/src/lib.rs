//! The core of guest-agent.

pub mod error;
pub mod exit;
pub mod id;
pub mod plugin;
pub mod ports;
pub mod spec;
