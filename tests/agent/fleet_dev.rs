//! `guest-fleet dev`: a fleet on this machine that shows itself, tells loudly where something does not happen, and
//! leaves nothing, whatever ends it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout};

use crate::fleet_program;

/// Longer than anything takes; only a failing test waits for all of it.
const PATIENCE: Duration = Duration::from_secs(120);

/// The pause between two looks.
const BEAT: Duration = Duration::from_millis(50);

/// Where a `dev` keeps its folder.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("dev-").tempdir().unwrap();
        Self { folder }
    }

    fn command(&self, program: &Path, agent: Option<&Path>) -> Command {
        let mut command = Command::new(program);
        command.arg("dev").arg("--once").env("TMPDIR", self.folder.path());
        if let Some(agent) = agent {
            command.arg("--agent").arg(agent);
        }
        // A setting of another agent.
        command.env("GUEST_AGENT__AGENT__RUNTIME_DIR", "/of/another/agent");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        command
    }

    /// Processes that have this place in their environment or their arguments.
    fn processes(&self) -> Vec<String> {
        let mark = self.folder.path().to_str().unwrap();
        let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let folders =
            entries.map(|entry| entry.path()).filter(|path| path.join("environ").exists());
        let read = |path: PathBuf| {
            String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).replace('\0', " ")
        };
        folders
            .filter_map(|path| {
                let arguments = read(path.join("cmdline"));
                let all = read(path.join("environ")) + &arguments;
                all.contains(mark).then_some(arguments)
            })
            .collect()
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    #[track_caller]
    fn is_left_empty(&self) {
        assert_eq!(self.processes(), Vec::<String>::new(), "processes are left");
        assert_eq!(self.files(), Vec::<PathBuf>::new(), "files are left");
    }
}

/// The agent's program without what debuggers need, which is most of it: ten agents unpack it.
fn agent(place: &Path) -> PathBuf {
    let whole = PathBuf::from(env!("CARGO_BIN_EXE_guest-agent"));
    let small = place.join("guest-agent");
    let stripping = std::process::Command::new("strip").arg("-o").arg(&small).arg(&whole).status();
    match stripping {
        Ok(status) if status.success() => small,
        _ => whole,
    }
}

async fn output(mut command: Command) -> (Output, String, String) {
    let ended = timeout(PATIENCE * 3, command.output()).await;
    let output = ended.expect("it ends").unwrap();
    let [out, err] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    (output, out, err)
}

/// Waits until it printed a line of this step.
async fn printed(dev: &mut Child, step: &str) {
    let mut lines = BufReader::new(dev.stdout.take().unwrap()).lines();
    let reading = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.trim_start().starts_with(step) {
                return;
            }
        }
        panic!("it ended before {step}");
    };
    timeout(PATIENCE, reading).await.unwrap_or_else(|_| panic!("no line of {step}"));
}

fn signal(dev: &Child, signal: Signal) {
    kill(Pid::from_raw(dev.id().unwrap().try_into().unwrap()), signal).unwrap();
}

#[tokio::test]
#[ignore = "takes minutes: `tests/run soak fleets`"]
async fn dev_shows_waves_a_halt_and_the_way_back_and_leaves_nothing() {
    let (tools, place) = (tempfile::tempdir().unwrap(), Place::new());
    let agent = agent(tools.path());
    let (output, out, err) = output(place.command(&fleet_program::path(), Some(&agent))).await;
    eprint!("{out}");
    assert!(output.status.success(), "{out}{err}");
    let mut lines = out.lines();
    for part in [
        "serve",
        "enrol",
        "release 1",
        "ring=canary: web-01 web-02 run release 2",
        "ring=early: web-03 web-04 web-05 run release 2",
        "ring=main: web-06 web-07 web-08 web-09 web-10 run release 2",
        "release 2",
        "ring=canary: web-01 web-02 run release 3",
        "halted by itself in wave 2 of 3: two agents of wave 2 failed",
        "failed       web-0",
        "failed       web-0",
        "fingerprint  2 × ",
        "in common    kernel 5.15: 2 failed have it, 0 passed do",
        "not touched  web-06 web-07 web-08 web-09 web-10",
        "rollback",
        "agents",
        "end",
        "all steps succeeded",
    ] {
        assert!(lines.any(|line| line.contains(part)), "no `{part}`, or in another order: {out}");
    }
    place.is_left_empty();
}

#[tokio::test]
#[ignore = "takes minutes: `tests/run soak fleets`"]
async fn dev_takes_everything_with_it_whatever_ends_it() {
    let tools = tempfile::tempdir().unwrap();
    let agent = agent(tools.path());
    for (step, end) in [("enrol", Signal::SIGINT), ("release 1", Signal::SIGKILL)] {
        let place = Place::new();
        let mut dev = place.command(&fleet_program::path(), Some(&agent)).spawn().unwrap();
        printed(&mut dev, step).await;
        assert!(place.processes().len() > 10, "{:?}", place.processes());
        signal(&dev, end);
        let ended = timeout(PATIENCE, dev.wait()).await.expect("it ends").unwrap();
        assert!(!ended.success());
        // Its keeper goes on where it was killed.
        let deadline = Instant::now() + PATIENCE;
        let is_killed = end == Signal::SIGKILL;
        while is_killed && Instant::now() < deadline && !place.files().is_empty() {
            tokio::time::sleep(BEAT).await;
        }
        while is_killed && Instant::now() < deadline && !place.processes().is_empty() {
            tokio::time::sleep(BEAT).await;
        }
        place.is_left_empty();
    }
}

#[tokio::test]
async fn dev_fails_soon_and_loudly_where_agents_do_not_run() {
    let (tools, place) = (tempfile::tempdir().unwrap(), Place::new());
    let agent = tools.path().join("guest-agent");
    let real = env!("CARGO_BIN_EXE_guest-agent");
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = run ]; then echo 'no agent today' >&2; exit 3; fi\nexec '{real}' \"$@\"\n"
    );
    std::fs::write(&agent, script).unwrap();
    std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (output, out, err) = output(place.command(&fleet_program::path(), Some(&agent))).await;
    assert_eq!(output.status.code(), Some(1), "{out}{err}");
    for part in [
        "step \"enrol\": expected ten agents that have connected; seen: web-",
        "ended by itself (exit status: 3)",
        "no agent today",
        "serve.log",
    ] {
        assert!(err.contains(part), "no `{part}`: {err}");
    }
    place.is_left_empty();
}

#[tokio::test]
async fn dev_says_where_it_looked_for_the_agent() {
    let place = Place::new();
    // In a folder without an agent; a copy would be large.
    let alone = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = alone.path().join("guest-fleet");
    std::fs::hard_link(fleet_program::path(), &program).unwrap();
    let mut command = place.command(&program, None);
    command.env("PATH", alone.path());
    let (output, _, err) = output(command).await;
    assert_eq!(output.status.code(), Some(1), "{err}");
    let beside = alone.path().canonicalize().unwrap().join("guest-agent");
    for part in [beside.to_str().unwrap(), "nor in PATH", "--agent PROGRAM"] {
        assert!(err.contains(part), "no `{part}`: {err}");
    }

    let (output, _, err) =
        crate::fleet_dev::output(place.command(&program, Some(Path::new("/nowhere/agent")))).await;
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("/nowhere/agent is no program"), "{err}");
    place.is_left_empty();
}
