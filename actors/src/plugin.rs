//! Plugins.

pub mod draft;
pub mod machine;
pub mod orders;
pub mod restart;
pub mod state;
