//! Lines as entries of systemd's journal, in its native protocol.
//!
//! ```text
//! MESSAGE            (binary: length, then the bytes as the plugin wrote them)
//! PRIORITY=6
//! SYSLOG_IDENTIFIER=echo
//! GUEST_AGENT_PLUGIN=echo
//! GUEST_AGENT_REVISION=1
//! GUEST_AGENT_TIME=2026-01-02T03:04:05.678Z
//! ```
//!
//! A value with a line feed in it would begin a field of its own, so the text is written with its
//! length, as the protocol has it for any bytes; all other values are of the agent. Lines are short
//! enough for a datagram, so no entry goes through a file. An entry that the kernel calls too long is
//! refused for good, and counted.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use rustix::io::Errno;
use tokio::net::UnixDatagram;

use super::destination::{Destination, Sent};
use super::record::{Content, Record};

/// How long the journal may take for one entry.
const ENTRY_WAIT: Duration = Duration::from_secs(5);

/// The priority of lines, and of gaps in them: what a plugin prints says nothing of how bad it is.
const INFO: &str = "6";
const WARNING: &str = "4";

/// The journal.
#[derive(Debug)]
pub(super) struct Journald {
    path: PathBuf,
    instance_id: String,
    /// Connected: the kernel tells only then when the journal takes entries again.
    socket: Option<UnixDatagram>,
}

// === impl Journald ===

impl Journald {
    pub(super) const fn new(path: PathBuf, instance_id: String) -> Self {
        Self { path, instance_id, socket: None }
    }

    async fn put(&mut self, entry: &[u8]) -> io::Result<()> {
        let socket = match &self.socket {
            Some(socket) => socket,
            None => {
                let socket = UnixDatagram::unbound()?;
                socket.connect(&self.path)?;
                self.socket.insert(socket)
            }
        };
        match tokio::time::timeout(ENTRY_WAIT, socket.send(entry)).await {
            Ok(sent) => sent.map(drop),
            Err(_) => {
                let why = format!("it took no entry within {}s", ENTRY_WAIT.as_secs());
                Err(io::Error::new(io::ErrorKind::TimedOut, why))
            }
        }
    }
}

impl Destination for Journald {
    async fn send(&mut self, records: &[Record]) -> Sent {
        let mut sent = Sent::default();
        for record in records {
            let entry = entry(record, &self.instance_id);
            let mut put = self.put(&entry).await;
            if put.as_ref().is_err_and(may_be_another) {
                self.socket = None;
                put = self.put(&entry).await;
            }
            match put {
                Ok(()) => {}
                Err(error) if is_too_long(&error) => {
                    sent.refused += 1;
                    sent.refusal = Some("the kernel takes no datagram of this length".to_owned());
                }
                Err(error) => {
                    self.socket = None;
                    sent.failure = Some(format!(
                        "{error} ({}); see `systemctl status systemd-journald`, or correct \
                         plugins.log_journal_socket",
                        self.path.display()
                    ));
                    return sent;
                }
            }
            sent.done += 1;
        }
        sent
    }
}

fn is_too_long(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error())
}

/// Whether a journal that was restarted may listen on another socket by now.
fn may_be_another(error: &io::Error) -> bool {
    !is_too_long(error) && error.kind() != io::ErrorKind::TimedOut
}

/// The entry for a record.
fn entry(record: &Record, instance_id: &str) -> Vec<u8> {
    let mut entry = Vec::new();
    put_bytes(&mut entry, "MESSAGE", &record.content.text());
    let priority = match record.content {
        Content::Line { .. } => INFO,
        Content::Gap { .. } => WARNING,
    };
    put_text(&mut entry, "PRIORITY", priority);
    put_text(&mut entry, "SYSLOG_IDENTIFIER", record.plugin.as_str());
    put_text(&mut entry, "GUEST_AGENT_PLUGIN", record.plugin.as_str());
    if let Some(revision) = &record.revision {
        put_text(&mut entry, "GUEST_AGENT_REVISION", revision.as_str());
    }
    if let Some(at) = record.at.and_then(|at| Timestamp::try_from(at).ok()) {
        put_text(&mut entry, "GUEST_AGENT_TIME", &at.to_string());
    }
    put_bytes(&mut entry, "GUEST_AGENT_INSTANCE", instance_id.as_bytes());
    match record.content {
        Content::Line { part: Some(part), .. } => {
            put_text(&mut entry, "GUEST_AGENT_LINE_PART", &part.to_string());
        }
        Content::Gap { bytes: Some(bytes) } => {
            put_text(&mut entry, "GUEST_AGENT_MISSING_BYTES", &bytes.to_string());
        }
        Content::Line { part: None, .. } | Content::Gap { bytes: None } => {}
    }
    entry
}

/// A field whose value has no line feed.
fn put_text(entry: &mut Vec<u8>, name: &str, value: &str) {
    for part in [name, "=", value, "\n"] {
        entry.extend_from_slice(part.as_bytes());
    }
}

/// A field whose value may be any bytes.
fn put_bytes(entry: &mut Vec<u8>, name: &str, value: &[u8]) {
    entry.extend_from_slice(name.as_bytes());
    entry.push(b'\n');
    let length = u64::try_from(value.len()).unwrap_or_default();
    entry.extend_from_slice(&length.to_le_bytes());
    entry.extend_from_slice(value);
    entry.push(b'\n');
}
