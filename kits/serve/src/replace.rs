//! Files that are replaced whole: after a crash the former content is there, or the new one. Blocks.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// Whose a file is, and who may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Permission bits, whatever the umask of the process.
    pub mode: u32,
    /// User and group; `None` for those of the process.
    pub owner: Option<(u32, u32)>,
}

// === impl Access ===

impl Access {
    /// Only the process's own user may read and write it.
    pub const PRIVATE: Self = Self { mode: 0o600, owner: None };
}

/// Replaces a file, or makes it. The content and the name are on the disk when this returns. A link
/// or a pipe in the place of the file is replaced, not followed.
///
/// The content is staged beside the file under the same name with `.staged` after it. Writers of one
/// file must not write at the same time.
///
/// # Errors
/// The former content is there. The folder is missing, is not to be written to, or is full.
pub fn replace_file(path: &Path, content: &[u8], access: Access) -> io::Result<()> {
    let staged = staged(path);
    let written = write(&staged, content, access).and_then(|()| rename(&staged, path));
    if written.is_err() {
        // What is left of it is replaced by the next writer as well.
        drop(remove_if_there(&staged));
    }
    written
}

/// Moves a file over another one in the same folder, durably.
///
/// # Errors
/// It cannot be moved, or the folder cannot be written to the disk.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Removes a file, which may be gone already.
///
/// # Errors
/// It is there and cannot be removed.
pub fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn staged(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".staged");
    name.into()
}

fn write(staged: &Path, content: &[u8], access: Access) -> io::Result<()> {
    remove_if_there(staged)?;
    // Private until it belongs to whom it should.
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(staged)?;
    file.write_all(content)?;
    if let Some((user, group)) = access.owner {
        fchown(&file, Some(user), Some(group))?;
    }
    file.set_permissions(PermissionsExt::from_mode(access.mode))?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("listed");
        entries
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn the_content_is_replaced_whole_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.json");
        fs::write(folder.path().join("x.json.staged"), "of a writer that was killed")
            .expect("written");
        for (content, mode) in [("first", 0o600), ("second", 0o644), ("", 0o640)] {
            let access = Access { mode, owner: None };
            replace_file(&path, content.as_bytes(), access).expect("replaced");
            assert_eq!(fs::read_to_string(&path).expect("read"), content);
            let found = fs::metadata(&path).expect("it is there").permissions().mode();
            assert_eq!(found & 0o777, mode);
            assert_eq!(names(folder.path()), ["x.json"]);
        }
    }

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, other) = (folder.path().join("x"), folder.path().join("precious"));
        fs::write(&other, "data").expect("written");
        for link in [&path, &folder.path().join("x.staged")] {
            std::os::unix::fs::symlink(&other, link).expect("linked");
        }
        replace_file(&path, b"new", Access::PRIVATE).expect("replaced");
        assert_eq!(fs::read_to_string(&other).expect("read"), "data");
        assert_eq!(fs::read_to_string(&path).expect("read"), "new");
        assert!(!fs::symlink_metadata(&path).expect("it is there").is_symlink());
    }

    #[test]
    fn what_cannot_be_replaced_stays_as_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let missing = folder.path().join("missing").join("x");
        assert!(replace_file(&missing, b"x", Access::PRIVATE).is_err());
        // A folder cannot be replaced by a file.
        let path = folder.path().join("x");
        fs::create_dir(&path).expect("made");
        assert!(replace_file(&path, b"x", Access::PRIVATE).is_err());
        assert!(path.is_dir());
        assert_eq!(names(folder.path()), ["x"]);
    }
}
