//! How a process ended.

use std::fmt;

use crate::text::mebibytes;

/// How a process ended, as far as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExitCause {
    /// It exited by itself with this code.
    Exited(i32),
    /// A signal ended it.
    Signaled(i32),
    /// The kernel killed it because memory ran out.
    OutOfMemory,
    /// The agent ended it because it stayed over its memory limit, which nothing else enforces
    /// here.
    OverMemoryLimit,
    /// It has ended, and the kernel does not report how: it was not our child, or the machine
    /// restarted.
    Unknown,
}

// === impl ExitCause ===

impl ExitCause {
    /// How the process of a plugin with this memory limit, in bytes, ended. Another limit may be in
    /// force by the time that somebody reads it.
    #[must_use]
    pub fn under(self, limit: Option<u64>) -> String {
        match (self, limit) {
            (Self::OutOfMemory, Some(limit)) => {
                format!("out of memory at its limit of {}", mebibytes(limit))
            }
            (Self::OutOfMemory, None) => {
                "out of memory without a limit of its own: the machine or all plugins together had \
                 no more"
                    .to_owned()
            }
            (Self::OverMemoryLimit, Some(limit)) => {
                format!("ended over its memory limit of {}", mebibytes(limit))
            }
            (cause, _) => cause.to_string(),
        }
    }
}

impl fmt::Display for ExitCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Signaled(signal) => write!(f, "killed by {}", signal_name(*signal)),
            Self::OutOfMemory => f.write_str("killed by the kernel because memory ran out"),
            Self::OverMemoryLimit => {
                f.write_str("ended by the agent because it stayed over its memory limit")
            }
            Self::Unknown => f.write_str("ended, with an unknown cause"),
        }
    }
}

/// Names of the signals that end plugins in practice; others are shown as numbers.
fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}
