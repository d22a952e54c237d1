//! When the parts of a log were written, in a file beside it (`<name>.log.times`).
//!
//! A plugin writes straight into its file, so its lines have no times, and they get none: readers
//! of the file see the bytes that the plugin wrote. The process that keeps the log short looks at it
//! within milliseconds of each write, and notes how long the log was then. A [`Span`] says of the
//! bytes from a position on, up to the position of the next span, between which times they were
//! written. One is added in a second in which the plugin wrote, so a time is right to about a
//! second, and 24 bytes per second are what it costs.
//!
//! The file is bounded. When it is full, spans of bytes that were cut off the log go; if that is
//! not enough, neighbours are merged, so that old times become coarser and never wrong.
//!
//! A reader never misses a line that was written since a time: where spans are missing, because no
//! process looked or the disk was full, the span before is widened up to the time of the last write.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use guest_agent_actors::model::id::PluginName;

use super::file;
use super::mark::Mark;

/// How many bytes one span takes in the file: three numbers, the lowest byte first.
const RECORD: usize = 24;

/// Most spans in a file.
const SPANS_MAX: usize = 4096;

/// How much time one span covers, in milliseconds.
const GRAIN: u64 = 1000;

/// When the bytes from a position on were written, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    position: u64,
    /// Not before; 0 when that is not known.
    from: u64,
    /// Not after.
    until: u64,
}

/// The times of a log as they are recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Times(Vec<Span>);

/// What the process that keeps the logs short noted of each.
#[derive(Debug, Default)]
pub(super) struct Clocks(Mutex<HashMap<PluginName, Seen>>);

/// A log as it was when it was looked at last.
#[derive(Clone, Copy, Debug)]
struct Seen {
    cut: u64,
    /// The position of its end.
    end: u64,
    /// The newest span, if there is any.
    last: Option<Span>,
}

/// A log as it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// Its length in bytes.
    pub(super) length: u64,
    /// When it was written last, in milliseconds since 1970.
    pub(super) written: u64,
    /// How many bytes were cut off it, where the caller just cut some.
    pub(super) cut: Option<u64>,
}

/// Where the times of a log are, and where its mark is.
#[derive(Clone, Debug)]
pub(super) struct Paths {
    pub(super) log: PathBuf,
    pub(super) mark: PathBuf,
    pub(super) times: PathBuf,
}

/// The time now, in milliseconds since 1970.
pub(super) fn now() -> u64 {
    millis(SystemTime::now())
}

/// A time in milliseconds since 1970; 0 for one before.
fn millis(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

// === impl Times ===

impl Times {
    /// Reads the times; whatever is damaged is left out.
    pub(super) fn read(path: &Path) -> Self {
        let mut bytes = vec![0; SPANS_MAX * RECORD];
        let read = file::open_to_read(path).and_then(|file| {
            let mut filled = 0;
            loop {
                match file.read_at(&mut bytes[filled..], filled as u64)? {
                    0 => return Ok(filled),
                    count => filled += count,
                }
            }
        });
        bytes.truncate(read.unwrap_or_default());
        Self::parse(&bytes)
    }

    fn parse(bytes: &[u8]) -> Self {
        let mut spans: Vec<Span> = Vec::new();
        for record in bytes.chunks_exact(RECORD) {
            let number = |at: usize| {
                let bytes = record[at..at + 8].try_into();
                bytes.map(u64::from_le_bytes).unwrap_or_default()
            };
            let span = Span { position: number(0), from: number(8), until: number(16) };
            if spans.last().is_none_or(|last| last.position < span.position)
                && span.from <= span.until
            {
                spans.push(span);
            }
        }
        Self(spans)
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(Span::bytes).collect()
    }

    /// The parts of a log from `start` up to `end`: where each begins, and not before which time it
    /// was written, if that is known.
    pub(super) fn of(&self, start: u64, end: u64) -> Vec<(u64, Option<SystemTime>)> {
        if start >= end {
            return Vec::new();
        }
        let first = self.0.partition_point(|span| span.position <= start);
        let mut parts = Vec::new();
        match first.checked_sub(1).and_then(|index| self.0.get(index)) {
            Some(span) => parts.push((start, span.begins())),
            None => parts.push((start, None)),
        }
        let inside = self.0[first..].iter().take_while(|span| span.position < end);
        parts.extend(inside.map(|span| (span.position, span.begins())));
        parts
    }

    /// The position from which on bytes may have been written at or after a time.
    pub(super) fn since(&self, at: SystemTime) -> u64 {
        let at = millis(at);
        self.0.iter().find(|span| span.until >= at).map_or(u64::MAX, |span| span.position)
    }

    /// Makes room: forgets what is about bytes that were cut, then merges neighbours.
    fn thinned(&self, cut: u64) -> Self {
        let gone = self.0.partition_point(|span| span.position <= cut).saturating_sub(1);
        let kept = &self.0[gone..];
        if kept.len() <= SPANS_MAX / 2 {
            return Self(kept.to_vec());
        }
        let merged = kept.chunks(2).map(|pair| Span {
            position: pair[0].position,
            // A clock that was set back makes the second one the earlier one.
            from: pair.iter().map(|span| span.from).min().unwrap_or_default(),
            until: pair.iter().map(|span| span.until).max().unwrap_or_default(),
        });
        Self(merged.collect())
    }
}

// === impl Span ===

impl Span {
    /// One that begins now.
    fn beginning(position: u64, now: u64) -> Self {
        Self { position, from: now, until: now.saturating_add(GRAIN) }
    }

    fn bytes(&self) -> [u8; RECORD] {
        let mut record = [0; RECORD];
        for (part, number) in record.chunks_exact_mut(8).zip([self.position, self.from, self.until])
        {
            part.copy_from_slice(&number.to_le_bytes());
        }
        record
    }

    fn begins(&self) -> Option<SystemTime> {
        (self.from > 0).then(|| UNIX_EPOCH + Duration::from_millis(self.from))
    }
}

// === impl Clocks ===

impl Clocks {
    /// Notes how long a log is now. Costs nothing while it is as long as it was, and no write in
    /// the second of the newest span.
    ///
    /// # Errors
    /// The times cannot be written; the next look tries again.
    pub(super) fn note(
        &self,
        name: &PluginName,
        paths: impl Fn() -> Paths,
        look: Look,
        now: u64,
    ) -> io::Result<()> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(seen) = all.get_mut(name) else {
            let seen = first_look(&paths(), look)?;
            all.insert(name.clone(), seen);
            return Ok(());
        };
        seen.cut = look.cut.unwrap_or(seen.cut);
        let end = seen.cut.saturating_add(look.length);
        let is_in_span = seen.last.is_some_and(|last| (last.from..=last.until).contains(&now));
        if end == seen.end {
            return Ok(());
        }
        if end < seen.end {
            // Somebody emptied it, or what a plugin wrote during a cut is lost.
            *seen = Seen { end, ..*seen };
            if seen.last.is_some_and(|last| last.position >= end) {
                let span = Span::beginning(seen.cut, now);
                replace(&paths().times, &Times(vec![span]))?;
                seen.last = Some(span);
            }
            return Ok(());
        }
        if !is_in_span {
            let span = Span::beginning(seen.end, now);
            append(&paths(), span, seen.cut)?;
            seen.last = Some(span);
        }
        seen.end = end;
        Ok(())
    }

    /// The plugin is removed.
    pub(super) fn forget(&self, name: &PluginName) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

/// The first look of this process at a log. What was written since the look of the process before
/// is of the time up to the last write.
fn first_look(paths: &Paths, look: Look) -> io::Result<Seen> {
    let cut = look.cut.unwrap_or_else(|| Mark::read(&paths.mark).cut);
    let end = cut.saturating_add(look.length);
    let known = Times::read(&paths.times);
    let last = match known.0.last().copied() {
        Some(last) if last.position < end => {
            let until = last.until.max(look.written);
            let widened = Span { until, ..last };
            if widened != last {
                let at = (known.0.len() - 1) * RECORD;
                file::open_own(&paths.times)?.write_all_at(&widened.bytes(), at as u64)?;
            }
            Some(widened)
        }
        Some(_) if look.length == 0 => {
            replace(&paths.times, &Times::default())?;
            None
        }
        None if look.length == 0 => None,
        // The log is older than its times.
        Some(_) | None => {
            let span = Span { position: cut, from: 0, until: look.written };
            replace(&paths.times, &Times(vec![span]))?;
            Some(span)
        }
    };
    Ok(Seen { cut, end, last })
}

fn append(paths: &Paths, span: Span, cut: u64) -> io::Result<()> {
    let file = file::open_own(&paths.times)?;
    let length = file.metadata()?.len();
    let record = RECORD as u64;
    let count = length / record;
    if count >= SPANS_MAX as u64 {
        let mut times = Times::read(&paths.times).thinned(cut);
        times.0.push(span);
        return replace(&paths.times, &times);
    }
    file.write_all_at(&span.bytes(), count * record)?;
    // A plugin may have been removed, with its files, while this one was made.
    if length == 0 && matches!(paths.log.try_exists(), Ok(false)) {
        std::fs::remove_file(&paths.times)?;
    }
    Ok(())
}

/// Replaces all times at once.
fn replace(path: &Path, times: &Times) -> io::Result<()> {
    file::replace(path, &times.bytes())
}

#[cfg(test)]
mod tests;
