//! Finds out what on this machine is wrong, or would make plugins fail, and says how it is put
//! right.
//!
//! ```text
//! cli/doctor ─► examine ─► one check per file ─► findings
//! ```
//!
//! Works with a running agent, whose own answer is part of the [`Host`], and without one: that it
//! does not run is a finding then. A check only looks; it changes nothing and needs no more rights
//! than its caller has. A new check is a file here and a line in [`CHECKS`].

mod admission;
mod agent;
mod check;
mod clock;
mod disk;
mod http;
mod leftovers;
mod limits;
mod local;
mod lock;
mod permissions;
mod policies;
mod removals;
mod security;
mod store;

pub use check::{Agent, Check, Finding, Host, Severity};

/// All checks, in the order in which their findings are shown.
pub const CHECKS: &[Check] = &[
    Check { about: "agent", run: agent::check },
    Check { about: "store", run: store::check },
    Check { about: "disk", run: disk::check },
    Check { about: "permissions", run: permissions::check },
    Check { about: "policies", run: policies::check },
    Check { about: "admission", run: admission::check },
    Check { about: "local plugins", run: local::check },
    Check { about: "http", run: http::check },
    Check { about: "lock", run: lock::check },
    Check { about: "clock", run: clock::check },
    Check { about: "security", run: security::check },
    Check { about: "leftovers", run: leftovers::check },
    Check { about: "limits", run: limits::check },
    Check { about: "removals", run: removals::check },
];

/// Runs all checks; the worst findings come first.
#[must_use]
pub fn examine(host: &Host<'_>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = CHECKS.iter().flat_map(|check| (check.run)(host)).collect();
    findings.sort_by_key(|finding| finding.severity);
    findings
}
