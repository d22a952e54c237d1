//! The VM events that plugins receive.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::{Bed, orders, signal};

const STARTUP: &str = r#"{"Command":"VmEvent","Event":"startup"}"#;

#[tokio::test]
async fn the_command_line_tells_plugins_and_prints_how_each_took_it() {
    let bed = Bed::new().await;
    assert_eq!(bed.cli(&["vm-event", "startup"]).await.ok(), "the agent has no plugins\n");
    let trouble = bed.trouble().await;
    let deaf = orders::install("deaf", "1", &trouble).arg("--apply=unimplemented");
    bed.configure(vec![orders::install("good", "1", &trouble).order(), deaf.order()]).await;
    bed.running("good", "1").await;
    bed.running("deaf", "1").await;
    let text = bed.cli(&["vm-event", "specialize"]).await.ok();
    let expected =
        "deaf  passed    the plugin does not implement the call for VM events\ngood  sent\n";
    assert_eq!(text, expected);
    let told = bed.ask("good", "config").await.results;
    assert_eq!(told, [r#"{"Command":"VmEvent","Event":"specialize"}"#]);
    let refuses = orders::install("refuses", "1", &trouble).arg("--apply=refuse");
    bed.configure(vec![refuses.order()]).await;
    bed.running("refuses", "1").await;
    let said = bed.cli(&["vm-event", "shutdown", "--json"]).await;
    assert_eq!(said.code, 1, "{}", said.stderr);
    let results: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(results[1], json!({"plugin": "good", "status": 0, "message": ""}));
    assert_eq!(results[2]["status"], 502, "{results}");
    assert!(said.stderr.contains("1 of 3 plugins did not get the event"), "{}", said.stderr);
    assert_eq!(bed.cli(&["vm-event", "lunch"]).await.code, 2);
    bed.finish().await;
}

#[tokio::test]
async fn a_shutdown_is_told_before_plugins_stop_and_a_startup_when_they_are_back() {
    let mut bed = Bed::builder().flag("--stop-plugins").start().await;
    let trouble = bed.trouble().await;
    bed.configure(vec![orders::install("a", "1", &trouble).config("mine").order()]).await;
    bed.running("a", "1").await;
    assert_eq!(bed.ask("a", "config").await.results, ["mine"]);
    bed.stop_agent().await;
    let log = bed.log();
    let told =
        log.find("sent a VM event to the plugins event=shutdown told=1").unwrap_or_else(|| {
            bed.fail("no plugin got the shutdown event");
        });
    assert!(log.rfind("the plugins stop, too").unwrap() < told, "the event came before the stop");
    bed.start_agent().await;
    bed.running("a", "1").await;
    bed.until("it gets the startup event", async || {
        (bed.ask("a", "config").await.results == [STARTUP]).then_some(())
    })
    .await;
    // Another agent in the same boot tells nothing.
    bed.kill_agent().await;
    bed.start_agent().await;
    bed.running("a", "1").await;
    bed.configure(vec![orders::apply("a", Some("again"))]).await;
    bed.until("it takes configurations", async || {
        (bed.ask("a", "config").await.results == ["again"]).then_some(())
    })
    .await;
    assert_eq!(bed.log().matches("sent a VM event to the plugins event=startup told=1").count(), 1);
    bed.finish().await;
}

#[tokio::test]
async fn configurations_are_applied_and_waited_for_from_the_command_line() {
    let bed = Bed::new().await;
    let trouble = bed.trouble().await;
    let refuses = orders::install("refuses", "1", &trouble).arg("--apply=refuse");
    let deaf = orders::install("deaf", "1", &trouble).arg("--apply=unimplemented");
    let good = orders::install("good", "1", &trouble);
    bed.configure(vec![good.order(), refuses.order(), deaf.order()]).await;
    for plugin in ["good", "refuses", "deaf"] {
        bed.running(plugin, "1").await;
    }
    for plugin in ["good", "deaf"] {
        bed.cli(&["apply", plugin, "--string", "level=3", "--wait"]).await.ok();
        assert_eq!(bed.ask(plugin, "config").await.results, ["level=3"]);
    }
    let file = bed.dir().join("config.json");
    std::fs::write(&file, r#"{"level": 4}"#).unwrap();
    bed.cli(&["apply", "good", "--json", file.to_str().unwrap(), "--wait"]).await.ok();
    assert!(bed.ask("good", "config").await.results[0].contains("level"));
    bed.cli(&["apply", "good", "--clear", "--wait"]).await.ok();
    assert_eq!(bed.ask("good", "config").await.results, [""]);
    let said = bed.cli(&["apply", "refuses", "--string", "x", "--wait"]).await;
    assert_eq!(said.code, 1);
    assert!(said.stderr.contains("told to refuse"), "{}", said.stderr);
    assert_eq!(bed.cli(&["apply", "nobody", "--string", "x"]).await.code, 1);
    assert_eq!(bed.cli(&["apply", "good"]).await.code, 2);
    bed.finish().await;
}

#[tokio::test]
async fn a_question_can_be_waited_for_until_it_has_its_answer() {
    let bed = Bed::new().await;
    let trouble = bed.trouble().await;
    bed.configure(vec![orders::install("a", "1", &trouble).order()]).await;
    let wait = ["wait", "a", "--request", "echo there", "--status-code", "0"];
    bed.cli(&wait).await.ok();
    bed.cli(&["wait", "a", "--state", "running"]).await.ok();
    let never = bed.cli(&["wait", "a", "--status-code", "7", "--timeout", "1s"]).await;
    assert_eq!(never.code, 4, "{}", never.stderr);
    bed.finish().await;
}

#[tokio::test]
async fn a_plugin_that_exits_after_the_shutdown_event_has_ended_and_not_crashed() {
    let mut bed = Bed::new().await;
    let trouble = bed.trouble().await;
    let deaf = orders::install("deaf", "1", &trouble).arg("--apply=unimplemented");
    bed.configure(vec![orders::install("a", "1", &trouble).order(), deaf.order()]).await;
    let (a, deaf) = (bed.running("a", "1").await, bed.running("deaf", "1").await);
    bed.cli(&["vm-event", "shutdown"]).await.ok();
    // After this signal the plugin ends with exit code 0.
    signal(a.pid.unwrap(), Signal::SIGTERM);
    let stopped = bed.event(6, "a", "1").await;
    assert!(stopped.details().contains("exited with code 0"), "{}", stopped.details());
    let status = bed.in_state("a", "STOPPED").await;
    assert_eq!((status.restarts, status.pid), (0, None));
    assert!(status.reason.contains("shutdown"), "{}", status.reason);
    let explained = bed.cli(&["explain", "a"]).await.ok();
    assert!(explained.contains("the machine to shut down"), "{explained}");
    // The event was not for one that has no use for it, so its exit is a crash.
    signal(deaf.pid.unwrap(), Signal::SIGTERM);
    bed.running_again("deaf", &deaf).await;
    bed.expect_events("deaf", &[1, 4, 3, 7, 4]).await;
    // Neither does the next agent of this boot start it.
    bed.kill_agent().await;
    bed.start_agent().await;
    bed.running("deaf", "1").await;
    assert_eq!(bed.in_state("a", "STOPPED").await.pid, None);
    bed.cli(&["restart", "a", "--wait"]).await.ok();
    bed.running("a", "1").await;
    bed.expect_events("a", &[1, 4, 3, 6, 4]).await;
    bed.finish().await;
}
