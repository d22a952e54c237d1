//! A problem of a machine, its reason and its fix. Made by `doctor` and `preflight`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A problem or a notice, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The problem, as a sentence without its full stop.
    pub what: String,
    /// The consequence or the cause.
    pub why: String,
    /// The fix.
    pub fix: String,
    /// The subject that the caller may not look at, where the finding says nothing else.
    #[serde(skip)]
    pub(crate) not_looked_at: Option<String>,
}

/// How bad a finding is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something does not work.
    Error,
    /// Something will not work, or was lost.
    Warning,
    /// Nothing is wrong, but a reader may want to know.
    Note,
}

// === impl Finding ===

impl Finding {
    /// Makes a finding.
    pub(crate) fn new(
        severity: Severity,
        what: impl Into<String>,
        why: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let (what, why, fix) = (what.into(), why.into(), fix.into());
        Self { severity, what, why, fix, not_looked_at: None }
    }

    /// Whether it is an error.
    #[must_use]
    pub fn is_problem(&self) -> bool {
        match self.severity {
            Severity::Error | Severity::Warning => true,
            Severity::Note => false,
        }
    }
}

impl fmt::Display for Finding {
    /// The finding in one line, for an error's text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.what, self.why, self.fix)
    }
}
