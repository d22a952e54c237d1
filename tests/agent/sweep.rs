//! Files that nothing refers to: the agent deletes them, whichever process left them, and deletes
//! nothing else.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use nix::sys::signal::Signal;

use crate::harness::processes::is_alive;
use crate::harness::{Bed, orders, signal};

const RANDOM: &str = "0123456789abcdef";

/// Copies a revision as an installation makes it, its record included.
fn copy_revision(folder: &Path, from: &str, to: &str) {
    let copied = std::process::Command::new("cp")
        .args(["-a", from, to])
        .current_dir(folder)
        .status()
        .unwrap();
    assert!(copied.success());
    fs::copy(folder.join(format!(".installed-{from}")), folder.join(format!(".installed-{to}")))
        .unwrap();
}

fn write(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "precious").unwrap();
}

#[tokio::test]
async fn what_a_killed_agent_left_is_swept_and_nothing_else_is() {
    let mut bed = Bed::new().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    let before = bed.running("echo", "1").await;
    bed.kill_agent().await;

    let outside = bed.dir().join("outside");
    write(&outside.join("file"));
    let folder = bed.plugin_dir("echo");
    // A deletion of revision 0 that was lost, the deletion of a plugin that the agent does not
    // know, and the files that interrupted steps leave, all with links to files that must stay.
    copy_revision(&folder, "1", "0");
    symlink(&outside, folder.join("0/link")).unwrap();
    let plugins = bed.state_root().join("plugins");
    fs::create_dir_all(plugins.join("gone")).unwrap();
    fs::rename(folder.join("0"), plugins.join("gone/0")).unwrap();
    fs::rename(folder.join(".installed-0"), plugins.join("gone/.installed-0")).unwrap();
    copy_revision(&folder, "1", "0");
    symlink(&outside, folder.join("0/link")).unwrap();
    for leftover in [
        folder.join(format!(".staging-2-{RANDOM}")),
        folder.join(format!(".trash-0-{RANDOM}")),
        plugins.join(format!(".trash-other-{RANDOM}")),
    ] {
        write(&leftover.join("deep/file"));
        symlink(&outside, leftover.join("link")).unwrap();
        symlink(outside.join("file"), leftover.join("deep/link")).unwrap();
    }
    symlink(&outside, folder.join(format!(".current-{RANDOM}"))).unwrap();
    let sockets = bed.dir().join("run/plugins");
    drop(UnixListener::bind(sockets.join("gone_0.sock")).unwrap());
    let logs = bed.dir().join("log/plugins");
    write(&logs.join("gone.log"));
    let foreign = [
        folder.join("notes.txt"),
        folder.join("by-hand/file"),
        plugins.join("odd name/file"),
        logs.join("audit"),
    ];
    foreign.iter().for_each(|path| write(path));
    // A folder is named once, not everything in it.
    let named = [
        &folder.join("notes.txt"),
        &folder.join("by-hand"),
        &plugins.join("odd name"),
        &foreign[3],
    ];
    symlink(&outside, plugins.join("link")).unwrap();

    bed.start_agent().await;
    bed.until("the leftovers are gone", async || {
        let names = bed.plugin_files("echo");
        let expected = [".installed-1", "1", "by-hand", "current", "notes.txt"];
        let gone = [plugins.join("gone"), sockets.join("gone_0.sock"), logs.join("gone.log")];
        (names == expected && gone.iter().all(|path| !path.exists())).then_some(())
    })
    .await;
    bed.until("the whole trash is gone", async || {
        (!plugins.join(format!(".trash-other-{RANDOM}")).exists()).then_some(())
    })
    .await;
    // The agent logs it when it has looked at all files, which is after it deleted the leftovers.
    for path in named {
        let told = format!("left alone path={:?}", path.display().to_string());
        bed.until(&told, async || bed.log().contains(&told).then_some(())).await;
    }
    for path in &foreign {
        assert!(path.exists(), "{} is gone", path.display());
    }
    assert!(fs::symlink_metadata(plugins.join("link")).is_ok());
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "precious");
    assert_eq!(bed.running("echo", "1").await.pid, before.pid, "it was not touched");

    for path in foreign {
        fs::remove_file(&path).unwrap();
    }
    fs::remove_dir(folder.join("by-hand")).unwrap();
    fs::remove_dir(plugins.join("odd name")).unwrap();
    fs::remove_file(plugins.join("link")).unwrap();
    bed.finish().await;
}

#[tokio::test]
async fn an_upgrade_in_the_middle_of_it_all_keeps_both_revisions() {
    let mut bed = Bed::builder().set("plugins.probation=1h").start().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.running("echo", "1").await;
    bed.configure(vec![orders::install("echo", "2", &echo).order()]).await;
    bed.running("echo", "2").await;
    // On trial: the last good revision is what the agent goes back to, also the next one.
    for _ in 0..2 {
        bed.kill_agent().await;
        write(&bed.plugin_dir("echo").join(format!(".staging-9-{RANDOM}/file")));
        bed.start_agent().await;
        bed.until("the sweep was there", async || {
            let expected = [".installed-1", ".installed-2", "1", "2", "current"];
            (bed.plugin_files("echo") == expected).then_some(())
        })
        .await;
        bed.running("echo", "2").await;
    }
    bed.finish().await;
}

#[tokio::test]
async fn a_new_instance_starts_clean_and_the_old_ones_state_goes() {
    let mut bed = Bed::builder().flag("--stop-plugins").start().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.running("echo", "1").await;
    bed.stop_agent().await;
    let state = bed.dir().join("state");
    fs::rename(state.join("test"), state.join("cloned")).unwrap();
    write(&state.join("photos/one.jpg"));
    bed.start_agent().await;
    bed.until("the old instance's state is gone", async || {
        (!state.join("cloned").exists()).then_some(())
    })
    .await;
    assert!(bed.try_status().await.unwrap().plugins.is_empty());
    assert!(state.join("photos/one.jpg").exists());
    assert!(state.join("test/store").exists());
    bed.finish().await;
}

#[tokio::test]
async fn the_old_instances_folder_goes_when_the_last_of_its_processes_has_ended() {
    let cached = "install.cache_max_bytes=100000000";
    let mut bed = Bed::builder().set(cached).start().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    let echo_of_old = bed.running("echo", "1").await.pid.unwrap();
    let old = bed.state_root();
    bed.until("the archive is kept", async || old.join("cache").exists().then_some(())).await;
    // It lives on, and the next agent has another instance id.
    bed.stop_agent().await;
    bed.set("instance.id=cloned");
    bed.start_agent().await;
    // Where there are control groups, the sweep itself has ended the process.
    let told = format!("left alone path={:?}", old.display().to_string());
    bed.until(&told, async || bed.log().contains(&told).then_some(())).await;
    if is_alive(echo_of_old) {
        assert!(old.join("plugins/echo/1").exists(), "a process runs from it");
    }
    signal(echo_of_old, Signal::SIGKILL);
    bed.until("the old instance's folder is gone", async || (!old.exists()).then_some(())).await;
    // The ticket of the old process is revoked with the next plugin of its name.
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.running("echo", "1").await;
    bed.finish().await;
}
