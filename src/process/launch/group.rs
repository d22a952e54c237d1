//! The control group of a plugin that is launched: made ready before the process is there, and looked
//! at afterwards.

use std::sync::Arc;
use std::time::Duration;

use guest_agent_actors::error::Chain;
use guest_agent_actors::model::id::PluginName;
use guest_agent_actors::model::spec::Limits;
use guest_agent_actors::ports::Unenforced;

use crate::process::cgroup::{Entrance, Group};
use crate::process::launch::watch::Watched;

/// Shortest time between two log lines about OOM kills.
const OOM_PAUSE: Duration = Duration::from_secs(1);

/// The group of a plugin, ready to be entered, and the limits that are not enforced; the reason, where
/// the plugin cannot enter a group.
pub(super) fn ready(
    name: &PluginName,
    group: &Group,
    limits: &Limits,
) -> (Entrance, Unenforced, Option<String>) {
    let walls = group.prepare(limits).and_then(|unenforced| Ok((group.entrance()?, unenforced)));
    match walls {
        Ok((entrance, unenforced)) => (entrance, unenforced, None),
        Err(error) => {
            let why = Chain(&error).to_string();
            tracing::warn!(plugin = %name, error = why, "cannot enter a control group");
            (Entrance::default(), group.unenforced_outside(limits, &why), Some(why))
        }
    }
}

/// Logs when the kernel kills a helper because memory ran out: the plugin itself continues to
/// run, so its exit does not report the kill.
pub(super) fn report_oom_kills(name: PluginName, group: &Group, watched: Arc<Watched>) {
    let Some(watch) = group.watch_oom() else { return };
    let group = group.clone();
    tokio::spawn(async move {
        let mut before = group.oom_kills();
        loop {
            tokio::select! {
                () = watched.gone() => return,
                notice = watch.notice() => if notice.is_err() { return },
            }
            let now = group.oom_kills();
            if now > before {
                let total = now.unwrap_or_default();
                tracing::warn!(
                    plugin = %name,
                    total,
                    "the kernel killed a process of the plugin because memory ran out"
                );
                before = now;
            }
            // Further kills within this time are one line.
            tokio::time::sleep(OOM_PAUSE).await;
        }
    });
}

/// The limits that are not enforced for a process that could not enter its group; the child itself
/// cannot report that.
pub(super) async fn unenforced_if_outside(
    watched: &Watched,
    group: Group,
    limits: Limits,
) -> Unenforced {
    let pid = watched.process.pid;
    let look = move || {
        let why = "its process could not enter the control group";
        (!group.holds(pid)).then(|| group.unenforced_outside(&limits, why))
    };
    // A look that panicked has found no process, and dead processes are in no group.
    let outside = tokio::task::spawn_blocking(look).await.unwrap_or_default();
    outside.filter(|_| watched.is_alive()).unwrap_or_default()
}
