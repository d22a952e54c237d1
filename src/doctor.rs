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

mod access;
mod admission;
mod agent;
mod certificates;
mod check;
mod clock;
mod disk;
mod forwarding;
mod http;
mod leftovers;
mod limits;
mod local;
mod lock;
mod permissions;
mod plugins;
mod policies;
mod security;
mod store;
mod windows;

use check::is_denied;
pub(crate) use check::not_looked_at;
pub use check::{Agent, Check, Finding, Host, Severity};

/// All checks, in the order in which their findings are shown.
pub const CHECKS: &[Check] = &[
    Check { about: "agent", run: agent::check },
    Check { about: "plugins", run: plugins::check },
    Check { about: "store", run: store::check },
    Check { about: "disk", run: disk::check },
    Check { about: "permissions", run: permissions::check },
    Check { about: "access", run: access::check },
    Check { about: "policies", run: policies::check },
    Check { about: "admission", run: admission::check },
    Check { about: "local plugins", run: local::check },
    Check { about: "http", run: http::check },
    Check { about: "certificates", run: certificates::check },
    Check { about: "forwarding", run: forwarding::check },
    Check { about: "lock", run: lock::check },
    Check { about: "clock", run: clock::check },
    Check { about: "security", run: security::check },
    Check { about: "leftovers", run: leftovers::check },
    Check { about: "windows", run: windows::check },
    Check { about: "limits", run: limits::check },
];

/// Runs all checks; the worst findings come first.
#[must_use]
pub fn examine(host: &Host<'_>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = CHECKS.iter().flat_map(|check| (check.run)(host)).collect();
    findings.iter_mut().for_each(tell_what_is_hidden);
    findings.sort_by_key(|finding| finding.severity);
    findings
}

/// Turns a finding that only says that the caller may not look into a note about that. The kernel's
/// own words are in its reason, whatever check it comes from.
fn tell_what_is_hidden(finding: &mut Finding) {
    if finding.severity != Severity::Note && is_denied(&finding.why) {
        *finding = not_looked_at(&finding.what, std::mem::take(&mut finding.why));
    }
}
