//! The failure of a verb: one line, its causes, and what to try.

use std::error::Error;
use std::fmt::Display;
use std::io::ErrorKind;

use guest_agent_cli_kit::failure;

use crate::agent::ConfiguredError;
use crate::config::ConfigError;

pub use guest_agent_cli_kit::exit::Exit;

/// Why a verb failed, ready to be printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// How the process ends.
    pub exit: Exit,
    /// One line.
    pub reason: String,
    /// The causes, the nearest first.
    pub causes: Vec<String>,
    /// What to try.
    pub hint: Option<String>,
    /// The kind of the operating system's error, where one is the reason.
    pub kind: Option<ErrorKind>,
    /// The process that listens and does not answer, where one does not.
    pub silent: Option<u32>,
}

// === impl Failure ===

impl Failure {
    /// A failure with an exit code of its own.
    pub(super) fn new(exit: Exit, reason: impl Display) -> Self {
        Self {
            exit,
            reason: reason.to_string(),
            causes: Vec::new(),
            hint: None,
            kind: None,
            silent: None,
        }
    }

    /// The command failed, with this line as its reason.
    pub(super) fn failed(reason: impl Display) -> Self {
        Self::new(Exit::Failed, reason)
    }

    /// The command line is not valid.
    pub(super) fn usage(reason: impl Display) -> Self {
        Self::new(Exit::Usage, reason)
    }

    /// Adds an error and everything that caused it.
    pub(super) fn because(mut self, error: &(dyn Error + 'static)) -> Self {
        self.causes.extend(failure::chain(error));
        self
    }

    /// Adds one cause in words.
    pub(super) fn cause(mut self, cause: impl Display) -> Self {
        self.causes.push(cause.to_string());
        self
    }

    /// Says what to try.
    pub(super) fn hint(mut self, hint: impl Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// Says which kind of error of the operating system is the reason.
    pub(super) fn kind(mut self, kind: ErrorKind) -> Self {
        self.kind = Some(kind);
        self
    }

    /// Whether the caller lacks the permission to reach the agent, which says nothing about the
    /// agent.
    pub(super) fn is_forbidden(&self) -> bool {
        self.exit == Exit::Unreachable && self.kind == Some(ErrorKind::PermissionDenied)
    }

    /// The failure of an error whose own text is the reason.
    pub(super) fn of(error: &(dyn Error + 'static)) -> Self {
        let failure = Self::failed(error);
        match error.source() {
            Some(cause) => failure.because(cause),
            None => failure,
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        match &error {
            ConfigError::Problems(problems) => {
                let count = problems.len();
                let s = if count == 1 { "" } else { "s" };
                let failure =
                    Self::failed(format_args!("the configuration has {count} mistake{s}"));
                problems.iter().fold(failure, Self::cause)
            }
            ConfigError::Set { .. } => Self::usage(&error),
            ConfigError::Missing { .. } | ConfigError::Read { .. } | ConfigError::Syntax { .. } => {
                Self::of(&error)
            }
        }
    }
}

impl From<ConfiguredError> for Failure {
    fn from(error: ConfiguredError) -> Self {
        match error {
            ConfiguredError::Config(error) => error.into(),
            ConfiguredError::LogFilter(_) => Self::usage(error),
        }
    }
}

impl From<std::io::Error> for Failure {
    /// A failure to print. A reader that closed the pipe (`| head`) is not a failure.
    fn from(error: std::io::Error) -> Self {
        let exit = match error.kind() {
            std::io::ErrorKind::BrokenPipe => Exit::Done,
            _ => Exit::Failed,
        };
        Self::new(exit, "failed to print").because(&error)
    }
}

impl From<tonic::Status> for Failure {
    fn from(status: tonic::Status) -> Self {
        use tonic::Code;

        let message = status.message();
        match status.code() {
            // A connection that broke is reported as either of these; the agent itself never
            // answers with them.
            Code::Unavailable | Code::Unknown => Self::new(
                Exit::Unreachable,
                "the connection to the agent broke",
            )
            .cause(message)
            .hint("the agent may be restarting; try again, or see `systemctl status guest-agent`"),
            Code::Cancelled | Code::DeadlineExceeded => {
                Self::new(Exit::TimedOut, "the agent did not answer in time").cause(message)
            }
            Code::PermissionDenied | Code::Unauthenticated => {
                Self::failed("the agent refused").cause(message).hint("run as root")
            }
            Code::Unimplemented => Self::failed("the running agent does not know this request")
                .hint("it may be older than this command; restart the service after an update"),
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::FailedPrecondition
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::OutOfRange
            | Code::Internal
            | Code::DataLoss
            | Code::Ok => Self::failed(message),
        }
    }
}
