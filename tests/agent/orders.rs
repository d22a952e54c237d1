//! Orders that overtake each other, and orders that make no sense.

use std::time::{Duration, Instant};

use guest_agent_lab::{ArtifactFaults, CutOff};
use guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    ConfigurePlugin, Manifest, Plugin,
};

use crate::harness::{Archive, ArchiveSpec, Bed, orders};

/// How soon a removal or a newer order has to overtake a download that hangs. The download itself
/// would hang for minutes.
const PROMPTLY: Duration = Duration::from_secs(10);

/// A bed with an archive whose download never ends, and a download of it under way.
async fn with_hung_download() -> (Bed, Archive) {
    let bed = Bed::new().await;
    let hung = bed.archive("hung.tar", ArchiveSpec::echo().padded(256 << 10)).await;
    let stall = Some(CutOff { after_bytes: 100_000, requests: u32::MAX });
    bed.artifacts.set_faults("hung.tar", ArtifactFaults { stall, ..Default::default() });
    let order = orders::install("echo", "1", &hung).manifest(|manifest| {
        manifest.download_timeout = orders::seconds(600.0);
    });
    bed.configure(vec![order.order()]).await;
    bed.status_where("echo", "the download hangs half way", |status| {
        status.state == "INSTALLING"
            && status.progress.as_ref().is_some_and(|progress| progress.received_bytes >= 50_000)
    })
    .await;
    assert!(!bed.plugin_files("echo").is_empty(), "nothing is being unpacked");
    (bed, hung)
}

#[tokio::test]
async fn removing_during_a_hung_download_is_prompt_and_leaves_nothing() {
    let (bed, _) = with_hung_download().await;
    let since = Instant::now();
    bed.configure(vec![orders::remove("echo")]).await;
    bed.gone("echo").await;
    assert!(since.elapsed() < PROMPTLY, "it took {:?}", since.elapsed());
    bed.expect_events("echo", &[1, 8, 2, 5]).await;
    let cancelled = bed.event(8, "echo", "1").await;
    assert!(cancelled.details().contains("superseded"), "{}", cancelled.details());
    assert!(!bed.plugin_dir("echo").exists());
    assert!(!bed.plugin_state("echo").exists());
    bed.finish().await;
}

#[tokio::test]
async fn another_revision_overtakes_a_hung_download() {
    let (bed, _) = with_hung_download().await;
    let since = Instant::now();
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "2", &echo).order()]).await;
    bed.running("echo", "2").await;
    assert!(since.elapsed() < PROMPTLY, "it took {:?}", since.elapsed());
    // The event of the first order says that another order overtook it, and which one.
    bed.expect_events("echo", &[1, 1, 8, 4, 3]).await;
    let overtaken = bed.event(8, "echo", "1").await;
    assert!(overtaken.details().contains("revision 2"), "{}", overtaken.details());
    let files = bed.plugin_files("echo");
    assert!(files.iter().all(|name| !name.starts_with(".staging")), "{files:?}");
    assert!(!bed.plugin_dir("echo").join("1").exists());
    bed.finish().await;
}

#[tokio::test]
async fn a_hung_download_delays_no_other_plugin() {
    let (bed, _) = with_hung_download().await;
    let echo = bed.echo().await;
    let names = ["a", "b", "c"];
    bed.configure(names.map(|name| orders::install(name, "1", &echo).order()).into()).await;
    for name in names {
        bed.expect_events(name, &[1, 4, 3]).await;
    }
    assert_eq!(bed.in_state("echo", "INSTALLING").await.revision, "1");
    bed.finish().await;
}

#[tokio::test]
async fn the_last_of_many_orders_wins() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    let mut all: Vec<ConfigurePlugin> = Vec::new();
    for number in 1..=5 {
        all.push(orders::install("echo", &number.to_string(), &echo).order());
        all.push(orders::remove("echo"));
    }
    all.push(orders::install("echo", "last", &echo).order());
    bed.configure(all).await;
    bed.event(3, "echo", "last").await;
    let status = bed.running("echo", "last").await;
    assert_eq!(bed.processes("echo"), [status.pid.unwrap()]);
    let events = bed.events_of("echo").await;
    assert_eq!(events.iter().filter(|kind| **kind == 1).count(), 6, "{events:?}");
    assert_eq!(events.iter().filter(|kind| **kind == 2).count(), 5, "{events:?}");
    assert_eq!(events.last(), Some(&3), "{events:?}");
    bed.finish().await;
}

#[tokio::test]
async fn orders_for_unknown_plugins_are_refused_by_name() {
    let bed = Bed::new().await;
    bed.configure(vec![orders::remove("nobody"), orders::apply("nothing", Some("x"))]).await;
    bed.expect_events("nobody", &[10]).await;
    bed.expect_events("nothing", &[13]).await;
    assert!(bed.try_status().await.unwrap().plugins.is_empty());
    bed.finish().await;
}

#[tokio::test]
async fn a_refusal_names_the_plugin_and_the_revision_that_the_order_named() {
    let bed = Bed::new().await;
    let long = "n".repeat(200);
    let of = |mut order: ConfigurePlugin, revision: &str| {
        order.plugin.as_mut().unwrap().revision_id = revision.to_owned();
        order
    };
    bed.configure(vec![
        of(orders::remove("nobody"), "r7"),
        of(orders::apply("nothing", Some("x")), "r8"),
        of(orders::remove(&long), "r9"),
        of(orders::apply(&long, None), "r/10"),
    ])
    .await;
    for (kind, name, revision) in [
        (10, "nobody", "r7"),
        (13, "nothing", "r8"),
        (10, long.as_str(), "r9"),
        (13, long.as_str(), "r/10"),
    ] {
        bed.event(kind, name, revision).await;
    }
    bed.finish().await;
}

#[tokio::test]
async fn a_bad_entry_fails_alone_and_is_told_which_field_is_wrong() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    type Plug = fn(&mut Plugin);
    type Mani = fn(&mut Manifest);
    let in_plugin: [(&str, Plug); 17] = [
        ("revision", |p| p.revision_id.clear()),
        ("revision", |p| p.revision_id = "../1".to_owned()),
        ("revision", |p| p.revision_id = "a/b".to_owned()),
        ("revision", |p| p.revision_id = "current".to_owned()),
        ("revision", |p| p.revision_id = "r".repeat(1000)),
        ("gcs_signed_url", |p| p.gcs_signed_url.clear()),
        ("gcs_signed_url", |p| p.gcs_signed_url = "ftp://host/x".to_owned()),
        ("gcs_signed_url", |p| p.gcs_signed_url = "file:///etc/passwd".to_owned()),
        ("gcs_signed_url", |p| p.gcs_signed_url = "http://".to_owned()),
        ("gcs_signed_url", |p| p.gcs_signed_url.push('\n')),
        ("checksum", |p| p.checksum.clear()),
        ("checksum", |p| p.checksum = "z".repeat(64)),
        ("checksum", |p| p.checksum.truncate(63)),
        ("entry", |p| p.entry_point.clear()),
        ("entry", |p| p.entry_point = "/bin/sh".to_owned()),
        ("entry", |p| p.entry_point = "a/../../b".to_owned()),
        ("argument", |p| p.arguments.push("nul\0".to_owned())),
    ];
    let in_manifest: [(&str, Mani); 15] = [
        ("max_memory_usage_bytes", |m| m.max_memory_usage_bytes = -1),
        ("max_cpu_usage_percentage", |m| m.max_cpu_usage_percentage = -1),
        ("metrics_interval", |m| m.metrics_interval = duration(-1, 0)),
        ("metrics_interval", |m| m.metrics_interval = duration(0, 500_000_000)),
        ("download_timeout", |m| m.download_timeout = duration(i64::MAX, 0)),
        ("download_timeout", |m| m.download_timeout = duration(0, -5)),
        ("download_attempt_count", |m| m.download_attempt_count = -1),
        ("start_timeout", |m| m.start_timeout = duration(i64::MIN, i32::MIN)),
        ("start_timeout", |m| m.start_timeout = duration(1, 2_000_000_000)),
        ("start_attempt_count", |m| m.start_attempt_count = i32::MAX),
        ("stop_timeout", |m| m.stop_timeout = duration(100_000, 0)),
        ("max_metric_datapoints", |m| m.max_metric_datapoints = u64::MAX),
        ("start_exp_backoff_factor", |m| m.start_exp_backoff_factor = -3),
        ("plugin_installation_type", |m| m.plugin_installation_type = 1),
        ("configuration", |m| m.config = Some(Config::StringConfig("x".repeat(2 << 20)))),
    ];
    let mut all = vec![orders::install("first", "1", &echo).order()];
    let mut expected = Vec::new();
    let mut add = |order: &dyn Fn(&str) -> ConfigurePlugin, field: &'static str| {
        let name = format!("bad-{}", expected.len());
        all.push(order(&name));
        expected.push((name, field));
    };
    for (field, spoil) in in_plugin {
        add(&|name| orders::install(name, "1", &echo).plugin(spoil).order(), field);
    }
    for (field, spoil) in in_manifest {
        add(&|name| orders::install(name, "1", &echo).manifest(spoil).order(), field);
    }
    for action in [0, 77, -1] {
        add(
            &|name| ConfigurePlugin { action, ..orders::install(name, "1", &echo).order() },
            "action",
        );
    }
    all.push(ConfigurePlugin::default());
    for name in ["../../x", "-rf", "a b", "\u{1b}[31m", &"n".repeat(64), &"n".repeat(200)] {
        all.push(orders::install(name, "1", &echo).order());
        // What steers a terminal is escaped.
        expected.push((name.replace('\u{1b}', "\\u{1b}"), "name"));
    }
    all.push(orders::install("last", "1", &echo).order());
    bed.configure(all).await;

    for name in ["first", "last"] {
        bed.expect_events(name, &[1, 4, 3]).await;
    }
    for (name, field) in &expected {
        bed.expect_events(name, &[8]).await;
        let event = bed.all_events_of(name).await.remove(0);
        let why = event.details();
        assert!(why.contains(field), "{name:?}: {field} is not in: {why}");
        assert!(why.len() < 500, "{name:?}: {} bytes of reason", why.len());
    }
    // An entry without anything is an event without a name.
    bed.expect_events("", &[8]).await;
    let status = bed.try_status().await.unwrap();
    let names: Vec<_> = status.plugins.iter().map(|plugin| plugin.name.as_str()).collect();
    assert_eq!(names, ["first", "last"]);
    bed.finish().await;
}

#[expect(clippy::unnecessary_wraps, reason = "fields of a manifest are optional")]
fn duration(seconds: i64, nanos: i32) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos })
}
