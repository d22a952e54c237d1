//! How a verb ends, and why it failed: one line, its causes, and what to try.

use std::error::Error;
use std::fmt::{self, Display};
use std::io;

use guest_agent_cli_kit::failure;
use guest_fleet_ledger::ReadError;
use guest_fleet_ledger::records::RecordError;
use guest_fleet_server::configuration::audit::AuditError;
use guest_fleet_server::configuration::change::ChangeError;
use guest_fleet_server::declarations::problem::Problems;
use guest_fleet_server::rollouts::declared::CompareError;

pub use guest_agent_cli_kit::exit::Exit;

/// Why a verb failed, ready to be printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// How the process ends.
    pub exit: Exit,
    /// One line.
    pub reason: String,
    /// The causes, the nearest first; or all problems, a line each.
    pub causes: Vec<String>,
    /// What to try.
    pub hint: Option<String>,
}

// === impl Failure ===

impl Failure {
    /// A failure with an exit code of its own.
    pub fn new(exit: Exit, reason: impl Display) -> Self {
        Self { exit, reason: reason.to_string(), causes: Vec::new(), hint: None }
    }

    /// The command failed, with this line as its reason.
    pub fn failed(reason: impl Display) -> Self {
        Self::new(Exit::Failed, reason)
    }

    /// The command line is not valid.
    pub fn usage(reason: impl Display) -> Self {
        Self::new(Exit::Usage, reason)
    }

    /// The failure of an error, with everything that caused it.
    pub fn of(exit: Exit, error: &(dyn Error + 'static)) -> Self {
        let causes = error.source().map(failure::chain).unwrap_or_default();
        Self { causes, ..Self::new(exit, error) }
    }

    /// Says what to try.
    #[must_use]
    pub fn hint(mut self, hint: impl Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// The failure as it is printed.
    #[must_use]
    pub fn text(&self) -> String {
        failure::text("guest-fleet", &self.reason, &self.causes, self.hint.as_deref())
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Error for Failure {}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        let exit = match &error {
            ReadError::Unavailable(_) => Exit::Unreachable,
            ReadError::Damaged { .. } => Exit::Failed,
        };
        Self::of(exit, &error)
    }
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Self {
        Self::of(Exit::Failed, &error)
    }
}

impl From<AuditError> for Failure {
    fn from(error: AuditError) -> Self {
        match error {
            AuditError::Read(error) => error.into(),
            AuditError::Record(_) => Self::of(Exit::Failed, &error),
        }
    }
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Self {
        let mut failure = Self::failed(&problems);
        failure.causes = problems.0.iter().map(ToString::to_string).collect();
        failure
    }
}

impl From<CompareError> for Failure {
    fn from(error: CompareError) -> Self {
        match error {
            CompareError::Problems(problems) => problems.into(),
            CompareError::NeedsRows => Self::failed(&error),
        }
    }
}

impl<E: Error + Into<Failure> + 'static> From<ChangeError<E>> for Failure {
    fn from(error: ChangeError<E>) -> Self {
        let exit = match error {
            ChangeError::Refused(refusal) => return refusal.into(),
            ChangeError::Read(ReadError::Unavailable(_)) => Exit::Unreachable,
            ChangeError::Unknown(_) => Exit::TimedOut,
            _ => Exit::Failed,
        };
        Self::of(exit, &error)
    }
}

impl From<io::Error> for Failure {
    /// A failure to print. A reader that closed the pipe (`| head`) is not a failure.
    fn from(error: io::Error) -> Self {
        let exit = match error.kind() {
            io::ErrorKind::BrokenPipe => Exit::Done,
            _ => Exit::Failed,
        };
        let mut failure = Self::new(exit, "failed to print");
        failure.causes.push(error.to_string());
        failure
    }
}
