//! How a process ends, for scripts.

use std::process::ExitCode;

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The command succeeded.
    Done,
    /// The command failed, or found a difference.
    Failed,
    /// The command line is not valid.
    Usage,
    /// The agent, or the ledger of the fleet, cannot be reached.
    Unreachable,
    /// It did not happen in time.
    TimedOut,
}

// === impl Exit ===

impl Exit {
    /// The exit code of the process.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Unreachable => 3,
            Self::TimedOut => 4,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}
