//! Verdicts about plugins: their causes, and how they end.

use crate::harness::{ArchiveSpec, Bed, orders};

#[tokio::test]
async fn a_failed_upgrade_that_a_person_dismissed_counts_no_more_until_the_next_one_fails() {
    let mut bed = Bed::new().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("web", "1", &echo).order()]).await;
    bed.running("web", "1").await;
    let nothing = bed.cli(&["dismiss", "web"]).await;
    assert_eq!(nothing.code, 1);
    assert!(nothing.stderr.contains("nothing to dismiss"), "{nothing:?}");

    let broken =
        orders::install("web", "2", &echo).plugin(|it| it.checksum = "0".repeat(64)).order();
    bed.configure(vec![broken.clone()]).await;
    bed.event(8, "web", "2").await;
    let status = bed.status("web").await.unwrap();
    let verdict = status.verdict.unwrap();
    assert_eq!((&*verdict.level, &*verdict.cause), ("degraded", "revision_failed"));
    assert!(status.pending.is_some_and(|pending| pending.failed_at == verdict.since));
    let problems = bed.cli(&["status", "--problems"]).await.ok();
    assert!(problems.contains("web"), "{problems}");
    let doctor = bed.cli(&["doctor"]).await;
    assert!(doctor.stdout.contains("the plugin web is degraded"), "{doctor:?}");

    let dismiss = ["dismiss", "web", "--reason", "mended on Monday"];
    let said = bed.cli(&dismiss).await.ok();
    assert!(said.starts_with("web: dismissal accepted as order"), "{said}");
    let status = until_cause(&bed, "dismissed").await;
    let verdict = status.verdict.unwrap();
    let by = "dismissed by root: mended on Monday";
    assert_eq!(verdict.level, "ok");
    assert_eq!(verdict.reason, format!("the failure of revision 2 was {by}"));
    let pending = status.pending.expect("it shows on");
    assert_eq!((&*pending.revision, &*pending.dismissed_by), ("2", "root: mended on Monday"));
    let doctor = bed.cli(&["doctor"]).await;
    assert!(!doctor.stdout.contains("plugin web"), "{doctor:?}");
    let problems = bed.cli(&["status", "--problems"]).await.ok();
    assert!(!problems.contains("web"), "{problems}");
    let shown = bed.cli(&["status", "web"]).await.ok();
    assert!(shown.contains(by), "{shown}");
    let audit = bed.cli(&["audit", "web"]).await.ok();
    assert!(audit.contains("dismiss"), "{audit}");
    bed.kill_agent().await;
    bed.start_agent().await;
    until_cause(&bed, "dismissed").await;

    // The same failure once more is another one.
    bed.configure(vec![broken]).await;
    until_cause(&bed, "revision_failed").await;
    bed.finish().await;
}

/// The status of the plugin once its verdict has this cause.
async fn until_cause(bed: &Bed, cause: &str) -> guest_agent_proto::local::PluginStatus {
    let has = |status: &guest_agent_proto::local::PluginStatus| {
        status.verdict.as_ref().is_some_and(|verdict| verdict.cause == cause)
    };
    bed.status_where("web", &format!("its verdict is {cause}"), has).await
}

#[tokio::test]
async fn a_plugin_that_does_not_come_up_needs_attention_and_says_what_it_printed_last() {
    let bed = Bed::builder().set("plugins.probation=1h").start().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("web", "1", &echo).order()]).await;
    bed.running("web", "1").await;
    // It prints a line, and never listens.
    let mute = ArchiveSpec::script("echo the database is locked >&2\nexec sleep 1000");
    let mute = bed.archive("mute", mute).await;
    let never = orders::install("web", "2", &mute).manifest(|it| {
        it.start_attempt_count = 2;
        it.start_timeout = orders::seconds(1.0);
    });
    bed.configure(vec![never.order()]).await;
    let fails = until_cause(&bed, "start_fails").await.verdict.unwrap();
    assert_eq!(fails.level, "failing");
    for part in ["revision 2", " of 2 ", "did not listen on ", "web", "the database is locked"] {
        assert!(fails.reason.contains(part), "{part}: {}", fails.reason);
    }
    let back = until_cause(&bed, "revision_failed").await.verdict.unwrap();
    assert!(back.reason.contains("the database is locked"), "{}", back.reason);
    bed.finish().await;
}

#[tokio::test]
async fn a_crash_carries_the_last_line_to_wherever_it_is_shown() {
    let bed = Bed::new().await;
    let trouble = bed.trouble().await;
    let order = orders::install("web", "1", &trouble).arg("--crash-after-ms=100").order();
    bed.configure(vec![order]).await;
    until_cause(&bed, "crash_loop").await;
    let line = "its last output: told to crash after 100 ms";
    for verb in [&["status"][..], &["status", "web"], &["doctor"]] {
        let shown = bed.cli(verb).await.stdout;
        assert!(shown.contains(line), "{verb:?}: {shown}");
    }
    bed.finish().await;
}

#[tokio::test]
async fn a_change_of_health_is_an_event_and_a_line_of_the_log() {
    let bed = Bed::new().await;
    let trouble = bed.trouble().await;
    let order = orders::install("web", "1", &trouble).arg("--unhealthy-code=7").order();
    bed.configure(vec![order]).await;
    until_cause(&bed, "unhealthy").await;
    let words = "code 7: told to be unhealthy";
    let shown = bed
        .until("the event is there", async || {
            let shown = bed.cli(&["events", "web"]).await.stdout;
            shown.contains("UNHEALTHY").then_some(shown)
        })
        .await;
    let line = shown.lines().find(|line| line.contains("UNHEALTHY")).unwrap();
    assert!(line.contains(&format!("web 1: {words}")), "{line}");
    let json = bed.cli(&["events", "web", "--json"]).await.stdout;
    assert!(json.contains("\"type\":\"PLUGIN_UNHEALTHY\""), "{json}");
    let logged = bed.log();
    let line = logged.lines().find(|line| line.contains("the plugin is unhealthy"));
    assert!(line.is_some_and(|line| line.contains("WARN") && line.contains(words)), "{line:?}");
    bed.finish().await;
}
