//! Addresses on the network: where a control plane and a metadata server are.

pub mod endpoint;
pub mod metadata_address;
