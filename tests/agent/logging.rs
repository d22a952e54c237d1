//! Where the agent's own log goes.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use tokio::net::UnixDatagram;
use tokio::task::JoinHandle;

use crate::harness::{Bed, orders, program};

/// Whether this user may make mount namespaces here.
fn can_unshare() -> bool {
    let tried =
        Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "tmpfs", "/run"]).output();
    tried.is_ok_and(|output| output.status.success())
}

/// A program that runs the agent with another folder for the journal.
fn with_journal(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("with-journal");
    let (journal, program) = (dir.join("journal"), program());
    let text = format!(
        "#!/bin/sh\nexec unshare -m sh -c 'mount -t tmpfs tmpfs /run && \
         mkdir -p /run/systemd/journal && mount --bind \"$0\" /run/systemd/journal && \
         program=\"$1\" && shift && exec \"$program\" \"$@\"' '{}' '{}' \"$@\"\n",
        journal.display(),
        program.display()
    );
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A journal that keeps what it is sent.
struct Journal {
    entries: Arc<Mutex<Vec<Vec<String>>>>,
    reading: JoinHandle<()>,
}

// === impl Journal ===

impl Journal {
    /// Reads from the start: the kernel holds only a handful of unread entries, and a process that
    /// writes another one waits.
    fn listen(socket: &Path) -> Self {
        let socket = UnixDatagram::bind(socket).unwrap();
        let entries = Arc::<Mutex<Vec<Vec<String>>>>::default();
        let kept = entries.clone();
        let reading = tokio::spawn(async move {
            let mut buffer = vec![0; 1 << 18];
            while let Ok(length) = socket.recv(&mut buffer).await {
                kept.lock().unwrap().push(fields(&buffer[..length]));
            }
        });
        Self { entries, reading }
    }

    /// The first entry whose message begins like this.
    fn entry(&self, message: &str) -> Option<Vec<String>> {
        let entries = self.entries.lock().unwrap();
        let begins = |field: &String| {
            field.strip_prefix("MESSAGE=").is_some_and(|said| said.starts_with(message))
        };
        entries.iter().find(|fields| fields.iter().any(begins)).cloned()
    }
}

/// The fields of a datagram, as `NAME=value` lines.
fn fields(datagram: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(datagram).lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn the_journal_gets_fields_and_priorities() {
    if !can_unshare() {
        println!("SKIPPED: the journal is not tried out, mount namespaces cannot be made here");
        return;
    }
    let mut bed = Bed::builder().set("log.format=journald").build().await;
    std::fs::create_dir(bed.dir().join("journal")).unwrap();
    let journal = Journal::listen(&bed.dir().join("journal/socket"));
    let program = with_journal(bed.dir());
    bed.use_program(&program);
    bed.start_agent().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    let done =
        bed.until("the end of the order in the journal", async || journal.entry("is done")).await;
    for wanted in ["PRIORITY=6", "SYSLOG_IDENTIFIER=guest-agent", "GUEST_AGENT_PLUGIN=echo"] {
        assert!(done.iter().any(|field| field == wanted), "{wanted}: {done:#?}");
    }
    assert!(done.iter().any(|field| field.starts_with("GUEST_AGENT_MESSAGE_ID=")), "{done:#?}");
    assert!(!bed.log().contains("is done"), "nothing is logged twice");
    // The socket has no reader any more; the agent must continue.
    journal.reading.abort();
    assert!(journal.reading.await.unwrap_err().is_cancelled());
    bed.finish().await;
}

#[tokio::test]
async fn without_a_journal_lines_are_text_and_the_reason_is_one_of_them() {
    if Path::new("/run/systemd/journal/socket").exists() {
        println!("SKIPPED: there is a journal here, so nobody is without one");
        return;
    }
    let bed = Bed::builder().set("log.format=journald").start().await;
    bed.until("a log line that there is no journal", async || {
        bed.log().contains("the journal cannot be written to").then_some(())
    })
    .await;
    bed.finish().await;
}
