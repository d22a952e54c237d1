//! Ends every process of a plugin, as politely as ordered.
//!
//! ```text
//! Politely: Stop call ─► an answer ─► the grace ─┬─► SIGTERM to who is left ─► 5 s ───────┐
//!                └─────► none: at most the timeout ┘                                      │
//! (without an endpoint:                              SIGTERM ─► at most the timeout ──────┤)
//! AtOnce:   ─────────────────────────────────────────────────────────────────────────────┴► SIGKILL
//! ```
//!
//! A plugin that answered Stop only has to exit. A plugin that answers and stays, as plugins do
//! that other agents stop by SIGTERM, would otherwise make its successor wait for the whole
//! timeout. A plugin that still writes data after its answer gets more time by its policy.
//!
//! The last stage repeats until a look at all processes finds none of the plugin, so a helper that
//! was forked meanwhile ends as well. Each signal goes through a pidfd of a proven member of the
//! plugin.

use std::sync::Arc;
use std::time::Duration;

use guest_agent_actors::crash_point;
use guest_agent_actors::error::Chain;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::id::{Endpoint, PluginName, Process};
use guest_agent_actors::ports::{Cleanup, RpcError, StopError, StopManner, StopOrder, Stopped};
use guest_agent_serve_kit::replace::remove_if_there;
use rustix::process::Signal;
use tokio::time::{Instant, timeout, timeout_at};

use crate::os::remove::remove_below;
use crate::process::launch::process_table::look_aside;
use crate::process::launch::tree::Member;
use crate::process::launch::watch::Watched;
use crate::process::launch::{Gate, ProcessLauncher, address};

/// No stop waits longer, whatever is ordered; it also keeps the arithmetic of deadlines in range.
const LONGEST_STOP: Duration = Duration::from_secs(24 * 3600);

/// How long a plugin that could not be called may take to exit by itself: it may already be
/// exiting.
const UNREACHABLE_GRACE: Duration = Duration::from_millis(500);

/// How long processes may take to end after SIGTERM: with the plugin itself among them, and without
/// it.
const TERM_GRACE: Duration = Duration::from_secs(5);
const LEFTOVER_GRACE: Duration = Duration::from_millis(500);

/// How long a process may survive SIGKILL.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// How long one round of SIGKILL waits before it looks again.
const KILL_ROUND: Duration = Duration::from_secs(1);

/// How long a stop waits for the cause of an end that it saw, and for the process to be reaped. The
/// cause of a child's end is known at once; that of a process with another parent mostly is, once
/// the parent has reaped it.
const CAUSE_WAIT: Duration = Duration::from_millis(100);

/// Which processes the stop found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Met {
    /// No process.
    Nobody,
    /// At least one process.
    Somebody,
}

impl ProcessLauncher {
    /// Carries out `Launcher::stop`.
    pub(super) async fn stop_plugin(&self, order: StopOrder) -> Result<Stopped, StopError> {
        let name = &order.name;
        let target = self.target(name, order.process.as_ref()).await;
        let alive = target.as_ref().filter(|watched| watched.is_alive());

        if let (Some(watched), StopManner::Politely { timeout }) = (alive, order.manner)
            && let Some(endpoint) = &order.endpoint
        {
            let grace = self.stop_grace(name);
            self.ask_to_stop(watched, endpoint, order.cleanup, timeout, grace).await;
        }

        crash_point::reach("after", "asking to stop", name.as_str());
        let gate = self.gate(name).await;
        let mut met = Met::Nobody;
        if let StopManner::Politely { timeout } = order.manner {
            // A plugin that the agent cannot call Stop on has all of its time after SIGTERM.
            let grace = if order.endpoint.is_some() { TERM_GRACE } else { timeout };
            met = self.terminate(name, order.process.as_ref(), grace, &gate).await;
        }
        let killed = self.end_all(name, order.process.as_ref(), &gate).await?;
        crash_point::reach("before", "socket removal", name.as_str());
        self.clear_endpoints(&order, target.as_deref());
        self.table().tickets.revoke(name);
        if order.cleanup == Cleanup::Wipe {
            let group = self.shared.config.cgroups.group(name);
            if let Some(Err(error)) = look_aside(move || group.remove()).await {
                tracing::warn!(
                    plugin = %name, error = %Chain(&error), "an empty control group remains"
                );
            }
            self.remove_own_folder(name).await;
        }
        drop(gate);
        if order.cleanup == Cleanup::Wipe {
            self.forget_plugin(name);
        }

        if alive.is_none() && met == Met::Nobody && killed == Met::Nobody {
            return Ok(Stopped::NothingRan);
        }
        // The process that reaps it may be late; a stop does not wait long for the cause of the
        // end.
        let cause = match &target {
            Some(watched) => timeout(CAUSE_WAIT, watched.cause()).await,
            None => Ok(ExitCause::Unknown),
        };
        Ok(Stopped::Ended(cause.unwrap_or(ExitCause::Unknown)))
    }

    /// Kills every running process of the plugin, until none is left. The gate proves that no
    /// process of the plugin is spawned meanwhile.
    pub(super) async fn end_all(
        &self,
        name: &PluginName,
        given: Option<&Process>,
        _gate: &Gate,
    ) -> Result<Met, StopError> {
        let began = Instant::now();
        let newest = self.newest(name);
        let group = self.shared.config.cgroups.group(name);
        let mut met = Met::Nobody;
        loop {
            let members = self.members(name, given).await;
            // This agent holds it already, so it ends it even where the search for the others
            // failed.
            let leader = newest.as_ref().filter(|watched| watched.is_alive());
            let found = leader.map(|watched| watched.process.pid);
            let found = found.or_else(|| members.first().map(|member| member.process.pid));
            let Some(pid) = found else { break };
            if met == Met::Somebody && group.is_real() {
                // A process forks faster than the agent finds its children: the kernel kills the
                // whole group at once.
                let group = group.clone();
                drop(look_aside(move || group.kill()).await);
            }
            met = Met::Somebody;
            if began.elapsed() >= KILL_WAIT {
                return Err(StopError { pid, waited: KILL_WAIT });
            }
            if let Some(watched) = leader {
                watched.kill();
            }
            send(name, &members, Signal::KILL);
            let all_gone = async {
                if let Some(watched) = leader {
                    watched.dead().await;
                }
                all_died(&members).await;
            };
            // The next round finds the processes that are still alive then.
            drop(timeout(KILL_ROUND, all_gone).await);
        }
        if let Some(watched) = newest.filter(|watched| !watched.is_alive()) {
            // The agent waits until the process is reaped, which takes a moment after its end, so
            // no zombie is left.
            drop(timeout(CAUSE_WAIT, watched.put_away()).await);
        }
        Ok(met)
    }

    /// The process a stop is about: the one ordered if it is proven, else the newest one known.
    async fn target(&self, name: &PluginName, ordered: Option<&Process>) -> Option<Arc<Watched>> {
        if let Some(process) = ordered
            && let Some(watched) = self.adopt(name, process).await
        {
            return Some(watched);
        }
        self.newest(name)
    }

    /// Calls Stop and waits for the process to exit, both within `timeout`; after an answer no
    /// longer than `grace`.
    async fn ask_to_stop(
        &self,
        watched: &Watched,
        endpoint: &Endpoint,
        cleanup: Cleanup,
        timeout: Duration,
        grace: Duration,
    ) {
        let timeout = timeout.min(LONGEST_STOP);
        let deadline = Instant::now() + timeout;
        let answer = tokio::select! {
            () = watched.dead() => return,
            answer = self.shared.rpc.stop(endpoint, cleanup, timeout) => answer,
        };
        let grace = match answer {
            Ok(()) => grace,
            Err(error @ (RpcError::Unimplemented | RpcError::Refused { .. })) => {
                tracing::info!(%endpoint, %error, "the plugin refused Stop; signals follow");
                grace
            }
            Err(error @ (RpcError::TimedOut(_) | RpcError::Unreachable(_))) => {
                tracing::info!(%endpoint, %error, "the Stop call failed; signals follow");
                UNREACHABLE_GRACE
            }
        };
        let until = deadline.min(Instant::now() + grace);
        // The search for living processes shows whether it exited in time.
        drop(timeout_at(until, watched.dead()).await);
    }

    /// Sends SIGTERM to all processes of the plugin and waits a moment for them to end.
    async fn terminate(
        &self,
        name: &PluginName,
        given: Option<&Process>,
        grace: Duration,
        _gate: &Gate,
    ) -> Met {
        let members = self.members(name, given).await;
        if members.is_empty() {
            return Met::Nobody;
        }
        let leader_lives = self.newest(name).is_some_and(|watched| watched.is_alive());
        send(name, &members, Signal::TERM);
        let grace = if leader_lives { grace.min(LONGEST_STOP) } else { LEFTOVER_GRACE };
        // The caller kills the processes that are left.
        drop(timeout(grace, all_died(&members)).await);
        Met::Somebody
    }

    /// Drops the slot of a plugin that is being removed, unless a task waits for its gate.
    fn forget_plugin(&self, name: &PluginName) {
        self.logs().forget(name);
        let mut table = self.table();
        table.slots.retain(|owner, slot| owner != name || Arc::strong_count(&slot.gate) > 1);
    }

    /// Forgets the connection and removes the socket file, if it is one of ours. An earlier agent
    /// may have recorded a path that a living process of another plugin has now.
    fn clear_endpoints(&self, order: &StopOrder, target: Option<&Watched>) {
        let endpoints = [order.endpoint.as_ref(), target.and_then(|w| w.endpoint.as_ref())];
        for endpoint in endpoints.into_iter().flatten() {
            if self.is_of_another(&order.name, endpoint) {
                continue;
            }
            self.shared.rpc.forget(endpoint);
            let path = endpoint.as_str().strip_prefix("unix:").map(std::path::Path::new);
            let confined = self.confined_dir();
            let ours = path.filter(|path| {
                let folder = path.parent();
                folder == Some(&self.sockets_dir())
                    || folder.and_then(std::path::Path::parent) == Some(&confined)
            });
            if let Some(path) = ours
                && let Err(error) = remove_if_there(path)
            {
                tracing::warn!(socket = %path.display(), %error, "a socket cannot be removed");
            }
        }
        self.clear_abandoned_sockets(&order.name);
    }

    /// Whether a living process of another plugin listens there.
    fn is_of_another(&self, name: &PluginName, endpoint: &Endpoint) -> bool {
        self.table().slots.iter().filter(|(other, _)| *other != name).any(|(_, slot)| {
            let newest = slot.newest.as_ref();
            newest.is_some_and(|it| it.endpoint.as_ref() == Some(endpoint) && it.is_alive())
        })
    }

    /// Removes the folder that a plugin had for its socket, where its policy gave it one.
    async fn remove_own_folder(&self, name: &PluginName) {
        let (parent, name) = (self.confined_dir(), name.clone());
        let work = move || {
            for folder in address::own_folders(&name) {
                if let Err(error) = remove_below(&parent, &folder) {
                    tracing::warn!(plugin = %name, error = %Chain(&error), "a folder remains");
                }
            }
            // After the last plugin, the folder of all; it stays while other plugins have folders
            // in it.
            drop(std::fs::remove_dir(&parent));
        };
        drop(tokio::task::spawn_blocking(work).await);
    }

    /// Removes the sockets of processes of any revision that ended unseen: while no agent ran, or
    /// before the agent had recorded them. To be called when no process of the plugin runs.
    pub(super) fn clear_abandoned_sockets(&self, name: &PluginName) {
        let table = self.table();
        let others = table.slots.keys().filter(|other| *other != name);
        let abandoned = address::abandoned(&self.sockets_dir(), name, others);
        drop(table);
        for socket in abandoned {
            match std::fs::remove_file(&socket) {
                Ok(()) => tracing::debug!(plugin = %name, socket = %socket.display(), "removed"),
                Err(error) => {
                    tracing::warn!(socket = %socket.display(), %error, "a socket cannot be removed")
                }
            }
        }
    }
}

/// The oldest come first, so a parent that would start its children again ends before them.
fn send(name: &PluginName, members: &[Member], signal: Signal) {
    for member in members {
        let pid = member.process.pid;
        match member.pidfd.signal(signal) {
            Ok(()) => tracing::debug!(plugin = %name, pid, ?signal, "signalled"),
            // The process ended meanwhile, which was the goal.
            Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => {}
            Err(error) => tracing::warn!(plugin = %name, pid, ?signal, %error, "not signalled"),
        }
    }
}

async fn all_died(members: &[Member]) {
    for member in members {
        member.pidfd.died().await;
    }
}
