//! Plugins that run to completion, as real processes.

use guest_agent_proto::agent_controlplane as pb;
use guest_agent_proto::agent_controlplane::execution_model as em;
use nix::sys::signal::Signal;

use crate::harness::{ArchiveSpec, Bed, orders, signal};

/// An INSTALL of a plugin that runs to completion.
async fn once(
    bed: &Bed,
    revision: &str,
    script: ArchiveSpec,
    change: impl FnOnce(&mut em::OneShot, &mut em::Triggers),
) -> orders::Install {
    let archive = bed.archive(&format!("once-{revision}.tar"), script).await;
    let (mut one_shot, mut triggers) = (em::OneShot::default(), em::Triggers::default());
    change(&mut one_shot, &mut triggers);
    one_shot.triggers = Some(triggers);
    let model =
        pb::ExecutionModel { r#type: Some(em::Type::OneShot(one_shot)), ..Default::default() };
    orders::install("once", revision, &archive).manifest(|manifest| {
        manifest.plugin_type = pb::PluginType::OneShot.into();
        manifest.execution_model = Some(model);
        manifest.stop_timeout = orders::seconds(1.0);
    })
}

#[tokio::test]
async fn a_run_of_the_sdk_gets_its_configuration_and_is_reported_with_its_output() {
    let bed = Bed::new().await;
    let install = once(&bed, "1", ArchiveSpec::one_shot(), |_, _| {}).await;
    let config = r#"{"greeting": "good morning"}"#;
    bed.configure(vec![install.config(config).order()]).await;
    bed.expect_events("once", &[1, 4, 3, 14]).await;
    let events = bed.all_events_of("once").await;
    assert!(events[3].details().contains("good morning, this is run 1"), "{events:?}");

    let status = bed.in_state("once", "EXECUTION_COMPLETED").await;
    assert_eq!((status.kind.as_str(), status.pid), ("one_shot", None));
    let state = bed.listed_one_shot("once").await.unwrap().current_plugin_status.unwrap();
    assert_eq!((state.status().as_str_name(), state.response_code), ("EXECUTION_COMPLETED", 0));
    assert_eq!(state.results, ["good morning, this is run 1"]);
    assert_eq!(bed.listed("once").await, None, "it is no daemon");

    // An APPLY makes it run once more, in the same folder, with a configuration that makes it fail.
    bed.configure(vec![orders::apply("once", Some(r#"{"fail": "no luck"}"#))]).await;
    bed.expect_events("once", &[1, 4, 3, 14, 11, 12]).await;
    let failed = bed.cli(&["restart", "once"]).await;
    assert_eq!(failed.code, 1, "{failed:?}");
    assert!(failed.stderr.contains("it is EXECUTION_FAILED: exited with code 1"), "{failed:?}");
    bed.expect_events("once", &[1, 4, 3, 14, 11, 12, 4, 15]).await;
    let state = bed.listed_one_shot("once").await.unwrap().current_plugin_status.unwrap();
    assert_eq!((state.status().as_str_name(), state.response_code), ("EXECUTION_FAILED", 1));
    assert!(state.results.join("\n").contains("this is run 2\nerror: no luck"), "{state:?}");

    let explained = bed.cli(&["explain", "once", "--json"]).await.ok();
    let explained: serde_json::Value = serde_json::from_str(&explained).unwrap();
    assert_eq!(explained["state"], "EXECUTION_FAILED");
    assert_eq!(explained["trouble"]["type"], "PLUGIN_EXECUTION_FAILED");
    assert!(!explained.to_string().contains("good morning\\\""), "no configuration is shown");
    // A start is no run, and the failure is one of the run before.
    assert_eq!(bed.cli(&["stop", "once"]).await.ok(), "once: STOPPED\n");
    assert_eq!(bed.cli(&["start", "once"]).await.ok(), "once: EXECUTION_FAILED\n");
    bed.finish().await;
}

#[tokio::test]
async fn a_run_that_takes_too_long_is_ended_with_its_helpers() {
    let bed = Bed::new().await;
    let script = ArchiveSpec::script("trap '' TERM; echo begun; sleep 600 & sleep 600");
    let install = once(&bed, "1", script, |one_shot, _| {
        one_shot.execution_timeout = orders::seconds(1.0);
    });
    bed.configure(vec![install.await.order()]).await;
    bed.expect_events("once", &[1, 4, 3, 15]).await;
    let events = bed.all_events_of("once").await;
    assert!(events[3].details().contains("did not end within 1s"), "{events:?}");
    assert!(events[3].details().contains("begun"), "{events:?}");
    bed.until("nobody is left", async || bed.processes("once").is_empty().then_some(())).await;
    bed.finish().await;
}

#[tokio::test]
async fn a_run_goes_on_while_the_agent_is_dead_and_is_not_run_again() {
    let mut bed = Bed::new().await;
    let script = ArchiveSpec::script(
        "echo run >> $GUEST_AGENT_STATE_DIR/runs\nwhile [ ! -e $GUEST_AGENT_STATE_DIR/end ]; do sleep 0.05; done\nexit 7",
    );
    let install = once(&bed, "1", script, |_, triggers| triggers.startup = true).await;
    bed.configure(vec![install.order()]).await;
    bed.expect_events("once", &[1, 4, 3]).await;
    let pid = bed.in_state("once", "RUNNING").await.pid;
    bed.kill_agent().await;
    bed.start_agent().await;
    assert_eq!(bed.in_state("once", "RUNNING").await.pid, pid, "it was adopted");
    std::fs::write(bed.plugin_state("once").join("end"), "").unwrap();
    bed.expect_events("once", &[1, 4, 3, 15]).await;
    let status = bed.in_state("once", "EXECUTION_FAILED").await;
    assert!(status.busy || status.pid.is_none());

    // Also not by an agent that comes back when it is over.
    bed.kill_agent().await;
    bed.start_agent().await;
    bed.in_state("once", "EXECUTION_FAILED").await;
    let runs = std::fs::read_to_string(bed.plugin_state("once").join("runs")).unwrap();
    assert_eq!(runs, "run\n");
    assert_eq!(bed.events_of("once").await, [1, 4, 3, 15]);
    bed.finish().await;
}

#[tokio::test]
async fn a_run_learns_why_it_began() {
    let mut bed = Bed::new().await;
    let script = ArchiveSpec::script("echo $GUEST_AGENT_TRIGGER >> $GUEST_AGENT_STATE_DIR/runs");
    let install = once(&bed, "1", script, |_, _| {}).await;
    bed.configure(vec![install.order()]).await;
    bed.expect_events("once", &[1, 4, 3, 14]).await;
    bed.cli(&["run", "once", "--wait"]).await.ok();
    bed.expect_events("once", &[1, 4, 3, 14, 4, 14]).await;
    let runs = std::fs::read_to_string(bed.plugin_state("once").join("runs")).unwrap();
    assert_eq!(runs, "install\nrun\n");
    // It is on record.
    bed.kill_agent().await;
    bed.start_agent().await;
    bed.in_state("once", "EXECUTION_COMPLETED").await;
    let text = bed.cli(&["status", "once"]).await.ok();
    assert!(text.contains("run, because a person asked for it"), "{text}");
    let explained = bed.cli(&["explain", "once", "--json"]).await.ok();
    let explained: serde_json::Value = serde_json::from_str(&explained).unwrap();
    assert_eq!(explained["trigger"], "run");
    bed.finish().await;
}

#[tokio::test]
async fn an_interval_runs_it_again_and_a_killed_run_failed() {
    let bed = Bed::new().await;
    let script = ArchiveSpec::script("echo run >> $GUEST_AGENT_STATE_DIR/runs");
    let install = once(&bed, "1", script, |_, triggers| {
        triggers.interval = orders::seconds(1.0);
    });
    bed.configure(vec![install.await.order()]).await;
    let runs = bed.plugin_state("once").join("runs");
    bed.until("it ran three times", async || {
        let runs = std::fs::read_to_string(&runs).unwrap_or_default();
        (runs.lines().count() >= 3).then_some(())
    })
    .await;

    let script = ArchiveSpec::script("sleep 600");
    let install = once(&bed, "2", script, |_, _| {}).await;
    bed.configure(vec![install.order()]).await;
    let is_running = |status: &guest_agent_proto::local::PluginStatus| {
        status.revision == "2" && status.state == "RUNNING"
    };
    let pid = bed.status_where("once", "revision 2 runs", is_running).await.pid.unwrap();
    signal(pid, Signal::SIGKILL);
    let status = bed.in_state("once", "EXECUTION_FAILED").await;
    assert!(status.reason.contains("SIGKILL"), "{status:?}");
    bed.finish().await;
}
