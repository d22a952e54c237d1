//! Attacks of a confined plugin that is root, on machines whose control groups are of one version or
//! of both.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::confined::can_enforce_everything;
use crate::harness::{Bed, orders, program};
use crate::limits::can_limit;

/// Control groups as an agent finds them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Groups {
    /// Those of this machine.
    AsTheyAre,
    /// Version 1 only.
    V1,
    /// Version 2 only.
    V2,
}

// === impl Groups ===

impl Groups {
    /// A shell command that makes a mount namespace have only these.
    fn mount(self) -> &'static str {
        match self {
            Self::AsTheyAre => "true",
            Self::V1 => {
                "if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi; test ! -e /sys/fs/cgroup/cgroup.procs"
            }
            Self::V2 => "umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup",
        }
    }

    /// Whether a mount namespace can have only these.
    fn can_be(self) -> bool {
        let tried = Command::new("unshare").args(["-m", "sh", "-c", self.mount()]).output();
        let can = tried.is_ok_and(|output| output.status.success());
        if !can {
            eprintln!("skipped: control groups as {self:?} cannot be had here");
        }
        can
    }

    /// A program that runs the agent where there are only these.
    fn program(self, dir: &Path) -> PathBuf {
        let path = dir.join("with-groups");
        let (mount, program) = (self.mount(), program());
        let text = format!(
            "#!/bin/sh\nexec unshare -m sh -c '{mount} && exec \"$0\" \"$@\"' '{}' \"$@\"\n",
            program.display()
        );
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Where the root of version 2 is, if it is anywhere.
    fn root(self) -> &'static str {
        let unified = Path::new("/sys/fs/cgroup/unified").is_dir();
        match self {
            Self::V1 => "",
            Self::AsTheyAre if unified => "/sys/fs/cgroup/unified",
            Self::AsTheyAre | Self::V2 => "/sys/fs/cgroup",
        }
    }
}

/// What came of each attack.
async fn attack(groups: Groups, seccomp: &str) -> Option<String> {
    if !can_enforce_everything() || !can_limit("pids") || !groups.can_be() {
        return None;
    }
    if Command::new("/usr/bin/python3").arg("--version").output().is_err() {
        eprintln!("skipped: no /usr/bin/python3 that would attack");
        return None;
    }
    let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/agent/escape");
    let mut bed = Bed::builder()
        .set("plugins.p.capabilities=[]")
        .set("plugins.p.no_new_privileges=true")
        .set(format!("plugins.p.read_only_paths=[\"{scripts}\"]"))
        .set(format!("plugins.p.seccomp={seccomp}"))
        .build()
        .await;
    if groups != Groups::AsTheyAre {
        let program = groups.program(bed.dir());
        bed.use_program(&program);
    }
    bed.start_agent().await;
    let trouble = bed.trouble_inside().await;
    let orders = ["p", "other"].map(|name| orders::install(name, "1", &trouble).order());
    bed.configure(orders.into()).await;
    bed.running("p", "1").await;
    let other = bed.running("other", "1").await.address;
    let call = format!(
        "/usr/bin/python3 -I {scripts}/attacks.py '{}' '{}' {} '{}' 2>&1",
        bed.dir().join("run/command.sock").display(),
        groups.root(),
        bed.agent_pid(),
        other.trim_start_matches("unix:"),
    );
    let said = bed.run_in("p", &call).await;
    // An unconfined plugin is answered in all ways, so the attacks themselves work.
    let unconfined = bed.run_in("other", &call).await;
    for attack in ["as it is", "limits", "keys"] {
        let allowed = unconfined.lines().find(|line| line.starts_with(&format!("{attack}: ")));
        let allowed = allowed.unwrap_or_default();
        assert!(!allowed.is_empty() && !allowed.contains("kept"), "{attack}: {unconfined}");
    }
    let named = bed.cli(&["status", "p"]).await.ok();
    bed.finish().await;
    Some(format!("{said}\n{named}"))
}

/// Checks that no attack reached the agent, and that each one that succeeded is named.
#[track_caller]
fn is_kept(said: &str, seccomp: bool) {
    let came = |attack: &str| {
        let found = said.lines().find_map(|line| line.strip_prefix(&format!("{attack}: ")));
        found.unwrap_or_else(|| panic!("no {attack} in {said}"))
    };
    assert!(came("as it is").contains("policy confines it"), "{said}");
    let refused = came("without main thread");
    assert!(refused.contains("main thread has ended"), "{said}");
    assert!(!said.contains("in another group"), "{said}");
    for attack in ["limits", "trace", "priority"] {
        assert!(came(attack).starts_with("kept"), "{said}");
    }
    assert_eq!(came("keys").starts_with("kept"), seccomp, "{said}");
    assert_eq!(said.contains("the keys that the kernel has for its user"), !seccomp, "{said}");
    // What no policy prevents is named.
    assert_eq!(came("another plugin"), "allowed", "{said}");
    assert!(said.contains("the sockets of other programs of its user"), "{said}");
    assert!(!said.contains("keeping it from the agent's own sockets"), "{said}");
}

#[tokio::test]
async fn a_confined_plugin_of_root_is_known_under_both_versions_of_control_groups() {
    for seccomp in ["default", "none"] {
        let Some(said) = attack(Groups::AsTheyAre, seccomp).await else { return };
        is_kept(&said, seccomp == "default");
    }
}

#[tokio::test]
async fn a_confined_plugin_of_root_is_known_where_there_is_version_1_only() {
    for seccomp in ["default", "none"] {
        let Some(said) = attack(Groups::V1, seccomp).await else { return };
        is_kept(&said, seccomp == "default");
    }
}

#[tokio::test]
async fn a_confined_plugin_of_root_is_known_where_there_is_version_2_only() {
    for seccomp in ["default", "none"] {
        let Some(said) = attack(Groups::V2, seccomp).await else { return };
        is_kept(&said, seccomp == "default");
    }
}
