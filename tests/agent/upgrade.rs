//! New revisions, new configurations and new arguments of what already runs.

use guest_agent_lab::{ArtifactFaults, StatusFault};
use guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config;
use guest_agent_proto::local::PluginStatus;
use sha2::{Digest, Sha256};

use crate::harness::{ArchiveSpec, Bed, orders};

fn hash(config: &str) -> String {
    Sha256::digest(config.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn the_old_revision_stays_for_a_rollback_until_the_one_after_the_new_one_proved_itself() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    let old = bed.running("echo", "1").await;
    bed.configure(vec![orders::install("echo", "2", &echo).order()]).await;
    let new = bed.running("echo", "2").await;
    assert_ne!(new.pid, old.pid);
    assert_eq!(new.restarts, 0);
    assert_eq!(bed.revisions("echo"), ["1", "2", "current"], "nothing to return to");
    bed.expect_events("echo", &[1, 4, 3, 1, 6, 4, 3, 2, 5]).await;
    bed.event(5, "echo", "1").await;
    assert_eq!(bed.revisions("echo"), ["1", "2", "current"], "nothing to roll back to");
    assert_eq!(bed.running("echo", "2").await.pid, new.pid);
    bed.configure(vec![orders::install("echo", "3", &echo).order()]).await;
    bed.running("echo", "3").await;
    bed.event(5, "echo", "2").await;
    bed.until("the oldest files are deleted", async || {
        (bed.revisions("echo") == ["2", "3", "current"]).then_some(())
    })
    .await;
    bed.finish().await;
}

/// Upgrades from the echo plugin to a bad one, and checks the way back.
async fn check_return(bed: &Bed, flags: &[&str], new_events: &[i32], why: &str) -> PluginStatus {
    let (echo, trouble) = (bed.echo().await, bed.trouble().await);
    bed.configure(vec![orders::install("p", "1", &echo).config("mine").order()]).await;
    let before = bed.running("p", "1").await;
    let bad = flags.iter().fold(orders::install("p", "2", &trouble), |it, flag| it.arg(*flag));
    bed.configure(vec![bad.order()]).await;
    let all: Vec<i32> = [&[1, 4, 3][..], new_events, &[4]].concat();
    bed.expect_events("p", &all).await;
    let after = bed.running("p", "1").await;
    assert_ne!(after.pid, before.pid);
    assert_eq!(bed.ask("p", "config").await.results, ["mine"]);
    let pending = after.pending.clone().unwrap();
    assert_eq!((pending.revision.as_str(), pending.state.as_str()), ("2", "CRASHED"));
    assert!(pending.error.contains(why), "{}", pending.error);
    let listed = bed.listed("p").await.unwrap();
    assert_eq!(
        (listed.current_revision_id.as_str(), listed.pending_revision_id.as_str()),
        ("1", "2")
    );
    assert_eq!(listed.current_plugin_status.unwrap().status, 2);
    assert_eq!(listed.pending_plugin_status.unwrap().status, 5);
    let events = bed.all_events_of("p").await;
    assert_eq!(events.last().unwrap().revision(), "1");
    bed.until("the files of the bad revision are deleted", async || {
        (bed.revisions("p") == ["1", "current"]).then_some(())
    })
    .await;
    after
}

#[tokio::test]
async fn a_revision_that_does_not_start_is_taken_back() {
    let bed = Bed::new().await;
    check_return(&bed, &["--exit-before-start=3"], &[1, 6, 9, 8], "exited with code 3").await;
    bed.finish().await;
}

#[tokio::test]
async fn a_revision_that_crashes_on_probation_is_taken_back_without_a_download() {
    let bed = Bed::builder().set("plugins.probation=20s").start().await;
    let (echo, trouble) = (bed.echo().await, bed.trouble().await);
    bed.configure(vec![orders::install("p", "1", &echo).order()]).await;
    bed.running("p", "1").await;
    bed.configure(vec![orders::install("p", "2", &trouble).order()]).await;
    let bad = bed.running("p", "2").await;
    // From here on nothing can be downloaded.
    let status = Some(StatusFault { status: 500, requests: u32::MAX });
    for archive in [&echo, &trouble] {
        let faults = ArtifactFaults { status, ..ArtifactFaults::default() };
        bed.artifacts.set_faults(&archive.name, faults);
    }
    let asked = [&echo, &trouble].map(|it| bed.artifacts.counters(&it.name).requests);
    bed.tell("p", "exit 9").await;
    bed.expect_events("p", &[1, 4, 3, 1, 6, 4, 3, 7, 8, 4]).await;
    let back = bed.running("p", "1").await;
    assert_ne!(back.pid, bad.pid);
    assert_eq!(back.pending.clone().unwrap().state, "CRASHED");
    let now = [&echo, &trouble].map(|it| bed.artifacts.counters(&it.name).requests);
    assert_eq!(asked, now, "the return asked for archives");
    let asked_again = bed.ask("p", "echo I stay").await.results;
    assert_eq!(
        (asked_again, bed.running("p", "1").await.pid),
        (vec!["I stay".to_owned()], back.pid)
    );
    bed.finish().await;
}

#[tokio::test]
async fn a_revision_that_is_unwell_on_probation_is_taken_back() {
    let bed = Bed::builder()
        .set("plugins.probation=20s")
        .set("plugins.health_interval=100ms")
        .set("plugins.health_failures=2")
        .start()
        .await;
    let events = [1, 6, 4, 3, 1001, 7, 8];
    check_return(&bed, &["--unhealthy-code=4"], &events, "unhealthy with code 4").await;
    bed.finish().await;
}

#[tokio::test]
async fn a_revision_that_cannot_be_downloaded_changes_nothing() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    let before = bed.running("echo", "1").await;
    let wrong = orders::install("echo", "2", &echo).plugin(|it| it.checksum = "ab".repeat(32));
    bed.configure(vec![wrong.order()]).await;
    bed.expect_events("echo", &[1, 4, 3, 1, 8]).await;
    let after = bed.running("echo", "1").await;
    assert_eq!(after.pid, before.pid);
    assert_eq!(after.pending.unwrap().state, "INSTALL_FAILED");
    let listed = bed.listed("echo").await.unwrap();
    assert_eq!(
        (listed.pending_revision_id.as_str(), listed.pending_plugin_status.unwrap().status),
        ("2", 7)
    );
    bed.finish().await;
}

#[tokio::test]
async fn a_revision_on_its_way_is_shown_beside_the_one_that_runs() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    let slow = bed.archive("slow.tar", ArchiveSpec::echo().padded(100_000)).await;
    let faults = ArtifactFaults { bytes_per_second: Some(10_000), ..ArtifactFaults::default() };
    bed.artifacts.set_faults("slow.tar", faults);
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    let before = bed.running("echo", "1").await;
    bed.configure(vec![orders::install("echo", "2", &slow).order()]).await;
    let status = bed.status_where("echo", "something is pending", |it| it.pending.is_some()).await;
    let pending = status.pending.unwrap();
    assert_eq!((pending.revision.as_str(), pending.state.as_str()), ("2", "INSTALLING"));
    assert_eq!((status.state.as_str(), status.pid), ("RUNNING", before.pid));
    let listed = bed.listed("echo").await.unwrap();
    assert_eq!(listed.current_plugin_status.unwrap().status, 2);
    assert_eq!(
        (listed.pending_revision_id.as_str(), listed.pending_plugin_status.unwrap().status),
        ("2", 6)
    );
    // A removal does not wait for it.
    bed.configure(vec![orders::remove("echo")]).await;
    bed.gone("echo").await;
    bed.finish().await;
}

#[tokio::test]
async fn what_is_installed_already_is_a_success_and_touches_nothing() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    let order = || orders::install("echo", "1", &echo).config("a").order();
    bed.configure(vec![order()]).await;
    let before = bed.running("echo", "1").await;
    let asked = bed.artifacts.counters(&echo.name).requests;
    bed.configure(vec![order()]).await;
    bed.expect_events("echo", &[1, 4, 3, 1, 3]).await;
    assert_eq!(bed.running("echo", "1").await.pid, before.pid);
    assert_eq!(bed.artifacts.counters(&echo.name).requests, asked);
    bed.finish().await;
}

#[tokio::test]
async fn other_arguments_start_the_plugin_afresh() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    let before = bed.running("echo", "1").await;
    let order = orders::install("echo", "1", &echo).arg("--greeting=changed").order();
    bed.configure(vec![order]).await;
    bed.expect_events("echo", &[1, 4, 3, 1, 6, 4, 3]).await;
    assert_ne!(bed.running("echo", "1").await.pid, before.pid);
    assert!(bed.plugin_output("echo").contains("changed"));
    bed.finish().await;
}

/// How a configuration for what runs is given.
#[derive(Clone, Copy, PartialEq)]
enum How {
    Install,
    Apply,
}

/// What becomes of a configuration.
#[derive(Clone, Copy)]
enum Fate {
    InPlace,
    ByRestart,
    Refused,
}

async fn check_config(apply: &str, how: How, fate: Fate, events: &[i32]) {
    let bed = Bed::new().await;
    let trouble = bed.trouble().await;
    let install = |config: &str| {
        let order = orders::install("p", "1", &trouble).arg(format!("--apply={apply}"));
        order.config(config).order()
    };
    bed.configure(vec![install("old")]).await;
    let before = bed.running("p", "1").await;
    assert_eq!(before.config_hash, hash("old"));
    let order = match how {
        How::Install => install("new"),
        How::Apply => orders::apply("p", Some("new")),
    };
    bed.configure(vec![order]).await;
    bed.expect_events("p", &[&[1, 4, 3], events].concat()).await;
    let after = bed.running("p", "1").await;
    let (config, same_process) = match fate {
        Fate::InPlace => ("new", true),
        Fate::ByRestart => ("new", false),
        Fate::Refused => ("old", true),
    };
    assert_eq!(after.config_hash, hash(config));
    assert_eq!(bed.listed("p").await.unwrap().config_hash, hash(config));
    assert_eq!(bed.ask("p", "config").await.results, [config]);
    assert_eq!(after.pid == before.pid, same_process);
    bed.finish().await;
}

#[tokio::test]
async fn an_install_with_another_config_applies_it_in_place() {
    check_config("ok", How::Install, Fate::InPlace, &[1, 3]).await;
}

#[tokio::test]
async fn an_install_with_another_config_restarts_what_cannot_apply_it() {
    check_config("unimplemented", How::Install, Fate::ByRestart, &[1, 6, 4, 3]).await;
}

#[tokio::test]
async fn an_install_with_a_refused_config_fails_and_the_old_one_stays() {
    check_config("refuse", How::Install, Fate::Refused, &[1, 8]).await;
}

#[tokio::test]
async fn an_apply_takes_effect_in_place() {
    check_config("ok", How::Apply, Fate::InPlace, &[11, 12]).await;
}

#[tokio::test]
async fn an_apply_restarts_what_cannot_apply_it() {
    check_config("unimplemented", How::Apply, Fate::ByRestart, &[11, 6, 4, 12]).await;
}

#[tokio::test]
async fn a_refused_apply_fails_and_the_old_config_stays() {
    check_config("refuse", How::Apply, Fate::Refused, &[11, 13]).await;
}

#[tokio::test]
async fn an_apply_without_a_config_clears_it_and_one_for_nobody_fails() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).config("a").order()]).await;
    bed.running("echo", "1").await;
    bed.configure(vec![orders::apply("echo", None), orders::apply("nobody", Some("x"))]).await;
    bed.expect_events("echo", &[1, 4, 3, 11, 12]).await;
    assert_eq!(bed.running("echo", "1").await.config_hash, "");
    bed.expect_events("nobody", &[13]).await;
    bed.finish().await;
}

#[tokio::test]
async fn an_empty_configuration_is_one_and_has_its_hash() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    let structure = |order: orders::Install| {
        let empty = Config::StructConfig(prost_types::Struct::default());
        order.manifest(|manifest| manifest.config = Some(empty)).order()
    };
    bed.configure(vec![
        orders::install("text", "1", &echo).config("").order(),
        structure(orders::install("struct", "1", &echo)),
        orders::install("none", "1", &echo).order(),
    ])
    .await;
    for (name, expected) in [("text", hash("")), ("struct", hash("")), ("none", String::new())] {
        assert_eq!(bed.running(name, "1").await.config_hash, expected, "{name}");
        assert_eq!(bed.listed(name).await.unwrap().config_hash, expected, "{name}");
    }
    bed.configure(vec![orders::apply("none", Some(""))]).await;
    bed.expect_events("none", &[1, 4, 3, 11, 12]).await;
    assert_eq!(bed.running("none", "1").await.config_hash, hash(""));
    bed.finish().await;
}
