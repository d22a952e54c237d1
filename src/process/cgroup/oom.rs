//! Watches a group and reports OOM kills when they happen.
//!
//! Version 2 changes a file that inotify can watch; version 1 signals an eventfd that was
//! registered for it. Either way the agent waits on a descriptor and does not poll.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use inotify::{Inotify, WatchMask};
use rustix::event::{EventfdFlags, eventfd};
use tokio::io::unix::AsyncFd;

use super::files::write;
use crate::os::async_fd;

/// Reports each OOM kill.
#[derive(Debug)]
pub(crate) struct OomWatch {
    notices: AsyncFd<OwnedFd>,
    /// Must stay open as long as version 1 is to signal.
    _control: Option<File>,
}

impl OomWatch {
    pub(super) fn v1(dir: &Path) -> io::Result<Self> {
        let notices = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let control = File::open(dir.join("memory.oom_control"))?;
        let registration = format!("{} {}", notices.as_raw_fd(), control.as_raw_fd());
        write(dir, "cgroup.event_control", &registration)?;
        Self::on(notices, Some(control))
    }

    pub(super) fn v2(dir: &Path) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        inotify.watches().add(dir.join("memory.events"), WatchMask::MODIFY)?;
        Self::on(inotify.into(), None)
    }

    fn on(notices: OwnedFd, control: Option<File>) -> io::Result<Self> {
        Ok(Self { notices: async_fd::register(notices)?, _control: control })
    }

    /// Resolves when a process may have been killed; the group's counter shows whether it was. It
    /// also resolves when the group is removed.
    pub(crate) async fn notice(&self) -> io::Result<()> {
        loop {
            let mut ready = self.notices.readable().await?;
            // The content is not used: the counter is more exact. Inotify needs space for one
            // record, the eventfd for a number.
            let mut buffer = [0_u8; 4096];
            let read = ready.try_io(|fd| Ok(rustix::io::read(fd.as_fd(), &mut buffer)?));
            match read {
                Ok(done) => return done.map(|_| ()),
                Err(_would_block) => {}
            }
        }
    }
}
