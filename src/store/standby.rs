//! A store in another folder, for the time in which its own folder cannot be written.
//!
//! ```text
//!  state_dir/<instance>/store ──copied──► <standby>/copy/store     the agent runs on this one
//!                             ◄──moved──                           once the folder can be written
//! ```
//!
//! The copy remembers the mark of the store it was made from. Every opening of a store moves its
//! mark, so an unchanged mark proves that nobody used the store since, and that the copy may take
//! its place. Each step is a rename of a whole folder, so a kill at any instant leaves either store
//! whole.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::damage::sync_parent;
use super::generation::{self, MARK_BYTES_MAX, is_mark};
use super::reserve;

/// The folder of a whole copy.
const COPY: &str = "copy";

/// The store inside it.
const STORE: &str = "store";

/// The file beside the store that says what it was made from.
const ORIGIN: &str = "origin";

/// Most bytes that are copied: the folder may be in memory.
const BYTES_MAX: u64 = 256 << 20;

/// Most files that are copied.
const FILES_MAX: usize = 10_000;

/// A store has one level of folders, for large records.
const DEPTH_MAX: usize = 3;

/// Where the standby of a store is.
#[derive(Clone, Debug)]
pub struct Standby {
    /// The folder that has the standby.
    home: PathBuf,
    /// The store it stands for.
    of: PathBuf,
}

/// What the standby begins with.
#[derive(Debug)]
pub enum Prepared {
    /// It was copied just now.
    Copied,
    /// It exists from an earlier start, and nobody used the store since.
    Kept,
    /// The store cannot be copied, for this reason; the standby is empty.
    Empty(io::Error),
}

/// What became of a standby at a start at which the store's folder can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// There was none.
    Nothing,
    /// It is the store now.
    Moved,
    /// The store was used since, or was never copied. The standby is deleted, with what it knew.
    Dropped,
}

// === impl Standby ===

impl Standby {
    /// The standby in `home` for the store `of`.
    #[must_use]
    pub const fn new(home: PathBuf, of: PathBuf) -> Self {
        Self { home, of }
    }

    /// The store to open.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.home.join(COPY).join(STORE)
    }

    /// Makes sure that there is a standby to open. Blocks.
    ///
    /// # Errors
    /// The folder of the standby cannot be written.
    pub fn prepare(&self) -> io::Result<Prepared> {
        let (copy, new) = (self.home.join(COPY), self.home.join("copy.new"));
        let mark = self.mark();
        if self.was_copied_at(&mark) {
            return Ok(Prepared::Kept);
        }
        remove(&new)?;
        DirBuilder::new().recursive(true).mode(0o700).create(&new)?;
        let copied = copy_tree(&self.of, &new.join(STORE));
        let prepared = match copied {
            Ok(()) => Prepared::Copied,
            // What an earlier start adopted is better than nothing.
            Err(_) if self.store().exists() => return Ok(Prepared::Kept),
            Err(error) => Prepared::Empty(error),
        };
        let origin = match prepared {
            Prepared::Empty(_) => {
                remove(&new.join(STORE))?;
                Vec::new()
            }
            Prepared::Copied | Prepared::Kept => mark,
        };
        fs::write(new.join(ORIGIN), origin)?;
        remove(&copy)?;
        fs::rename(&new, &copy)?;
        Ok(prepared)
    }

    /// Moves the standby into the place of the store, where nobody used the store since. Blocks.
    /// The caller opens neither meanwhile.
    ///
    /// # Errors
    /// The store's folder cannot be written, or the standby cannot be read. Both are as they were,
    /// or the next call ends what this one began.
    pub fn bring_back(&self) -> io::Result<Returned> {
        let [copying, new, old] = ["copying", "new", "old"].map(|it| beside(&self.of, it));
        // An earlier call was killed between its two renames.
        if !self.of.exists() && new.exists() {
            fs::rename(&new, &self.of)?;
            sync_parent(&self.of)?;
        }
        let returned = if self.was_copied_at(&self.mark()) {
            for of_an_earlier_call in [&copying, &new, &old] {
                remove(of_an_earlier_call)?;
            }
            copy_tree(&self.store(), &copying)?;
            fs::rename(&copying, &new)?;
            sync_parent(&new)?;
            fs::rename(&self.of, &old)?;
            fs::rename(&new, &self.of)?;
            sync_parent(&self.of)?;
            Returned::Moved
        } else if self.store().exists() {
            Returned::Dropped
        } else {
            Returned::Nothing
        };
        for done in [&copying, &new, &old, &self.home] {
            remove(done)?;
        }
        Ok(returned)
    }

    /// The bytes of the store's mark; none where it has none, or it cannot be read.
    fn mark(&self) -> Vec<u8> {
        read_bounded(&self.of.join(generation::FILE)).unwrap_or_default()
    }

    /// Whether there is a copy of the store that was made when its mark was this.
    fn was_copied_at(&self, mark: &[u8]) -> bool {
        let origin = read_bounded(&self.home.join(COPY).join(ORIGIN)).unwrap_or_default();
        is_mark(&origin) && origin == mark && self.store().is_dir()
    }
}

fn beside(store: &Path, ending: &str) -> PathBuf {
    let mut name = store.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MARK_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Copies the files of a store durably, without the space that is reserved for it.
fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    let (mut bytes, mut files) = (0, 0);
    let mut folders = vec![(from.to_owned(), to.to_owned(), 0)];
    while let Some((from, to, depth)) = folders.pop() {
        DirBuilder::new().mode(0o700).create(&to)?;
        for entry in fs::read_dir(&from)? {
            let entry = entry?;
            let (kind, name) = (entry.file_type()?, entry.file_name());
            let (source, target) = (entry.path(), to.join(&name));
            if kind.is_dir() && depth < DEPTH_MAX {
                folders.push((source, target, depth + 1));
            } else if kind.is_file() && name != reserve::FILE {
                files += 1;
                bytes += entry.metadata()?.len();
                if files > FILES_MAX || bytes > BYTES_MAX {
                    return Err(too_large());
                }
                copy_file(&source, &target)?;
            }
        }
        File::open(&to)?.sync_all()?;
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = File::open(from)?.take(BYTES_MAX);
    let mut target = File::options().write(true).create_new(true).mode(0o600).open(to)?;
    io::copy(&mut source, &mut target)?;
    target.sync_all()
}

fn too_large() -> io::Error {
    let limits = format!("{} MiB or {FILES_MAX} files", BYTES_MAX >> 20);
    io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {limits}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::generation::MarkFile;

    /// A store with a mark and a record in each level, and its standby.
    fn bed() -> (tempfile::TempDir, Standby) {
        let dir = tempfile::tempdir().unwrap();
        let of = dir.path().join("state/i/store");
        fs::create_dir_all(of.join("blobs")).unwrap();
        fs::write(of.join("db"), "before").unwrap();
        fs::write(of.join("blobs/1"), "large").unwrap();
        fs::write(of.join(reserve::FILE), "nothing").unwrap();
        MarkFile::write(&of, 7).unwrap();
        let standby = Standby::new(dir.path().join("run/degraded/i"), of);
        (dir, standby)
    }

    fn database(store: &Path) -> String {
        fs::read_to_string(store.join("db")).unwrap()
    }

    #[test]
    fn what_the_standby_learned_is_the_stores_once_it_can_be_written() {
        let (_dir, standby) = bed();
        assert!(matches!(standby.prepare(), Ok(Prepared::Copied)));
        let copy = standby.store();
        assert_eq!(fs::read_to_string(copy.join("blobs/1")).unwrap(), "large");
        assert!(!copy.join(reserve::FILE).exists(), "memory is not reserved");
        fs::write(copy.join("db"), "meanwhile").unwrap();
        MarkFile::write(&copy, 9).unwrap();
        // The next start finds what this one learned.
        assert!(matches!(standby.prepare(), Ok(Prepared::Kept)));
        assert_eq!(database(&copy), "meanwhile");
        assert_eq!(standby.bring_back().unwrap(), Returned::Moved);
        assert_eq!(database(&standby.of), "meanwhile");
        assert!(!copy.exists());
        assert_eq!(standby.bring_back().unwrap(), Returned::Nothing);
    }

    #[test]
    fn a_store_that_was_used_since_is_not_replaced() {
        let (_dir, standby) = bed();
        standby.prepare().unwrap();
        fs::write(standby.of.join("db"), "by another").unwrap();
        MarkFile::write(&standby.of, 8).unwrap();
        assert_eq!(standby.bring_back().unwrap(), Returned::Dropped);
        assert_eq!(database(&standby.of), "by another");
        assert!(!standby.store().exists());
        // The same while it still cannot be written: the newer one is copied.
        let (_dir, standby) = bed();
        standby.prepare().unwrap();
        fs::write(standby.of.join("db"), "by another").unwrap();
        MarkFile::write(&standby.of, 8).unwrap();
        assert!(matches!(standby.prepare(), Ok(Prepared::Copied)));
        assert_eq!(database(&standby.store()), "by another");
    }

    #[test]
    fn a_standby_that_could_not_be_copied_never_replaces_a_store() {
        let (_dir, standby) = bed();
        let whole = beside(&standby.of, "away");
        fs::rename(&standby.of, &whole).unwrap();
        assert!(matches!(standby.prepare(), Ok(Prepared::Empty(_))));
        // The agent makes an empty store there, and finds it again.
        fs::create_dir(standby.store()).unwrap();
        MarkFile::write(&standby.store(), 1).unwrap();
        assert!(matches!(standby.prepare(), Ok(Prepared::Kept)));
        fs::rename(&whole, &standby.of).unwrap();
        assert_eq!(standby.bring_back().unwrap(), Returned::Dropped);
        assert_eq!(database(&standby.of), "before");
    }

    #[test]
    fn a_kill_between_any_two_steps_of_the_way_back_loses_nothing() {
        // After each step that changes the disk, as a kill there leaves it.
        let steps: [&dyn Fn(&Standby); 5] = [
            &|it| copy_tree(&it.store(), &beside(&it.of, "copying")).unwrap(),
            &|it| fs::rename(beside(&it.of, "copying"), beside(&it.of, "new")).unwrap(),
            &|it| fs::rename(&it.of, beside(&it.of, "old")).unwrap(),
            &|it| fs::rename(beside(&it.of, "new"), &it.of).unwrap(),
            &|it| fs::remove_dir_all(beside(&it.of, "old")).unwrap(),
        ];
        for killed_after in 0..=steps.len() {
            let (_dir, standby) = bed();
            standby.prepare().unwrap();
            fs::write(standby.store().join("db"), "meanwhile").unwrap();
            MarkFile::write(&standby.store(), 9).unwrap();
            steps[..killed_after].iter().for_each(|step| step(&standby));
            standby.bring_back().unwrap();
            assert_eq!(database(&standby.of), "meanwhile", "after step {killed_after}");
            let left = fs::read_dir(standby.of.parent().unwrap()).unwrap().count();
            assert_eq!(left, 1, "after step {killed_after}");
            assert!(!standby.store().exists());
        }
    }
}
