//! What a person on the machine asks of one plugin.

use std::sync::Arc;

use crate::model::id::RevisionId;

/// Longest text of who asks for something and why, in bytes.
pub const BY_MAX: usize = 512;

/// What a person asks of a plugin, besides a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// It is to stay stopped; who wants that, and why.
    Stop(Arc<str>),
    /// A stop ends.
    Start,
    /// The revision before is to run again; who wants that, and why.
    Rollback(Arc<str>),
    /// The revision that was rolled back may be ordered again.
    Release,
}

/// What people keep a plugin at, until they take it back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Person {
    /// Who stopped it, and why.
    pub stopped: Option<Arc<str>>,
    /// The revision that was rolled back.
    pub left: Option<Left>,
}

/// A revision that a person rolled back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Left {
    /// The revision.
    pub revision: RevisionId,
    /// Who rolled it back, and why.
    pub by: Arc<str>,
}

/// Why a plugin that `by` stopped does not run.
#[must_use]
pub fn stopped_by(by: &str) -> Arc<str> {
    format!("stopped by {by}").into()
}
