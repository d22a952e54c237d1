//! Chance and guards, which simulations take over.

pub(crate) mod chance;
pub(crate) mod removed;
