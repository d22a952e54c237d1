//! Plugins that came with the machine: their files can be replaced at any time, and nothing of that
//! runs undecided.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::sys::signal::Signal;

use super::{denied, governed, noted, reload, troubled};
use crate::harness::{Bed, plugins, processes, signal};
use crate::local;

/// Puts an echo plugin on the machine, whose entry point ends with these bytes.
fn ship(bed: &Bed, mark: &str) {
    let folder = bed.dir().join("local/shipped");
    std::fs::create_dir_all(&folder).unwrap();
    replace(&folder, mark);
    let manifest = serde_json::json!({
        "plugin": { "name": "shipped", "revisionId": "1", "entryPoint": "echo" },
        "manifest": { "pluginInstallationType": "LOCAL_INSTALLATION", "stopTimeout": "5s" },
    });
    std::fs::write(folder.join("manifest.json"), manifest.to_string()).unwrap();
}

/// Replaces the entry point in one step, as a package manager does.
fn replace(folder: &Path, mark: &str) {
    let mut program = std::fs::read(plugins::program("echo_plugin")).unwrap();
    // No reader uses the bytes after an ELF file's sections.
    program.extend_from_slice(mark.as_bytes());
    let fresh = folder.join("echo.new");
    std::fs::write(&fresh, program).unwrap();
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(fresh, folder.join("echo")).unwrap();
}

fn content(bed: &Bed) -> String {
    let program = std::fs::read(bed.dir().join("local/shipped/echo")).unwrap();
    guest_agent_actors::model::id::Sha256Digest::of(&program).to_string()
}

#[tokio::test]
async fn a_local_plugin_is_asked_about_before_it_first_runs() {
    let mut bed = troubled(&["--deny=not on this machine"], "20s").await;
    bed.stop_agent().await;
    ship(&bed, "");
    bed.start_agent().await;
    assert!(denied(&bed, "shipped", "1").await.contains("not on this machine"));
    assert!(processes::all_below(&bed.state_root()).is_empty());
    assert_eq!(noted(&bed, "check"), ["shipped"]);
    std::fs::remove_dir_all(bed.dir().join("local/shipped")).unwrap();
    signal(bed.agent_pid(), Signal::SIGHUP);
    bed.gone("shipped").await;
    bed.finish().await;
}

#[tokio::test]
async fn a_replaced_entry_point_does_not_run_before_it_is_admitted() {
    let (mut bed, policy) = governed("").await;
    ship(&bed, "first");
    let folder = bed.dir().join("local/shipped");
    std::fs::write(&policy, format!("allow shipped {}\n", content(&bed))).unwrap();
    bed.start_agent().await;
    let before = bed.running("shipped", "1").await;

    // The package is upgraded, and the policy does not know it yet.
    replace(&folder, "second");
    signal(bed.agent_pid(), Signal::SIGHUP);
    let details = denied(&bed, "shipped", "1").await;
    assert!(details.contains("no line of the policy allows it"), "{details}");
    assert_eq!(bed.running("shipped", "1").await.pid, before.pid, "the old process keeps running");
    // Nor does it run when the old process has ended, or after a restart of the agent.
    signal(before.pid.unwrap(), Signal::SIGKILL);
    let refused = async |bed: &Bed| {
        bed.until("its start is refused", async || {
            let status = bed.status("shipped").await?;
            (status.pid.is_none() && status.reason.contains("entry point was replaced"))
                .then_some(())
        })
        .await;
    };
    refused(&bed).await;
    bed.kill_agent().await;
    bed.start_agent().await;
    refused(&bed).await;
    assert!(processes::all_below(&bed.state_root()).is_empty());

    std::fs::write(&policy, format!("allow shipped {}\n", content(&bed))).unwrap();
    reload(&bed).await;
    bed.cli(&["restart", "shipped"]).await.ok();
    bed.running_again("shipped", &before).await;
    local::finish(bed, &["shipped"]).await;
}
