//! Whether the security policy of the machine may be in the way of plugins.

use super::check::{Finding, Host};
use crate::hostinfo::preflight::host::Security;

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    Security::of_this_machine(&host.config.agent.state_dir).judge()
}
