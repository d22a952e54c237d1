//! Control groups of removed plugins, and the processes in them. Blocks.
//!
//! A group that this agent made is proof enough: nobody gets into it who was not started there by
//! the agent or by a process of the plugin. Each process is looked up in it once more after it was
//! taken hold of.

use guest_agent_actors::error::Chain;
use guest_agent_actors::ports::{SweepFate, SweepManner, SweepReport};

use crate::process::cgroup::Group;

/// Removes the group of an unknown plugin. The turn of its installations is held meanwhile, so that
/// no new plugin of this name can be started.
pub(super) fn sweep(group: &Group, manner: SweepManner, report: &mut SweepReport) {
    let path = group.path();
    let living = group.members().len();
    let why = match living {
        0 => "its plugin was removed".to_owned(),
        living => format!("its plugin was removed; processes that live on in it: {living}"),
    };
    if manner == SweepManner::Pretend {
        return report.push(path, SweepFate::WouldDelete, why);
    }
    match group.kill().and_then(|()| group.remove()) {
        Ok(()) => report.push(path, SweepFate::Deleted, why),
        Err(error) => report.push(path, SweepFate::Failed, Chain(&error).to_string()),
    }
}
