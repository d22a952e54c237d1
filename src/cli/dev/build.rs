//! Runs the build command of a plugin within bounds: it ends in time, prints so much at most, and leaves no process
//! behind when it is given up.

use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::sync::mpsc;

use super::lines::Lines;
use super::model::Update;
use crate::config::format_duration;
use crate::manifest::PluginManifest;
use crate::manifest::build as command;

/// Most bytes that a build command may print.
const OUTPUT_MAX: u64 = 64 << 20;

/// How long output may come after the command ended: what it started in the background may hold its output open.
const AFTERWARDS: Duration = Duration::from_secs(1);

/// Bytes that are read at once.
const BUFFER: usize = 8192;

/// Why a plugin was not built.
#[derive(Debug, thiserror::Error)]
pub(super) enum BuildError {
    /// It cannot be run, or failed.
    #[error(transparent)]
    Command(#[from] command::BuildError),
    /// The command did not end.
    #[error("the build command {command:?} was killed: it did not end within {}", format_duration(*limit))]
    Late { command: String, limit: Duration },
    /// The command printed without end.
    #[error("the build command {command:?} was killed: it printed more than {OUTPUT_MAX} bytes")]
    TooMuch { command: String },
}

/// The processes of a command, which end with this.
struct Group(Option<Pid>);

/// The command printed more than it may.
#[derive(Debug)]
struct Overflow;

// === impl Group ===

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            let _gone_already = killpg(leader, Signal::SIGKILL);
        }
    }
}

/// Runs the build command, if the manifest has one, and reports the lines that it prints. The command is killed with
/// its children when this is dropped.
pub(super) async fn build(
    manifest: &PluginManifest,
    architecture: &str,
    limit: Duration,
    tell: &mpsc::Sender<Update>,
) -> Result<(), BuildError> {
    let Some((command, shell)) = command::shell(manifest, architecture) else { return Ok(()) };
    let failed = |source| command::BuildError::Spawn { command: command.clone(), source };
    let spawned = Command::from(shell)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    let mut child = spawned.map_err(failed)?;
    let leader = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
    let mut group = Group(leader);
    let (printed, out, err) = (AtomicU64::new(0), child.stdout.take(), child.stderr.take());
    let work = async {
        let reading =
            async { tokio::try_join!(pump(out, &printed, tell), pump(err, &printed, tell)) };
        tokio::pin!(reading);
        let ended = tokio::select! {
            read = &mut reading => match read {
                Err(Overflow) => return Ok(None),
                Ok(_) => child.wait().await,
            },
            ended = child.wait() => {
                if matches!(tokio::time::timeout(AFTERWARDS, &mut reading).await, Ok(Err(Overflow))) {
                    return Ok(None);
                }
                ended
            }
        };
        ended.map(Some)
    };
    match tokio::time::timeout(limit, work).await {
        Err(_elapsed) => Err(BuildError::Late { command, limit }),
        Ok(Err(source)) => Err(failed(source).into()),
        Ok(Ok(None)) => Err(BuildError::TooMuch { command }),
        Ok(Ok(Some(status))) if !status.success() => {
            Err(command::BuildError::Failed { command, status }.into())
        }
        Ok(Ok(Some(_))) => {
            // What it started on purpose, such as a compiler that stays for the next time, may stay.
            group.0 = None;
            Ok(())
        }
    }
}

/// Reports what is printed, until it ends.
async fn pump(
    from: Option<impl AsyncRead + Unpin>,
    printed: &AtomicU64,
    tell: &mpsc::Sender<Update>,
) -> Result<(), Overflow> {
    let Some(mut from) = from else { return Ok(()) };
    let (mut lines, mut buffer) = (Lines::default(), vec![0; BUFFER]);
    loop {
        // An output that cannot be read any more has ended.
        let read = from.read(&mut buffer).await.unwrap_or(0);
        let mut whole = lines.add(&buffer[..read]);
        if read == 0 {
            whole.extend(lines.rest());
        }
        for line in whole {
            // The receiver may be gone: then this is dropped.
            let _told = tell.send(Update::Built(line)).await;
        }
        let bytes = u64::try_from(read).unwrap_or(u64::MAX);
        if printed.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > OUTPUT_MAX {
            return Err(Overflow);
        }
        if read == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::manifest::parse;

    const LONG: Duration = Duration::from_secs(60);

    /// Builds, and returns the last lines that were printed.
    async fn built(
        folder: &Path,
        command: &str,
        limit: Duration,
    ) -> (Result<(), BuildError>, Vec<String>) {
        let text = format!("name = \"a\"\n[build]\ncommand = {command:?}\n");
        let says = parse(&text).expect("a manifest");
        let manifest = PluginManifest { folder: folder.to_owned(), says };
        let (tell, mut told) = mpsc::channel(8);
        let reading = async {
            let mut lines = std::collections::VecDeque::new();
            while let Some(update) = told.recv().await {
                let Update::Built(line) = update else { panic!("{update:?}") };
                lines.push_back(line);
                if lines.len() > 3 {
                    lines.pop_front();
                }
            }
            lines.into()
        };
        let building = async {
            let result = build(&manifest, "amd64", limit, &tell).await;
            drop(tell);
            result
        };
        tokio::join!(building, reading)
    }

    #[tokio::test]
    async fn it_runs_in_the_folder_of_the_manifest_and_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let command = "echo $ARCHITECTURE > made; echo well; echo ill >&2";
        let (result, mut lines) = built(folder.path(), command, LONG).await;
        result.expect("it is built");
        lines.sort();
        assert_eq!(lines, ["ill", "well"]);
        let made = std::fs::read_to_string(folder.path().join("made")).expect("a file");
        assert_eq!(made, "amd64\n");
    }

    #[tokio::test]
    async fn a_command_that_fails_says_how() {
        let folder = tempfile::tempdir().expect("a folder");
        let (result, lines) = built(folder.path(), "echo no; exit 3", LONG).await;
        let error = result.expect_err("a failure").to_string();
        assert_eq!(error, "the build command \"echo no; exit 3\" failed: exit status: 3");
        assert_eq!(lines, ["no"]);
    }

    #[tokio::test]
    async fn a_command_that_hangs_ends_with_its_children() {
        let folder = tempfile::tempdir().expect("a folder");
        let command = "sh -c 'echo $$ > pid; exec sleep 600' & wait";
        let (result, _) = built(folder.path(), command, Duration::from_secs(1)).await;
        assert!(matches!(result, Err(BuildError::Late { .. })), "{result:?}");
        let pid = std::fs::read_to_string(folder.path().join("pid")).expect("it began");
        let gone = async {
            // A zombie that nobody has waited for yet has no command line.
            let commands = || std::fs::read(format!("/proc/{}/cmdline", pid.trim()));
            while commands().is_ok_and(|line| !line.is_empty()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(LONG, gone).await.expect("its child is killed");
    }

    #[tokio::test]
    async fn a_command_that_prints_without_end_is_killed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (result, _) = built(folder.path(), "exec tr '\\0' x < /dev/zero", LONG).await;
        assert!(matches!(result, Err(BuildError::TooMuch { .. })), "{result:?}");
    }

    #[tokio::test]
    async fn what_stays_in_the_background_does_not_hold_the_build_up() {
        let folder = tempfile::tempdir().expect("a folder");
        let (result, lines) = built(folder.path(), "sleep 600 & echo $!", LONG).await;
        result.expect("it is built");
        let pid = lines[0].parse().expect("a pid");
        nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it was left alone");
    }
}
