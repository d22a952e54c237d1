//! Disk space that is reserved for the store.
//!
//! Opening a store writes a little, so on a full disk it fails, and without its store an agent
//! cannot start: it would not know what runs. `opening` then frees this space and tries once more
//! (`docs/decisions/0007-a-full-disk-is-survived-from-a-reserve.md`).

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::FallocateFlags;

/// Name of the file. sled ignores files that it does not know.
pub(super) const FILE: &str = "reserve";

/// Eight times what sled writes at once.
const BYTES: u64 = 4 << 20;

/// Reserves the space, unless it is reserved already. A failure is only logged.
pub(super) fn set_by(dir: &Path) {
    if let Err(error) = try_to_set_by(dir) {
        // A file that is only partly written would reserve too little.
        release(dir);
        tracing::debug!(%error, "no space could be reserved for the store");
    }
}

fn try_to_set_by(dir: &Path) -> io::Result<()> {
    let path = dir.join(FILE);
    if fs::symlink_metadata(&path).is_ok_and(|file| file.is_file() && file.len() == BYTES) {
        return Ok(());
    }
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, BYTES)?;
    Ok(())
}

/// Frees the space. Returns whether any was reserved.
pub(super) fn release(dir: &Path) -> bool {
    fs::remove_file(dir.join(FILE)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_room_is_really_taken_and_given_back_once() {
        let dir = tempfile::tempdir().expect("a directory");
        set_by(dir.path());
        let taken = fs::metadata(dir.path().join(FILE)).expect("it was set by");
        assert!(taken.blocks() * 512 >= BYTES, "{} blocks", taken.blocks());
        set_by(dir.path());
        assert!(release(dir.path()));
        assert!(!release(dir.path()));
    }
}
