//! Detects a database that lost data without an error.
//!
//! The *generation* counts the batches ever written. Every batch records it, together with the sum
//! of the fingerprints of all records, in the database itself; the file `generation` next to the
//! database, the *mark*, records a generation that was durable. The sum reveals a database whose
//! parts do not belong together, and the mark reveals one that went back to an earlier state as a
//! whole.
//!
//! Every durable commit renews the mark in place, without a sync of its own, so that the mark of an
//! agent that was killed is exact. Every [`MARK_EVERY`] batches it is written anew and synced, so
//! that of a machine that lost its power is at most so many batches old.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::frame;

/// How many batches may pass before a durable one syncs the mark.
pub(super) const MARK_EVERY: u64 = 32;

/// Name of the file.
pub(crate) const FILE: &str = "generation";

/// The generation that the first opening begins.
const FIRST: u64 = 1;

/// More bytes than a mark has.
pub(super) const MARK_BYTES_MAX: u64 = 1024;

/// The database's record about itself as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Generation {
    /// Counts the batches ever written.
    pub(super) number: u64,
    /// The fingerprints of all records, added up.
    pub(super) sum: u64,
}

/// The result of reading every record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Survey {
    /// How many records there are, without the store's own.
    pub(super) records: u64,
    /// How many of them are invalid.
    pub(super) unreadable: u64,
    /// Their fingerprints, added up.
    pub(super) sum: u64,
    /// The generation recorded in the database.
    pub(super) recorded: Option<Generation>,
}

/// Whether the store existed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    New,
    /// It existed, and has no record.
    Empty,
    Old,
}

// === impl Generation ===

impl Generation {
    /// The bytes of the record.
    pub(super) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.number.to_be_bytes());
        bytes[8..].copy_from_slice(&self.sum.to_be_bytes());
        bytes
    }

    /// Reads the record.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (number, rest) = bytes.split_first_chunk()?;
        let sum = rest.try_into().ok()?;
        Some(Self { number: u64::from_be_bytes(*number), sum: u64::from_be_bytes(sum) })
    }
}

/// The content of the file beside the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// The file does not exist.
    Absent,
    /// The file exists, and its content is not what a store of this agent writes.
    Damaged,
    /// The database was in this generation, or in a later one.
    At(u64),
}

// === impl Survey ===

impl Survey {
    /// Compares the database with the file; the error says how data was lost.
    pub(super) fn judge(&self, mark: Mark) -> Result<Age, String> {
        let Some(recorded) = self.recorded else {
            return match (mark, self.records) {
                (Mark::Absent, 0) => Ok(Age::New),
                _ => Err("its generation record is missing".to_owned()),
            };
        };
        match mark {
            Mark::At(marked) if recorded.number < marked => {
                return Err(format!(
                    "it fell back to generation {} from {marked}",
                    recorded.number
                ));
            }
            // The file is written whole or not at all. Damage of it may come with damage of the
            // database, which then may be in an earlier state.
            Mark::Damaged => return Err(format!("the file {FILE} beside it is damaged")),
            // The first opening writes it right after the first generation, and may be killed in
            // between.
            Mark::Absent if recorded.number > FIRST => {
                return Err(format!("the file {FILE} beside it is missing"));
            }
            // Nothing was ever written to it: it may be new, or have lost everything and its mark.
            Mark::Absent if self.records == 0 => return Ok(Age::New),
            Mark::At(_) | Mark::Absent => {}
        }
        // Unreadable records explain a wrong sum, and each goes into quarantine.
        if self.unreadable == 0 && recorded.sum != self.sum {
            return Err(format!("its {} records are not the ones last written", self.records));
        }
        Ok(if self.records == 0 { Age::Empty } else { Age::Old })
    }
}

/// The generation that the file in `dir` records.
///
/// # Errors
/// The file exists and cannot be read.
pub(super) fn read_mark(dir: &Path) -> std::io::Result<Mark> {
    let mut bytes = Vec::new();
    match File::open(dir.join(FILE)) {
        Ok(file) => drop(file.take(MARK_BYTES_MAX).read_to_end(&mut bytes)?),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Mark::Absent),
        Err(error) => return Err(error),
    }
    Ok(marked(&bytes).map_or(Mark::Damaged, Mark::At))
}

/// Whether bytes are a mark: only a store of this agent writes one.
pub(crate) fn is_mark(bytes: &[u8]) -> bool {
    marked(bytes).is_some()
}

fn marked(bytes: &[u8]) -> Option<u64> {
    let payload = frame::decode(FILE.as_bytes(), bytes).ok()?;
    payload.try_into().ok().map(u64::from_be_bytes)
}

fn to_mark(number: u64) -> Vec<u8> {
    frame::encode(FILE.as_bytes(), &number.to_be_bytes())
}

/// The file of an open store's mark.
#[derive(Debug)]
pub(super) struct MarkFile {
    file: File,
    /// The number that it has on the disk.
    synced: u64,
    /// The number that it has.
    number: u64,
}

// === impl MarkFile ===

impl MarkFile {
    /// Records a durable generation in the file in `dir`, whole or not at all. The new name need not
    /// be durable: an older mark has a lower number, which no database contradicts.
    pub(super) fn write(dir: &Path, number: u64) -> std::io::Result<Self> {
        let next = dir.join("generation.next");
        let mut file = File::create(&next)?;
        file.write_all(&to_mark(number))?;
        file.sync_data()?;
        fs::rename(&next, dir.join(FILE))?;
        Ok(Self { file, synced: number, number })
    }

    /// Records a later durable generation in the same place. A kill finds the old or the new mark,
    /// and so does a power loss: it has the same length, and is much shorter than a sector.
    pub(super) fn renew(&mut self, number: u64) -> std::io::Result<()> {
        if number != self.number {
            self.file.write_all_at(&to_mark(number), 0)?;
            self.number = number;
        }
        Ok(())
    }

    /// How many batches ago the mark was synced.
    pub(super) fn age(&self, number: u64) -> u64 {
        number.saturating_sub(self.synced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Survey = Survey {
        records: 2,
        unreadable: 0,
        sum: 7,
        recorded: Some(Generation { number: 3, sum: 7 }),
    };

    #[track_caller]
    fn check(survey: Survey, mark: Mark, expected: Result<Age, &str>) {
        let judged = survey.judge(mark);
        match expected {
            Ok(age) => assert_eq!(judged, Ok(age)),
            Err(part) => assert!(judged.as_ref().is_err_and(|e| e.contains(part)), "{judged:?}"),
        }
    }

    #[test]
    fn an_empty_database_without_a_mark_is_new() {
        check(Survey::default(), Mark::Absent, Ok(Age::New));
        check(Survey::default(), Mark::At(1), Err("generation record is missing"));
        check(
            Survey { recorded: None, ..WHOLE },
            Mark::Absent,
            Err("generation record is missing"),
        );
    }

    #[test]
    fn a_mark_that_is_there_and_damaged_is_damage_whatever_the_database_says() {
        check(Survey::default(), Mark::Damaged, Err("generation record is missing"));
        check(WHOLE, Mark::Damaged, Err("generation beside it is damaged"));
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(read_mark(dir.path()).expect("read"), Mark::Absent);
        let mut mark = MarkFile::write(dir.path(), 7).expect("written");
        assert_eq!(read_mark(dir.path()).expect("read"), Mark::At(7));
        mark.renew(u64::MAX).expect("written");
        assert_eq!(read_mark(dir.path()).expect("read"), Mark::At(u64::MAX));
        let whole = fs::read(dir.path().join(FILE)).expect("read");
        for bad in [&whole[..whole.len() - 1], b"", &[0x5a; 4096]] {
            fs::write(dir.path().join(FILE), bad).expect("written");
            assert_eq!(read_mark(dir.path()).expect("read"), Mark::Damaged);
        }
    }

    #[test]
    fn a_database_that_knows_less_than_the_mark_has_lost_data() {
        check(WHOLE, Mark::Absent, Err("generation beside it is missing"));
        let first = Survey { recorded: Some(Generation { number: FIRST, sum: 7 }), ..WHOLE };
        check(first, Mark::Absent, Ok(Age::Old));
        let none = Survey { records: 0, sum: 0, ..first };
        let none = Survey { recorded: Some(Generation { number: FIRST, sum: 0 }), ..none };
        check(none, Mark::Absent, Ok(Age::New));
        check(WHOLE, Mark::At(2), Ok(Age::Old));
        check(WHOLE, Mark::At(3), Ok(Age::Old));
        check(WHOLE, Mark::At(4), Err("fell back to generation 3 from 4"));
        check(none, Mark::At(1), Ok(Age::Empty));
    }

    #[test]
    fn records_of_different_times_do_not_add_up() {
        check(Survey { sum: 8, ..WHOLE }, Mark::At(3), Err("not the ones last written"));
        check(Survey { sum: 8, unreadable: 1, ..WHOLE }, Mark::At(3), Ok(Age::Old));
    }
}
