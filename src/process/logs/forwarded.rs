//! How far a log was forwarded to each destination, in a file beside it (`<name>.log.forwarded`).
//!
//! It outlives the agent, so that the next one goes on from there, and it goes with the log. Each
//! destination has a part of its own in the file, which one write replaces: an agent that is killed
//! leaves the position before a message or the one after it. The file is not synced: a machine that
//! crashes may come back with an older position, and then lines are forwarded again.

use std::fmt::Write as _;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use super::file;
use crate::config::LogDestination;

/// The length of the part of a destination, in bytes.
const PART: usize = 128;

/// Tells a file from another one that was made in its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileId {
    inode: u64,
    /// When it was made, in nanoseconds since 1970; 0 where the file system does not say. The number
    /// of an inode is given to another file as soon as the first one is gone.
    made: u64,
}

/// How far a log was forwarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Forwarded {
    /// The position after it.
    pub(crate) at: u64,
    /// How many parts of the line that continues there were forwarded.
    pub(crate) parts: u32,
    /// The file that the position is in.
    pub(crate) file: FileId,
}

// === impl FileId ===

impl FileId {
    pub(super) fn of(metadata: &std::fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        let made = metadata.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let made = made.and_then(|at| u64::try_from(at.as_nanos()).ok()).unwrap_or_default();
        Self { inode: metadata.ino(), made }
    }

    /// Whether this is the same file, as far as the file system says.
    pub(crate) fn is(self, other: Self) -> bool {
        let is_unknown = self.made == 0 || other.made == 0;
        self.inode == other.inode && (is_unknown || self.made == other.made)
    }
}

// === impl Forwarded ===

impl Forwarded {
    /// What is recorded; `None` where nothing was forwarded yet, or the record is damaged.
    pub(super) fn read(path: &Path, to: LogDestination) -> Option<Self> {
        let mut bytes = [0; PART];
        let file = file::open_to_read(path).ok()?;
        file.read_exact_at(&mut bytes, offset(to)).ok()?;
        Self::parse(std::str::from_utf8(&bytes).ok()?, to)
    }

    /// Records it, in one write.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write(&self, path: &Path, to: LogDestination) -> io::Result<()> {
        let Self { at, parts, file: FileId { inode, made } } = self;
        let mut text = String::new();
        let written =
            write!(text, "{to} at={at:020} parts={parts:010} inode={inode:020} made={made:020}");
        written.map_err(io::Error::other)?;
        let text = format!("{text:<width$}\n", width = PART - 1);
        file::open_own(path)?.write_all_at(text.as_bytes(), offset(to))
    }

    fn parse(text: &str, to: LogDestination) -> Option<Self> {
        let mut words = text.trim_end().split(' ');
        if words.next()? != to.name() {
            return None;
        }
        let mut number = |key: &str| words.next()?.strip_prefix(key)?.parse::<u64>().ok();
        Some(Self {
            at: number("at=")?,
            parts: u32::try_from(number("parts=")?).ok()?,
            file: FileId { inode: number("inode=")?, made: number("made=")? },
        })
    }
}

/// Where the part of a destination begins.
const fn offset(to: LogDestination) -> u64 {
    match to {
        LogDestination::Journald => 0,
        LogDestination::Otlp => PART as u64,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn law_each_destination_reads_what_was_written_for_it(
            one: (u64, u32, u64, u64),
            other: (u64, u32, u64, u64),
        ) {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("p.log.forwarded");
            let made = |(at, parts, inode, made)| {
                Forwarded { at, parts, file: FileId { inode, made } }
            };
            let (one, other) = (made(one), made(other));
            prop_assert_eq!(Forwarded::read(&path, LogDestination::Otlp), None);
            one.write(&path, LogDestination::Otlp).expect("written");
            prop_assert_eq!(Forwarded::read(&path, LogDestination::Journald), None);
            other.write(&path, LogDestination::Journald).expect("written");
            prop_assert_eq!(Forwarded::read(&path, LogDestination::Otlp), Some(one));
            prop_assert_eq!(Forwarded::read(&path, LogDestination::Journald), Some(other));
        }

        #[test]
        fn law_damage_is_no_panic(text: String) {
            let _whatever_it_says = Forwarded::parse(&text, LogDestination::Journald);
        }
    }
}
