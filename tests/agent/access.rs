//! Who may do what over `agent.sock`: members of one group look, those of another act, by what the
//! kernel says of their processes.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};
use tokio::process::Command;

use crate::harness::{Bed, PATIENCE, Said, contract, copy_program, orders, signal};

/// Groups by number: no machine needs to have them.
const LOOKS: u32 = 31_001;
const ACTS: u32 = 31_002;

/// A user, with a group and supplementary groups.
#[derive(Clone, Copy)]
struct User {
    uid: u32,
    gid: u32,
    groups: &'static [u32],
}

const LOOKER: User = User { uid: 12_345, gid: 12_345, groups: &[9, LOOKS] };
const LOOKER_BY_PRIMARY: User = User { uid: 12_346, gid: LOOKS, groups: &[] };
const OPERATOR: User = User { uid: 12_347, gid: 12_347, groups: &[ACTS] };
const STRANGER: User = User { uid: 12_348, gid: 12_348, groups: &[9] };

impl Bed {
    /// Runs the command line as another user.
    #[expect(unsafe_code, reason = "the child becomes another user before it executes")]
    async fn cli_as(&self, user: User, arguments: &[&str]) -> Said {
        // Neither the build folder nor that of the bed need be open to others.
        let program = self.dir().join("guest-agent");
        if !program.exists() {
            copy_program(Path::new(env!("CARGO_BIN_EXE_guest-agent")), &program);
            let open = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(self.dir(), open).unwrap();
        }
        let mut command = Command::new(&program);
        command
            .args(arguments)
            .env_clear()
            .env("GUEST_AGENT_SOCKET", self.socket())
            .current_dir("/")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let groups: Vec<Gid> = user.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        // SAFETY: three system calls, on memory that was made before.
        unsafe {
            command.pre_exec(move || {
                setgroups(&groups)?;
                setgid(Gid::from_raw(user.gid))?;
                Ok(setuid(Uid::from_raw(user.uid))?)
            });
        }
        let ran = tokio::time::timeout(PATIENCE, command.output()).await;
        let output = self.check("the command ends", ran).unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        contract::check(arguments, &stdout);
        Said {
            code: output.status.code().unwrap_or(-1),
            stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Only root can become others.
fn is_root() -> bool {
    let is_root = Uid::effective().is_root();
    if !is_root {
        eprintln!("SKIPPED: only root can call as another user");
    }
    is_root
}

fn mode_and_group(socket: &Path) -> (u32, u32) {
    let found = std::fs::metadata(socket).unwrap();
    (found.mode() & 0o777, found.gid())
}

#[tokio::test]
async fn members_of_one_group_look_and_those_of_the_other_act() {
    if !is_root() {
        return;
    }
    let looks = format!("agent.socket_group={LOOKS}");
    let bed = Bed::builder().set(looks).set(format!("agent.admin_group={ACTS}")).start().await;
    assert_eq!(mode_and_group(&bed.socket()).0, 0o666, "the kernel's word decides");
    let trouble = bed.trouble().await;
    let order = orders::install("t", "1", &trouble).config("password = hunter2").arg("--quiet");
    bed.configure(vec![order.order()]).await;
    let before = bed.running("t", "1").await;
    bed.ask("t", "log my s3cr3t").await;
    signal(before.pid.unwrap(), Signal::SIGKILL);
    bed.running_again("t", &before).await;

    for looker in [LOOKER, LOOKER_BY_PRIMARY] {
        for verb in [
            &["status", "--json"][..],
            &["status", "t"],
            &["explain", "t", "--json"],
            &["events", "t", "--json"],
            &["top", "--json"],
            &["registry", "list", "--json"],
            &["doctor", "--sweep", "--json"],
            &["wait", "t", "--json"],
            &["audit", "--json"],
        ] {
            let said = bed.cli_as(looker, verb).await.ok();
            assert!(!said.contains("s3cr3t") && !said.contains("hunter2"), "{verb:?}: {said}");
            assert!(!said.contains("--quiet"), "an argument may be a token: {verb:?}: {said}");
        }
        for verb in [
            &["logs", "t"][..],
            &["status", "t", "--with-config"],
            &["stop", "t"],
            &["start", "t"],
            &["restart", "t"],
            &["remove", "t"],
            &["apply", "t", "--clear"],
            &["vm-event", "startup"],
            &["wait", "t", "--status-code", "0"],
            &["doctor", "--clear-quarantine"],
            &["doctor", "--forget", "gone"],
        ] {
            let said = bed.cli_as(looker, verb).await;
            assert_eq!(said.code, 1, "{verb:?}: {said:?}");
            let fix = format!("add the user to the group \"{ACTS}\" (agent.admin_group)");
            assert!(said.stderr.contains(&fix), "{verb:?}: {said:?}");
            assert!(said.stderr.contains("may look here and not act"), "{verb:?}: {said:?}");
            assert!(!said.stdout.contains("hunter2"), "{verb:?}: {said:?}");
        }
    }
    let log = bed.log();
    assert!(log.contains("refuses a call") && log.contains("call=\"ClearQuarantine\""), "{log}");
    let whole = bed.cli(&["events", "t"]).await.ok();
    assert!(whole.contains("my s3cr3t"), "root sees what the looking group does not: {whole}");
    assert_eq!(bed.in_state("t", "RUNNING").await.revision, "1", "nothing was done");

    assert!(bed.cli_as(OPERATOR, &["logs", "t"]).await.ok().contains("my s3cr3t"));
    let shown = bed.cli_as(OPERATOR, &["status", "t", "--with-config"]).await.ok();
    assert!(shown.contains("password"), "{shown}");
    let stopped = bed.cli_as(OPERATOR, &["stop", "t", "--wait", "--json"]).await.ok();
    assert!(stopped.contains("STOPPED"), "{stopped}");
    let reason = bed.status("t").await.unwrap().reason;
    assert!(reason.contains("uid 12347"), "who acted is known: {reason}");
    bed.cli_as(OPERATOR, &["start", "t", "--wait"]).await.ok();
    let asked = bed.cli_as(LOOKER, &["audit", "t"]).await.ok();
    assert!(asked.contains("stop") && asked.contains("by uid 12347 via agent.sock"), "{asked}");
    assert!(!asked.contains("uid 12345"), "who may not act has no entry: {asked}");

    for verb in [&["status"][..], &["events"], &["registry", "list"], &["stop", "t"]] {
        let said = bed.cli_as(STRANGER, verb).await;
        assert_eq!(said.code, 1, "{verb:?}: {said:?}");
        assert!(said.stderr.contains("uid 12348 may not use this socket"), "{verb:?}: {said:?}");
        assert!(said.stderr.contains("agent.socket_group"), "{verb:?}: {said:?}");
    }
    let said = bed.cli_as(STRANGER, &["doctor"]).await;
    assert!(said.stdout.contains("for lack of permission: the agent"), "{said:?}");
    bed.finish().await;
}

#[tokio::test]
async fn the_socket_is_open_as_far_as_the_groups_reach() {
    if !is_root() {
        return;
    }
    let bed = Bed::builder().set(format!("agent.socket_group={LOOKS}")).start().await;
    assert_eq!(mode_and_group(&bed.socket()), (0o660, LOOKS));
    bed.cli_as(LOOKER, &["status"]).await.ok();
    let refused = bed.cli_as(LOOKER, &["vm-event", "startup"]).await;
    assert!(refused.stderr.contains("set agent.admin_group"), "{refused:?}");
    let outside = bed.cli_as(STRANGER, &["status"]).await;
    assert_eq!(outside.code, 3, "{outside:?}");
    assert!(outside.stderr.contains("a member of agent.socket_group"), "{outside:?}");
    // Whatever the file's mode is made to, who is no member is refused.
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(bed.socket(), open).unwrap();
    let outside = bed.cli_as(STRANGER, &["status"]).await;
    assert!(outside.stderr.contains("uid 12348 may not use this socket"), "{outside:?}");
    bed.finish().await;

    let bed = Bed::new().await;
    assert_eq!(mode_and_group(&bed.socket()).0, 0o600);
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(bed.socket(), open).unwrap();
    let outside = bed.cli_as(LOOKER, &["status"]).await;
    assert!(outside.stderr.contains("agent.socket_group or agent.admin_group"), "{outside:?}");
    bed.finish().await;
}

#[tokio::test]
async fn a_group_that_does_not_exist_lets_nobody_in_and_is_named() {
    let bed = Bed::builder().set("agent.admin_group=no-such-group").start().await;
    assert_eq!(mode_and_group(&bed.socket()).0, 0o600);
    let log = bed.log();
    assert!(log.contains("no-such-group") && log.contains("agent.admin_group"), "{log}");
    let config = bed.dir().join("agent.toml").display().to_string();
    let set = ["--config", &config, "--set", "agent.admin_group=no-such-group"];
    let said = bed.cli(&[&["doctor"][..], &set].concat()).await;
    assert!(said.stdout.contains("the group \"no-such-group\" does not exist"), "{said:?}");
    let wrong = bed.cli(&["config", "check", "--set", "agent.admin_group=a:b"]).await;
    assert_eq!(wrong.code, 1);
    assert!(wrong.stderr.contains("agent.admin_group"), "{wrong:?}");
    bed.finish().await;
}

#[tokio::test]
async fn members_who_take_every_connection_keep_out_neither_root_nor_each_other() {
    if !is_root() {
        return;
    }
    let bed = Bed::builder().set(format!("agent.socket_group={LOOKS}")).start().await;
    let mut followers = Vec::new();
    // Each command has two connections: one that looks whether there is an agent, and its own.
    for _ in 0..40 {
        followers.push(bed.cli_as(LOOKER, &["wait", "never", "--timeout", "20s"]));
    }
    let crowd = futures_util::future::join_all(followers);
    let others = async {
        bed.until("the places of one user are taken", async || {
            bed.log().contains("too many connections, none of them idle").then_some(())
        })
        .await;
        bed.cli(&["status"]).await.ok();
        bed.cli_as(LOOKER_BY_PRIMARY, &["status"]).await.ok();
    };
    tokio::select! {
        () = others => {}
        _ = crowd => panic!("the crowd has gone"),
    }
    bed.finish().await;
}
