//! The agent needs no root: all of it as an ordinary user.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid, chown};
use tokio::process::Command;

use crate::harness::archive::Tarball;
use crate::harness::{ArchiveSpec, Bed, listing, orders, plugins, signal};

/// The user that owns nothing.
const NOBODY: u32 = 65534;

#[tokio::test]
async fn an_ordinary_user_can_run_the_agent_and_its_plugins() {
    if !Uid::effective().is_root() {
        eprintln!("skipped: the other tests run as an ordinary user already");
        return;
    }
    let bed = Bed::builder().build().await;
    // Neither the build folder nor the sources need be readable for that user.
    let program = bed.dir().join("guest-agent");
    std::fs::copy(env!("CARGO_BIN_EXE_guest-agent"), &program).unwrap();
    give_away(bed.dir());
    let mut agent = Command::new(&program)
        .args(["run", "--config"])
        .arg(bed.dir().join("agent.toml"))
        .args(["--set", "instance.id=test", "--set", "control_plane.auth=none"])
        .args(["--set", "plugins.echo.user=0", "--set", "plugins.echo.no_new_privileges=true"])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .current_dir("/")
        .stdin(Stdio::null())
        .stderr(std::fs::File::create(bed.dir().join("agent.log")).unwrap())
        .uid(NOBODY)
        .gid(NOBODY)
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let echo = std::fs::read(plugins::program("echo_plugin")).unwrap();
    let archive = ArchiveSpec::tar("echo", Tarball::default().file("echo", 0o755, &echo));
    let archive = bed.archive("echo.tar", archive).await;
    bed.configure(vec![orders::install("echo", "1", &archive).order()]).await;
    bed.until("the agent answers", async || bed.try_status().await.ok().map(|_| ())).await;
    let before = bed.running("echo", "1").await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", before.pid.unwrap())).unwrap();
    assert!(status.contains("NoNewPrivs:\t1"), "what needs no root holds: {status}");
    let told = before.not_enforced.iter().find(|it| it.what.starts_with("user 0"));
    let told = told.unwrap_or_else(|| panic!("it is not told: {:?}", before.not_enforced));
    assert!(told.why.contains("CAP_SETUID") && told.fix.contains("as root"), "{told:?}");
    let uids = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
    assert_eq!(
        uids.split_whitespace().collect::<Vec<_>>(),
        ["Uid:", "65534", "65534", "65534", "65534"]
    );
    signal(before.pid.unwrap(), Signal::SIGKILL);
    bed.running_again("echo", &before).await;
    // The host socket is theirs as well.
    for name in ["provider", "consumer"] {
        let program = ArchiveSpec::program(&format!("registry_{name}"));
        let archive = bed.archive(&format!("{name}.tar"), program).await;
        bed.configure(vec![orders::install(name, "1", &archive).order()]).await;
        bed.running(name, "1").await;
    }
    bed.until_greeted("hello", "hello").await;
    bed.configure(["provider", "consumer"].map(orders::remove).to_vec()).await;
    bed.gone("provider").await;
    bed.gone("consumer").await;
    bed.expect_events("echo", &[1, 4, 3, 7, 4]).await;
    bed.configure(vec![orders::remove("echo")]).await;
    bed.gone("echo").await;
    signal(agent.id().unwrap(), Signal::SIGTERM);
    let ended = tokio::time::timeout(Duration::from_secs(30), agent.wait()).await;
    assert!(ended.expect("it stops").unwrap().success());
    bed.finish().await;
}

/// Makes the user the owner of everything in a folder.
fn give_away(path: &Path) {
    if path.is_dir() {
        listing(path).iter().for_each(|entry| give_away(entry));
    }
    chown(path, Some(Uid::from_raw(NOBODY)), Some(Gid::from_raw(NOBODY))).unwrap();
}
