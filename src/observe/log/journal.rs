//! Entries of systemd's journal: the text for people in `MESSAGE`, and each field of the line in a
//! journal field of its own.
//!
//! ```text
//! MESSAGE=Installed revision=1 plugin=echo
//! PRIORITY=6
//! GUEST_AGENT_PLUGIN=echo
//! ```
//!
//! `journalctl` shows only `MESSAGE` by default, so the message repeats the fields of the line. The
//! format is that of <https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>, with line breaks escaped, so
//! that no logged text can begin a journal field. When the journal takes no more entries, one line
//! waits for it, and the lines after it do not.

use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{JsonFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

use guest_agent_observe_kit::json_lines;

/// Longest value of a field, in bytes; the rest is cut off.
const VALUE_MAX: usize = 8 << 10;

/// Longest name of a field that the journal takes, in bytes.
const NAME_MAX: usize = 64;

/// Longest time that a line waits for a busy journal.
const PATIENCE: Duration = Duration::from_millis(200);

/// Formats events as entries.
#[derive(Default)]
pub(super) struct Entries {
    /// The unit for which systemd started this process.
    unit: Option<String>,
}

/// Sends each entry as a datagram of its own.
#[derive(Clone)]
pub(super) struct Journal(Arc<Sockets>);

struct Sockets {
    path: PathBuf,
    /// Waits for a busy journal.
    patient: UnixDatagram,
    /// Does not wait for a busy journal.
    hasty: UnixDatagram,
    /// Whether the journal did not take the last entry.
    is_stuck: AtomicBool,
    lost: AtomicU64,
}

// === impl Entries ===

impl Entries {
    /// Entries that name the unit which systemd started this process for, if it did. A search for
    /// that unit with `journalctl -u` finds them also after the process has joined the control
    /// group of another unit (`plugins.total_memory_bytes`).
    pub(super) fn of_this_process() -> Self {
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self { unit: service_in(&groups) }
    }
}

/// The service that the groups of a process belong to, by systemd's names for them.
fn service_in(groups: &str) -> Option<String> {
    let of_systemd = |line: &&str| line.starts_with("0::") || line.contains(":name=systemd:");
    let mut parts = groups.lines().filter(of_systemd).flat_map(|line| line.split('/'));
    parts.rfind(|part| part.ends_with(".service")).map(str::to_owned)
}

impl<S> FormatEvent<S, JsonFields> for Entries
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, JsonFields>,
        mut entry: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let mut fields = json_lines::own_fields(event);
        let mut message = fields.remove("message").as_ref().map(shown).unwrap_or_default();
        for (name, value) in &fields {
            write!(message, " {name}={}", quoted(&shown(value)))?;
        }
        let names_plugin = fields.contains_key("plugin");
        json_lines::inherit(context, &mut fields);
        if let Some(plugin) = fields.get("plugin").filter(|_| !names_plugin) {
            write!(message, " plugin={}", quoted(&shown(plugin)))?;
        }

        put(&mut entry, "MESSAGE", &message)?;
        put(&mut entry, "PRIORITY", priority(*metadata.level()))?;
        put(&mut entry, "SYSLOG_IDENTIFIER", "guest-agent")?;
        if let Some(unit) = &self.unit {
            put(&mut entry, "OBJECT_SYSTEMD_UNIT", unit)?;
        }
        put(&mut entry, "TARGET", metadata.target())?;
        if let (Some(file), Some(line)) = (metadata.file(), metadata.line()) {
            put(&mut entry, "CODE_FILE", file)?;
            put(&mut entry, "CODE_LINE", &line.to_string())?;
        }
        for (name, value) in &fields {
            put(&mut entry, &field_name(name), &shown(value))?;
        }
        Ok(())
    }
}

/// What syslog calls a level.
const fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        Level::DEBUG | Level::TRACE => "7",
    }
}

/// The prefix keeps fields apart from the journal's own, of which `MESSAGE_ID` is one.
fn field_name(name: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    let mut field = String::from("GUEST_AGENT_");
    field.extend(name.chars().map(letter).take(NAME_MAX - field.len()));
    field
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A value, in a form whose end is clear to a reader.
fn quoted(value: &str) -> String {
    if value.is_empty() || value.contains(char::is_whitespace) {
        format!("\"{value}\"")
    } else {
        value.to_owned()
    }
}

fn put(entry: &mut Writer<'_>, name: &str, value: &str) -> fmt::Result {
    let value = &value[..value.floor_char_boundary(VALUE_MAX)];
    writeln!(entry, "{name}={}", value.replace('\n', "\\n"))
}

// === impl Journal ===

impl Journal {
    /// The socket of the journal at `path`.
    ///
    /// # Errors
    ///
    /// No journal listens there.
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        let patient = UnixDatagram::unbound()?;
        patient.set_write_timeout(Some(PATIENCE))?;
        let hasty = UnixDatagram::unbound()?;
        hasty.set_nonblocking(true)?;
        // An entry without fields is ignored.
        patient.send_to(&[], path)?;
        let (is_stuck, lost) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(Self(Arc::new(Sockets { path: path.to_owned(), patient, hasty, is_stuck, lost })))
    }

    /// How many entries the journal has not taken since the last call.
    pub(super) fn take_lost(&self) -> u64 {
        self.0.lost.swap(0, Ordering::Relaxed)
    }
}

impl Sockets {
    /// By path, because a journal that was restarted listens on another socket.
    fn send(&self, entry: &[u8]) {
        let is_stuck = self.is_stuck.load(Ordering::Relaxed);
        let socket = if is_stuck { &self.hasty } else { &self.patient };
        let sent = socket.send_to(entry, &self.path);
        if sent.is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        self.is_stuck.store(sent.is_err(), Ordering::Relaxed);
    }
}

impl<'a> MakeWriter<'a> for Journal {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

impl Write for &Journal {
    /// A failure to write an entry does not reach the code that logs it.
    fn write(&mut self, entry: &[u8]) -> io::Result<usize> {
        self.0.send(entry);
        Ok(entry.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_that_takes_nothing_is_waited_for_once() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("socket");
        assert!(Journal::at(&path).is_err(), "nobody listens");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        let journal = Journal::at(&path).expect("somebody listens");
        let began = std::time::Instant::now();
        for _ in 0..5000 {
            (&journal).write_all(b"MESSAGE=a\n").expect("it always succeeds");
        }
        let lost = journal.take_lost();
        assert!(lost > 0 && lost < 5000, "{lost} lost");
        assert!(began.elapsed() < PATIENCE * 25, "nobody waits for each of them");
        // Once the journal takes entries again, they are written again.
        let mut buffer = [0; 64];
        socket.set_nonblocking(true).expect("a socket");
        while socket.recv(&mut buffer).is_ok() {}
        (&journal).write_all(b"MESSAGE=b\n").expect("it always succeeds");
        assert_eq!(
            socket.recv(&mut buffer).map(|length| &buffer[..length]).ok(),
            Some(&b"MESSAGE=b\n"[..])
        );
        assert_eq!(journal.take_lost(), 0);
        // Another journal at the same place.
        drop(socket);
        std::fs::remove_file(&path).expect("it was there");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        (&journal).write_all(b"MESSAGE=c\n").expect("it always succeeds");
        assert_eq!(socket.recv(&mut buffer).ok(), Some(10));
    }

    #[test]
    fn the_unit_is_that_of_the_innermost_group() {
        assert_eq!(
            service_in("0::/system.slice/guest-agent.service\n").as_deref(),
            Some("guest-agent.service")
        );
        let hybrid = "5:memory:/x.service\n1:name=systemd:/system.slice/a.service/@leaf\n0::/\n";
        assert_eq!(service_in(hybrid).as_deref(), Some("a.service"));
        assert_eq!(service_in("0::/user.slice/session-1.scope\n"), None);
        assert_eq!(service_in(""), None);
    }

    #[test]
    fn names_are_what_the_journal_takes() {
        assert_eq!(field_name("message_id"), "GUEST_AGENT_MESSAGE_ID");
        assert_eq!(field_name("otel.kind=x\n"), "GUEST_AGENT_OTEL_KIND_X_");
        assert_eq!(field_name(&"a".repeat(200)).len(), NAME_MAX);
    }
}
