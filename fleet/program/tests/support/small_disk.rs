//! A file system of a few megabytes, for tests of full disks.

use std::path::Path;
use std::process::Command;

/// A file system in memory, unmounted when this is dropped.
pub(crate) struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// Mounts one of so many mebibytes that its owner alone may enter. Where this user cannot, a line on
    /// stderr says so.
    pub(crate) fn mount(mebibytes: u32) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m,mode=0700"), "tmpfs"])
            .arg(folder.path())
            .output()
            .is_ok_and(|it| it.status.success());
        if !mounted {
            eprintln!("SKIPPED: this user cannot mount a small file system");
        }
        mounted.then(|| Self(folder))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let ended = Command::new("umount").arg("-l").arg(self.path()).status();
        assert!(ended.is_ok_and(|it| it.success()), "{} stays mounted", self.path().display());
    }
}
