//! Pure types that every actor, machine and port shares.

pub mod act;
pub mod audit;
pub mod deed;
pub mod event;
pub mod exit;
pub mod facts;
pub mod health;
pub mod history;
pub mod id;
pub mod origin;
pub mod refused_manifest;
pub mod runs;
pub mod spec;
pub mod verdict;
pub mod view;
pub mod vm_event;
