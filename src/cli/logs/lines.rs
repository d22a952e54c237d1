//! Cuts the chunks of a log into lines with their times. Pure, and bounded: a line that is longer
//! than 64 KiB becomes several.

use guest_agent_proto::local::LogChunk;
use jiff::Timestamp;

use crate::cli::format::timestamp;

/// Most bytes of a line.
pub(super) const LINE_MAX: usize = 64 * 1024;

/// A line with its line feed, if it has one already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) data: Vec<u8>,
    /// When it was printed, if that is known.
    pub(super) at: Option<Timestamp>,
}

/// What a chunk consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// So many bytes were cut off the log before they could be read.
    Missing(u64),
    Line(Line),
}

/// What cuts the chunks of one log. It keeps the beginning of a line until its end comes.
#[derive(Debug, Default)]
pub(super) struct Cutter {
    unfinished: Line,
}

// === impl Cutter ===

impl Cutter {
    /// The lines that end in a chunk.
    pub(super) fn cut(&mut self, chunk: &LogChunk) -> Vec<Part> {
        let mut parts = Vec::new();
        if chunk.skipped > 0 {
            parts.extend(self.rest());
            parts.push(Part::Missing(chunk.skipped));
        }
        let mut at = 0;
        for mut line in chunk.data.split_inclusive(|&byte| byte == b'\n') {
            while !line.is_empty() {
                if self.unfinished.data.is_empty() {
                    self.unfinished.at = printed_at(chunk, at);
                }
                let room = LINE_MAX - self.unfinished.data.len();
                let (part, rest) = line.split_at(room.min(line.len()));
                self.unfinished.data.extend_from_slice(part);
                at += part.len();
                line = rest;
                let is_whole = self.unfinished.data.ends_with(b"\n");
                if is_whole || self.unfinished.data.len() == LINE_MAX {
                    parts.extend(self.rest());
                }
            }
        }
        parts
    }

    /// What is left of a line that has no end.
    pub(super) fn rest(&mut self) -> Option<Part> {
        let line = std::mem::take(&mut self.unfinished);
        (!line.data.is_empty()).then_some(Part::Line(line))
    }
}

/// When the byte `at` of a chunk was printed.
fn printed_at(chunk: &LogChunk, at: usize) -> Option<Timestamp> {
    let before = |offset: u32| usize::try_from(offset).is_ok_and(|offset| offset <= at);
    let after = chunk.times.partition_point(|time| before(time.offset));
    timestamp(chunk.times.get(after.checked_sub(1)?)?.at.as_ref())
}

#[cfg(test)]
mod tests {
    use guest_agent_proto::local::LogTime;
    use proptest::prelude::*;

    use super::*;

    fn chunk(data: &[u8], times: &[(u32, i64)]) -> LogChunk {
        let time = |&(offset, seconds): &(u32, i64)| {
            let at = Some(prost_types::Timestamp { seconds, nanos: 0 });
            LogTime { offset, at }
        };
        LogChunk {
            data: data.to_vec(),
            times: times.iter().map(time).collect(),
            ..LogChunk::default()
        }
    }

    fn line(data: &str, at: i64) -> Part {
        let at = Timestamp::from_second(at).ok();
        Part::Line(Line { data: data.as_bytes().to_vec(), at })
    }

    #[test]
    fn a_line_has_the_time_of_its_first_byte() {
        let mut cutter = Cutter::default();
        let first = cutter.cut(&chunk(b"one\ntwo\nth", &[(0, 1), (4, 2), (9, 3)]));
        assert_eq!(first, [line("one\n", 1), line("two\n", 2)]);
        assert_eq!(cutter.cut(&chunk(b"ree\nfour", &[(0, 4), (4, 5)])), [line("three\n", 2)]);
        assert_eq!(cutter.rest(), Some(line("four", 5)));
        assert_eq!(cutter.rest(), None);
    }

    #[test]
    fn what_is_missing_ends_a_line() {
        let mut cutter = Cutter::default();
        assert_eq!(cutter.cut(&chunk(b"half", &[])), []);
        let parts = cutter.cut(&LogChunk { skipped: 7, ..chunk(b"x\n", &[]) });
        let line = |data: &[u8]| Part::Line(Line { data: data.to_vec(), at: None });
        assert_eq!(parts, [line(b"half"), Part::Missing(7), line(b"x\n")]);
    }

    proptest! {
        #[test]
        fn law_no_byte_is_lost_and_no_line_is_too_long(
            data in proptest::collection::vec(
                prop_oneof![Just(vec![b'\n']), (0..100_000usize).prop_map(|n| vec![b'x'; n])],
                0..8,
            ),
            offsets: Vec<u32>,
        ) {
            let mut cutter = Cutter::default();
            let mut parts = Vec::new();
            for data in &data {
                let times: Vec<_> = offsets.iter().map(|&offset| (offset, 1)).collect();
                parts.extend(cutter.cut(&chunk(data, &times)));
                prop_assert!(cutter.unfinished.data.len() < LINE_MAX);
            }
            parts.extend(cutter.rest());
            let mut all = Vec::new();
            for part in parts {
                let Part::Line(line) = part else { panic!("nothing is missing") };
                prop_assert!(line.data.len() <= LINE_MAX);
                all.extend(line.data);
            }
            prop_assert_eq!(all, data.concat());
        }
    }
}
