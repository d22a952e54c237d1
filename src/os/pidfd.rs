//! A process that is held by a descriptor, so that it cannot be mistaken for another.
//!
//! A pid is used again by the kernel; a pidfd means one process for as long as it is open. So the
//! order is always: open the pidfd, compare the start time of what has the pid now, and from then
//! on trust the descriptor. Every signal of the launcher goes through one.
//!
//! One of the few places with `unsafe`: the `PIDFD_GET_INFO` ioctl, for which no safe wrapper
//! exists.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::id::{BootId, Process};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, pidfd_open, pidfd_send_signal,
    waitid,
};
use tokio::io::unix::AsyncFd;

use crate::os::async_fd;
use crate::os::procfs;

/// Pause between two looks at a process whose descriptor could not be registered with the runtime.
const FALLBACK_POLL: Duration = Duration::from_millis(20);

/// One process, held.
#[derive(Debug)]
pub(crate) struct Pidfd(OwnedFd);

impl Pidfd {
    /// Takes hold of a process that is proven to be `process`: same boot, same pid, same start
    /// time. `None` when it is not, or is gone. A dead process that was not reaped yet is still
    /// held.
    pub(crate) fn open_proven(process: &Process, boot: &BootId) -> Option<Self> {
        if process.boot != *boot {
            return None;
        }
        let pidfd = Self::open(process.pid).ok()?;
        // The pid was taken before this look, so what is seen now is what the descriptor holds, or
        // that process has died since and the descriptor reaches nobody.
        let seen = procfs::stat(process.pid)?;
        (seen.start_ticks == process.start_ticks).then_some(pidfd)
    }

    /// Takes hold of the process that has this pid. Sound for a child that was not reaped yet.
    pub(crate) fn open(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Takes a descriptor that the kernel gave for a process.
    pub(crate) fn of_kernel(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// Whether the process has ended, all of its threads, reaped or not.
    pub(crate) fn is_dead(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interrupted look has no result; the caller looks again or waits.
        matches!(poll(&mut fds, Some(&now)), Ok(n) if n > 0)
    }

    /// Sends a signal. Returns whether the process still existed.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.0, signal)?)
    }

    /// Resolves when the process has ended.
    pub(crate) async fn died(&self) {
        if let Ok(fd) = self.register() {
            while !self.is_dead() {
                match fd.readable().await {
                    Ok(mut guard) => guard.clear_ready(),
                    Err(_) => break,
                }
            }
        }
        // Without a free descriptor for the registration, looking now and then still works.
        while !self.is_dead() {
            tokio::time::sleep(FALLBACK_POLL).await;
        }
    }

    /// How a child of ours ended, leaving it unreaped. `None` while it lives, or when it is no
    /// child.
    pub(crate) fn child_cause(&self) -> Option<ExitCause> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = rustix::io::retry_on_intr(|| {
            waitid(WaitId::PidFd(std::os::fd::AsFd::as_fd(&self.0)), options)
        });
        status.ok().flatten().map(|status| cause_of_child(&status))
    }

    /// How a process that is no child of ours ended: `None` when the kernel does not know it yet
    /// (nobody reaped it) or cannot tell (before 6.15).
    #[expect(unsafe_code, reason = "no safe wrapper of this ioctl exists")]
    pub(crate) fn stranger_cause(&self) -> Option<ExitCause> {
        const OPCODE: rustix::ioctl::Opcode =
            rustix::ioctl::opcode::read_write::<PidfdInfo>(255, 11);
        let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
        // SAFETY: the opcode names the size of `PidfdInfo`, whose layout is the first published
        // form of the kernel's `struct pidfd_info`; the kernel writes at most that many bytes and
        // every bit pattern is valid for its integer fields. A kernel without the call returns an
        // error.
        let done = unsafe {
            rustix::ioctl::ioctl(
                &self.0,
                rustix::ioctl::Updater::<OPCODE, PidfdInfo>::new(&mut info),
            )
        };
        let known = done.is_ok() && info.mask & PIDFD_INFO_EXIT != 0;
        known.then(|| cause_of_status(info.exit_code))
    }

    fn register(&self) -> io::Result<AsyncFd<OwnedFd>> {
        async_fd::register(self.0.try_clone()?)
    }
}

/// Asks for, and says that there is, an exit status.
const PIDFD_INFO_EXIT: u64 = 1 << 3;

/// The first published form of the kernel's `struct pidfd_info`, 64 bytes, which every kernel that
/// has the call accepts.
#[derive(Default)]
#[repr(C)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

fn cause_of_child(status: &WaitIdStatus) -> ExitCause {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => ExitCause::Exited(code),
        (None, Some(signal)) => ExitCause::Signaled(signal),
        (None, None) => ExitCause::Unknown,
    }
}

/// Takes a wait status apart: the low seven bits name a signal, the second byte an exit code.
fn cause_of_status(status: i32) -> ExitCause {
    match status & 0x7f {
        0 => ExitCause::Exited((status >> 8) & 0xff),
        signal => ExitCause::Signaled(signal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot() -> BootId {
        BootId("this".into())
    }

    fn myself() -> Process {
        let pid = std::process::id();
        let start_ticks = procfs::stat(pid).expect("this process").start_ticks;
        Process { pid, start_ticks, boot: boot() }
    }

    #[test]
    fn the_kernel_structure_has_its_published_size() {
        assert_eq!(size_of::<PidfdInfo>(), 64);
    }

    #[test]
    fn a_wait_status_is_taken_apart() {
        assert_eq!(cause_of_status(7 << 8), ExitCause::Exited(7));
        assert_eq!(cause_of_status(9), ExitCause::Signaled(9));
        // With the core-dump bit.
        assert_eq!(cause_of_status(0x80 | 11), ExitCause::Signaled(11));
    }

    #[test]
    fn another_life_of_a_pid_is_not_proven() {
        assert!(Pidfd::open_proven(&myself(), &boot()).is_some());
        let other = Process { start_ticks: myself().start_ticks + 1, ..myself() };
        assert!(Pidfd::open_proven(&other, &boot()).is_none());
        assert!(Pidfd::open_proven(&myself(), &BootId("another".into())).is_none());
        assert!(Pidfd::open_proven(&Process { pid: 0, ..myself() }, &boot()).is_none());
        assert!(Pidfd::open_proven(&Process { pid: u32::MAX, ..myself() }, &boot()).is_none());
    }

    #[tokio::test]
    async fn an_unreaped_child_is_dead_and_tells_its_cause() {
        let mut child =
            std::process::Command::new("/bin/sh").args(["-c", "exit 7"]).spawn().expect("a shell");
        let pidfd = Pidfd::open(child.id()).expect("a pidfd");
        tokio::time::timeout(Duration::from_secs(10), pidfd.died()).await.expect("its death");
        assert!(pidfd.is_dead());
        assert_eq!(pidfd.child_cause(), Some(ExitCause::Exited(7)));
        child.wait().expect("the zombie");
    }
}
