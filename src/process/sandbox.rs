//! Confinement: how a policy becomes the walls around one process.
//!
//! ```text
//! policy ─┬─► account: names ► numbers        ┐
//! host ───┼─► plan: what this machine can do  ├─► Orders ─► clone ─► child: the steps ─► exec
//!         ├─► paths ► landlock: a rule set    │
//!         └─► seccomp: a filter program       ┘
//! ```
//!
//! The launcher calls this once per launch, on a blocking thread. Everything that can fail,
//! allocate or look at files happens before that; the child makes system calls with what is ready.
//! The caller receives a list of what this machine cannot enforce; a plugin whose policy is
//! `required` is then not launched at all. Files that a plugin of another user needs are made its
//! own by `ownership`.

use std::os::fd::OwnedFd;

use guest_agent_actors::ports::{Cause, Shortfall};

use crate::config::Policy;

mod account;
mod child;
mod host;
mod landlock;
mod ownership;
mod paths;
mod plan;
mod seccomp;

pub use account::{AccountError, Identity, resolve};
pub use host::Host;
pub(crate) use plan::Planned;
pub use plan::{LANDLOCK_WHOLE, wants_landlock as keeps_to_files};
pub(crate) use plan::{closes_agent_sockets, open_agent_sockets};
pub use seccomp::is_supported as seccomp_is_supported;

pub(crate) use child::{Failed, Orders, Step};
pub(crate) use ownership::{Owner, give_file, give_folder, give_state, make_in_given, may_enter};
pub(crate) use paths::Places;

/// Why a plugin cannot be confined as its policy says.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfineError {
    /// A user or group of the policy cannot be found.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// The policy is required, and this machine cannot enforce all of it.
    #[error(
        "its policy is required, and this machine cannot enforce all of it: {}; correct that, or \
         set required = false",
        missing.join("; ")
    )]
    Required {
        /// The parts that cannot be enforced.
        missing: Vec<String>,
    },
    /// The kernel refused the Landlock ruleset.
    #[error("failed to prepare its Landlock ruleset")]
    Landlock(#[source] Cause),
    /// The seccomp filter could not be made.
    #[error("failed to prepare its seccomp filter")]
    Seccomp(#[source] Cause),
}

/// Whether a plugin of this policy has a folder of its own for its socket: a plugin of another user
/// cannot make a socket in the common folder, and one that is kept to some files is not let into
/// it.
pub(crate) fn needs_own_folder(policy: &Policy, host: &Host) -> bool {
    let walled = plan::wants_landlock(policy) && host.landlock > 0;
    walled || (host.may_change_user() && (policy.user.is_some() || policy.group.is_some()))
}

/// Decides everything that does not depend on files. Blocks: it asks for users and groups.
///
/// # Errors
/// The policy names an account that does not exist, or it is required and cannot be enforced.
pub(crate) fn plan(policy: &Policy, host: &Host) -> Result<Planned, ConfineError> {
    let identity = account::resolve(policy.user.as_ref(), policy.group.as_ref(), host)?;
    let mut planned = plan::plan(policy, host, identity);
    if policy.required == Some(true) && !planned.missing.is_empty() {
        let missing = planned.missing.iter().map(Shortfall::to_string).collect();
        return Err(ConfineError::Required { missing });
    }
    if let Some(profile) = planned.filter {
        planned.orders.filters =
            seccomp::filters(profile).map_err(|error| ConfineError::Seccomp(error.into()))?;
    }
    Ok(planned)
}

/// Makes the rule set of a policy that has one. The plugin's own files must exist. Returns also
/// which paths of the policy do not exist, and so cannot be used by the plugin.
///
/// # Errors
/// The kernel refuses it.
pub(crate) fn walls(
    policy: &Policy,
    host: &Host,
    places: &Places<'_>,
) -> Result<(Option<OwnedFd>, Vec<Shortfall>), ConfineError> {
    if !plan::wants_landlock(policy) || host.landlock == 0 {
        return Ok((None, Vec::new()));
    }
    let grants = paths::grants(policy, places);
    landlock::rule_set(&grants).map_err(ConfineError::Landlock)
}
