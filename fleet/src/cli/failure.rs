//! How a verb ends, and why it failed: one line, its causes, and what to try.

use std::error::Error;
use std::fmt::{self, Display};
use std::io;

use crate::configuration::audit::AuditError;
use crate::configuration::change::ChangeError;
use crate::declarations::problem::Problems;
use crate::ledger::ReadError;
use crate::records::RecordError;

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The command succeeded.
    Done,
    /// The command failed, or found a difference.
    Failed,
    /// The command line is not valid.
    Usage,
    /// The ledger cannot be reached.
    Unreachable,
    /// It did not happen in time.
    TimedOut,
}

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
    /// What kind of failure it is, for programs.
    pub kind: Kind,
    /// The values that are wrong, where the question is.
    pub fields: Vec<Field>,
}

/// What kind of failure it is, beyond how the process ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// How the process ends says it.
    #[default]
    Usual,
    /// What it is about does not exist.
    Absent,
    /// It exists already.
    Exists,
    /// The caller may not do that.
    Denied,
    /// Others changed the same meanwhile.
    Meanwhile,
}

/// A value that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The field of the request, such as `select`.
    pub name: String,
    /// What is wrong with it.
    pub problem: String,
    /// What puts it right.
    pub fix: String,
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

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

// === impl Failure ===

impl Failure {
    /// A failure with an exit code of its own.
    pub fn new(exit: Exit, reason: impl Display) -> Self {
        Self {
            exit,
            reason: reason.to_string(),
            causes: Vec::new(),
            hint: None,
            kind: Kind::Usual,
            fields: Vec::new(),
        }
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
        let mut failure = Self::new(exit, error);
        let mut next = error.source();
        while let Some(error) = next {
            failure.causes.push(error.to_string());
            next = error.source();
        }
        failure
    }

    /// Says what kind of failure it is.
    #[must_use]
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Names a value that is wrong, as the command line calls it.
    #[must_use]
    pub fn field(mut self, option: &str, problem: &str, fix: &str) -> Self {
        let name = match option.trim_start_matches('-') {
            // These may be given several times.
            name @ ("plugin" | "wave") => format!("{name}s"),
            name => name.to_lowercase().replace('-', "_"),
        };
        self.fields.push(Field { name, problem: problem.to_owned(), fix: fix.to_owned() });
        self
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
        let mut text = format!("guest-fleet: {}\n", self.reason);
        for cause in &self.causes {
            text.push_str("  ");
            text.push_str(cause);
            text.push('\n');
        }
        if let Some(hint) = &self.hint {
            text.push_str("try: ");
            text.push_str(hint);
            text.push('\n');
        }
        text
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

impl<E: Error + Into<Failure> + 'static> From<ChangeError<E>> for Failure {
    fn from(error: ChangeError<E>) -> Self {
        let exit = match error {
            ChangeError::Refused(refusal) => return refusal.into(),
            ChangeError::Read(ReadError::Unavailable(_)) => Exit::Unreachable,
            ChangeError::Unknown(_) => Exit::TimedOut,
            _ => Exit::Failed,
        };
        let kind = match error {
            ChangeError::Repeated(_) | ChangeError::Contended => Kind::Meanwhile,
            _ => Kind::Usual,
        };
        Self::of(exit, &error).kind(kind)
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
