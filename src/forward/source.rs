//! The log of one plugin, as one destination reads it. Blocks.

use std::io;
use std::time::{Duration, SystemTime};

use guest_agent_actors::model::id::PluginName;
use memchr::memchr;
use tokio::time::Instant;

use super::record::{Content, Record};
use crate::config::LogDestination;
use crate::process::logs::PluginLogs;
use crate::process::logs::forwarded::Forwarded;
use crate::process::logs::read::{Begin, Piece, Reader, written_at};

/// Most bytes of a line; a longer one comes in parts.
pub(super) const LINE_MAX: usize = 16 * 1024;

/// Most lines that one turn takes.
pub(super) const TURN_LINES: usize = 128;

/// How long the beginning of a line waits for its end.
pub(super) const TAIL_WAIT: Duration = Duration::from_secs(5);

/// How long what is left of a removed plugin's log is kept for a destination that is away.
pub(super) const GONE_WAIT: Duration = Duration::from_secs(60);

/// The log of one plugin.
#[derive(Debug)]
pub(super) struct Source {
    logs: PluginLogs,
    name: PluginName,
    reader: Reader,
    /// Up to where lines were taken out.
    at: Forwarded,
    /// Up to where the destination has them.
    done: u64,
    /// The log is another file than the one that was forwarded.
    is_replaced: bool,
    /// Where the log ended when it ended with an unfinished line, and since when.
    tail: Option<(u64, Instant)>,
    /// Since when the log has no name.
    gone: Option<Instant>,
}

/// What a turn may take, and has taken.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) lines: usize,
    pub(super) bytes: usize,
}

/// Whether a log is older than the work of its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    /// It was made meanwhile.
    New,
    /// It may be.
    Unknown,
}

/// Whether a source is still needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Stays,
    /// Everything of it was taken out.
    Over,
    /// The destination did not take so many bytes in time.
    GivenUp(u64),
}

// === impl Room ===

impl Room {
    pub(super) fn is_left(&self) -> bool {
        self.lines > 0 && self.bytes > 0
    }

    fn take(&mut self, bytes: usize) {
        self.lines = self.lines.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

// === impl Source ===

impl Source {
    /// Begins where the destination has come to. With a log of which it has nothing, at the beginning
    /// of it as it is; or, where it was made meanwhile, with the first byte that was ever written into it.
    pub(super) fn open(
        logs: PluginLogs,
        name: PluginName,
        to: LogDestination,
        age: Age,
    ) -> io::Result<Self> {
        let recorded = logs.forwarded(&name, to);
        let mut reader = Reader::new(logs.clone(), name.clone(), Begin::First)?;
        let file = reader.file().unwrap_or_default();
        let known = recorded.filter(|recorded| recorded.file.is(file));
        let at = match (known, recorded, age) {
            (Some(known), ..) => known,
            (None, None, Age::New) => Forwarded { at: 0, parts: 0, file },
            (None, ..) => Forwarded { at: reader.at(), parts: 0, file },
        };
        reader.seek(at.at);
        if known.is_none() {
            // Without this, nobody could tell later what was cut before the first line was taken.
            drop(logs.note_forwarded(&name, to, at));
        }
        let (done, is_replaced) = (at.at, known.is_none() && recorded.is_some());
        Ok(Self { logs, name, reader, at, done, is_replaced, tail: None, gone: None })
    }

    /// Takes the next lines out, as many as there is room for and as one turn may have.
    pub(super) fn turn(
        &mut self,
        room: &mut Room,
        now: Instant,
        records: &mut Vec<Record>,
    ) -> io::Result<()> {
        if !room.is_left() {
            return Ok(());
        }
        let seen = SystemTime::now();
        if std::mem::take(&mut self.is_replaced) {
            records.push(self.gap(None, seen));
            room.take(0);
        }
        // The turn before may have read further than it took.
        self.reader.seek(self.at.at);
        let Some(piece) = self.reader.next()? else {
            self.tail = None;
            return Ok(());
        };
        let file = self.reader.file().unwrap_or_default();
        if !file.is(self.at.file) {
            self.at.parts = 0;
        }
        self.at.file = file;
        self.at.at = start(&piece);
        if piece.skipped > 0 {
            self.at.parts = 0;
            records.push(self.gap(Some(piece.skipped), seen));
            room.take(0);
        }
        self.cut(&piece, seen, room, now, records);
        Ok(())
    }

    /// Cuts a piece into lines.
    fn cut(
        &mut self,
        piece: &Piece,
        seen: SystemTime,
        room: &mut Room,
        now: Instant,
        records: &mut Vec<Record>,
    ) {
        let times = self.reader.written(piece);
        let revisions = self.logs.revisions(&self.name);
        let (base, mut offset) = (start(piece), 0);
        for _ in 0..TURN_LINES {
            let rest = &piece.data[offset..];
            if rest.is_empty() {
                self.tail = None;
                return;
            }
            if !room.is_left() {
                return;
            }
            let (length, ends) = match line(rest) {
                Some(found) => found,
                None if self.is_tail_due(piece.next, now) => (rest.len(), false),
                // The rest of the line is in the next piece, or still to be written.
                None => return,
            };
            let taken = length + usize::from(ends);
            let from = base + u64::try_from(offset).unwrap_or_default();
            let part = (self.at.parts > 0 || !ends).then_some(self.at.parts.saturating_add(1));
            self.at.parts = if ends { 0 } else { self.at.parts.saturating_add(1) };
            self.at.at = from + u64::try_from(taken).unwrap_or_default();
            // The line feed that comes after the last part of a line says nothing.
            if length > 0 || part.is_none() {
                records.push(Record {
                    plugin: self.name.clone(),
                    revision: revisions.at(from).cloned(),
                    at: written_at(&times, offset),
                    seen,
                    content: Content::Line { text: rest[..length].to_vec(), part },
                    after: self.at,
                });
                room.take(length);
            }
            offset += taken;
        }
    }

    /// Whether the unfinished line at this end of the log has waited for long enough.
    fn is_tail_due(&mut self, end: u64, now: Instant) -> bool {
        let since = match self.tail {
            Some((at, since)) if at == end => since,
            Some(_) | None => {
                self.tail = Some((end, now));
                now
            }
        };
        let is_due = now.duration_since(since) >= TAIL_WAIT;
        if is_due {
            self.tail = None;
        }
        is_due
    }

    fn gap(&self, bytes: Option<u64>, seen: SystemTime) -> Record {
        Record {
            plugin: self.name.clone(),
            revision: None,
            at: None,
            seen,
            content: Content::Gap { bytes },
            after: self.at,
        }
    }

    /// The destination has everything up to here.
    pub(super) fn is_done(&mut self, forwarded: Forwarded) {
        self.done = forwarded.at;
    }

    /// How many bytes the destination does not have.
    pub(super) fn lag(&self) -> u64 {
        self.reader.end().unwrap_or(self.done).saturating_sub(self.done)
    }

    /// Whether it is still needed, where its log has a name or not.
    pub(super) fn fate(&mut self, has_name: bool, now: Instant) -> Fate {
        if has_name {
            self.gone = None;
            return Fate::Stays;
        }
        let since = *self.gone.get_or_insert(now);
        match self.reader.end().unwrap_or(self.at.at).saturating_sub(self.at.at) {
            0 => Fate::Over,
            left if now.duration_since(since) >= GONE_WAIT => Fate::GivenUp(left),
            _ => Fate::Stays,
        }
    }
}

/// Where a piece begins.
fn start(piece: &Piece) -> u64 {
    piece.next.saturating_sub(u64::try_from(piece.data.len()).unwrap_or_default())
}

/// The first line: how long it is, and whether its line feed comes right after it. `None` when it is
/// not whole.
fn line(rest: &[u8]) -> Option<(usize, bool)> {
    let looked_at = &rest[..rest.len().min(LINE_MAX + 1)];
    match memchr(b'\n', looked_at) {
        Some(at) => Some((at, true)),
        None if looked_at.len() > LINE_MAX => Some((character_end(&rest[..LINE_MAX]), false)),
        None => None,
    }
}

/// Up to where these bytes have whole characters, if they are UTF-8.
fn character_end(bytes: &[u8]) -> usize {
    const CHARACTER_MAX: usize = 4;
    let is_inside = |byte: u8| byte & 0b1100_0000 == 0b1000_0000;
    let least = bytes.len().saturating_sub(CHARACTER_MAX);
    let begins = (least..bytes.len()).rev().find(|&at| !is_inside(bytes[at]));
    match begins {
        Some(at) if std::str::from_utf8(&bytes[at..]).is_err() && at > 0 => at,
        Some(_) | None => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn law_parts_of_a_line_are_bounded_and_whole_characters(text in "[a-zé€😀]{0,200}") {
            let bytes = text.as_bytes();
            for length in 0..=bytes.len() {
                let end = character_end(&bytes[..length]);
                prop_assert!(end <= length && (end > 0 || length == 0 || length < 4));
                if end > 0 && length >= 4 {
                    prop_assert!(std::str::from_utf8(&bytes[..end]).is_ok());
                }
            }
        }

        #[test]
        fn law_any_bytes_are_cut_and_none_is_lost(bytes: Vec<u8>, at in 0_usize..10) {
            let end = character_end(&bytes[..bytes.len().min(at)]);
            prop_assert!(end <= bytes.len().min(at));
            prop_assert!(bytes.is_empty() || at == 0 || end > 0);
        }
    }
}
