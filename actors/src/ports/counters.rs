//! The port that counts the actions of the actors.

use std::time::Duration;

use crate::model::exit::ExitCause;
use crate::model::id::PluginName;

/// Counts what happens. Called in the middle of everything else: it never waits and cannot fail.
pub trait Counters: Send + Sync {
    /// This has happened.
    fn note(&self, note: Count);
}

/// Something that is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Count {
    /// A commit of the store came to its end.
    Saved {
        /// How long it took.
        took: Duration,
        /// Whether it is durable.
        outcome: Outcome,
    },
    /// An order was given.
    Ordered {
        /// To do what.
        kind: OrderKind,
        /// Whether it was taken. Events report what becomes of it then.
        outcome: Outcome,
    },
    /// An order of a fleet came after a newer one for its plugin, and nothing was done.
    Outdated,
    /// A deployment was admitted, or was not.
    Judged(Outcome),
    /// An installation came to its end.
    Installed {
        /// Of this plugin.
        plugin: PluginName,
        /// How long it took, from its admission on.
        took: Duration,
        /// Whether its revision can be run.
        outcome: Outcome,
    },
    /// A plugin crashed: its process ended, or had to be ended, though nobody asked for it. A run
    /// that failed is one, too.
    Crashed {
        /// This plugin.
        plugin: PluginName,
        /// How its process ended.
        cause: ExitCause,
    },
    /// A plugin is removed, and nothing is to be shown of it any more.
    Gone(PluginName),
    /// So many entries of the audit record could not be written when they were made.
    NotAudited(usize),
    /// Leftovers were swept away.
    Swept {
        /// How many were.
        deleted: usize,
        /// How many should have been.
        failed: usize,
    },
}

/// How something came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// As it was meant.
    Succeeded,
    /// Otherwise.
    Failed,
}

/// What an order is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OrderKind {
    /// Install a revision.
    Install,
    /// Remove a plugin.
    Remove,
    /// Hand over a configuration.
    Apply,
    /// Start afresh.
    Restart,
    /// A person stops it.
    Stop,
    /// A person lets it run again.
    Start,
    /// A person takes it back to the revision before.
    Rollback,
    /// A person makes orders wait.
    Hold,
    /// A person ends a hold or a rollback.
    Release,
    /// A person dismisses the failure of a revision.
    Dismiss,
    /// A person gives it other limits than its orders, or takes them back.
    Limit,
}

/// Counts nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCounters;

// === impl Outcome ===

impl Outcome {
    /// How this came out.
    #[must_use]
    pub fn of<T, E>(result: &Result<T, E>) -> Self {
        if result.is_ok() { Self::Succeeded } else { Self::Failed }
    }
}

// === impl NoCounters ===

impl Counters for NoCounters {
    fn note(&self, _: Count) {}
}
