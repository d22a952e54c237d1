//! A control plane and ten agents, as processes of this machine.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures_util::future::try_join_all;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::keeper::Keeper;
use super::machines::{MACHINES, Machine, RINGS, of_ring};
use super::programs::{Programs, ask};
use super::step::Step;

/// Longest that any one step may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// The pause between two looks.
const BEAT: Duration = Duration::from_millis(200);

/// Longest folder, in bytes: below it lie the agents' runtime directories, which may have 61.
const DIR_MAX: usize = 50;

/// How many lines of each log are shown with a failure.
const LAST_WORDS: usize = 12;

/// Everything that `dev` consists of.
pub(super) struct World {
    programs: Programs,
    dir: PathBuf,
    is_temporary: bool,
    parts: Vec<Part>,
    /// Kept open as long as the server prints.
    served: Option<Lines<BufReader<ChildStdout>>>,
    /// Last, so that processes end before what they live in.
    keeper: Keeper,
}

/// A process that ends when it is asked to.
struct Part {
    name: &'static str,
    child: Child,
}

/// Where the server listens.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses {
    pub(super) gateway: String,
    pub(super) artifacts: String,
    pub(super) enrolment: String,
}

/// What somebody saw who looked for something.
pub(super) enum Look<T> {
    Seen(T),
    /// It is not there yet; this is there.
    NotYet(String),
}

#[derive(Deserialize)]
struct Authority {
    fingerprint: String,
}

#[derive(Deserialize)]
struct Token {
    token: String,
}

fn new_secret() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// Writes a file that nobody else may read.
fn write_secret(path: &Path, secret: &str) -> anyhow::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;

    let mut open = File::options();
    let mut file = open.create_new(true).write(true).mode(0o600).open(path)?;
    Ok(writeln!(file, "{secret}")?)
}

/// The end of a log.
fn last_words(path: &Path) -> Vec<String> {
    let log = std::fs::read(path).unwrap_or_default();
    let log = String::from_utf8_lossy(&log).into_owned();
    let lines: Vec<&str> = log.lines().collect();
    lines.into_iter().rev().take(LAST_WORDS).rev().map(str::to_owned).collect()
}

// === impl World ===

impl World {
    /// Makes the folder. Nothing runs yet.
    pub(super) async fn new(programs: Programs, dir: Option<PathBuf>) -> anyhow::Result<Self> {
        let is_temporary = dir.is_none();
        let dir = match dir {
            Some(dir) => {
                std::fs::create_dir_all(&dir)
                    .with_context(|| format!("{} cannot be made", dir.display()))?;
                let dir = dir.canonicalize()?;
                let mut entries = std::fs::read_dir(&dir)?;
                ensure!(
                    entries.next().is_none(),
                    "{} is not empty: name a directory that is new or empty",
                    dir.display()
                );
                dir
            }
            None => {
                let folder = std::env::temp_dir().canonicalize()?;
                folder.join(format!("guest-fleet-{}", &new_secret()[..8]))
            }
        };
        ensure!(
            dir.as_os_str().len() <= DIR_MAX,
            "{} is too long for the addresses of the agents' sockets: name a directory of at most {DIR_MAX} bytes \
             with --dir",
            dir.display()
        );
        let keeper = Keeper::start(&programs.fleet, &dir, is_temporary).await?;
        Ok(Self { programs, dir, is_temporary, parts: Vec::new(), served: None, keeper })
    }

    pub(super) fn programs(&self) -> &Programs {
        &self.programs
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// A command of this fleet.
    pub(super) fn fleet(&self, arguments: &[&str]) -> Command {
        let mut command = Programs::command(&self.programs.fleet, &self.dir);
        command.arg("--ledger").arg(self.dir.join("ledger.db")).args(arguments);
        command
    }

    /// A command of the agent's program.
    pub(super) fn agent(&self, arguments: &[&str]) -> Command {
        let mut command = Programs::command(&self.programs.agent, &self.dir);
        command.args(arguments);
        command
    }

    /// A path in the folder, as an argument.
    pub(super) fn path(&self, name: &str) -> String {
        self.dir.join(name).to_string_lossy().into_owned()
    }

    /// Runs a command of this fleet; returns its document.
    pub(super) async fn ask<T: for<'a> Deserialize<'a>>(
        &self,
        arguments: &[&str],
    ) -> anyhow::Result<T> {
        let mut command = self.fleet(arguments);
        command.arg("--json");
        let printed = ask(command).await?;
        serde_json::from_str(&printed).with_context(|| {
            format!("`guest-fleet {}` printed something else", arguments.join(" "))
        })
    }

    fn start(&mut self, name: &'static str, mut command: Command) -> anyhow::Result<&mut Child> {
        let log =
            File::options().create(true).append(true).open(self.dir.join(format!("{name}.log")))?;
        command.stderr(log);
        let child = command.spawn().with_context(|| format!("{name} did not start"))?;
        self.parts.push(Part { name, child });
        let part = self.parts.last_mut().context("it was added")?;
        Ok(&mut part.child)
    }

    /// Makes an authority, and starts the server.
    pub(super) async fn serve(&mut self) -> anyhow::Result<Addresses> {
        let ca = self.path("ca");
        let _made: Authority = self.ask(&["ca", "init", "--dir", &ca]).await?;
        let tokens = self.path("upload-token");
        write_secret(Path::new(&tokens), &new_secret())?;
        let (local, store) = ("127.0.0.1:0", self.path("artifacts"));
        let mut command = self.fleet(&[
            "serve",
            "--ca",
            &ca,
            "--listen",
            local,
            "--enroll-listen",
            local,
            "--artifacts",
            &store,
            "--artifacts-listen",
            local,
            "--upload-token-file",
            &tokens,
            "--log-level",
            "info",
        ]);
        command.stdout(Stdio::piped());
        let stdout = self.start("serve", command)?.stdout.take();
        let mut lines = BufReader::new(stdout.context("the server has no stdout")?).lines();
        let mut addresses = Addresses::default();
        let reading = async {
            for _ in 0..3 {
                let line = lines.next_line().await?;
                let line = line.context("the server ended before it listened")?;
                match line.split_once(' ') {
                    Some(("listening", url)) => addresses.gateway = url.to_owned(),
                    Some(("artifacts", url)) => addresses.artifacts = url.to_owned(),
                    Some(("enrolment", url)) => addresses.enrolment = url.to_owned(),
                    _ => bail!("the server says `{line}`"),
                }
            }
            Ok(())
        };
        tokio::time::timeout(PATIENCE, reading).await.with_context(|| {
            format!("the server did not listen within {} s", PATIENCE.as_secs())
        })??;
        self.served = Some(lines);
        Ok(addresses)
    }

    /// Enrols all machines with one token for each ring.
    pub(super) async fn enrol(&self, addresses: &Addresses) -> anyhow::Result<()> {
        let authority: Authority = self.ask(&["ca", "show", "--dir", &self.path("ca")]).await?;
        for ring in RINGS {
            let uses = of_ring(ring).count().to_string();
            let label = format!("ring={ring}");
            let made: Token =
                self.ask(&["token", "create", ring, "--uses", &uses, "--label", &label]).await?;
            write_secret(&self.dir.join(format!("{ring}.token")), &made.token)?;
        }
        try_join_all(MACHINES.iter().map(async |machine| {
            machine.make(&self.dir)?;
            let mut command = self.agent(&[
                "enroll",
                "--server",
                &addresses.enrolment,
                "--endpoint",
                &addresses.gateway,
                "--ca-sha256",
                &authority.fingerprint,
                "--id",
                machine.id,
                "--write",
            ]);
            command.arg("--token-file").arg(self.dir.join(format!("{}.token", machine.ring)));
            command.arg("--config").arg(machine.config(&self.dir));
            ask(command).await
        }))
        .await?;
        Ok(())
    }

    /// Starts the agents, as a service manager would.
    pub(super) fn start_agents(&mut self) -> anyhow::Result<()> {
        for machine in &MACHINES {
            let mut command = self.agent(&["run", "--stop-plugins", "--config"]);
            command.arg(machine.config(&self.dir));
            command.env("GUEST_AGENT_LOG", "info").stdout(Stdio::null());
            self.start(machine.id, command)?;
        }
        Ok(())
    }

    /// What an agent answers to a verb, on its own socket.
    pub(super) async fn ask_agent<T: for<'a> Deserialize<'a>>(
        &self,
        machine: &Machine,
        arguments: &[&str],
    ) -> anyhow::Result<T> {
        let mut command = self.agent(&["--socket"]);
        command.arg(machine.folder(&self.dir).join("run/agent.sock")).args(arguments);
        let printed = ask(command).await?;
        serde_json::from_str(&printed)
            .with_context(|| format!("the agent {} answered something else", machine.id))
    }

    /// Fails where a process ended that should not.
    fn check_parts(&mut self) -> anyhow::Result<()> {
        for part in &mut self.parts {
            if let Some(status) = part.child.try_wait()? {
                bail!("{} ended by itself ({status})", part.name);
            }
        }
        Ok(())
    }

    /// Looks again and again until something is seen.
    pub(super) async fn until<T>(
        &mut self,
        step: &Step,
        expected: &str,
        look: impl AsyncFn(&Self) -> anyhow::Result<Look<T>>,
    ) -> anyhow::Result<T> {
        let deadline = step.elapsed() + PATIENCE;
        loop {
            if let Err(error) = self.check_parts() {
                return Err(step.unseen(expected, error));
            }
            let seen = match look(self).await {
                Ok(Look::Seen(seen)) => return Ok(seen),
                Ok(Look::NotYet(seen)) => seen,
                // A process that ended is the reason, not that it does not answer.
                Err(error) => match self.check_parts() {
                    Ok(()) => return Err(step.unseen(expected, format_args!("{error:#}"))),
                    Err(ended) => return Err(step.unseen(expected, ended)),
                },
            };
            if step.elapsed() > deadline {
                let seconds = PATIENCE.as_secs();
                return Err(step.unseen(format_args!("{expected}, within {seconds} s"), seen));
            }
            tokio::time::sleep(BEAT).await;
        }
    }

    /// Stays as long as all processes do.
    pub(super) async fn stay(&mut self) -> anyhow::Result<()> {
        loop {
            self.check_parts()?;
            tokio::time::sleep(BEAT).await;
        }
    }

    /// Shows the ends of the logs before an error.
    pub(super) fn explain(&self) {
        for part in &self.parts {
            let log = self.dir.join(format!("{}.log", part.name));
            let lines = last_words(&log);
            eprintln!("the last lines of {}:", log.display());
            for line in lines {
                eprintln!("  {line}");
            }
        }
    }

    /// Ends everything; returns what did not end by itself, and what is left.
    pub(super) async fn end(self) -> Vec<String> {
        let mut told = self.keeper.end().await;
        if self.is_temporary && self.dir.exists() && told.is_empty() {
            told.push(format!("{} is left", self.dir.display()));
        }
        // What is still there now is killed.
        drop(self.parts);
        told
    }
}
