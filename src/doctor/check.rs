//! The input and the result of a check of `doctor`.
//!
//! ```text
//! Host ─► Check::run ─► findings
//! ```

use std::fmt::Display;
use std::time::SystemTime;

use guest_agent_proto::local::{ExamineResponse, PluginStatus, SweepResponse};

use crate::config::Config;
pub use crate::hostinfo::preflight::finding::{Finding, Severity};

/// The examined machine.
#[derive(Debug)]
pub struct Host<'a> {
    /// As the agent would be started.
    pub config: &'a Config,
    /// The agent, if it answers.
    pub agent: &'a Agent,
    pub now: SystemTime,
}

/// The agent, if it answers.
#[derive(Debug)]
pub enum Agent {
    /// It does.
    Answers {
        /// What it says of itself.
        itself: Box<ExamineResponse>,
        /// What it would sweep away, or why it cannot tell.
        leftovers: Result<SweepResponse, String>,
        /// All plugins.
        plugins: Vec<PluginStatus>,
    },
    /// The caller may not ask it.
    Hidden {
        /// Why, as far as can be told.
        reason: String,
    },
    /// It does not.
    Silent {
        /// Why, as far as can be told.
        reason: String,
        /// What to try.
        hint: String,
        /// The process that listens and does not answer, where one does.
        process: Option<u32>,
    },
}

/// Whether this reason is the kernel's refusal to let the caller look, and not a fault of the
/// machine. Root may look anywhere, so what is refused to root is a fault.
pub(crate) fn is_denied(why: &str) -> bool {
    let refused = std::io::Error::from_raw_os_error(nix::libc::EACCES).to_string();
    !rustix::process::geteuid().is_root() && why.contains(&refused)
}

/// The note that something was not looked at, because the caller may not: that says nothing about
/// the machine.
pub(crate) fn not_looked_at(what: impl Display, why: impl Into<String>) -> Finding {
    let subject = what.to_string();
    let what = format!("not looked at, for lack of permission: {subject}");
    let note = Finding::new(Severity::Note, what, why, "sudo guest-agent doctor");
    Finding { not_looked_at: Some(subject), ..note }
}

/// One thing that is checked.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// What it is about, in a word.
    pub about: &'static str,
    /// Looks at it.
    pub run: fn(&Host<'_>) -> Vec<Finding>,
}
