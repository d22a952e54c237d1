//! Starting plugins that do not want to start.

use std::time::{Duration, Instant};

use guest_agent_proto::local::PluginStatus;

use crate::harness::{Archive, ArchiveSpec, Bed, orders};

/// Checks that an install failed because the plugin did not start. Returns what was said.
async fn does_not_start(bed: &Bed, plugin: &str) -> (String, PluginStatus) {
    bed.expect_events(plugin, &[1, 9, 8]).await;
    let why = bed.event(9, plugin, "1").await.details().into_owned();
    let also = bed.event(8, plugin, "1").await.details().into_owned();
    assert!(!also.is_empty());
    let status = bed.in_state(plugin, "CRASHED").await;
    assert!(status.pid.is_none());
    bed.until("no process of it is left", async || bed.processes(plugin).is_empty().then_some(()))
        .await;
    let listed = bed.listed(plugin).await.unwrap();
    assert_eq!(listed.current_plugin_status.unwrap().status, 5, "CRASHED");
    (why, status)
}

async fn trouble() -> (Bed, Archive) {
    let bed = Bed::new().await;
    let trouble = bed.trouble().await;
    (bed, trouble)
}

#[tokio::test]
async fn an_exit_before_start_is_known_at_once_with_its_code_and_last_words() {
    let (bed, trouble) = trouble().await;
    let since = Instant::now();
    let order = orders::install("plugin", "1", &trouble)
        .arg("--exit-before-start=3")
        .manifest(|m| m.start_timeout = orders::seconds(60.0));
    bed.configure(vec![order.order()]).await;
    let (why, status) = does_not_start(&bed, "plugin").await;
    assert!(since.elapsed() < Duration::from_secs(10), "it took {:?}", since.elapsed());
    assert!(why.contains("told to exit with code 3"), "its last words are missing: {why}");
    assert!(why.contains("code 3") || why.contains("status 3"), "{why}");
    assert!(status.reason.contains('3'), "{}", status.reason);
    let said = bed.plugin_output("plugin");
    let starts = said.matches("told to exit").count();
    assert_eq!(starts, 2, "one for each ordered attempt: {said}");
    bed.finish().await;
}

#[tokio::test]
async fn a_plugin_that_binds_late_is_waited_for() {
    let (bed, trouble) = trouble().await;
    let order = orders::install("plugin", "1", &trouble).arg("--slow-socket-ms=1200");
    bed.configure(vec![order.order()]).await;
    bed.in_state("plugin", "STARTING").await;
    bed.expect_events("plugin", &[1, 4, 3]).await;
    bed.running("plugin", "1").await;
    bed.finish().await;
}

#[tokio::test]
async fn a_plugin_that_never_binds_gets_its_timeout_for_each_attempt() {
    never_ready("--never-bind").await;
}

#[tokio::test]
async fn a_plugin_that_never_answers_start_gets_its_timeout_for_each_attempt() {
    never_ready("--start-hangs").await;
}

async fn never_ready(argument: &str) {
    let (bed, trouble) = trouble().await;
    let since = Instant::now();
    let order = orders::install("plugin", "1", &trouble).arg(argument).manifest(|manifest| {
        manifest.start_timeout = orders::seconds(0.5);
        manifest.start_attempt_count = 3;
    });
    bed.configure(vec![order.order()]).await;
    let (why, _) = does_not_start(&bed, "plugin").await;
    let took = since.elapsed();
    assert!(took >= Duration::from_millis(1500), "it took {took:?}");
    assert!(why.contains("500ms") || why.contains("0.5"), "{why}");
    bed.finish().await;
}

#[tokio::test]
async fn a_start_that_fails_is_tried_again_as_often_as_ordered() {
    let (bed, trouble) = trouble().await;
    let order = orders::install("plugin", "1", &trouble)
        .arg("--start-fails=2")
        .manifest(|m| m.start_attempt_count = 3);
    bed.configure(vec![order.order()]).await;
    bed.expect_events("plugin", &[1, 4, 3]).await;
    bed.running("plugin", "1").await;
    let count = std::fs::read_to_string(bed.plugin_state("plugin").join("start-count")).unwrap();
    assert_eq!(count, "3");

    let order = orders::install("hopeless", "1", &trouble)
        .arg("--start-fails=100")
        .manifest(|m| m.start_attempt_count = 2);
    bed.configure(vec![order.order()]).await;
    let (why, _) = does_not_start(&bed, "hopeless").await;
    assert!(why.contains("told to fail start 2 of 100"), "{why}");
    let count = std::fs::read_to_string(bed.plugin_state("hopeless").join("start-count")).unwrap();
    assert_eq!(count, "2");
    bed.finish().await;
}

#[tokio::test]
async fn a_plugin_may_be_a_script_that_becomes_a_program() {
    let bed = Bed::new().await;
    // All others do this as well; here it is what is looked at.
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("plugin", "1", &echo).order()]).await;
    let pid = bed.running("plugin", "1").await.pid.unwrap();
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    assert!(program.ends_with("echo_plugin"), "{}", program.display());
    assert_eq!(bed.ask("plugin", "pid").await.results, [pid.to_string()]);
    bed.finish().await;
}

#[tokio::test]
async fn a_plugin_may_stay_a_script_and_is_stopped_like_any_other() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    // The shell stays; the program is its child.
    let script =
        format!("'{}' \"$@\"\n:", bed.dir().join("state/test/plugins/real/current/run").display());
    bed.configure(vec![orders::install("real", "1", &echo).order()]).await;
    bed.running("real", "1").await;
    let wrapped = bed.archive("wrapped.tar", ArchiveSpec::script(&script)).await;
    bed.configure(vec![orders::install("wrapped", "1", &wrapped).order()]).await;
    let status = bed.running("wrapped", "1").await;
    let processes = bed.processes("wrapped");
    assert_eq!(processes.len(), 2, "{processes:?}");
    assert!(processes.contains(&status.pid.unwrap()));
    bed.configure(vec![orders::remove("wrapped")]).await;
    bed.gone("wrapped").await;
    assert!(bed.processes("wrapped").is_empty());
    bed.expect_events("wrapped", &[1, 4, 3, 2, 6, 5]).await;
    bed.finish().await;
}

#[tokio::test]
async fn what_cannot_be_executed_is_refused_with_the_reason() {
    let bed = Bed::new().await;
    let mut missing = bed.echo().await;
    missing.entry_point = "not-there".to_owned();
    let no_shell = ArchiveSpec::tar("run", tar_of(b"#!/no/such/shell\nexit 0\n"));
    let no_shell = bed.archive("no-shell.tar", no_shell).await;
    let no_format = ArchiveSpec::tar("run", tar_of(b"\x7fELF but not really"));
    let no_format = bed.archive("no-format.tar", no_format).await;
    bed.configure(vec![
        orders::install("missing", "1", &missing).order(),
        orders::install("no-shell", "1", &no_shell).order(),
        orders::install("no-format", "1", &no_format).order(),
    ])
    .await;
    bed.expect_events("missing", &[1, 8]).await;
    let why = bed.event(8, "missing", "1").await;
    assert!(why.details().contains("not-there"), "{}", why.details());
    for (name, part) in [("no-shell", "/no/such/shell does not exist"), ("no-format", "damaged")] {
        bed.expect_events(name, &[1, 8]).await;
        let why = bed.event(8, name, "1").await.details().into_owned();
        assert!(why.contains(part), "{why}");
        assert_eq!(bed.plugin_files(name), [""; 0], "{name} left something");
    }
    bed.finish().await;
}

fn tar_of(program: &[u8]) -> crate::harness::archive::Tarball {
    crate::harness::archive::Tarball::default().file("run", 0o755, program)
}
