//! A process that writes to a ledger until it is killed, and says what was acknowledged.
//!
//! It is this test program, started again with one test alone and told by its environment what to
//! do. Lines of what was acknowledged go to a pipe of their own: the harness prints to the standard output,
//! also into the middle of a line.
//!
//! ```text
//! record KEY COUNT        a record that counts up
//! entry SUBJECT NUMBER    an entry, whose id is its number
//! refused                 a write was refused, or its end is not known
//! ready                   the ledger is open
//! failed                  the ledger gave up
//! ```

use std::fs::File;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, LazyLock};

use guest_fleet_ledger::{
    Appended, Bucket, Ledger, Log, Revision, SqliteLedger, Write, WriteError,
};

const FILE: &str = "LEDGER_CHILD_FILE";
/// Bytes of every value.
const SIZE: &str = "LEDGER_CHILD_SIZE";

pub(crate) const BUCKET: Bucket = Bucket::Journal;
pub(crate) const WRITERS: u64 = 4;

/// A child, which is killed when this is dropped.
pub(crate) struct Writing {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Writing {
    /// Starts a child that writes to this file; `shell` runs in a shell before it.
    pub(crate) fn start(file: &Path, size: usize, shell: &str) -> Self {
        let own = std::env::current_exe().expect("this program");
        let mut child = Command::new("sh")
            .arg("-c")
            .arg(format!(
                "{shell} exec \"$0\" ledger::child::writes_until_it_is_killed --exact --ignored --nocapture 3>&1 >/dev/null"
            ))
            .arg(own)
            .env(FILE, file)
            .env(SIZE, size.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the child starts");
        let lines = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        Self { child, lines }
    }

    /// The next whole line; `None` when the child is gone.
    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("its output is text");
        line.ends_with('\n').then(|| line.trim_end().to_owned())
    }

    /// Kills it, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it is killed");
        self.child.wait().expect("it is gone");
    }

    /// Tells the child what its shell or its test waits for.
    pub(crate) fn say(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("its input is a pipe");
        writeln!(input, "{line}").expect("it reads");
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Tells the parent a line.
fn say(line: &str) {
    static PIPE: LazyLock<File> =
        LazyLock::new(|| File::options().write(true).open("/proc/self/fd/3").expect("a pipe"));
    // A short write to a pipe is one piece.
    (&*PIPE).write_all(format!("{line}\n").as_bytes()).expect("the parent listens");
}

/// What it writes: the count, and as much more as it is to have.
fn value(count: u64, size: usize) -> bytes::Bytes {
    let mut value = count.to_be_bytes().to_vec();
    value.resize(size.max(8), 7);
    value.into()
}

/// Counts two records up together, and a log with them.
async fn write(ledger: Arc<SqliteLedger>, writer: u64, size: usize) {
    let keys = [format!("a-{writer}"), format!("b-{writer}")];
    let subject = format!("vm-{writer}.web");
    loop {
        let record = ledger.get(BUCKET, &keys[0]).await.expect("reads go on");
        let expected = record.as_ref().map_or(Revision::ABSENT, |it| it.revision);
        let count = record.map_or(0, |it| count_of(&it.value)) + 1;
        let batch =
            keys.clone().map(|key| Write { key, expected, value: Some(value(count, size)) });
        match ledger.write(BUCKET, batch.into()).await {
            Ok(_) => say(&format!("record {writer} {count}")),
            Err(WriteError::Refused(_) | WriteError::Ambiguous(_)) => say("refused"),
            Err(error) => panic!("{error}"),
        }
        let last = ledger.last(Log::Events, &subject).await.expect("reads go on");
        let last = last.map_or(0, |it| it.number);
        let id = format!("{}", last + 1);
        match ledger.append(Log::Events, &subject, last, &id, value(last + 1, size)).await {
            Ok(Appended::New(number)) => say(&format!("entry {writer} {number}")),
            Err(WriteError::Refused(_) | WriteError::Ambiguous(_)) => say("refused"),
            other => panic!("{other:?}"),
        }
    }
}

/// The count in a value.
pub(crate) fn count_of(value: &[u8]) -> u64 {
    u64::from_be_bytes(value[..8].try_into().expect("a count"))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the other tests start it in a process of its own"]
async fn writes_until_it_is_killed() {
    let (Ok(file), Ok(size)) = (std::env::var(FILE), std::env::var(SIZE)) else { return };
    let size = size.parse().expect("a size");
    let ledger = SqliteLedger::open(Path::new(&file)).expect("it opens");
    say("ready");
    std::thread::spawn(|| {
        for line in std::io::stdin().lines() {
            if line.is_ok_and(|line| line == "lift") {
                let limit = rustix::process::Rlimit { current: None, maximum: None };
                rustix::process::setrlimit(rustix::process::Resource::Fsize, limit)
                    .expect("the limit is lifted");
            }
        }
    });
    for writer in 0..WRITERS {
        tokio::spawn(write(Arc::clone(&ledger), writer, size));
    }
    ledger.failed().cancelled().await;
    say("failed");
    // The writers go on, and are refused.
    std::future::pending().await
}
