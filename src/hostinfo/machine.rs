//! What tells this machine from others for a person: its name, system, kernel and uptime.

use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

use crate::hostinfo;

/// This machine. A text is empty where it is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineFacts {
    /// The host name.
    pub host: String,
    /// The operating system, as os-release calls it for people.
    pub os: String,
    /// The release of the kernel.
    pub kernel: String,
    /// The architecture of the processor, as uname(2) names it.
    pub architecture: String,
    /// When it was booted, by its clock as it is now.
    pub booted_at: Option<SystemTime>,
}

// === impl MachineFacts ===

impl MachineFacts {
    /// Asks the kernel, and reads os-release.
    #[must_use]
    pub fn read() -> Self {
        let uname = rustix::system::uname();
        let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        let release = hostinfo::release_fields(Path::new("/")).unwrap_or_default();
        let os = ["PRETTY_NAME", "NAME"].iter().find_map(|key| release.get(*key).cloned());
        // It counts through a suspend, as people do.
        let up = clock_gettime(ClockId::Boottime);
        let up = Duration::from_secs(u64::try_from(up.tv_sec).unwrap_or_default());
        Self {
            host: text(uname.nodename()),
            os: os.unwrap_or_default(),
            kernel: text(uname.release()),
            architecture: text(uname.machine()),
            booted_at: SystemTime::now().checked_sub(up),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_knows_its_machine() {
        let machine = MachineFacts::read();
        assert!(!machine.kernel.is_empty() && !machine.architecture.is_empty(), "{machine:?}");
        assert!(machine.booted_at.is_some_and(|at| at < SystemTime::now()), "{machine:?}");
    }
}
