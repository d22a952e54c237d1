//! The machine and its clock.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::time::Instant;

use crate::fakes::{LauncherHandle, Shared};
use crate::model::id::BootId;
use crate::ports::{Clock, Machine, OsFacts};

/// A machine whose boot is the one the fake launcher's processes belong to.
pub struct FakeMachine(MachineHandle);

/// Changes what a [`FakeMachine`] says of itself.
#[derive(Clone)]
pub struct MachineHandle {
    launcher: LauncherHandle,
    os: Shared<OsFacts>,
}

/// A machine on its first boot.
#[must_use]
pub fn machine(launcher: LauncherHandle) -> (FakeMachine, MachineHandle) {
    let os = OsFacts {
        kind: "linux".to_owned(),
        short_name: "fake".to_owned(),
        long_name: "Fake Linux 1".to_owned(),
        version: "1".to_owned(),
        architecture: "x86_64".to_owned(),
        kernel_release: "6.18.0".to_owned(),
        kernel_version: "#1".to_owned(),
    };
    let handle = MachineHandle { launcher, os: Shared::new(os) };
    (FakeMachine(handle.clone()), handle)
}

// === impl MachineHandle ===

impl MachineHandle {
    /// Replaces the operating system.
    pub fn set_os(&self, os: OsFacts) {
        self.os.with(|current| *current = os);
    }

    /// Restarts the machine: no process survives.
    pub fn reboot(&self, boot: &str) {
        self.launcher.reboot(boot);
    }
}

// === impl FakeMachine ===

#[async_trait]
impl Machine for FakeMachine {
    fn boot_id(&self) -> BootId {
        self.0.launcher.boot()
    }

    fn instance_id(&self) -> String {
        "instance-1".to_owned()
    }

    fn host_name(&self) -> String {
        "vm-1".to_owned()
    }

    async fn os(&self) -> OsFacts {
        self.0.os.with(|os| os.clone())
    }
}

/// A clock that moves with tokio's, and can be set.
pub struct FakeClock(ClockHandle);

/// Sets a [`FakeClock`].
#[derive(Clone)]
pub struct ClockHandle(Shared<Setting>);

struct Setting {
    since: Instant,
    then: SystemTime,
}

/// A clock that shows a fixed moment of 2026 now.
#[must_use]
pub fn clock() -> (FakeClock, ClockHandle) {
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_780_000_000);
    let handle = ClockHandle(Shared::new(Setting { since: Instant::now(), then }));
    (FakeClock(handle.clone()), handle)
}

// === impl ClockHandle ===

impl ClockHandle {
    /// What the clock shows.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.0.with(|setting| setting.then + setting.since.elapsed())
    }

    /// Sets the clock.
    pub fn set(&self, then: SystemTime) {
        self.0.with(|setting| *setting = Setting { since: Instant::now(), then });
    }
}

/// Ids that are counted.
#[derive(Debug, Default)]
pub struct CountedIds(std::sync::atomic::AtomicU64);

impl crate::ports::Ids for CountedIds {
    fn message_id(&self) -> String {
        let number = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        format!("message-{number}")
    }
}

impl Clock for FakeClock {
    fn now(&self) -> SystemTime {
        self.0.now()
    }
}
