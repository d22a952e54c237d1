//! What the tests of the agent and of the fleet have in common. No program links it.
//!
//! It panics where its caller's test could not go on.

#![warn(missing_docs)]

pub mod certificate;
