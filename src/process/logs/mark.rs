//! The record about a log, in a file beside it.
//!
//! It outlives the agent, so that an agent that was started again knows where the output of a
//! launch began, and a follower where it stopped reading. It is not synced: after a crash of the
//! machine, the processes that it is about are gone. A mark that is damaged, or one cut behind
//! because the agent was killed right after a cut, only makes a follower read older lines again.

use std::fmt::Write as _;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::file;

/// More bytes than three numbers take.
const MAX: usize = 128;

/// Positions in a log, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// How many bytes were cut off its beginning in all.
    pub(super) cut: u64,
    /// Where the newest launch began, bytes that were cut included.
    pub(super) launch: u64,
    /// Where the newest launch began in the error log as it is.
    pub(super) errors: u64,
}

// === impl Mark ===

impl Mark {
    /// The record; `None` if it cannot be read.
    pub(super) fn read(path: &Path) -> Self {
        let mut bytes = [0; MAX];
        let read = file::open_to_read(path).and_then(|file| file.read_at(&mut bytes, 0));
        let text = read.ok().and_then(|length| std::str::from_utf8(bytes.get(..length)?).ok());
        text.and_then(Self::parse).unwrap_or_default()
    }

    /// Writes the mark. All numbers always have the same length, so one write replaces them all.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let Self { cut, launch, errors } = self;
        let mut text = String::new();
        let written = writeln!(text, "cut={cut:020} launch={launch:020} errors={errors:020}");
        written.map_err(io::Error::other)?;
        file::open_own(path)?.write_all_at(text.as_bytes(), 0)
    }

    /// Where the newest launch begins in the file as it is.
    pub(super) const fn begins(&self) -> u64 {
        self.launch.saturating_sub(self.cut)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.lines().next()?.split(' ');
        let mut number = |key: &str| words.next()?.strip_prefix(key)?.parse().ok();
        Some(Self { cut: number("cut=")?, launch: number("launch=")?, errors: number("errors=")? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn law_a_mark_is_read_as_it_was_written(cut: u64, launch: u64, errors: u64) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("x.log.mark");
            Mark { cut: u64::MAX, launch: 1, errors: 2 }.write(&path).unwrap();
            let mark = Mark { cut, launch, errors };
            mark.write(&path).unwrap();
            prop_assert_eq!(Mark::read(&path), mark);
        }

        #[test]
        fn law_damage_is_no_panic(bytes: Vec<u8>) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("x.log.mark");
            std::fs::write(&path, bytes).unwrap();
            let _whatever_it_says = Mark::read(&path).begins();
        }
    }
}
