//! Which revision wrote the parts of a log, in a file beside it (`<name>.log.revisions`).
//!
//! A launch begins when nothing of the plugin lives any more, so all bytes from there to the next
//! launch are of one revision. An entry is written when a launch has another revision than the one
//! before, so a plugin that crashes again and again costs nothing.
//!
//! The file is bounded: entries about bytes that were cut go, then the oldest ones. It is not synced;
//! what is lost or damaged costs revisions, and no line.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use guest_agent_actors::model::id::RevisionId;

use super::file;

/// Most entries in a file.
const ENTRIES_MAX: usize = 64;

/// More bytes than the entries take.
const FILE_MAX: usize = ENTRIES_MAX * 256;

/// The revisions of a log, in the order of their positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Revisions(Vec<(u64, RevisionId)>);

// === impl Revisions ===

impl Revisions {
    /// The revisions as they are recorded; whatever is damaged is left out.
    pub(super) fn read(path: &Path) -> Self {
        let mut bytes = vec![0; FILE_MAX];
        let read = file::open_to_read(path).and_then(|file| file.read_at(&mut bytes, 0));
        bytes.truncate(read.unwrap_or_default());
        Self::parse(&String::from_utf8_lossy(&bytes))
    }

    /// The revision that wrote the byte at a position, if that is known.
    pub(crate) fn at(&self, position: u64) -> Option<&RevisionId> {
        let after = self.0.partition_point(|(from, _)| *from <= position);
        self.0.get(after.checked_sub(1)?).map(|(_, revision)| revision)
    }

    /// Notes that a launch of a revision begins at a position of a log of which `cut` bytes were
    /// cut.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn note(
        path: &Path,
        position: u64,
        cut: u64,
        revision: &RevisionId,
    ) -> io::Result<()> {
        let mut known = Self::read(path);
        if known.add(position, cut, revision) {
            return file::replace(path, known.text().as_bytes());
        }
        Ok(())
    }

    /// Returns whether anything is new.
    fn add(&mut self, position: u64, cut: u64, revision: &RevisionId) -> bool {
        let count = self.0.len();
        // A log that is shorter than it was is another one.
        self.0.retain(|(from, _)| *from <= position);
        let is_new = self.0.last().is_none_or(|(_, last)| last != revision);
        if !is_new && self.0.len() == count {
            return false;
        }
        if is_new {
            self.0.retain(|(from, _)| *from < position);
            self.0.push((position, revision.clone()));
        }
        let gone = self.0.partition_point(|(from, _)| *from <= cut).saturating_sub(1);
        let gone = gone.max(self.0.len().saturating_sub(ENTRIES_MAX));
        self.0.drain(..gone);
        true
    }

    fn parse(text: &str) -> Self {
        let mut entries: Vec<(u64, RevisionId)> = Vec::new();
        for line in text.lines() {
            let Some((position, revision)) = line.split_once(' ') else { continue };
            let (Ok(position), Ok(revision)) = (position.parse(), revision.parse()) else {
                continue;
            };
            if entries.last().is_none_or(|(last, _)| *last < position) {
                entries.push((position, revision));
            }
        }
        Self(entries)
    }

    fn text(&self) -> String {
        let lines = self.0.iter().map(|(position, revision)| format!("{position} {revision}\n"));
        lines.collect::<Vec<_>>().concat()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn revision(text: &str) -> RevisionId {
        text.parse().expect("a revision")
    }

    #[test]
    fn a_line_has_the_revision_of_the_launch_before_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("p.log.revisions");
        let note = |position, cut, text| {
            Revisions::note(&path, position, cut, &revision(text)).expect("noted");
        };
        let at = |position| Revisions::read(&path).at(position).map(ToString::to_string);
        assert_eq!(at(0), None, "nothing was noted");
        note(10, 0, "1");
        // It crashed, and was started again.
        note(20, 0, "1");
        note(30, 0, "2");
        assert_eq!(
            [at(9), at(10), at(29), at(30)].map(|it| it.unwrap_or_default()),
            ["", "1", "1", "2"]
        );
        // It printed nothing before the next one came.
        note(30, 0, "3");
        assert_eq!((at(29).as_deref(), at(30).as_deref()), (Some("1"), Some("3")));
        // What is about bytes that were cut goes.
        note(50, 40, "4");
        assert_eq!((at(29), at(45).as_deref(), at(50).as_deref()), (None, Some("3"), Some("4")));
        // Another log in its place.
        note(0, 0, "5");
        assert_eq!(at(1000).as_deref(), Some("5"));
    }

    proptest! {
        #[test]
        fn law_revisions_are_bounded_and_read_as_they_were_written(
            launches in proptest::collection::vec((0_u64..50, 0_u8..3), 0..200),
        ) {
            let mut revisions = Revisions::default();
            let mut position = 0;
            for (more, number) in launches {
                position += more;
                let launched = revision(&number.to_string());
                revisions.add(position, 0, &launched);
                prop_assert_eq!(revisions.at(position), Some(&launched));
                prop_assert!(revisions.0.len() <= ENTRIES_MAX);
                prop_assert!(revisions.text().len() <= FILE_MAX);
                prop_assert_eq!(&Revisions::parse(&revisions.text()), &revisions);
            }
        }

        #[test]
        fn law_damage_is_no_panic(bytes: Vec<u8>) {
            let _whatever_it_says = Revisions::parse(&String::from_utf8_lossy(&bytes)).at(7);
        }
    }
}
