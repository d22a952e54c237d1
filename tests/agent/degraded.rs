//! An agent whose state directory cannot be used.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::harness::{Bed, orders, program, signal};

/// Whether a mount namespace can have a folder that is read-only.
fn can_be_read_only() -> bool {
    let dir = tempfile::tempdir().unwrap();
    let script = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\"";
    let tried = Command::new("unshare").args(["-m", "sh", "-c", script]).arg(dir.path()).output();
    let can = tried.is_ok_and(|output| output.status.success());
    if !can {
        println!("SKIPPED: a read-only state directory is not tried out, nothing can be mounted");
    }
    can
}

/// A program that runs the agent with a read-only state directory.
fn where_it_is_read_only(bed: &Bed) -> PathBuf {
    let path = bed.dir().join("read-only");
    let (state, program) = (bed.dir().join("state"), program());
    let text = format!(
        "#!/bin/sh\nexec unshare -m sh -c 'mount --bind \"$0\" \"$0\" && \
         mount -o remount,bind,ro \"$0\" && program=\"$1\" && shift && exec \"$program\" \"$@\"' \
         '{}' '{}' \"$@\"\n",
        state.display(),
        program.display()
    );
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[tokio::test]
async fn plugins_are_watched_while_the_state_directory_is_read_only() {
    if !can_be_read_only() {
        return;
    }
    let mut bed = Bed::new().await;
    let echo = bed.echo().await;
    let install = |name| orders::install(name, "1", &echo).order();
    bed.configure(vec![install("stays"), install("crashes")]).await;
    let stays = bed.running("stays", "1").await;
    let crashes = bed.running("crashes", "1").await;
    bed.expect_events("crashes", &[1, 4, 3]).await;
    bed.kill_agent().await;

    bed.use_program(&where_it_is_read_only(&bed));
    bed.start_agent().await;
    assert_eq!(bed.running("stays", "1").await.pid, stays.pid, "it is adopted");
    assert_eq!(bed.running("crashes", "1").await.pid, crashes.pid);
    let told = bed.event(8, "guest-agent", "").await;
    assert!(told.details().contains("Read-only file system"), "{}", told.details());
    signal(crashes.pid.unwrap(), Signal::SIGKILL);
    let again = bed.running_again("crashes", &crashes).await;
    bed.expect_events("crashes", &[1, 4, 3, 7, 4]).await;

    // Orders are refused where the sender looks, and harm nothing.
    bed.configure(vec![install("new"), orders::remove("stays")]).await;
    let refused = bed.event(8, "new", "1").await;
    assert!(refused.details().contains("refuses orders"), "{}", refused.details());
    let refused = bed.configure_locally(vec![install("new")]).await;
    assert!(refused[0].contains("refuses orders"), "{refused:?}");
    assert_eq!(bed.running("stays", "1").await.pid, stays.pid);
    assert!(bed.status("new").await.is_none());
    bed.try_restart("stays").await.unwrap();
    let restarted = bed.running_again("stays", &stays).await;

    // It is said where people look.
    for verb in ["status", "doctor"] {
        let said = bed.cli(&[verb]).await;
        assert!(said.stdout.contains("Read-only file system"), "{verb}: {said:?}");
    }

    // The next one that cannot use it either knows what this one learned.
    bed.kill_agent().await;
    bed.start_agent().await;
    assert_eq!(bed.running("crashes", "1").await.pid, again.pid);
    assert_eq!(bed.running("stays", "1").await.pid, restarted.pid);

    // It ends when the directory can be written again, and the next one knows everything.
    let pid = bed.agent_pid().to_string();
    let state = bed.dir().join("state");
    let mounted = Command::new("nsenter")
        .args(["--mount", "--target", &pid, "mount", "-o", "remount,bind,rw"])
        .arg(&state)
        .output()
        .unwrap();
    assert!(mounted.status.success(), "{mounted:?}");
    assert!(!bed.agent_ends().await.success());
    bed.use_program(&program());
    bed.start_agent().await;
    assert_eq!(bed.running("crashes", "1").await.pid, again.pid);
    assert_eq!(bed.running("stays", "1").await.pid, restarted.pid);
    assert!(!bed.dir().join("run/degraded").join("test").exists());
    let status = bed.cli(&["status"]).await.ok();
    assert!(!status.contains("cannot be used"), "{status}");
    bed.configure(vec![install("new")]).await;
    bed.running("new", "1").await;
    bed.expect_events("crashes", &[1, 4, 3, 7, 4]).await;
    let told = bed.events_of("guest-agent").await;
    assert_eq!(told.len(), 1, "once for each time: {told:?}");
    bed.finish().await;
}

#[tokio::test]
async fn an_agent_without_a_state_directory_says_so_and_ends_when_it_can_be_made() {
    let mut bed = Bed::builder().build().await;
    let state = bed.dir().join("state");
    let _may_not_be_there = std::fs::remove_dir_all(&state);
    std::fs::write(&state, "in the way").unwrap();
    bed.start_agent().await;
    let told = bed.event(8, "guest-agent", "").await;
    assert!(told.details().contains("cannot be used"), "{}", told.details());
    let echo = bed.echo().await;
    let refused = bed.configure_locally(vec![orders::install("p", "1", &echo).order()]).await;
    assert!(refused[0].contains("refuses orders"), "{refused:?}");
    std::fs::remove_file(&state).unwrap();
    std::fs::create_dir(&state).unwrap();
    assert!(!bed.agent_ends().await.success());
    bed.start_agent().await;
    bed.configure(vec![orders::install("p", "1", &echo).order()]).await;
    bed.running("p", "1").await;
    bed.finish().await;
}
