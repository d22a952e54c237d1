//! How plugins end on purpose: politely, in time, and with everything they started.

use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant, SystemTime};

use guest_agent_lab::AgentEvent;
use guest_agent_proto::local::PluginStatus;
use nix::sys::signal::Signal;

use crate::harness::{Bed, orders, processes, signal};

/// Installs a plugin with children of both kinds; gives its status and their pids.
async fn with_children(bed: &Bed) -> (PluginStatus, Vec<u32>) {
    let trouble = bed.trouble().await;
    let order = orders::install("parent", "1", &trouble)
        .arg("--fork-children=2")
        .arg("--setsid-children=2");
    bed.configure(vec![order.order()]).await;
    let status = bed.running("parent", "1").await;
    let children = children(bed).await;
    assert_eq!(children.len(), 4);
    assert!(children.iter().all(|&child| processes::is_alive(child)), "{children:?}");
    (status, children)
}

async fn children(bed: &Bed) -> Vec<u32> {
    let answer = bed.ask("parent", "children").await;
    answer.results.iter().map(|pid| pid.parse().unwrap()).collect()
}

#[track_caller]
fn check_dead(pids: &[u32]) {
    let alive: Vec<_> = pids.iter().filter(|&&pid| processes::is_alive(pid)).collect();
    assert!(alive.is_empty(), "these outlived their plugin: {alive:?}");
}

#[tokio::test]
async fn children_die_when_their_plugin_crashes() {
    let bed = Bed::new().await;
    let (before, old) = with_children(&bed).await;
    signal(before.pid.unwrap(), Signal::SIGKILL);
    bed.running_again("parent", &before).await;
    check_dead(&old);
    let new = children(&bed).await;
    assert!(new.iter().all(|&child| processes::is_alive(child)), "the new ones were killed too");
    bed.finish().await;
}

#[tokio::test]
async fn children_die_when_their_plugin_is_stopped() {
    let bed = Bed::new().await;
    let (before, old) = with_children(&bed).await;
    bed.cli(&["restart", "parent", "--wait"]).await.ok();
    let after = bed.running("parent", "1").await;
    assert_ne!(after.pid, before.pid);
    check_dead(&old);
    bed.expect_events("parent", &[1, 4, 3, 6, 4]).await;
    bed.finish().await;
}

#[tokio::test]
async fn children_die_when_their_plugin_is_removed() {
    let bed = Bed::new().await;
    let (plugin, mut all) = with_children(&bed).await;
    all.extend(plugin.pid);
    bed.configure(vec![orders::remove("parent")]).await;
    bed.event(5, "parent", "1").await;
    check_dead(&all);
    bed.gone("parent").await;
    bed.finish().await;
}

#[tokio::test]
async fn a_successor_of_a_killed_agent_ends_children_too() {
    let mut bed = Bed::new().await;
    let (plugin, mut all) = with_children(&bed).await;
    all.extend(plugin.pid);
    bed.kill_agent().await;
    assert!(all.iter().all(|&pid| processes::is_alive(pid)), "they died with the agent");
    bed.start_agent().await;
    bed.configure(vec![orders::remove("parent")]).await;
    bed.event(5, "parent", "1").await;
    check_dead(&all);
    bed.finish().await;
}

/// As a plugin does that leaves its end to the agent.
#[tokio::test]
async fn a_plugin_that_answers_stop_and_stays_costs_an_upgrade_two_seconds() {
    let bed = Bed::new().await;
    let trouble = bed.trouble().await;
    let order = |revision: &str| {
        let order = orders::install("deaf", revision, &trouble).arg("--ignore-stop");
        order.manifest(|it| it.stop_timeout = orders::seconds(30.0)).order()
    };
    bed.configure(vec![order("1")]).await;
    bed.running("deaf", "1").await;
    let began = Instant::now();
    bed.configure(vec![order("2")]).await;
    let stopped = bed.event(6, "deaf", "1").await;
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(2), "it was not given its time: {took:?}");
    assert!(took < Duration::from_secs(20), "it was given all of its stop timeout: {took:?}");
    assert!(stopped.details().contains("exited with code 0"), "{}", stopped.details());
    bed.running("deaf", "2").await;
    bed.expect_events("deaf", &[1, 4, 3, 1, 6, 4, 3, 2, 5]).await;
    bed.finish().await;
}

#[tokio::test]
async fn a_policy_gives_a_plugin_more_time_after_its_answer_to_stop() {
    let more = "plugins.flusher.stop_grace=4s";
    let bed = Bed::builder().set("plugins.stop_grace=0s").set(more).start().await;
    let trouble = bed.trouble().await;
    let order = |name| orders::install(name, "1", &trouble).arg("--ignore-stop").order();
    bed.configure(vec![order("flusher"), order("other")]).await;
    for name in ["flusher", "other"] {
        bed.running(name, "1").await;
    }
    let began = Instant::now();
    for name in ["flusher", "other"] {
        bed.cli(&["restart", name, "--no-wait"]).await.ok();
    }
    let other = bed.event(6, "other", "1").await;
    let flusher = bed.event(6, "flusher", "1").await;
    let took = began.elapsed();
    assert!((4..20).contains(&took.as_secs()), "{took:?}");
    let at =
        |event: &AgentEvent| SystemTime::try_from(event.event.event_timestamp.unwrap()).unwrap();
    assert!(at(&other) < at(&flusher), "it got as much: {other:?}");
    bed.finish().await;
}

#[tokio::test]
async fn a_plugin_that_ignores_stop_gets_sigterm_after_its_time() {
    let bed = Bed::new().await;
    let trouble = bed.trouble().await;
    let order = orders::install("deaf", "1", &trouble).arg("--ignore-stop");
    let order = order.manifest(|it| it.stop_timeout = orders::seconds(1.0)).order();
    bed.configure(vec![order]).await;
    bed.running("deaf", "1").await;
    let began = Instant::now();
    bed.cli(&["restart", "deaf"]).await.ok();
    let stopped = bed.event(6, "deaf", "1").await;
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(1), "it was not given its time: {took:?}");
    assert!(stopped.details().contains("exited with code 0"), "{}", stopped.details());
    bed.running("deaf", "1").await;
    bed.expect_events("deaf", &[1, 4, 3, 6, 4]).await;
    bed.finish().await;
}

#[tokio::test]
async fn a_plugin_that_ignores_sigterm_as_well_gets_sigkill() {
    let bed = Bed::new().await;
    let trouble = bed.trouble().await;
    let order =
        orders::install("stubborn", "1", &trouble).arg("--ignore-stop").arg("--ignore-sigterm");
    let order = order.manifest(|it| it.stop_timeout = orders::seconds(0.5)).order();
    bed.configure(vec![order]).await;
    let before = bed.running("stubborn", "1").await;
    let began = Instant::now();
    bed.cli(&["restart", "stubborn"]).await.ok();
    let stopped = bed.event(6, "stubborn", "1").await;
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(5500), "SIGTERM was not given its time: {took:?}");
    assert!(stopped.details().contains("SIGKILL"), "{}", stopped.details());
    let after = bed.running_again("stubborn", &before).await;
    assert_eq!((after.restarts, after.last_exit.unwrap().signal), (0, Some(9)));
    bed.finish().await;
}

#[tokio::test]
async fn only_a_removal_asks_the_plugin_to_wipe_its_traces() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    let order = |revision: &str| {
        let order = orders::install("echo", revision, &echo);
        order.manifest(|it| it.stop_timeout = orders::seconds(4.25)).order()
    };
    bed.configure(vec![order("1")]).await;
    bed.running("echo", "1").await;
    bed.cli(&["restart", "echo", "--wait"]).await.ok();
    bed.configure(vec![order("2")]).await;
    bed.event(5, "echo", "1").await;
    // The log is deleted with the plugin; who has it open can still read it.
    let mut log = File::open(bed.dir().join("log/plugins/echo.log")).unwrap();
    bed.configure(vec![orders::remove("echo")]).await;
    bed.gone("echo").await;
    let mut printed = String::new();
    log.read_to_string(&mut printed).unwrap();
    let goodbyes: Vec<_> = printed.lines().filter(|line| line.starts_with("goodbye")).collect();
    assert_eq!(goodbyes.len(), 3, "{printed}");
    for (line, cleanup) in goodbyes.iter().zip(["Keep", "Keep", "Remove"]) {
        assert!(line.contains(cleanup) && line.contains("4.25s"), "{line}");
    }
    bed.finish().await;
}
