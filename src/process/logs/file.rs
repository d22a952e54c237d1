//! Opens logs, whatever a plugin has put in their place.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::libc;
use rustix::fs::{Mode, OFlags};

/// No link is followed, and opening a pipe does not wait for its other end.
const CAREFULLY: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK;

/// Readable by its owner and group.
const MODE: u32 = 0o640;

/// Opens a log for appending, and makes it if it does not exist. Another kind of file with that
/// name is deleted; the target of a link is not touched.
pub(super) fn open_to_append(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(MODE).custom_flags(CAREFULLY);
    let file = match options.open(path).and_then(plain) {
        Ok(file) => file,
        Err(first) => {
            clear_away(path).map_err(|_| first)?;
            options.open(path).and_then(plain)?
        }
    };
    // The plugin inherits the flags, and expects those of an ordinary file.
    rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
    let metadata = file.metadata()?;
    if metadata.permissions().mode() & 0o7777 != MODE && [0, metadata.uid()].contains(&own_uid()) {
        file.set_permissions(Permissions::from_mode(MODE))?;
    }
    Ok(file)
}

/// Opens a log for reading.
pub(super) fn open_to_read(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(CAREFULLY).open(path).and_then(plain)
}

/// Opens a log for cutting. Not for appending: the kernel would then write at the end, at whatever
/// offset the agent writes.
pub(super) fn open_to_cut(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(CAREFULLY).open(path).and_then(plain)
}

/// Opens a file in a folder that is the plugin's own, for reading, or for cutting as well.
///
/// It has to belong to the folder's owner: the plugin's user, or the agent where the plugin runs as
/// the agent's user. A plugin with a user of its own may, with `fs.protected_hardlinks=0`, make a
/// link in its folder to any file. The number of names does not show that for ever: the first name
/// of such a file may go, as that of `/etc/shadow` does whenever a password is changed.
pub(super) fn open_in_folder(folder: &Path, name: &str, and_cut: bool) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty())?;
    let access = if and_cut { OFlags::RDWR } else { OFlags::RDONLY };
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = plain(rustix::fs::openat(&folder, name, flags, Mode::empty())?.into())?;
    let (owner, user) = (rustix::fs::fstat(&folder)?.st_uid, file.metadata()?.uid());
    if owner == user {
        return Ok(file);
    }
    let error = format!(
        "it belongs to user {user}, and not to user {owner} as its folder does; delete it, or give it \
         to user {owner}"
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, error))
}

/// Opens a file for cutting that may have no name any more.
pub(super) fn again(file: &File) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).write(true).open(path)
}

/// Opens a small file of the agent's own, and makes it if need be.
pub(super) fn open_own(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(CAREFULLY);
    options.open(path).and_then(plain).or_else(|first| {
        clear_away(path).map_err(|_| first)?;
        options.open(path).and_then(plain)
    })
}

/// Replaces all of a small file of the agent's own at once.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let file = open_own(&new)?;
    file.set_len(0)?;
    file.write_all_at(bytes, 0)?;
    std::fs::rename(&new, path)
}

/// A second hard link may belong to a file that is not a log.
fn plain(file: File) -> io::Result<File> {
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.nlink() <= 1 {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file with one hard link"))
}

fn clear_away(path: &Path) -> io::Result<()> {
    let metadata = path.symlink_metadata()?;
    if metadata.is_dir() {
        return std::fs::remove_dir_all(path);
    }
    if metadata.is_file() && metadata.nlink() <= 1 {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    std::fs::remove_file(path)
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}
