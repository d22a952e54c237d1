//! The answers of fakes, for scripts and fates.

use std::time::Duration;

/// The behaviour of a fake when it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Succeeds at once.
    Succeed,
    /// Fails at once, for this reason.
    Fail(String),
    /// Succeeds after this long.
    Late(Duration),
    /// Fails after this long.
    LateFail(Duration, String),
    /// Succeeds when it is released, not before.
    Held,
    /// Never answers.
    Never,
    /// Panics.
    Panic,
}

/// The fate of one message to the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It arrives and is acknowledged.
    Acknowledge,
    /// It arrives, and the acknowledgement is lost.
    LoseAcknowledgement,
    /// It arrives and is acknowledged, after this long.
    Late(Duration),
    /// It does not arrive.
    Lose,
    /// The server has no room now.
    Exhausted,
    /// The server answers with an error.
    Refuse,
}

/// The answer of a plugin to one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// That it is well, or that it took what it was given.
    Good,
    /// A health code other than zero, with a line; to Apply, a refusal.
    Bad(i32, String),
    /// That it is well, or that it took what it was given, after this long.
    Late(Duration),
    /// Nothing, until the caller's deadline.
    Silence,
    /// Nothing, and no deadline either, as with a broken adapter.
    Forever,
    /// The plugin cannot be connected to.
    Unreachable,
    /// The plugin does not implement the call.
    Unimplemented,
    /// The call panics.
    Panic,
}
