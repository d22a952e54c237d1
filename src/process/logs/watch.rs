//! The agent's side: looks at a log as soon as a plugin writes into it, and starts the keeper,
//! which does this while no agent runs.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::sync::PoisonError;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use guest_agent_actors::error::Chain;
use inotify::EventStream;
use rustix::fs::FlockOperation;

use super::beat::{Beat, Looked};
use super::inotify::{Written, listen};
use super::keeper::Keeper;
use super::{PluginLogs, file};
use crate::process::cgroup::Cgroups;

/// How often all logs are looked at, whether or not inotify reported a write. Error logs are only
/// looked at then: a plugin that floods its error log could as well flood any other file in its own
/// folder.
const BEAT: Duration = Duration::from_secs(10);

/// A log that a plugin writes into is looked at again after the time in which it could become too
/// long at a gigabyte per second, but not outside of these bounds.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// How often an agent tries to take the lock that a keeper, or another agent, is about to release.
const LOCK_BEAT: Duration = Duration::from_millis(20);

/// How long the agent waits for that lock before it logs that it does not have it.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Buffer for inotify events.
const BUFFER: usize = 4096;

/// The process that cuts logs while no agent runs.
#[derive(Clone, Debug)]
pub enum Keeping {
    /// A process that this program starts when the first plugin is launched.
    ByThisProgram {
        /// The control group for the keeper, outside of the agent's own group.
        cgroups: Cgroups,
    },
    /// No process.
    ByNobody,
}

// === impl PluginLogs ===

impl PluginLogs {
    /// Keeps all logs short, until it is dropped. To be called on the runtime, once per process.
    ///
    /// Begins when no other agent and no keeper does the same.
    pub async fn watch(self, keeping: Keeping) {
        if tokio::time::timeout(LOCK_PATIENCE, self.take_lock()).await.is_err() {
            let dir = self.shared.dir.display();
            tracing::warn!(%dir, "another process shortens these logs; waits for its end");
            self.take_lock().await;
        }
        let mut keeper = match keeping {
            Keeping::ByThisProgram { cgroups } => Some(Keeper::new(&self, cgroups)),
            Keeping::ByNobody => None,
        };
        let mut events = self.listen();
        let (mut beat, mut next_beat) = (Beat::every(BEAT), tokio::time::Instant::now());
        loop {
            let written = tokio::select! {
                written = next(&mut events) => written,
                () = tokio::time::sleep_until(next_beat) => Written::Any,
                () = self.shared.launched.notified() => Written::Some(BTreeSet::new()),
            };
            let logs = self.clone();
            let is_of_all = written == Written::Any;
            let work = move || {
                let looked = logs.look(&written);
                if let Some(keeper) = &mut keeper {
                    let is_news = match written {
                        Written::Some(_) => true,
                        Written::Any => logs.names().iter().any(|name| logs.is_written(name)),
                    };
                    if is_news {
                        keeper.be_there();
                    }
                }
                (looked, keeper)
            };
            let Ok((looked, same_keeper)) = tokio::task::spawn_blocking(work).await else {
                // The task panicked, which the log says; or the runtime ends.
                tracing::error!("logs of plugins are no longer shortened");
                return;
            };
            keeper = same_keeper;
            if is_of_all {
                next_beat = tokio::time::Instant::now() + beat.after(looked);
            }
            self.shared.written.notify_waiters();
            tokio::time::sleep(looked.pause).await;
        }
    }

    /// Cuts the logs that are too long; returns when to look again.
    pub(super) fn look(&self, written: &Written) -> Looked {
        let Written::Some(names) = written else {
            return Looked { pause: PAUSE_MIN, is_error_log_cut: self.tend_all() };
        };
        let room = names.iter().map(|name| {
            self.tend(name).unwrap_or_else(|error| {
                // The next look at all logs reports it.
                tracing::debug!(plugin = %name, %error, "the log of a plugin cannot be shortened");
                self.shared.bound.max
            })
        });
        // A nanosecond for each byte.
        let pause = room.min().map_or(PAUSE_MIN, Duration::from_nanos);
        Looked { pause: pause.clamp(PAUSE_MIN, PAUSE_MAX), is_error_log_cut: false }
    }

    /// The lock file of the process that cuts these logs. It is beside their folder, because all
    /// files in that folder are logs.
    pub(super) fn lock_file(&self) -> io::Result<File> {
        file::open_own(&self.shared.dir.with_extension("lock"))
    }

    /// Takes the lock of these logs from the process that cuts them, for as long as this process
    /// lives. Call it before launching plugins: two processes that cut, or that record where a
    /// launch begins, do not coordinate.
    ///
    /// A keeper releases the lock within milliseconds. A process that does not is another agent
    /// with the same logs; after a second this returns, and `watch` continues to try.
    pub async fn take_over(&self) {
        drop(tokio::time::timeout(LOCK_PATIENCE, self.take_lock()).await);
    }

    async fn take_lock(&self) {
        let held = || self.shared.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if held().is_some() {
            return;
        }
        let lock = match self.lock_file() {
            Ok(lock) => lock,
            Err(error) => {
                tracing::warn!(
                    %error, "cannot tell whether another process shortens these logs, too"
                );
                return;
            }
        };
        while rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            tokio::time::sleep(LOCK_BEAT).await;
        }
        *held() = Some(lock);
    }

    fn listen(&self) -> Option<EventStream<Vec<u8>>> {
        let stream = listen(self).and_then(|inotify| inotify.into_event_stream(vec![0; BUFFER]));
        stream
            .inspect_err(|error| {
                let dir = self.shared.dir.display();
                let error = Chain(error);
                tracing::warn!(%dir, %error, "inotify is not usable; checks the logs periodically");
            })
            .ok()
    }
}

/// The logs that were written since the last call. Waits for the first write.
async fn next(events: &mut Option<EventStream<Vec<u8>>>) -> Written {
    let Some(stream) = events else { return std::future::pending().await };
    let mut written = Written::Some(BTreeSet::new());
    let mut event = stream.next().await;
    loop {
        match event {
            Some(Ok(event)) => written.note(&event),
            Some(Err(_)) | None => {
                // inotify failed. The regular look, every [`BEAT`], continues.
                *events = None;
                return Written::Any;
            }
        }
        match stream.next().now_or_never() {
            Some(more) => event = more,
            // The file was one that the agent keeps beside a log.
            None if written == Written::Some(BTreeSet::new()) => event = stream.next().await,
            None => return written,
        }
    }
}
