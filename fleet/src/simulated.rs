//! What the simulations take over: chance, and guards that they take away.

pub(crate) mod chance;
pub(crate) mod removed;
