//! Cuts the logs while no agent runs: a process of its own that does nothing else.
//!
//! ```text
//! agent: holds the lock ─ starts a keeper ────── ends, however ──► the lock is free
//! keeper:                 waits for the lock ────────────────────► cuts … until another agent has
//!                                                                  the lock, or no plugin writes
//! ```
//!
//! The lock (`flock`) is the kernel's, so no agent can end without its keeper waking up. While an
//! agent runs, its keeper sleeps in one system call. One keeper is enough for all plugins. If the
//! keeper is killed while an agent runs, the agent starts another one. If it is killed while no
//! agent runs, logs grow until an agent starts, and no plugin notices.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use guest_agent_actors::ports::Cause;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;

use super::PluginLogs;
use super::beat::Beat;
use super::inotify::{Written, listen};
use crate::process::cgroup::Cgroups;

/// The name of the verb. No help text shows it.
pub const VERB: &str = "keep-logs";

/// How often the keeper checks whether a process still writes.
const BEAT: Duration = Duration::from_secs(2);

/// Buffer for inotify events.
const BUFFER: usize = 4096;

/// The agent's handle on its keeper.
#[derive(Debug)]
pub(super) struct Keeper {
    arguments: Vec<OsString>,
    cgroups: Cgroups,
    child: Option<Child>,
    /// Why the keeper could not be started. It is kept so that the log says so once, and not with
    /// every launch.
    trouble: Option<String>,
}

// === impl Keeper ===

impl Keeper {
    pub(super) fn new(logs: &PluginLogs, cgroups: Cgroups) -> Self {
        let mut arguments = vec![
            VERB.into(),
            logs.shared.dir.clone().into(),
            logs.shared.bound.max.to_string().into(),
        ];
        arguments.extend(logs.shared.state_root.clone().map(OsString::from));
        Self { arguments, cgroups, child: None, trouble: None }
    }

    /// Starts the keeper, unless it runs.
    pub(super) fn be_there(&mut self) {
        if self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None))) {
            return;
        }
        // This path is the same program also when its file was replaced. The keeper gets nothing of
        // the agent's: no environment, no descriptor, and no signals of its terminal.
        let started = Command::new("/proc/self/exe")
            .arg0("guest-agent")
            .args(&self.arguments)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        match started {
            Ok(child) => {
                self.cgroups.shelter(child.id());
                self.child = Some(child);
                self.trouble = None;
            }
            Err(error) => {
                let trouble = Some(error.to_string());
                if self.trouble != trouble {
                    tracing::warn!(
                        %error, "no process shortens the logs while the agent does not run"
                    );
                    self.trouble = trouble;
                }
            }
        }
    }
}

/// What a keeper looks after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeeperArgs {
    /// Where the logs are.
    pub dir: PathBuf,
    /// How many bytes a log may have.
    pub max: u64,
    /// Where the plugins' own folders are, with their error logs.
    pub state_root: Option<PathBuf>,
}

// === impl KeeperArgs ===

impl KeeperArgs {
    /// Reads the arguments after the verb.
    ///
    /// # Errors
    /// They are not what an agent gives its keeper.
    pub fn parse(arguments: &[OsString]) -> Result<Self, Cause> {
        let [dir, max, rest @ ..] = arguments else {
            return Err(format!("usage: {VERB} DIR BYTES [STATE_DIR]").into());
        };
        let max = max.to_str().and_then(|max| max.parse().ok());
        let max = max.ok_or("the second argument is not a number of bytes")?;
        Ok(Self { dir: dir.into(), max, state_root: rest.first().map(PathBuf::from) })
    }
}

/// Waits until no agent runs, and keeps the logs short until an agent starts or no plugin writes.
///
/// # Errors
/// The logs cannot be locked or watched.
pub fn run(args: KeeperArgs) -> Result<(), Cause> {
    // The keeper outlives the session in which the agent was started. A process that leads a
    // session already may not make another, and need not.
    match rustix::process::setsid() {
        Ok(_) | Err(_) => {}
    }
    let logs = PluginLogs::new(args.dir, args.state_root, args.max);
    let lock = logs.lock_file()?;
    while let Err(error) = rustix::fs::flock(&lock, FlockOperation::LockExclusive) {
        if error != rustix::io::Errno::INTR {
            return Err(error.into());
        }
    }
    let mut inotify = listen(&logs)?;
    let mut written = Written::Any;
    let (mut beat, mut next_beat) = (Beat::every(BEAT), Instant::now());
    loop {
        let looked = logs.look(&written);
        if written == Written::Any {
            next_beat = Instant::now() + beat.after(looked);
        }
        if written == Written::Any && !logs.names().iter().any(|name| logs.is_written(name)) {
            return Ok(());
        }
        rustix::fs::flock(&lock, FlockOperation::Unlock)?;
        std::thread::sleep(looked.pause);
        written = next(&mut inotify, next_beat)?;
        if Instant::now() >= next_beat {
            written = Written::Any;
        }
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            // Another agent holds the lock, and has a keeper of its own or will have one.
            return Ok(());
        }
    }
}

/// The logs that were written, at the latest when all logs are due.
fn next(inotify: &mut inotify::Inotify, next_beat: Instant) -> io::Result<Written> {
    let wait = next_beat.saturating_duration_since(Instant::now());
    let beat = Timespec::try_from(wait).map_err(io::Error::other)?;
    let ready = {
        let mut wanted = [PollFd::from_borrowed_fd(inotify.as_fd(), PollFlags::IN)];
        match poll(&mut wanted, Some(&beat)) {
            Err(rustix::io::Errno::INTR) => 0,
            ready => ready?,
        }
    };
    if ready == 0 {
        return Ok(Written::Any);
    }
    let mut written = Written::Some(BTreeSet::new());
    let mut buffer = [0; BUFFER];
    match inotify.read_events(&mut buffer) {
        Ok(events) => events.for_each(|event| written.add(event.mask, event.name)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        Err(error) => return Err(error),
    }
    Ok(written)
}
