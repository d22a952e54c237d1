//! Makes the rule set that keeps a plugin to its files.
//!
//! What the kernel of an older version cannot govern is left out by the crate; `plan` says what
//! that means. Version 5 is asked for where files are governed, and no later one: from 9 on the
//! kernel would also govern connecting to sockets, and a plugin has to reach the agent's. Signals
//! and abstract sockets stay inside from version 6 on.

use std::os::fd::OwnedFd;

use guest_agent_actors::ports::{Cause, Shortfall};
use landlock::{
    ABI, Access as _, AccessFs, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    Scope,
};

use super::paths::{Access, Asked, Grant};

const INTERFACE: ABI = ABI::V5;

/// The first version of Landlock with scopes.
const SCOPES: ABI = ABI::V6;

/// Makes the rule set, and names the paths of the policy that do not exist.
pub(super) fn rule_set(grants: &[Grant]) -> Result<(Option<OwnedFd>, Vec<Shortfall>), Cause> {
    let rules = Ruleset::default().handle_access(AccessFs::from_all(INTERFACE))?;
    let mut rules = rules.scope(Scope::from_all(SCOPES))?.create()?;
    let mut absent = Vec::new();
    for Grant { path, access, asked } in grants {
        let opened = match PathFd::new(path) {
            Ok(opened) => opened,
            Err(error) => {
                if let Asked::ByPolicy(key) = asked {
                    let (path, cause) = (path.display(), std::error::Error::source(&error));
                    let cause = cause.map_or_else(|| error.to_string(), ToString::to_string);
                    absent.push(Shortfall::new(
                        &format!("access to {path} by {key}"),
                        &cause,
                        "create the path, then restart the plugin",
                    ));
                }
                continue;
            }
        };
        let mut allowed = match access {
            Access::Read => AccessFs::from_read(INTERFACE),
            Access::Write => AccessFs::from_all(INTERFACE),
        };
        if !std::fs::metadata(path).is_ok_and(|found| found.is_dir()) {
            allowed &= AccessFs::from_file(INTERFACE);
        }
        rules = rules.add_rule(PathBeneath::new(opened, allowed))?;
    }
    Ok((rules.into(), absent))
}
