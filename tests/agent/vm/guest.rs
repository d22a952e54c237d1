//! A whole Debian with systemd, to try the package on: as a virtual machine or in a container.
//!
//! ```text
//! test ─► Guest ─┬─ Emulator ── serial port ─► `tests/vm/debian-shell`, which runs commands
//!                └─ Container ─ nsenter ─────► commands
//!          doors: the only addresses in its network that somebody answers on; they lead to loopback ports outside
//! ```
//!
//! Both are made of what `tests/vm/get-debian` made, are started again by a reboot, and never
//! change the image.

mod container;
mod emulator;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::machine::{has_hardware_help, program, target_folder};
use container::Container;
use emulator::Emulator;

/// Longest that a command inside may take, and that something may take to become so.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Longest that it may take to start, or to turn itself off.
const BOOT: Duration = Duration::from_secs(120);

/// Where emulation stands in for hardware, everything may take so many times longer.
const EMULATED: u32 = 8;

/// Set to emulate a machine where there is no hardware help.
const EMULATE: &str = "GUEST_AGENT_TEST_EMULATE";

/// How often a condition is looked at again.
const BEAT: Duration = Duration::from_millis(200);

/// How much of the console is shown with a failure, in lines.
const LAST_WORDS: usize = 60;

/// How a command ended, and what it said.
type Answer = (i32, String);

/// What `tests/vm/get-debian` made, and what it is to be.
pub(crate) struct Debian {
    folder: PathBuf,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Machine,
    /// Without hardware help.
    EmulatedMachine,
    Container,
}

/// An address that leads outside.
pub(crate) struct Door {
    /// In the network 169.254.169.0/24.
    pub(crate) address: &'static str,
    pub(crate) port: u16,
    /// The port on 127.0.0.1 that it leads to.
    pub(crate) outside: u16,
}

/// A Debian that runs. It ends with this.
pub(crate) struct Guest {
    body: Body,
    /// What is its own, with its console.
    folder: tempfile::TempDir,
    slowness: u32,
}

enum Body {
    Machine(Emulator),
    Container(Container),
}

// === impl Debian ===

impl Debian {
    /// One that becomes a virtual machine; if something is missing, says what.
    pub(crate) fn machine() -> Result<Self, String> {
        let folder = image()?;
        program("qemu-system-x86_64")?;
        program("busybox")?;
        let kind = match (has_hardware_help(), std::env::var_os(EMULATE)) {
            (true, _) => Kind::Machine,
            (false, Some(_)) => Kind::EmulatedMachine,
            (false, None) => {
                return Err(format!(
                    "without hardware help it takes long; {EMULATE}=1 does it all the same"
                ));
            }
        };
        Ok(Self { folder, kind })
    }

    /// One that becomes a container; if something is missing, says what.
    pub(crate) fn container() -> Result<Self, String> {
        let folder = image()?;
        if !nix::unistd::geteuid().is_root() {
            return Err("only root can make containers".to_owned());
        }
        for needed in ["systemd-nspawn", "nsenter", "mount"] {
            program(needed)?;
        }
        Ok(Self { folder, kind: Kind::Container })
    }

    /// Starts it, with a tar archive of what it is to find, and waits until it is up.
    pub(crate) async fn boot(&self, payload: &Path, doors: &[Door]) -> Guest {
        let folder = tempfile::Builder::new().prefix("ga-vm-").tempdir_in("/tmp").unwrap();
        let is_emulated = self.kind == Kind::EmulatedMachine;
        let body = match self.kind {
            Kind::Container => {
                Body::Container(Container::start(&self.folder, folder.path(), payload, doors).await)
            }
            Kind::Machine | Kind::EmulatedMachine => Body::Machine(
                Emulator::start(&self.folder, folder.path(), payload, doors, is_emulated).await,
            ),
        };
        let mut guest = Guest { body, folder, slowness: if is_emulated { EMULATED } else { 1 } };
        guest.comes_up("").await;
        let payload = match guest.body {
            Body::Machine(_) => "/dev/vdb",
            Body::Container(_) => "/run/test/payload",
        };
        guest.ok(&format!("tar --extract --no-overwrite-dir --directory=/ --file={payload}")).await;
        guest
    }
}

fn image() -> Result<PathBuf, String> {
    let folder = target_folder().join("vm/debian");
    if !folder.join("stamp").is_file() {
        return Err(format!("no Debian in {}; tests/vm/get-debian makes one", folder.display()));
    }
    Ok(folder)
}

// === impl Guest ===

impl Guest {
    /// Runs a command inside, in bash and as root: how it ended, and what it said.
    pub(crate) async fn run(&mut self, command: &str) -> (i32, String) {
        match self.try_run(command, PATIENCE * self.slowness).await {
            Some(answer) => answer,
            None => self.fail(format_args!("no answer to `{command}`")),
        }
    }

    /// What a command said that succeeded, without white space around it.
    pub(crate) async fn ok(&mut self, command: &str) -> String {
        match self.run(command).await {
            (0, said) => said.trim().to_owned(),
            (code, said) => self.fail(format_args!("`{command}` ended with {code}: {said}")),
        }
    }

    /// Runs a command until it succeeds; what it said then.
    pub(crate) async fn until(&mut self, what: &str, command: &str) -> String {
        let deadline = Instant::now() + PATIENCE * self.slowness;
        loop {
            match self.run(command).await {
                (0, said) => return said.trim().to_owned(),
                (code, said) if Instant::now() > deadline => {
                    self.fail(format_args!("not so: {what}: `{command}` ends with {code}: {said}"))
                }
                _ => tokio::time::sleep(BEAT).await,
            }
        }
    }

    /// Starts it again; returns when it is up, with the time that took.
    pub(crate) async fn reboot(&mut self) -> Duration {
        let before = self.boot_id().await;
        let began = Instant::now();
        self.ok("systemctl --no-block reboot").await;
        self.comes_up(&before).await;
        began.elapsed()
    }

    /// Turns it off; returns the time that took.
    pub(crate) async fn turn_off(&mut self) -> Duration {
        let began = Instant::now();
        self.ok("systemctl --no-block poweroff").await;
        let process = match &mut self.body {
            Body::Machine(emulator) => emulator.process(),
            Body::Container(container) => container.process(),
        };
        match tokio::time::timeout(BOOT * self.slowness, process.wait()).await {
            Ok(status) => assert!(status.unwrap().success(), "it ended badly"),
            Err(_) => self.fail("it does not turn itself off"),
        }
        began.elapsed()
    }

    /// How many times longer than with hardware help everything may take.
    pub(crate) fn slowness(&self) -> u32 {
        self.slowness
    }

    /// Whether its control groups can limit memory, time and tasks.
    pub(crate) async fn can_limit(&mut self) -> bool {
        let controllers = self.ok("cat /sys/fs/cgroup/cgroup.controllers").await;
        let controllers: Vec<&str> = controllers.split(' ').collect();
        ["cpu", "memory", "pids"].iter().all(|wanted| controllers.contains(wanted))
    }

    /// Which boot this is.
    pub(crate) async fn boot_id(&mut self) -> String {
        self.ok("cat /proc/sys/kernel/random/boot_id").await
    }

    /// Ends the test. The console's last words are shown when the guest is dropped.
    pub(crate) fn fail(&self, problem: impl Display) -> ! {
        panic!("{problem}")
    }

    /// Waits for another boot than this one, and until systemd is done with it.
    async fn comes_up(&mut self, before: &str) {
        let deadline = Instant::now() + BOOT * self.slowness;
        // While it shuts down, it may already show the boot id of the host.
        let ask = "cat /proc/sys/kernel/random/boot_id; systemctl is-system-running --wait";
        loop {
            let answer = self.try_run(ask, BOOT * self.slowness).await;
            let said = answer.map(|(_, said)| said).unwrap_or_default();
            let words: Vec<&str> = said.split_whitespace().collect();
            match words[..] {
                [id, "running"] if id != before => return,
                [id, "degraded"] if id != before => {
                    let why = "systemctl --failed --no-legend; journalctl -b -p err";
                    let (_, failed) = self.run(why).await;
                    self.fail(format_args!("the machine is degraded: {failed}"));
                }
                _ if Instant::now() > deadline => {
                    self.fail(format_args!("it does not come up: {said}"))
                }
                _ => tokio::time::sleep(BEAT).await,
            }
        }
    }

    async fn try_run(&mut self, command: &str, deadline: Duration) -> Option<Answer> {
        match &mut self.body {
            Body::Machine(emulator) => emulator.run(command, deadline).await,
            Body::Container(container) => container.run(command, deadline).await,
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let console = std::fs::read(self.folder.path().join("console")).unwrap_or_default();
            let kept = target_folder().join("vm/debian/console");
            drop(std::fs::write(&kept, &console));
            let console = String::from_utf8_lossy(&console).replace('\r', "");
            let lines: Vec<&str> = console.lines().collect();
            eprintln!("--- the console's last words; all of them are in {} ---", kept.display());
            for line in &lines[lines.len().saturating_sub(LAST_WORDS)..] {
                eprintln!("{line}");
            }
        }
    }
}
