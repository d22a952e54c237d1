//! Records everything below a folder that an archive could change.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The content of a folder, and of those below it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Witness(BTreeMap<PathBuf, Seen>);

/// One file, folder or link.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    mode: u32,
    owner: (u32, u32),
    inode: u64,
    links: u64,
    /// `None` for the folders in which an installation works.
    modified: Option<(i64, i64)>,
    /// Content of a file, target of a link.
    content: Vec<u8>,
    attributes: Vec<OsString>,
}

// === impl Witness ===

impl Witness {
    /// Looks at everything below `root`. Of the folders in `working` only the time may change.
    pub(super) fn of(root: &Path, working: &[PathBuf]) -> Self {
        let mut seen = BTreeMap::new();
        let mut ahead = vec![root.to_owned()];
        while let Some(path) = ahead.pop() {
            let found = fs::symlink_metadata(&path).expect("it is there");
            let content = if found.is_dir() {
                let entries = fs::read_dir(&path).expect("listable");
                ahead.extend(entries.map(|entry| entry.expect("listable").path()));
                Vec::new()
            } else if found.is_symlink() {
                fs::read_link(&path).expect("a link").as_os_str().as_bytes().to_vec()
            } else {
                fs::read(&path).expect("readable")
            };
            let is_worked_in = working.contains(&path);
            let one = Seen {
                mode: found.mode(),
                owner: (found.uid(), found.gid()),
                inode: found.ino(),
                // A folder's count changes with the folders in it.
                links: if is_worked_in { 0 } else { found.nlink() },
                modified: (!is_worked_in).then(|| (found.mtime(), found.mtime_nsec())),
                content,
                attributes: attributes(&path),
            };
            seen.insert(path, one);
        }
        Self(seen)
    }

    /// Panics with the names of the entries that have changed.
    #[track_caller]
    pub(super) fn assert_same(&self, now: &Self, after: &str) {
        for (path, before) in &self.0 {
            let Some(seen) = now.0.get(path) else { panic!("{after}: {} is gone", path.display()) };
            assert_eq!(before, seen, "{after}: {} was changed", path.display());
        }
        let new: Vec<_> = now.0.keys().filter(|path| !self.0.contains_key(*path)).collect();
        assert!(new.is_empty(), "{after}: something was made: {new:?}");
    }
}

/// One line for each entry below a folder: kind, mode, name, content.
pub(super) fn inventory(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut ahead = vec![root.to_owned()];
    while let Some(path) = ahead.pop() {
        let found = fs::symlink_metadata(&path).expect("it is there");
        let name = path.strip_prefix(root).expect("below it").as_os_str().as_bytes();
        let (name, mode) = (name.escape_ascii(), found.mode() & 0o7777);
        let mut line = if found.is_dir() {
            let entries = fs::read_dir(&path).expect("listable");
            ahead.extend(entries.map(|entry| entry.expect("listable").path()));
            format!("folder {mode:o} {name}")
        } else if found.is_symlink() {
            let target = fs::read_link(&path).expect("a link");
            format!("link {name} -> {}", target.as_os_str().as_bytes().escape_ascii())
        } else {
            assert!(found.is_file(), "{name} is neither file nor folder nor link");
            let content = fs::read(&path).expect("readable");
            let shown = content[..content.len().min(32)].escape_ascii();
            format!("file {mode:o} {name} {} \"{shown}\"", content.len())
        };
        if !found.is_dir() && found.nlink() > 1 {
            line = format!("{line} names={}", found.nlink());
        }
        for attribute in attributes(&path) {
            line = format!("{line} +{}", attribute.display());
        }
        assert_eq!(found.uid(), rustix::process::geteuid().as_raw(), "the owner of {name}");
        lines.push(line);
    }
    lines.sort();
    lines
}

/// Names of extended attributes, without the label that a security policy gives to every file.
fn attributes(path: &Path) -> Vec<OsString> {
    let mut names = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    names[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty() && *name != b"security.selinux")
        .map(|name| std::ffi::OsStr::from_bytes(name).to_owned())
        .collect()
}

mod tests {
    use super::*;

    #[test]
    fn a_witness_notices_every_kind_of_change() {
        use std::os::unix::fs::{PermissionsExt, symlink};

        type Change = fn(&Path);
        let changes: [Change; 7] = [
            |at| fs::write(at.join("file"), "other").expect("written"),
            |at| {
                fs::set_permissions(at.join("file"), fs::Permissions::from_mode(0o601))
                    .expect("set")
            },
            |at| fs::hard_link(at.join("file"), at.join("twin")).expect("linked"),
            |at| fs::remove_file(at.join("link")).expect("removed"),
            |at| symlink("elsewhere", at.join("more")).expect("linked"),
            |at| fs::create_dir(at.join("folder/new")).expect("made"),
            |at| {
                let past = std::time::SystemTime::UNIX_EPOCH;
                let file = fs::File::open(at.join("file")).expect("opened");
                file.set_modified(past).expect("set");
            },
        ];
        for (number, change) in changes.iter().enumerate() {
            let root = tempfile::tempdir().expect("temporary folder");
            fs::create_dir(root.path().join("folder")).expect("made");
            fs::write(root.path().join("file"), "same").expect("written");
            symlink("file", root.path().join("link")).expect("linked");
            let before = Witness::of(root.path(), &[]);
            before.assert_same(&Witness::of(root.path(), &[]), "nothing happened");
            change(root.path());
            assert_ne!(before, Witness::of(root.path(), &[]), "change {number} was not noticed");
        }
    }
}
