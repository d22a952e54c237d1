//! Holds: a person makes the orders for a plugin, or for all, wait.

use nix::sys::signal::Signal;

use crate::harness::{Bed, orders, signal};

#[tokio::test]
async fn orders_wait_while_a_plugin_is_held_and_are_carried_out_when_it_is_released() {
    let mut bed = Bed::builder().by_hand().start().await;
    let echo = bed.echo().await;
    let order = |revision: &str| orders::install("web", revision, &echo).order();
    bed.configure(vec![order("1")]).await;
    bed.running("web", "1").await;
    bed.expect_events("web", &[1, 4, 3]).await;

    let unexplained = bed.cli(&["hold", "web"]).await;
    assert_eq!(unexplained.code, 2, "{unexplained:?}");
    bed.cli(&["hold", "web", "--reason", "incident 4711"]).await.ok();
    let verdict = bed.until("the plugin is held", async || {
        let verdict = bed.status("web").await?.verdict?;
        (verdict.cause == "held").then_some(verdict)
    });
    let verdict = verdict.await;
    assert_eq!(verdict.level, "held");
    assert_eq!(verdict.reason, "held by root: incident 4711");
    assert_eq!(verdict.help, "guest-agent release web");
    let listed = bed.listed("web").await.unwrap().current_plugin_status.unwrap();
    assert!(listed.results.contains(&"held: root: incident 4711".to_owned()), "{listed:?}");

    // An order that changes nothing is answered at once, and no other is carried out.
    bed.configure(vec![order("1")]).await;
    bed.expect_events("web", &[1, 4, 3, 1, 3]).await;
    bed.configure(vec![order("2")]).await;
    bed.expect_events("web", &[1, 4, 3, 1, 3, 1]).await;
    let told = bed.event(1, "web", "2").await;
    assert_eq!(told.details(), "held: root: incident 4711");
    let listed = bed.listed("web").await.unwrap();
    let pending = listed.pending_plugin_status.unwrap();
    assert_eq!((&*listed.pending_revision_id, pending.status), ("2", 6), "pending INSTALLING");
    assert_eq!(pending.results, ["held: root: incident 4711"]);
    // The same order again sends no event, and `install --wait` exits at once.
    bed.configure(vec![order("2")]).await;
    let (url, sha256) = (echo.url.as_str(), echo.sha256.as_str());
    let again = ["install", "web", "--revision", "2", "--url", url, "--sha256", sha256];
    let waits = ["--entry-point", &echo.entry_point, "--wait", "--timeout", "10m"];
    let waited = bed.cli(&[&again[..], &waits].concat()).await;
    assert_eq!(waited.code, 4, "{waited:?}");
    assert!(waited.stderr.contains("guest-agent release web"), "{waited:?}");
    bed.expect_events("web", &[1, 4, 3, 1, 3, 1]).await;

    // Neither the death of the agent nor that of the plugin ends the hold; a crash is mended.
    bed.kill_agent().await;
    bed.start_agent().await;
    bed.running("web", "1").await;
    signal(bed.processes("web")[0], Signal::SIGKILL);
    bed.expect_events("web", &[1, 4, 3, 1, 3, 1, 7, 4]).await;
    let status = bed.running("web", "1").await;
    assert_eq!(status.hold.unwrap().waits, "an INSTALL of revision 2");
    let shown = bed.cli(&["status", "web"]).await.ok();
    assert!(shown.contains("by root: incident 4711; an INSTALL of revision 2 waits"), "{shown}");

    // A later order takes the place of the one that waits.
    bed.configure(vec![orders::apply("web", Some("a"))]).await;
    bed.expect_events("web", &[1, 4, 3, 1, 3, 1, 7, 4, 8, 11]).await;
    assert!(bed.event(8, "web", "2").await.details().starts_with("superseded"));
    bed.configure(vec![order("3")]).await;
    bed.expect_events("web", &[1, 4, 3, 1, 3, 1, 7, 4, 8, 11, 13, 1]).await;

    bed.cli(&["release", "web", "--wait"]).await.ok();
    bed.running("web", "3").await;
    bed.expect_events("web", &[1, 4, 3, 1, 3, 1, 7, 4, 8, 11, 13, 1, 6, 4, 3]).await;
    let refused = bed.cli(&["release", "web"]).await;
    assert!(refused.stderr.contains("nothing to release"), "{refused:?}");
    bed.finish().await;
}

#[tokio::test]
async fn all_plugins_are_held_those_that_come_later_too_until_the_time_is_over() {
    let mut bed = Bed::builder().by_hand().start().await;
    let echo = bed.echo().await;
    let order = |name: &str, revision: &str| orders::install(name, revision, &echo).order();
    bed.configure(vec![order("web", "1")]).await;
    bed.running("web", "1").await;

    bed.cli(&["hold", "--all", "--reason", "freeze"]).await.ok();
    bed.configure(vec![orders::remove("web"), order("db", "1")]).await;
    bed.expect_events("web", &[1, 4, 3, 2]).await;
    bed.expect_events("db", &[1]).await;
    bed.kill_agent().await;
    bed.start_agent().await;
    let status = bed.in_state("db", "INSTALLING").await;
    assert_eq!(status.reason, "held: root: freeze");
    bed.running("web", "1").await;
    assert!(bed.revisions("db").is_empty(), "nothing of it is on disk");
    // Another one after the restart.
    bed.configure(vec![order("cache", "1")]).await;
    bed.in_state("cache", "INSTALLING").await;

    let soon = ["hold", "--all", "--reason", "almost over", "--until", "2s"];
    bed.cli(&soon).await.ok();
    bed.running("db", "1").await;
    bed.running("cache", "1").await;
    bed.expect_events("web", &[1, 4, 3, 2, 6, 5]).await;
    bed.expect_events("db", &[1, 4, 3]).await;
    bed.configure(vec![order("late", "1")]).await;
    bed.running("late", "1").await;
    let past = ["hold", "db", "--reason", "too late", "--until", "2020-01-01T00:00:00Z"];
    assert!(bed.cli(&past).await.stderr.contains("in the past"));
    bed.finish().await;
}

#[tokio::test]
async fn a_release_of_all_ends_every_hold() {
    let bed = Bed::builder().by_hand().start().await;
    let echo = bed.echo().await;
    bed.cli(&["hold", "--all", "--reason", "freeze"]).await.ok();
    // Also a machine without plugins says so.
    let shown = bed.cli(&["status"]).await.ok();
    assert!(shown.contains("all plugins are held by root: freeze"), "{shown}");
    let doctor = bed.cli(&["doctor"]).await;
    assert!(doctor.stdout.contains("guest-agent release --all"), "{doctor:?}");
    let order = |name: &str| orders::install(name, "1", &echo).order();
    bed.configure(vec![order("web"), order("db")]).await;
    bed.in_state("web", "INSTALLING").await;
    bed.cli(&["release", "web", "--wait"]).await.ok();
    bed.running("web", "1").await;
    bed.in_state("db", "INSTALLING").await;
    bed.cli(&["hold", "web", "--reason", "by itself"]).await.ok();
    bed.cli(&["release", "--all"]).await.ok();
    bed.running("db", "1").await;
    assert_eq!(bed.status("web").await.unwrap().hold, None);
    let shown = bed.cli(&["status"]).await.ok();
    assert!(!shown.contains("held"), "{shown}");
    bed.finish().await;
}

#[tokio::test]
async fn a_release_is_waited_for_when_no_order_waits() {
    let bed = Bed::builder().by_hand().start().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("web", "1", &echo).order()]).await;
    bed.running("web", "1").await;
    bed.cli(&["hold", "web", "--reason", "freeze"]).await.ok();
    assert_eq!(bed.cli(&["release", "web", "--wait"]).await.ok(), "web: RUNNING\n");
    assert_eq!(bed.status("web").await.unwrap().hold, None);
    bed.finish().await;
}
