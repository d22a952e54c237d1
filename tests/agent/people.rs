//! What people on the machine ask of one plugin: stops, starts, rollbacks, runs.

use crate::harness::{ArchiveSpec, Bed, orders};

#[tokio::test]
async fn a_stop_lasts_until_somebody_starts_the_plugin_whatever_is_ordered_meanwhile() {
    let mut bed = Bed::new().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("web", "1", &echo).order()]).await;
    bed.running("web", "1").await;
    bed.expect_events("web", &[1, 4, 3]).await;

    let stop = ["stop", "web", "--reason", "the disk is full", "--wait"];
    assert_eq!(bed.cli(&stop).await.ok(), "web: STOPPED\n");
    assert!(bed.processes("web").is_empty());
    bed.expect_events("web", &[1, 4, 3, 6]).await;
    let told = bed.event(6, "web", "1").await;
    assert!(told.details().contains("stopped by root: the disk is full"), "{}", told.details());
    let status = bed.status("web").await.unwrap();
    assert_eq!(status.reason, "stopped by root: the disk is full");
    let verdict = status.verdict.unwrap();
    assert_eq!((&*verdict.level, &*verdict.cause), ("held", "stopped"));
    assert_eq!(verdict.help, "guest-agent start web");
    let shown = bed.cli(&["status"]).await.ok();
    assert!(shown.contains("held: stopped by root: the disk is full"), "{shown}");
    let listed = bed.listed("web").await.unwrap().current_plugin_status.unwrap();
    assert_eq!(listed.status, 4, "STOPPED");

    // A restart of the plugin would undo it; one of the agent does not.
    let refused = bed.cli(&["restart", "web"]).await;
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("guest-agent start web"), "{refused:?}");
    bed.kill_agent().await;
    bed.start_agent().await;
    bed.in_state("web", "STOPPED").await;

    // The control plane gets what it orders, as far as that goes without a process.
    let second = orders::install("web", "2", &echo).config("a").order();
    bed.configure(vec![second]).await;
    bed.expect_events("web", &[1, 4, 3, 6, 1, 3]).await;
    bed.configure(vec![orders::apply("web", Some("b"))]).await;
    bed.expect_events("web", &[1, 4, 3, 6, 1, 3, 11, 12]).await;
    let status = bed.in_state("web", "STOPPED").await;
    assert_eq!((&*status.revision, &*status.rollback_to), ("2", "1"), "its trial has not begun");
    assert!(bed.processes("web").is_empty());

    assert_eq!(bed.cli(&["start", "web", "--wait"]).await.ok(), "web: RUNNING\n");
    bed.running("web", "2").await;
    assert_eq!(bed.ask("web", "config").await.results, ["b"]);
    bed.expect_events("web", &[1, 4, 3, 6, 1, 3, 11, 12, 4]).await;
    bed.finish().await;
}

#[tokio::test]
async fn a_rollback_returns_to_the_revision_before_and_keeps_the_other_away() {
    let bed = Bed::builder().set("plugins.probation=200ms").start().await;
    let echo = bed.echo().await;
    let order = |revision: &str| orders::install("web", revision, &echo).order();
    bed.configure(vec![order("1")]).await;
    bed.running("web", "1").await;
    let nothing = bed.cli(&["rollback", "web"]).await;
    assert_eq!(nothing.code, 1);
    assert!(nothing.stderr.contains("only the one that ran before 1 is kept"), "{nothing:?}");
    bed.configure(vec![order("2")]).await;
    bed.running("web", "2").await;
    bed.expect_events("web", &[1, 4, 3, 1, 6, 4, 3, 2, 5]).await;

    // The new one has proved itself, and the old one is on disk all the same.
    assert_eq!(bed.status("web").await.unwrap().rollback_to, "1");
    let elsewhere = bed.cli(&["rollback", "web", "--to", "7"]).await;
    assert!(elsewhere.stderr.contains("a rollback returns to 1"), "{elsewhere:?}");
    let back = ["rollback", "web", "--reason", "it leaks", "--wait"];
    assert_eq!(bed.cli(&back).await.ok(), "web: RUNNING with revision 1\n");
    bed.running("web", "1").await;
    let events = [1, 4, 3, 1, 6, 4, 3, 2, 5, 8, 4];
    bed.expect_events("web", &events).await;
    let told = bed.event(8, "web", "2").await;
    assert_eq!(told.details(), "rolled back by root: it leaks");
    let status = bed.status("web").await.unwrap();
    assert_eq!((&*status.rolled_back, &*status.revision), ("2", "1"));
    let verdict = status.verdict.unwrap();
    assert_eq!((&*verdict.level, &*verdict.cause), ("held", "rolled_back"));
    let listed = bed.listed("web").await.unwrap();
    assert_eq!(listed.pending_revision_id, "2");

    // A control plane that repeats its order does not undo it.
    bed.configure(vec![order("2")]).await;
    let events = [&events[..], &[1, 8]].concat();
    bed.expect_events("web", &events).await;
    bed.running("web", "1").await;
    bed.cli(&["release", "web"]).await.ok();
    bed.configure(vec![order("2")]).await;
    bed.running("web", "2").await;
    bed.finish().await;
}

#[tokio::test]
async fn a_rollback_survives_the_death_of_the_agent_at_any_time() {
    let mut bed = Bed::new().await;
    let echo = bed.echo().await;
    for revision in ["1", "2"] {
        bed.configure(vec![orders::install("web", revision, &echo).order()]).await;
        bed.running("web", revision).await;
    }
    bed.cli(&["rollback", "web"]).await.ok();
    bed.kill_agent().await;
    bed.start_agent().await;
    bed.running("web", "1").await;
    assert_eq!(bed.status("web").await.unwrap().rolled_back, "2");
    bed.configure(vec![orders::install("web", "2", &echo).order()]).await;
    bed.expect_events("web", &[1, 4, 3, 1, 6, 4, 3, 8, 4, 1, 8]).await;
    // Another revision ends it.
    bed.configure(vec![orders::install("web", "3", &echo).order()]).await;
    bed.running("web", "3").await;
    assert_eq!(bed.status("web").await.unwrap().rolled_back, "");
    bed.finish().await;
}

#[tokio::test]
async fn a_one_shot_runs_when_a_person_says_so() {
    use guest_agent_proto::agent_controlplane as pb;
    use guest_agent_proto::agent_controlplane::execution_model as em;

    let bed = Bed::new().await;
    let script = ArchiveSpec::script("echo run >> $GUEST_AGENT_STATE_DIR/runs");
    let archive = bed.archive("once.tar", script).await;
    let model = pb::ExecutionModel {
        r#type: Some(em::Type::OneShot(em::OneShot::default())),
        ..Default::default()
    };
    let order = orders::install("once", "1", &archive).manifest(|it| {
        it.plugin_type = pb::PluginType::OneShot.into();
        it.execution_model = Some(model);
    });
    bed.configure(vec![order.order()]).await;
    bed.in_state("once", "EXECUTION_COMPLETED").await;
    assert_eq!(bed.cli(&["run", "once", "--wait"]).await.ok(), "once: EXECUTION_COMPLETED\n");
    let runs = bed.plugin_state("once").join("runs");
    assert_eq!(std::fs::read_to_string(&runs).unwrap(), "run\nrun\n");

    bed.cli(&["stop", "once", "--wait"]).await.ok();
    let refused = bed.cli(&["run", "once"]).await;
    assert!(refused.stderr.contains("guest-agent start once"), "{refused:?}");
    bed.cli(&["start", "once"]).await.ok();
    bed.in_state("once", "EXECUTION_COMPLETED").await;
    assert_eq!(std::fs::read_to_string(&runs).unwrap(), "run\nrun\n", "a start is no run");
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("web", "1", &echo).order()]).await;
    bed.running("web", "1").await;
    let refused = bed.cli(&["run", "web"]).await;
    assert!(refused.stderr.contains("guest-agent restart web"), "{refused:?}");
    bed.finish().await;
}
