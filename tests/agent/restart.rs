//! The agent's own end and return: by order, by accident, and in the middle of its work.

use std::collections::BTreeSet;
use std::path::Path;

use guest_agent_lab::{ArtifactFaults, CutOff};
use guest_agent_proto::local::PluginStatus;
use nix::sys::signal::Signal;

use crate::harness::{Bed, listing, orders, processes, signal};

/// Installs the echo plugin and waits until it runs.
async fn with_echo(bed: &Bed) -> PluginStatus {
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.running("echo", "1").await
}

#[tokio::test]
async fn a_killed_agent_finds_its_plugin_untouched() {
    let mut bed = Bed::new().await;
    let before = with_echo(&bed).await;
    for _ in 0..3 {
        bed.kill_agent().await;
        bed.start_agent().await;
        let after = bed.running("echo", "1").await;
        assert_eq!((after.pid, after.restarts), (before.pid, 0));
        assert_eq!(after.started_at, before.started_at);
    }
    assert_eq!(bed.ask("echo", "echo still here").await.results, ["still here"]);
    bed.expect_events("echo", &[1, 4, 3]).await;
    let events = bed.all_events_of("echo").await;
    let ids: BTreeSet<_> = events.iter().map(|event| &event.message_id).collect();
    assert_eq!(ids.len(), events.len(), "an event came twice");
    bed.finish().await;
}

#[tokio::test]
async fn figures_of_an_adopted_plugin_do_not_wait_for_its_interval() {
    let mut bed = Bed::new().await;
    let echo = bed.echo().await;
    let install = orders::install("echo", "1", &echo).manifest(|manifest| {
        manifest.metrics_interval = orders::seconds(3600.0);
    });
    bed.configure(vec![install.order()]).await;
    bed.running("echo", "1").await;
    bed.kill_agent().await;
    bed.start_agent().await;
    let shown = async || {
        let status = bed.cli(&["status", "echo", "--json"]).await;
        let status: serde_json::Value = serde_json::from_str(&status.stdout).ok()?;
        Some(status["plugins"][0].clone())
    };
    let memory = bed
        .until("its memory is known", async || {
            shown().await.filter(|plugin| plugin["memory_bytes"].as_u64().is_some())
        })
        .await;
    assert!(memory["memory_bytes"].as_u64() > Some(0), "{memory}");
    assert!(memory["resident_bytes"].as_u64() > Some(0), "{memory}");
    let basis = memory["memory_basis"].as_str();
    assert!(matches!(basis, Some("working_set" | "resident")), "{memory}");
    bed.until("its use of the CPU is known", async || {
        shown().await.filter(|plugin| plugin["cpu_percent"].as_f64().is_some())
    })
    .await;
    let text = bed.cli(&["status", "echo"]).await.ok();
    let line = text.lines().find(|line| line.trim_start().starts_with("memory ")).unwrap();
    assert!(line.contains("resident"), "{line}");
    bed.finish().await;
}

#[tokio::test]
async fn a_crash_after_an_adoption_is_noticed() {
    let mut bed = Bed::new().await;
    let before = with_echo(&bed).await;
    bed.kill_agent().await;
    bed.start_agent().await;
    bed.running("echo", "1").await;
    signal(before.pid.unwrap(), Signal::SIGKILL);
    let after = bed.running_again("echo", &before).await;
    bed.expect_events("echo", &[1, 4, 3, 7, 4]).await;
    assert_eq!(after.restarts, 1);
    assert_eq!(bed.processes("echo"), [after.pid.unwrap()]);
    bed.finish().await;
}

#[tokio::test]
async fn a_crash_while_the_agent_is_away_is_noticed() {
    let mut bed = Bed::new().await;
    let before = with_echo(&bed).await;
    bed.kill_agent().await;
    signal(before.pid.unwrap(), Signal::SIGKILL);
    bed.until("the plugin is dead", async || {
        (!processes::is_alive(before.pid.unwrap())).then_some(())
    })
    .await;
    bed.start_agent().await;
    let after = bed.running_again("echo", &before).await;
    bed.expect_events("echo", &[1, 4, 3, 7, 4]).await;
    assert_eq!((after.restarts, after.last_exit.unwrap().kind.as_str()), (1, "unknown"));
    bed.finish().await;
}

#[tokio::test]
async fn sigterm_ends_the_agent_and_leaves_the_plugin() {
    let mut bed = Bed::new().await;
    let before = with_echo(&bed).await;
    assert!(bed.stop_agent().await.success());
    assert!(!bed.socket().exists(), "the socket is left behind");
    assert!(processes::is_alive(before.pid.unwrap()));
    bed.start_agent().await;
    assert_eq!(bed.running("echo", "1").await.pid, before.pid);
    bed.expect_events("echo", &[1, 4, 3]).await;
    bed.finish().await;
}

#[tokio::test]
async fn stop_plugins_takes_them_along_and_the_next_life_starts_them() {
    let mut bed = Bed::builder().flag("--stop-plugins").start().await;
    let (echo, trouble) = (bed.echo().await, bed.trouble().await);
    // The second takes its time, long enough for the first to be started again by mistake.
    let slow = orders::install("slow", "1", &trouble).arg("--hang-after-start-ms=1").order();
    bed.configure(vec![orders::install("echo", "1", &echo).order(), slow]).await;
    let before = bed.running("echo", "1").await;
    let slow = bed.running("slow", "1").await;
    let agent = bed.agent_pid();
    signal(agent, Signal::SIGTERM);
    bed.until("the first plugin ends", async || bed.processes("echo").is_empty().then_some(()))
        .await;
    for pid in bed.processes("slow") {
        signal(pid, Signal::SIGKILL);
    }
    assert!(bed.stop_agent().await.success());
    let left: Vec<u32> = ["echo", "slow"].iter().flat_map(|name| bed.processes(name)).collect();
    assert!(left.is_empty(), "these were left or started again: {left:?}");
    bed.start_agent().await;
    let after = bed.running_again("echo", &before).await;
    bed.running_again("slow", &slow).await;
    assert_eq!(after.restarts, 0, "its stop was taken for a crash");
    bed.expect_events("echo", &[1, 4, 3, 6, 4]).await;
    bed.finish().await;
}

#[tokio::test]
async fn an_agent_killed_during_a_download_downloads_anew() {
    let mut bed = Bed::new().await;
    let echo = bed.echo().await;
    let stall = Some(CutOff { after_bytes: 100, requests: 1 });
    let faults = ArtifactFaults { stall, ..ArtifactFaults::default() };
    bed.artifacts.set_faults(&echo.name, faults);
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.until("the download began", async || {
        (bed.artifacts.counters(&echo.name).requests > 0).then_some(())
    })
    .await;
    bed.in_state("echo", "INSTALLING").await;
    bed.kill_agent().await;
    bed.start_agent().await;
    bed.running("echo", "1").await;
    bed.expect_events("echo", &[1, 4, 3]).await;
    assert_eq!(bed.revisions("echo"), ["1", "current"]);
    bed.finish().await;
}

#[tokio::test]
async fn an_agent_killed_during_a_start_leaves_one_process() {
    let mut bed = Bed::new().await;
    let trouble = bed.trouble().await;
    let order = orders::install("late", "1", &trouble).arg("--slow-socket-ms=700").order();
    bed.configure(vec![order]).await;
    bed.status_where("late", "it is being started", |status| {
        status.state == "STARTING" && status.pid.is_some()
    })
    .await;
    bed.kill_agent().await;
    bed.start_agent().await;
    let status = bed.running("late", "1").await;
    assert_eq!(bed.processes("late"), [status.pid.unwrap()]);
    bed.event(3, "late", "1").await;
    let events = bed.events_of("late").await;
    assert_eq!((events[0], events[events.len() - 2..].to_vec()), (1, vec![4, 3]), "{events:?}");
    assert!(!events.contains(&7) && !events.contains(&8), "{events:?}");
    bed.finish().await;
}

#[tokio::test]
async fn an_agent_killed_during_a_stop_finishes_it() {
    let mut bed = Bed::new().await;
    let trouble = bed.trouble().await;
    let order = orders::install("deaf", "1", &trouble).arg("--ignore-stop");
    let order = order.manifest(|it| it.stop_timeout = orders::seconds(1.0)).order();
    bed.configure(vec![order]).await;
    let before = bed.running("deaf", "1").await;
    bed.cli(&["restart", "deaf", "--no-wait"]).await.ok();
    bed.in_state("deaf", "STOPPING").await;
    bed.kill_agent().await;
    bed.start_agent().await;
    let after = bed.running_again("deaf", &before).await;
    assert_eq!(bed.processes("deaf"), [after.pid.unwrap()]);
    bed.expect_events("deaf", &[1, 4, 3, 6, 4]).await;
    bed.finish().await;
}

#[tokio::test]
async fn an_agent_killed_during_a_removal_finishes_it() {
    let mut bed = Bed::new().await;
    let trouble = bed.trouble().await;
    let order = orders::install("deaf", "1", &trouble).arg("--ignore-stop");
    let order = order.manifest(|it| it.stop_timeout = orders::seconds(1.0)).order();
    bed.configure(vec![order]).await;
    bed.running("deaf", "1").await;
    bed.configure(vec![orders::remove("deaf")]).await;
    bed.in_state("deaf", "STOPPING").await;
    bed.kill_agent().await;
    bed.start_agent().await;
    bed.gone("deaf").await;
    bed.expect_events("deaf", &[1, 4, 3, 2, 6, 5]).await;
    assert!(bed.processes("deaf").is_empty() && !bed.plugin_dir("deaf").exists());
    bed.finish().await;
}

#[tokio::test]
async fn an_acknowledged_order_survives_the_death_of_the_agent() {
    let mut bed = Bed::new().await;
    let echo = bed.echo().await;
    for round in 0..3 {
        let name = format!("echo-{round}");
        // Returns with the acknowledgement, and the agent dies at once.
        bed.configure(vec![orders::install(&name, "1", &echo).order()]).await;
        bed.kill_agent().await;
        bed.start_agent().await;
        let status = bed.running(&name, "1").await;
        assert_eq!(bed.processes(&name), [status.pid.unwrap()]);
        bed.event(3, &name, "1").await;
        let events = bed.events_of(&name).await;
        let once = [1, 3].iter().all(|kind| events.iter().filter(|it| *it == kind).count() == 1);
        assert!(once && events[0] == 1, "{events:?}");
        bed.configure(vec![orders::remove(&name)]).await;
        bed.kill_agent().await;
        bed.start_agent().await;
        bed.gone(&name).await;
        bed.event(5, &name, "1").await;
    }
    bed.finish().await;
}

#[tokio::test]
async fn events_made_while_the_control_plane_is_away_arrive_once_and_in_order() {
    let mut bed = Bed::new().await;
    let before = with_echo(&bed).await;
    bed.stop_control_plane().await;
    signal(before.pid.unwrap(), Signal::SIGKILL);
    bed.running_again("echo", &before).await;
    // What waits for the control plane outlives the agent as well.
    bed.stop_agent().await;
    bed.start_control_plane().await;
    bed.start_agent().await;
    bed.expect_events("echo", &[1, 4, 3, 7, 4]).await;
    bed.finish().await;
}

/// Runs a second agent on this bed's places, with changes; it has to end by itself.
async fn second_agent(bed: &Bed, settings: &[&str]) -> String {
    let config = bed.dir().join("agent.toml").display().to_string();
    let mut arguments = vec!["run", "--config", &config, "--set", "instance.id=test"];
    arguments.extend(["--set", "control_plane.auth=none"]);
    arguments.extend(settings.iter().flat_map(|setting| ["--set", setting]));
    let said = bed.cli(&arguments).await;
    assert_eq!(said.code, 1, "{}", said.stderr);
    said.stderr
}

#[tokio::test]
async fn a_second_agent_is_told_which_process_has_its_places() {
    let bed = Bed::new().await;
    let before = with_echo(&bed).await;
    let said = second_agent(&bed, &[]).await;
    let pid = bed.agent_pid();
    assert!(said.contains(&format!("in use by process {pid}")), "{said}");
    let elsewhere = format!("agent.state_dir={}", bed.dir().join("elsewhere").display());
    let said = second_agent(&bed, &[&elsewhere]).await;
    assert!(said.contains("another agent answers on"), "{said}");
    assert!(said.contains("runtime_dir"), "no way out is named: {said}");
    assert_eq!(bed.running("echo", "1").await.pid, before.pid, "the first one was disturbed");
    bed.finish().await;
}

#[tokio::test]
async fn a_damaged_store_is_set_aside_and_named() {
    let mut bed = Bed::new().await;
    let before = with_echo(&bed).await;
    bed.stop_agent().await;
    overwrite(&bed.state_root().join("store"));
    bed.start_agent().await;
    assert!(bed.log().contains("THE STORE IS DAMAGED"), "it did not say so");
    // It is adopted: it is the one that ran before.
    let after = bed.running("echo", "1").await;
    assert_eq!(after.pid, before.pid);
    assert_eq!(bed.processes("echo"), [after.pid.unwrap()]);
    bed.finish().await;
}

/// Fills every file below a folder with nonsense of its own length.
fn overwrite(folder: &Path) {
    for path in listing(folder) {
        if path.is_dir() {
            overwrite(&path);
        } else {
            let length = path.metadata().unwrap().len().try_into().unwrap();
            std::fs::write(&path, vec![0x5a; length]).unwrap();
        }
    }
}
