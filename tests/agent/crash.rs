//! Plugins that end unasked, hang, or say that they are unwell.

use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;
use tokio::net::UnixStream;

use crate::harness::{Bed, listing, orders, signal};

#[tokio::test]
async fn a_killed_plugin_is_reported_with_its_cause_and_started_again() {
    let bed = Bed::new().await;
    let trouble = bed.trouble().await;
    bed.configure(vec![orders::install("trouble", "1", &trouble).order()]).await;
    let before = bed.running("trouble", "1").await;
    assert!(before.last_exit.is_none());
    bed.ask("trouble", "log these were my last words").await;
    signal(before.pid.unwrap(), Signal::SIGKILL);
    let after = bed.running_again("trouble", &before).await;
    bed.expect_events("trouble", &[1, 4, 3, 7, 4]).await;
    let crash = bed.event(7, "trouble", "1").await;
    assert!(crash.details().contains("SIGKILL"), "{}", crash.details());
    assert!(crash.details().contains("these were my last words"), "{}", crash.details());
    assert_eq!(after.restarts, 1);
    let exit = after.last_exit.clone().unwrap();
    assert_eq!((exit.kind.as_str(), exit.code, exit.signal), ("signaled", None, Some(9)));
    assert!(exit.at.is_some() && after.started_at != before.started_at);
    assert_eq!(bed.processes("trouble"), [after.pid.unwrap()]);
    bed.finish().await;
}

#[tokio::test]
async fn a_plugin_that_exits_is_reported_with_its_code() {
    let bed = Bed::new().await;
    let trouble = bed.trouble().await;
    bed.configure(vec![orders::install("trouble", "1", &trouble).order()]).await;
    let before = bed.running("trouble", "1").await;
    bed.tell("trouble", "exit 3").await;
    let after = bed.running_again("trouble", &before).await;
    bed.expect_events("trouble", &[1, 4, 3, 7, 4]).await;
    let crash = bed.event(7, "trouble", "1").await;
    assert!(crash.details().contains("exited with code 3"), "{}", crash.details());
    let exit = after.last_exit.unwrap();
    assert_eq!((exit.kind.as_str(), exit.code, exit.signal), ("exited", Some(3), None));
    bed.finish().await;
}

#[tokio::test]
async fn a_plugin_that_flaps_is_started_ever_more_slowly_and_reported_ever_less() {
    let bed = Bed::builder()
        .set("plugins.restart_initial_backoff=40ms")
        .set("plugins.restart_max_backoff=320ms")
        .start()
        .await;
    let trouble = bed.trouble().await;
    let order = orders::install("flap", "1", &trouble).arg("--crash-after-ms=100");
    bed.configure(vec![order.manifest(|it| it.start_exp_backoff_factor = 2).order()]).await;
    bed.status_where("flap", "it crashed ten times", |status| status.restarts >= 10).await;
    bed.until("the eighth crash is reported", async || {
        let events = bed.events_of("flap").await;
        (events.iter().filter(|kind| **kind == 7).count() >= 6).then_some(())
    })
    .await;
    let events = bed.all_events_of("flap").await;
    let crashes: Vec<_> = events.iter().filter(|event| event.event.event_type == 7).collect();
    // The first five and the eighth; a late look finds the sixteenth as well, and so on.
    for (crash, power) in crashes[5..].iter().zip(3..) {
        let times = format!("{} times in a row", 1 << power);
        assert!(crash.details().contains(&times), "{times}: {}", crash.details());
    }
    // For those who count, it stands for the sixth, the seventh and itself.
    assert!(crashes[5].details().starts_with("crashes=3\n"), "{}", crashes[5].details());
    assert!(events.len() <= 3 + crashes.len() * 2, "{} events", events.len());
    let at = |index: usize| {
        let at = crashes[index].event.event_timestamp.unwrap();
        SystemTime::try_from(at).unwrap()
    };
    // After the first, pauses are at least half of 40, 80, 160 and, three times, 320 ms; each life
    // lasts 100 ms.
    let between = at(5).duration_since(at(0)).unwrap();
    assert!(between >= Duration::from_millis(140 + 3 * 160 + 7 * 100), "{between:?}");
    bed.finish().await;
}

#[tokio::test]
async fn a_hung_plugin_is_judged_after_three_checks_and_started_again() {
    let bed = Bed::builder()
        .set("plugins.health_interval=200ms")
        .set("plugins.health_timeout=1s")
        .set("plugins.health_failures=3")
        .start()
        .await;
    let trouble = bed.trouble().await;
    let order = orders::install("hung", "1", &trouble);
    let order = order.manifest(|it| it.stop_timeout = orders::seconds(0.3)).order();
    bed.configure(vec![order]).await;
    let before = bed.running("hung", "1").await;
    // As it hangs by itself, but once.
    signal(before.pid.unwrap(), Signal::SIGSTOP);
    let crash = bed.event(7, "hung", "1").await;
    assert!(crash.details().contains("hung: 3 health checks in a row"), "{}", crash.details());
    let after = bed.running_again("hung", &before).await;
    bed.expect_events("hung", &[1, 4, 3, 7, 4]).await;
    assert_eq!(after.restarts, 1);
    // It could not take its SIGTERM any more.
    assert_eq!(after.last_exit.unwrap().signal, Some(9));
    assert_eq!(bed.processes("hung"), [after.pid.unwrap()]);
    bed.finish().await;
}

#[tokio::test]
async fn one_slow_health_reply_is_no_crash() {
    let bed = Bed::builder()
        .set("plugins.health_interval=300ms")
        .set("plugins.health_timeout=100ms")
        .set("plugins.health_failures=20")
        .set("log.level=debug")
        .start()
        .await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    let before = bed.running("echo", "1").await;
    signal(before.pid.unwrap(), Signal::SIGSTOP);
    bed.until("a health check fails", async || {
        bed.log().contains("health check failed").then_some(())
    })
    .await;
    signal(before.pid.unwrap(), Signal::SIGCONT);
    let since: prost_types::Timestamp = SystemTime::now().into();
    let after = bed
        .status_where("echo", "it is healthy again", |status| {
            status
                .health
                .as_ref()
                .and_then(|health| health.at)
                .is_some_and(|at| (at.seconds, at.nanos) > (since.seconds, since.nanos))
        })
        .await;
    assert_eq!((after.pid, after.restarts), (before.pid, 0));
    bed.expect_events("echo", &[1, 4, 3]).await;
    bed.finish().await;
}

#[tokio::test]
async fn an_unhealthy_plugin_is_shown_and_left_alone() {
    let bed = Bed::builder()
        .set("plugins.health_interval=100ms")
        .set("plugins.health_failures=2")
        .start()
        .await;
    let trouble = bed.trouble().await;
    let order = orders::install("sick", "1", &trouble).arg("--unhealthy-code=7");
    bed.configure(vec![order.order()]).await;
    let status = bed.status_where("sick", "its health is known", |it| it.health.is_some()).await;
    let health = status.health.clone().unwrap();
    assert_eq!((health.code, health.results), (7, vec!["told to be unhealthy".to_owned()]));
    let mut last = health.at;
    for _ in 0..5 {
        let newer = |it: &guest_agent_proto::local::PluginStatus| {
            it.health.as_ref().is_some_and(|health| health.at != last)
        };
        let status = bed.status_where("sick", "it is checked again", newer).await;
        last = status.health.unwrap().at;
    }
    let after = bed.running("sick", "1").await;
    assert_eq!((after.pid, after.restarts), (status.pid, 0));
    let listed = bed.listed("sick").await.unwrap().current_plugin_status.unwrap();
    assert_eq!((listed.status, listed.response_code), (2, 7));
    assert_eq!(listed.results, ["told to be unhealthy"]);
    bed.expect_events("sick", &[1, 4, 3, 1001]).await;
    bed.finish().await;
}

#[tokio::test]
async fn a_plugin_that_crashes_does_not_disturb_its_neighbour() {
    let bed = Bed::new().await;
    let (echo, trouble) = (bed.echo().await, bed.trouble().await);
    bed.configure(vec![
        orders::install("calm", "1", &echo).order(),
        orders::install("wild", "1", &trouble).arg("--crash-after-ms=100").order(),
    ])
    .await;
    let calm = bed.running("calm", "1").await;
    bed.status_where("wild", "it crashed three times", |status| status.restarts >= 3).await;
    let after = bed.running("calm", "1").await;
    assert_eq!((after.pid, after.restarts), (calm.pid, 0));
    bed.expect_events("calm", &[1, 4, 3]).await;
    bed.finish().await;
}

/// Descriptors that a process has open.
fn open_descriptors(pid: u32) -> usize {
    listing(Path::new(&format!("/proc/{pid}/fd"))).len()
}

#[tokio::test]
async fn a_plugin_comes_back_where_connections_took_every_descriptor_of_the_agent() {
    // A quarter of the limit is not for connections; the rest has to hold what is open already.
    const MORE: u64 = 96;
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    let before = bed.running("echo", "1").await;
    let agent = bed.agent_pid();
    let pid = rustix::process::Pid::from_raw(i32::try_from(agent).unwrap());
    let most = open_descriptors(agent) as u64 + MORE;
    let limit = rustix::process::Rlimit { current: Some(most), maximum: Some(most) };
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, limit).unwrap();
    let socket = bed.dir().join("run/host.sock");
    let mut idle = Vec::new();
    for _ in 0..2 * MORE {
        idle.push(UnixStream::connect(&socket).await.unwrap());
    }
    bed.until("the agent has no descriptor left", async || {
        bed.log().contains("a connection to the host socket was not accepted").then_some(())
    })
    .await;
    signal(before.pid.unwrap(), Signal::SIGKILL);
    let after = bed.running_again("echo", &before).await;
    assert_eq!(after.restarts, before.restarts + 1);
    // Callers have their answers, too: idle connections make room.
    assert!(bed.cli(&["status"]).await.ok().contains("echo"));
    assert!(!bed.log().contains("cannot write the store"), "its state is durable, too");
    drop(idle);
    bed.finish().await;
}
