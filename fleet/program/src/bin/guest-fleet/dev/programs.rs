//! The two programs that a fleet is made of, and how they are started.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use guest_fleet::cli::failure::{Exit, Failure};
use tokio::process::Command;

/// In the environment of every process that `dev` starts: its folder. The keeper finds them by it.
pub(super) const MARK: &str = "GUEST_FLEET_DEV";

/// The agent's program.
const AGENT: &str = "guest-agent";

/// Longest that a command may take which ends by itself.
const COMMAND: Duration = Duration::from_secs(60);

/// Prefixes of the names of variables that would have a process do something else than it does here: settings
/// of other agents and fleets, the service manager of this process, proxies before local addresses.
const OF_OTHERS: [&str; 7] =
    ["GUEST_AGENT", "GUEST_FLEET", "RUST_LOG", "NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_", "JOURNAL_"];
const PROXY: &str = "_proxy";

/// The programs.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    /// This one.
    pub(super) fleet: PathBuf,
    /// The agent's.
    pub(super) agent: PathBuf,
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn is_of_others(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    OF_OTHERS.iter().any(|start| name.starts_with(start))
        || name.to_ascii_lowercase().ends_with(PROXY)
}

// === impl Programs ===

impl Programs {
    /// Finds the agent's program: the one that was named, the one beside this program, or that of PATH.
    pub(super) fn find(agent: Option<PathBuf>) -> Result<Self, Failure> {
        let fleet = std::env::current_exe().map_err(|error| Failure::of(Exit::Failed, &error))?;
        let agent = match agent {
            Some(named) if is_program(&named) => named,
            Some(named) => {
                let reason = format_args!("{} is no program", named.display()).to_string();
                return Err(Failure::failed(reason)
                    .hint(format_args!("--agent takes the path of the program {AGENT}")));
            }
            None => Self::look(&fleet)?,
        };
        let agent = agent.canonicalize().map_err(|error| Failure::of(Exit::Failed, &error))?;
        Ok(Self { fleet, agent })
    }

    fn look(fleet: &Path) -> Result<PathBuf, Failure> {
        let beside = fleet.with_file_name(AGENT);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let of_path = std::env::split_paths(&path).map(|folder| folder.join(AGENT));
        std::iter::once(beside.clone()).chain(of_path).find(|found| is_program(found)).ok_or_else(
            || {
                Failure::failed(format_args!(
                    "the agents need the program {AGENT}, which is neither {} nor in PATH",
                    beside.display()
                ))
                .hint("install it, or name it: `guest-fleet dev --agent PROGRAM`")
            },
        )
    }

    /// A command of a fleet in this folder. It has a process group of its own: Ctrl-C at the terminal is for `dev`.
    pub(super) fn command(program: &Path, dir: &Path) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_others(name)) {
            command.env_remove(name);
        }
        command.env(MARK, dir).stdin(Stdio::null()).process_group(0).kill_on_drop(true);
        command
    }
}

/// Runs a command to its end; returns what it printed.
pub(super) async fn ask(mut command: Command) -> anyhow::Result<String> {
    let shown = words(&command);
    let output = tokio::time::timeout(COMMAND, command.output()).await;
    let output = output
        .with_context(|| format!("`{shown}` did not end within {} s", COMMAND.as_secs()))?
        .with_context(|| format!("`{shown}` did not start"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::bail!("`{shown}` failed ({}): {}", output.status, said.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{shown}` printed no text"))
}

/// A command as a person would type it.
fn words(command: &Command) -> String {
    let command = command.as_std();
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let all: Vec<OsString> =
        std::iter::once(program).chain(command.get_args()).map(OsString::from).collect();
    all.join(OsStr::new(" ")).to_string_lossy().into_owned()
}
