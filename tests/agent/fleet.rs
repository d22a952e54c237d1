//! Many plugins under an agent that is restarted and replaced: none of them notices.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{Bed, PATIENCE, RESOURCE, copy_program, orders, processes, signal};

/// How many plugins the fleet has.
const PLUGINS: usize = 200;

/// Longest that anything may take that all of them do.
const MUCH_PATIENCE: Duration = Duration::from_secs(180);

/// What an agent's restart must not change.
#[derive(Debug, PartialEq)]
struct Life {
    pid: u64,
    restarts: u64,
    started_at: String,
}

/// What `status --json` says of all plugins, once each of them runs.
async fn fleet(bed: &Bed, plugins: usize) -> BTreeMap<String, Life> {
    bed.within(MUCH_PATIENCE, "all plugins run", async || {
        let said = bed.cli(&["status", "--json"]).await;
        if said.code != 0 {
            return None;
        }
        let status: Value = serde_json::from_str(&said.stdout).unwrap();
        let running = status["plugins"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|plugin| plugin["state"] == "RUNNING");
        let lives = running.map(|plugin| {
            let life = Life {
                pid: plugin["pid"].as_u64().unwrap(),
                restarts: plugin["restarts"].as_u64().unwrap(),
                started_at: plugin["started_at"].as_str().unwrap().to_owned(),
            };
            (plugin["name"].as_str().unwrap().to_owned(), life)
        });
        let lives: BTreeMap<_, _> = lives.collect();
        (lives.len() == plugins).then_some(lives)
    })
    .await
}

async fn with_plugins(bed: &Bed, plugins: usize) -> BTreeMap<String, Life> {
    let echo = bed.echo().await;
    let order = |number| orders::install(&format!("p{number:03}"), "1", &echo).order();
    bed.configure((0..plugins).map(order).collect()).await;
    fleet(bed, plugins).await
}

/// The plugins are who they were, and none of them heard a second Start.
async fn untouched(bed: &Bed, before: &BTreeMap<String, Life>) {
    assert_eq!(fleet(bed, before.len()).await, *before);
    for name in before.keys() {
        let starts = bed.plugin_output(name).matches("my files are in").count();
        assert_eq!(starts, 1, "{name} heard {starts} Starts");
    }
}

/// Removes them all at once.
async fn disband(bed: &Bed, plugins: &BTreeMap<String, Life>) {
    bed.configure(plugins.keys().map(|name| orders::remove(name)).collect()).await;
    bed.within(MUCH_PATIENCE, "all plugins are gone", async || {
        bed.try_status().await.ok()?.plugins.is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn two_hundred_plugins_do_not_notice_that_their_agent_restarts() {
    // Each is asked now and then, and never taken for hung by an agent that has no time.
    let calm = ["plugins.health_interval=30s", "plugins.health_timeout=30s"];
    let mut bed = Bed::builder().set(calm[0]).set(calm[1]).start().await;
    let began = Instant::now();
    let before = with_plugins(&bed, PLUGINS).await;
    eprintln!("{PLUGINS} plugins were installed in {:?}", began.elapsed());
    assert!(before.values().all(|life| life.restarts == 0), "{before:?}");

    assert!(bed.stop_agent().await.success());
    let began = Instant::now();
    bed.start_agent().await;
    eprintln!("after SIGTERM: socket and link after {:?}", began.elapsed());
    untouched(&bed, &before).await;
    eprintln!("after SIGTERM: all plugins after {:?}", began.elapsed());

    bed.kill_agent().await;
    let began = Instant::now();
    bed.start_agent().await;
    eprintln!("after kill -9: socket and link after {:?}", began.elapsed());
    untouched(&bed, &before).await;
    eprintln!("after kill -9: all plugins after {:?}", began.elapsed());

    // They are watched again, all of them.
    let began = Instant::now();
    for life in before.values() {
        signal(u32::try_from(life.pid).unwrap(), Signal::SIGKILL);
    }
    let after = bed
        .within(MUCH_PATIENCE, "all plugins run again", async || {
            let after = fleet(&bed, PLUGINS).await;
            after.values().all(|life| life.restarts == 1).then_some(after)
        })
        .await;
    eprintln!("all were killed and run again after {:?}", began.elapsed());
    assert_eq!(processes::all_below(&bed.state_root()).len(), PLUGINS);
    let began = Instant::now();
    disband(&bed, &after).await;
    eprintln!("all were removed in {:?}", began.elapsed());
    bed.finish().await;
}

#[tokio::test]
async fn an_agent_whose_program_was_replaced_leaves_its_plugins_alone() {
    let mut bed = Bed::builder().build().await;
    let program = bed.dir().join("guest-agent");
    copy_program(Path::new(env!("CARGO_BIN_EXE_guest-agent")), &program);
    bed.use_program(&program);
    bed.start_agent().await;
    let before = with_plugins(&bed, 3).await;
    let of_agent = |bed: &Bed| {
        let program = std::fs::metadata(format!("/proc/{}/exe", bed.agent_pid())).unwrap();
        program.ino()
    };
    let old = of_agent(&bed);

    let beside = program.with_extension("new");
    copy_program(Path::new(env!("CARGO_BIN_EXE_guest-agent")), &beside);
    std::fs::rename(&beside, &program).unwrap();
    untouched(&bed, &before).await;
    assert!(bed.stop_agent().await.success());
    bed.start_agent().await;
    assert_ne!(of_agent(&bed), old, "the old program runs");
    untouched(&bed, &before).await;
    disband(&bed, &before).await;
    bed.finish().await;
}

#[tokio::test]
async fn plugins_that_hang_delay_neither_the_agent_nor_each_other() {
    let mut bed = Bed::builder().set("plugins.health_interval=30s").start().await;
    let before = with_plugins(&bed, 5).await;
    let (echo, trouble) = (bed.echo().await, bed.trouble().await);
    let endless = |name: &str, argument: &str| {
        let order = orders::install(name, "1", &trouble).arg(argument);
        order.manifest(|manifest| manifest.start_timeout = orders::seconds(3600.0)).order()
    };
    bed.configure(vec![
        endless("never-answers", "--start-hangs"),
        endless("never-listens", "--never-bind"),
        orders::install("frozen", "1", &echo).order(),
    ])
    .await;
    let frozen = bed.running("frozen", "1").await.pid.unwrap();
    // Its socket still accepts connections; the process never answers.
    signal(frozen, Signal::SIGSTOP);
    let starting = async |name: &str| {
        bed.status_where(name, "it hangs in its start", |status| {
            status.state == "STARTING" && status.pid.is_some()
        })
        .await
    };
    let hanging = [starting("never-answers").await.pid, starting("never-listens").await.pid];

    bed.kill_agent().await;
    let began = Instant::now();
    bed.start_agent().await;
    let ready = began.elapsed();
    // The control plane knows of the registration a moment before the agent does.
    bed.until("the agent says that the link is up", async || {
        bed.try_status().await.ok()?.agent?.link_connected.then_some(())
    })
    .await;
    untouched_among(&bed, &before).await;
    let back = began.elapsed();
    assert!(ready < PATIENCE && back < PATIENCE, "ready after {ready:?}, back after {back:?}");
    let listed = bed.control_plane.list_plugin_states(RESOURCE, PATIENCE).await.unwrap();
    assert_eq!(listed.daemon_plugin_states.len(), before.len() + 3);
    assert_eq!(bed.running("frozen", "1").await.pid, Some(frozen), "it was not adopted");
    for (name, old) in ["never-answers", "never-listens"].into_iter().zip(hanging) {
        // Whether it heard its Start is unknown, so it is started afresh; and hangs again.
        bed.status_where(name, "it is started afresh and hangs", |status| {
            status.state == "STARTING" && status.pid.is_some() && status.pid != old
        })
        .await;
        // A process is shown from its fork on, and is known by its name from its exec on.
        bed.until("one process of it is there", async || {
            (bed.processes(name).len() == 1).then_some(())
        })
        .await;
    }
    signal(frozen, Signal::SIGCONT);
    bed.finish().await;
}

/// As `untouched`, with other plugins that do not run.
async fn untouched_among(bed: &Bed, before: &BTreeMap<String, Life>) {
    for (name, life) in before {
        let status = bed.running(name, "1").await;
        assert_eq!((status.pid.map(u64::from), status.restarts), (Some(life.pid), 0), "{name}");
        let starts = bed.plugin_output(name).matches("my files are in").count();
        assert_eq!(starts, 1, "{name} heard {starts} Starts");
    }
}
