//! A container with a systemd of its own: processes, mounts, names and network of a machine, on the
//! kernel that is there. Its control groups have the controllers that nobody outside has taken.
//!
//! Its files are those of the image, below a layer for what it changes. The network is its own
//! loopback, where a unit holds the doors open; they lead through sockets in a shared folder.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::net::{TcpStream, UnixListener};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use super::{Answer, Door};
use crate::harness::listing;

/// The folder with doors, and with what the test brings along, inside.
const SHARED: &str = "/run/test";

/// The container's network. It goes after everything that is ordered before the network does.
const NETWORK: &str = "\
[Unit]\nDefaultDependencies=no\nBefore=network.target shutdown.target\nWants=network.target\n\
Conflicts=shutdown.target\n\
[Service]\nExecStart=/usr/local/sbin/test-network\n";

/// How systemd-nspawn ends when the container wants to be started again.
const REBOOTS: i32 = 133;

/// A container that runs. It ends with this.
pub(super) struct Container {
    nspawn: Child,
    command: Command,
    relays: Vec<JoinHandle<()>>,
    root: PathBuf,
    /// A control group of its own, if one can be had.
    group: Option<PathBuf>,
}

// === impl Container ===

impl Container {
    /// Starts a container of the files in `image`; everything else of it is in `folder`.
    pub(super) async fn start(image: &Path, folder: &Path, payload: &Path, doors: &[Door]) -> Self {
        let path = |name: &str| folder.join(name);
        for name in ["upper", "work", "root", "shared"] {
            std::fs::create_dir(path(name)).unwrap();
        }
        let root = path("root");
        let layers = format!(
            "lowerdir={},upperdir={},workdir={}",
            image.join("root").display(),
            path("upper").display(),
            path("work").display()
        );
        let mount = Command::new("mount")
            .args(["-t", "overlay", "overlay", "-o", &layers])
            .arg(&root)
            .status();
        assert!(mount.await.unwrap().success(), "no layer can be put on the image");
        std::fs::copy(payload, path("shared/payload")).unwrap();
        let relays = doors.iter().map(|door| relay(door, &path("shared"))).collect();
        furnish(&root, doors);

        let group = control_group(folder);
        let enter = match &group {
            Some(group) => format!("echo $$ >'{}/cgroup.procs' && ", group.display()),
            None => String::new(),
        };
        let name = folder.file_name().unwrap().to_string_lossy().replace('_', "-");
        let console = std::fs::File::create(path("console")).unwrap();
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("{enter}exec systemd-nspawn \"$@\""), "sh"])
            .args(["--quiet", "--boot", "--register=no", "--keep-unit", "--link-journal=no"])
            .args(["--console=pipe", "--private-network"])
            .arg(format!("--machine={name}"))
            .arg(format!("--directory={}", root.display()))
            .arg(format!("--bind={}:{SHARED}", path("shared").display()))
            .env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1")
            .env("SYSTEMD_NSPAWN_LOCK", "0")
            .stdin(Stdio::null())
            .stdout(console.try_clone().unwrap())
            .stderr(console)
            .kill_on_drop(true);
        let nspawn = command.spawn().unwrap();
        Self { nspawn, command, relays, root, group }
    }

    /// Runs a command, unless the container has no init process.
    pub(super) async fn run(&mut self, command: &str, deadline: Duration) -> Option<Answer> {
        if self.nspawn.try_wait().ok()?.is_some_and(|status| status.code() == Some(REBOOTS)) {
            self.nspawn = self.command.spawn().ok()?;
        }
        let nspawn = self.nspawn.id()?;
        let children = std::fs::read_to_string(format!("/proc/{nspawn}/task/{nspawn}/children"));
        let init = children.ok()?.split_whitespace().next()?.to_owned();
        // Without a fork, because who waits as nsenter does stops itself when a shutdown stops all
        // inside, and nobody continues it then. `timeout` waits outside, and what it runs is
        // inside.
        let output = Command::new("nsenter")
            .args(["--no-fork", "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd"])
            .args(["--target", &init, "timeout", "--kill-after=5"])
            .arg(deadline.as_secs().to_string())
            .args(["bash", "-c", &format!("exec 2>&1; {command}")])
            .env_clear()
            .current_dir("/")
            .env("PATH", "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(deadline * 2, output).await.ok()?.ok()?;
        let complaints = String::from_utf8_lossy(&output.stderr);
        if complaints.contains("nsenter: ") {
            return None;
        }
        Some((output.status.code()?, String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    /// What ends when the container turns itself off.
    pub(super) fn process(&mut self) -> &mut Child {
        &mut self.nspawn
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        for relay in &self.relays {
            relay.abort();
        }
        // The processes in the container end with its first process, and that ends with nspawn.
        drop(self.nspawn.start_kill());
        while self.nspawn.try_wait().is_ok_and(|ended| ended.is_none()) {
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(std::process::Command::new("umount").arg("--lazy").arg(&self.root).status());
        if let Some(group) = &self.group {
            remove_group(group);
        }
    }
}

/// Carries bytes from a socket in the shared folder to a loopback port.
fn relay(door: &Door, shared: &Path) -> JoinHandle<()> {
    let (listener, port) = (UnixListener::bind(shared.join(door.address)).unwrap(), door.outside);
    tokio::spawn(async move {
        while let Ok((mut inside, _)) = listener.accept().await {
            tokio::spawn(async move {
                if let Ok(mut outside) = TcpStream::connect(("127.0.0.1", port)).await {
                    // However it ends, both ends are closed then.
                    drop(tokio::io::copy_bidirectional(&mut inside, &mut outside).await);
                }
            });
        }
    })
}

/// Puts the unit of the network into the container, in place of those that a machine has.
fn furnish(root: &Path, doors: &[Door]) {
    let open = |Door { address, port, .. }: &Door| {
        format!(
            "ip address add {address}/24 dev lo\n\
             socat TCP-LISTEN:{port},bind={address},reuseaddr,fork UNIX-CONNECT:{SHARED}/{address} &\n"
        )
    };
    let doors: String = doors.iter().map(open).collect();
    let script = format!("#!/bin/bash\n{doors}wait\n");
    let units = root.join("etc/systemd/system");
    let program = root.join("usr/local/sbin/test-network");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    std::fs::write(units.join("test-network.service"), NETWORK).unwrap();
    std::fs::create_dir_all(units.join("multi-user.target.wants")).unwrap();
    std::os::unix::fs::symlink(
        "../test-network.service",
        units.join("multi-user.target.wants/test-network.service"),
    )
    .unwrap();
    for other in [
        "systemd-networkd.service",
        "systemd-networkd.socket",
        "systemd-networkd-wait-online.service",
        "test-shell.service",
    ] {
        drop(std::fs::remove_file(units.join(other)));
        std::os::unix::fs::symlink("/dev/null", units.join(other)).unwrap();
    }
}

/// A group of its own, so that containers do not share one.
fn control_group(folder: &Path) -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = mounts.find(|fields| fields.get(2) == Some(&"cgroup2"))?;
    let group = Path::new(mount[1]).join(folder.file_name()?);
    std::fs::create_dir(&group).ok()?;
    Some(group)
}

fn remove_group(group: &Path) {
    for below in listing(group).iter().filter(|path| path.is_dir()) {
        remove_group(below);
    }
    // A group with a process in it stays; it ends with the machine.
    drop(std::fs::remove_dir(group));
}
