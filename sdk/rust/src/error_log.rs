//! The error log: the file to which a plugin writes its panics and fatal errors.
//!
//! The agent reads the last lines of it into its crash events. `run` writes fatal errors here and
//! makes the panic hook do the same; a plugin may add lines of its own. The file is bounded: a file
//! that has grown too large is cut to its newest part, which the agent may still have to report.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::panic::PanicHookInfo;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// Beyond this many bytes only the newest are kept. A plugin that panics at every health check
/// would otherwise fill the disk.
const MAX_FILE: u64 = 1024 * 1024;

/// So many bytes are kept: more than the agent shows in an event.
const KEPT: u64 = 64 * 1024;

/// The longest text of one entry, in bytes.
const MAX_ENTRY: usize = 16 * 1024;

/// An error log at a path. Opened for every entry, so it can be rotated at any time.
#[derive(Clone, Debug)]
pub struct ErrorLog {
    path: PathBuf,
}

// === impl ErrorLog ===

impl ErrorLog {
    /// A log at `path`. The file is made, readable by its owner only, with the first entry.
    pub fn new(path: impl Into<PathBuf>) -> ErrorLog {
        ErrorLog { path: path.into() }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends an entry: the time and the text, cut at 16 KiB. Further lines of the text are
    /// indented.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened or written.
    pub fn append(&self, text: &str) -> io::Result<()> {
        let file = self.open()?;
        let length = file.metadata()?.len();
        if length > MAX_FILE {
            shorten(&file, length)?;
        }
        let text = &text[..text.floor_char_boundary(MAX_ENTRY)];
        let time = jiff::Timestamp::now();
        let entry = format!("{time:.3} {}\n", text.trim_end().replace('\n', "\n    "));
        // One write of one buffer: entries of several threads do not mix.
        (&file).write_all(entry.as_bytes())
    }

    /// Makes every panic of this process append an entry, before what the panic hook did until
    /// now. Only the first call in a process has an effect.
    pub fn record_panics(&self) {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| {
            let log = self.clone();
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                // The previous hook prints to stderr; that must happen even if the disk is full.
                drop(log.append(&describe(panic)));
                before(panic);
            }));
        });
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&self.path)
    }
}

/// Keeps the newest whole lines of a file that is open for appending.
fn shorten(mut file: &File, length: u64) -> io::Result<()> {
    let mut kept = Vec::new();
    file.seek(SeekFrom::Start(length.saturating_sub(KEPT)))?;
    // Others may append meanwhile.
    file.take(2 * KEPT).read_to_end(&mut kept)?;
    let line = kept.iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    file.set_len(0)?;
    file.write_all(&kept[line..])
}

/// Thread, place and message; no backtrace, which would cost tens of megabytes.
fn describe(panic: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("<unnamed>");
    let message = panic.payload_as_str().unwrap_or("a payload that is not text");
    match panic.location() {
        Some(place) => format!("thread '{thread}' panicked at {place}: {message}"),
        None => format!("thread '{thread}' panicked: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn log() -> (tempfile::TempDir, ErrorLog) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let log = ErrorLog::new(directory.path().join("plugin.log"));
        (directory, log)
    }

    fn content(log: &ErrorLog) -> String {
        std::fs::read_to_string(log.path()).expect("the log exists")
    }

    #[test]
    fn entries_are_appended_with_their_time_and_readable_by_the_owner_only() {
        let (_directory, log) = log();
        log.append("first\nsecond line\n").expect("written");
        log.append("last").expect("written");
        let content = content(&log);
        let lines: Vec<&str> = content.lines().collect();
        assert_eq!(lines.len(), 3, "{content}");
        assert!(lines[0].starts_with("20") && lines[0].ends_with("Z first"), "{content}");
        assert_eq!(lines[1], "    second line");
        assert!(lines[2].ends_with(" last"), "{content}");
        let mode = log.path().metadata().expect("the log exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_log_that_has_grown_too_large_keeps_its_newest_entries() {
        let (_directory, log) = log();
        let line = "an entry of an earlier day\n";
        let lines = usize::try_from(MAX_FILE).expect("small") / line.len() + 1;
        std::fs::write(log.path(), line.repeat(lines) + "what happened last\n").expect("written");
        log.append("fresh").expect("written");
        let content = content(&log);
        assert!(content.len() < usize::try_from(KEPT).expect("small") + 100);
        assert!(content.starts_with(line));
        let mut newest = content.lines().rev();
        assert!(newest.next().expect("a line").ends_with("Z fresh"));
        assert_eq!(newest.next(), Some("what happened last"));
    }

    #[test]
    fn a_long_entry_is_cut_between_characters() {
        let (_directory, log) = log();
        log.append(&"ü".repeat(MAX_ENTRY)).expect("written");
        let length = content(&log).len();
        assert!((MAX_ENTRY..MAX_ENTRY + 64).contains(&length), "{length}");
    }

    #[test]
    fn a_log_that_cannot_be_written_is_an_error_and_no_panic() {
        assert!(ErrorLog::new("/nonexistent/directory/plugin.log").append("x").is_err());
    }
}
