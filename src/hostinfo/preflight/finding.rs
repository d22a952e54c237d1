//! What is wrong on a machine, why, and how it is put right. Made by `doctor` and `preflight`.

use std::fmt;

use serde::Serialize;

/// Something worth knowing, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What is so, as a sentence without its full stop.
    pub what: String,
    /// Why that is bad, or how it came to be.
    pub why: String,
    /// What to do.
    pub fix: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something does not work.
    Error,
    /// Something will not work, or was lost.
    Warning,
    /// Nothing is wrong, but somebody may want to know.
    Note,
}

// === impl Finding ===

impl Finding {
    /// Puts one together.
    pub(crate) fn new(
        severity: Severity,
        what: impl Into<String>,
        why: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { severity, what: what.into(), why: why.into(), fix: fix.into() }
    }

    /// Whether something is wrong.
    #[must_use]
    pub fn is_problem(&self) -> bool {
        match self.severity {
            Severity::Error | Severity::Warning => true,
            Severity::Note => false,
        }
    }
}

impl fmt::Display for Finding {
    /// All of it in one line, for an error's text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.what, self.why, self.fix)
    }
}
