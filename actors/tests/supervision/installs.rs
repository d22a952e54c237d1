//! Orders and what becomes of them.

use std::time::Duration;

use guest_agent_actors::fakes::{Answer, Harness, Reply, World};
use guest_agent_actors::messages::{LastEvent, Listed, Submission, Submit, SubmitError};
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::view::Reported;
use guest_agent_actors::ports::{Cleanup, Count, StopManner, Table};

use super::support::*;

#[tokio::test(start_paused = true)]
async fn an_installed_plugin_runs_and_its_events_are_told_in_order() {
    let agent = agent_with("a", "1").await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    assert_eq!(agent.world.launcher.alive("a").len(), 1);
    assert_eq!(agent.world.installer.current("a").as_deref(), Some("1"));
}

#[tokio::test(start_paused = true)]
async fn a_plugin_is_listed_from_the_moment_work_begins() {
    let agent = Harness::awake().await;
    agent.world.installer.downloads("a", &[Answer::Held]);
    order(&agent, "1", &[install("a", "1")]).await;
    agent.until("it is listed", SOON, |_, listed| is(listed, "a", "1", Reported::Installing)).await;
    agent
        .until("its progress is shown", SOON, |_, listed| {
            find(listed, "a").and_then(|view| view.progress).is_some_and(|p| p.received == 512)
        })
        .await;
    agent.world.installer.release("a");
    until_runs(&agent, "a", "1").await;
}

#[tokio::test(start_paused = true)]
async fn a_crashed_plugin_is_started_again_after_growing_pauses() {
    let agent = agent_with("a", "1").await;
    agent.world.launcher.writes("a", "thread main panicked");
    let mut ends = Vec::new();
    for _ in 0..5 {
        ends.push(tokio::time::Instant::now());
        assert!(agent.world.launcher.exit("a", ExitCause::Signaled(11)));
        let starts = agent.world.launcher.launched("a").len();
        agent
            .until("it is started again", MINUTE, |world, listed| {
                world.launcher.launched("a").len() > starts && runs(listed, "a", "1")
            })
            .await;
    }
    let starts = agent.world.launcher.launched("a");
    let pauses: Vec<Duration> =
        starts[1..].iter().zip(&ends).map(|((start, _), end)| *start - *end).collect();
    for pair in pauses.windows(2) {
        assert!(pair[0] < pair[1], "pauses do not grow: {pauses:?}");
    }
    assert!(pauses[0] <= Duration::from_millis(10), "nothing to wait for: {pauses:?}");
    assert!(pauses[1] >= Duration::from_millis(50), "{pauses:?}");
    until_told(&agent, "a", &[1, 4, 3, 7, 4, 7, 4, 7, 4, 7, 4, 7, 4]).await;
    let crash = &told(&agent.world, "a")[3];
    assert!(crash.details.contains("SIGSEGV"), "{crash:?}");
    assert!(crash.details.contains("thread main panicked"), "{crash:?}");
    let view = agent.view("a").await.unwrap();
    assert_eq!(view.restarts, 5);
    assert_eq!(view.last_exit.map(|(cause, _)| cause), Some(ExitCause::Signaled(11)));
}

#[tokio::test(start_paused = true)]
async fn the_events_of_a_row_of_crashes_add_up_to_all_of_them() {
    let agent = agent_with("a", "1").await;
    agent.world.launcher.writes("a", "thread main panicked");
    for _ in 0..16 {
        until_runs(&agent, "a", "1").await;
        let starts = agent.world.launcher.launched("a").len();
        assert!(agent.world.launcher.exit("a", ExitCause::Exited(3)));
        let next = |world: &World, _: &[Listed]| world.launcher.launched("a").len() > starts;
        agent.until("it is started again", HOUR, next).await;
    }
    agent.pass(SOON).await;
    let told = told(&agent.world, "a");
    let crashes: Vec<_> = told.iter().filter(|told| told.number == 7).collect();
    let first_lines: Vec<_> =
        crashes.iter().map(|crash| crash.details.lines().next().unwrap_or_default()).collect();
    assert_eq!(crashes.len(), 7, "five, the eighth and the sixteenth: {first_lines:?}");
    assert_eq!(&first_lines[5..], ["crashes=3", "crashes=8"]);
    let counted = |line: &&str| line.strip_prefix("crashes=").map_or(1, |n| n.parse().unwrap());
    assert_eq!(first_lines.iter().map(counted).sum::<u32>(), 16, "{first_lines:?}");
    let last = &crashes[6].details;
    assert!(last.contains("exited with code 3; 16 times in a row"), "{last}");
    assert!(last.ends_with("thread main panicked"), "{last}");
}

#[tokio::test(start_paused = true)]
async fn a_fresh_plugin_that_never_starts_rests_as_failed() {
    let agent = Harness::awake().await;
    let no = || Answer::Fail("no config".to_owned());
    agent.world.launcher.launches("a", &[no(), no(), no()]);
    order(&agent, "1", &[install("a", "1")]).await;
    until_told(&agent, "a", &[1, 9, 8]).await;
    agent
        .until("it rests", MINUTE, |world, listed| {
            is(listed, "a", "1", Reported::Crashed) && world.launcher.launched("a").len() == 3
        })
        .await;
    assert!(told(&agent.world, "a")[1].details.contains("no config"));
    agent.pass(HOUR).await;
    assert_eq!(agent.world.launcher.launched("a").len(), 3, "it rests until ordered anew");
    assert!(agent.world.launcher.alive("a").is_empty());

    // It is tried again, and works, when it is ordered anew.
    order(&agent, "2", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
}

#[tokio::test(start_paused = true)]
async fn a_download_that_fails_is_reported_and_rests() {
    let agent = Harness::awake().await;
    agent.world.installer.downloads("a", &[Answer::Fail("404 Not Found".to_owned())]);
    order(&agent, "1", &[install("a", "1")]).await;
    until_told(&agent, "a", &[1, 8]).await;
    let details = &told(&agent.world, "a")[1].details;
    assert!(details.contains("download") && details.contains("404"), "{details}");
    agent
        .until("it is shown", SOON, |_, listed| is(listed, "a", "1", Reported::InstallFailed))
        .await;
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_that_proves_itself_lets_the_old_revision_go() {
    let agent = agent_with("a", "1").await;
    agent.world.installer.downloads("a", &[Answer::Held]);
    order(&agent, "2", &[install("a", "2")]).await;
    agent
        .until("both are shown", SOON, |_, listed| {
            runs(listed, "a", "1")
                && find(listed, "a")
                    .and_then(|view| view.pending.clone())
                    .is_some_and(|p| p.revision.as_str() == "2" && p.state == Reported::Installing)
        })
        .await;
    assert_eq!(agent.world.launcher.alive("a").len(), 1, "the old one runs meanwhile");
    agent.world.installer.release("a");
    until_runs(&agent, "a", "2").await;
    assert_eq!(agent.world.installer.on_disk("a"), ["1", "2"], "the old one stays on probation");
    agent
        .until("the control plane has every number", MINUTE, |world, _| {
            numbers(world, "a").len() >= 9
        })
        .await;
    assert_eq!(
        story(&agent.world, "a"),
        ["1(1)", "4(1)", "3(1)", "1(2)", "6(1)", "4(2)", "3(2)", "2(1)", "5(1)"]
    );
    let stops = agent.world.launcher.stops("a");
    assert!(stops.iter().all(|stop| stop.cleanup == Cleanup::Keep), "an upgrade wipes nothing");
    // It is on disk for a rollback, until the revision after the new one has proved itself.
    assert_eq!(agent.world.installer.on_disk("a"), ["1", "2"]);
    order(&agent, "3", &[install("a", "3")]).await;
    let is_gone = |world: &World, _: &[Listed]| world.installer.on_disk("a") == ["2", "3"];
    agent.until("the oldest one goes", MINUTE, is_gone).await;
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_that_cannot_start_returns_to_what_worked_without_the_network() {
    let agent = agent_with("a", "1").await;
    agent.world.launcher.always("a", "2", Answer::Fail("bad build".to_owned()));
    order(&agent, "2", &[install("a", "2")]).await;
    agent
        .until("the old one is back", MINUTE, |world, listed| {
            world.launcher.launched("a").len() == 5 && runs(listed, "a", "1")
        })
        .await;
    agent
        .until("the control plane has every number", SOON, |world, _| {
            numbers(world, "a").len() >= 8
        })
        .await;
    assert_eq!(
        story(&agent.world, "a"),
        ["1(1)", "4(1)", "3(1)", "1(2)", "6(1)", "9(2)", "8(2)", "4(1)"]
    );
    let downloads = agent.world.installer.downloaded();
    assert_eq!(downloads.len(), 2, "the way back fetches nothing: {downloads:?}");
    let pending = agent.view("a").await.unwrap().pending.clone().unwrap();
    assert_eq!((pending.revision.as_str(), pending.state), ("2", Reported::Crashed));
    assert!(pending.error.contains("bad build"), "{pending:?}");
}

#[tokio::test(start_paused = true)]
async fn a_crash_on_probation_returns_to_what_worked() {
    let agent = agent_with("a", "1").await;
    order(&agent, "2", &[install("a", "2")]).await;
    until_runs(&agent, "a", "2").await;
    agent.pass(Duration::from_secs(10)).await;
    agent.world.launcher.exit("a", ExitCause::Exited(1));
    until_runs(&agent, "a", "1").await;
    agent
        .until("the control plane has every number", SOON, |world, _| {
            numbers(world, "a").len() >= 10
        })
        .await;
    assert_eq!(
        story(&agent.world, "a")[3..],
        ["1(2)", "6(1)", "4(2)", "3(2)", "7(2)", "8(2)", "4(1)"]
    );
    assert_eq!(agent.world.installer.downloaded().len(), 2);
    agent
        .until("the failed one goes", SOON, |world, _| world.installer.on_disk("a") == ["1"])
        .await;
}

#[tokio::test(start_paused = true)]
async fn bad_health_on_probation_returns_to_what_worked() {
    let agent = agent_with("a", "1").await;
    order(&agent, "2", &[install_with("a", "2", |_| {})]).await;
    until_runs(&agent, "a", "2").await;
    agent.world.rpc.always("a", Reply::Bad(3, "no disk".to_owned()));
    agent
        .until("the old one is back", MINUTE, |world, listed| {
            runs(listed, "a", "1") && world.launcher.launched("a").len() == 3
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_removal_cancels_a_hung_download() {
    let agent = Harness::awake().await;
    agent.world.installer.downloads("a", &[Answer::Held]);
    order(&agent, "1", &[install("a", "1")]).await;
    order(&agent, "2", &[remove("a")]).await;
    agent.until("it is gone", SOON, |_, listed| listed.is_empty()).await;
    until_told(&agent, "a", &[1, 8, 2, 5]).await;
    agent.world.installer.release("a");
    agent.pass(MINUTE).await;
    assert!(agent.world.installer.on_disk("a").is_empty());
    assert!(agent.world.launcher.launched("a").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_removal_during_a_start_leaves_no_process() {
    let agent = Harness::awake().await;
    agent.world.launcher.launches("a", &[Answer::Held]);
    order(&agent, "1", &[install("a", "1")]).await;
    agent.until("it starts", SOON, |_, listed| is(listed, "a", "1", Reported::Starting)).await;
    agent.pass(Duration::from_secs(1)).await;
    order(&agent, "2", &[remove("a")]).await;
    agent
        .until("it is gone", SOON, |world, listed| {
            listed.is_empty() && world.launcher.alive("a").is_empty()
        })
        .await;
    assert!(agent.world.installer.on_disk("a").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_removal_wipes_and_is_told() {
    let agent = agent_with("a", "1").await;
    order(&agent, "2", &[remove("a")]).await;
    agent.until("it is gone", SOON, |_, listed| listed.is_empty()).await;
    until_told(&agent, "a", &[1, 4, 3, 2, 6, 5]).await;
    let stops = agent.world.launcher.stops("a");
    assert_eq!(stops.len(), 1);
    assert_eq!(stops[0].cleanup, Cleanup::Wipe);
    assert!(matches!(stops[0].manner, StopManner::Politely { .. }));
    assert!(agent.world.storage.keys(guest_agent_actors::ports::Table::Plugins).is_empty());
    let notes = agent.world.counters.notes();
    assert!(notes.contains(&Count::Gone("a".parse().expect("a name"))), "{notes:?}");

    // The name can be used again.
    order(&agent, "3", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
}

#[tokio::test(start_paused = true)]
async fn a_removal_during_another_stop_asks_to_wipe_all_the_same() {
    let agent = agent_with("a", "1").await;
    agent.world.launcher.stopping("a", &[Answer::Held]);
    agent.submit(Submission::Restart("a".parse().unwrap())).await.unwrap();
    agent.until("it is asked to stop", SOON, |world, _| world.launcher.stops("a").len() == 1).await;
    order(&agent, "2", &[remove("a")]).await;
    agent.until("it is gone", SOON, |_, listed| listed.is_empty()).await;
    until_told(&agent, "a", &[1, 4, 3, 2, 6, 5]).await;
    let asked: Vec<Cleanup> =
        agent.world.launcher.stops("a").iter().map(|stop| stop.cleanup).collect();
    assert_eq!(asked, [Cleanup::Keep, Cleanup::Wipe]);
}

#[tokio::test(start_paused = true)]
async fn an_order_that_meets_a_plugin_on_its_way_out_begins_a_new_life() {
    for pause in 0..12 {
        let agent = agent_with("a", "1").await;
        order(&agent, "2", &[remove("a")]).await;
        agent
            .run(|_| async {
                for _ in 0..pause {
                    tokio::task::yield_now().await;
                }
            })
            .await;
        order(&agent, "3", &[install("a", "2")]).await;
        until_runs(&agent, "a", "2").await;
        assert_eq!(agent.list().await.len(), 1);
        assert_eq!(agent.world.launcher.alive("a").len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_bad_item_in_a_batch_is_refused_by_name_and_the_others_proceed() {
    let agent = Harness::awake().await;
    let mut bad = install("b", "1");
    bad.plugin.as_mut().unwrap().checksum = "none".to_owned();
    order(&agent, "1", &[install("a", "1"), bad, install("c", "1"), remove("d")]).await;
    until_runs(&agent, "a", "1").await;
    until_runs(&agent, "c", "1").await;
    until_told(&agent, "b", &[8]).await;
    until_told(&agent, "d", &[10]).await;
    assert!(told(&agent.world, "b")[0].details.contains("checksum"));
    assert_eq!(agent.list().await.len(), 2);
    assert_eq!(agent.world.link.acknowledged().len(), 1);
    agent
        .until("the inbox is empty", SOON, |world, _| {
            world.storage.keys(guest_agent_actors::ports::Table::Inbox).is_empty()
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn an_item_that_is_no_protobuf_spoils_no_other() {
    let agent = Harness::awake().await;
    let mut body = encoded(&[install("a", "1"), install("bb", "1"), install("c", "1")]);
    let at = body.windows(4).position(|bytes| bytes == b"\x0a\x02bb").unwrap();
    body[at + 2] = 0xff;
    agent.receive("1", &[("message_type", CONFIGURE)], body).await;
    until_runs(&agent, "a", "1").await;
    until_runs(&agent, "c", "1").await;
    until_told(&agent, "", &[8]).await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_plugin_delays_no_other() {
    let agent = Harness::awake().await;
    agent.world.installer.downloads("slow", &[Answer::Held]);
    agent.world.launcher.launches("stuck", &[Answer::Held]);
    let orders = [install("slow", "1"), install("stuck", "1"), install("quick", "1")];
    order(&agent, "1", &orders).await;
    agent.until("the quick one runs", SOON, |_, listed| runs(listed, "quick", "1")).await;
}

#[tokio::test(start_paused = true)]
async fn an_install_of_what_runs_touches_nothing() {
    let agent = agent_with("a", "1").await;
    let pid = agent.world.launcher.alive("a");
    order(&agent, "2", &[install("a", "1")]).await;
    until_told(&agent, "a", &[1, 4, 3, 1, 3]).await;
    assert_eq!(agent.world.launcher.alive("a"), pid);
    assert_eq!(agent.world.installer.downloaded().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_configuration_is_reported_when_the_plugin_took_it() {
    let agent = agent_with("a", "1").await;
    agent.world.rpc.applies("a", &[Reply::Bad(3, "no such key".to_owned()), Reply::Good]);
    order(&agent, "2", &[apply("a", "secret")]).await;
    until_told(&agent, "a", &[1, 4, 3, 11, 13]).await;
    assert_eq!(agent.view("a").await.unwrap().config_hash, None, "the old one stays");
    order(&agent, "3", &[apply("a", "better")]).await;
    until_told(&agent, "a", &[1, 4, 3, 11, 13, 11, 12]).await;
    let hash = guest_agent_actors::model::id::Sha256Digest::of(b"better");
    agent
        .until("its digest is shown", SOON, |_, listed| {
            find(listed, "a").and_then(|view| view.config_hash) == Some(hash)
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_cannot_take_a_configuration_is_started_with_it() {
    let agent = agent_with("a", "1").await;
    agent.world.rpc.applies("a", &[Reply::Unimplemented]);
    order(&agent, "2", &[apply("a", "new")]).await;
    until_told(&agent, "a", &[1, 4, 3, 11, 6, 4, 12]).await;
    assert_eq!(agent.world.launcher.launched("a").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_apply_that_is_never_answered_is_reported() {
    let agent = agent_with("a", "1").await;
    agent.world.rpc.applies("a", &[Reply::Forever]);
    order(&agent, "2", &[apply("a", "new")]).await;
    until_told(&agent, "a", &[1, 4, 3, 11, 13]).await;
    assert_eq!(agent.world.launcher.launched("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_restart_is_a_stop_and_a_start() {
    let agent = agent_with("a", "1").await;
    let verdicts = agent.submit(Submission::Restart("a".parse().unwrap())).await.unwrap();
    assert!(verdicts[0].result.is_ok());
    until_told(&agent, "a", &[1, 4, 3, 6, 4]).await;
    assert_eq!(agent.world.launcher.launched("a").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn somebody_on_the_machine_is_told_what_became_of_each_order() {
    let agent = Harness::awake().await;
    let mut local = install("a", "1");
    local.plugin.as_mut().unwrap().gcs_signed_url = "file:/tmp/a.tar.gz".to_owned();
    let orders = encoded(&[local, install("-", "1")]);
    let verdicts = agent.submit(Submission::Configure(orders)).await.unwrap();
    assert!(verdicts[0].result.is_ok(), "{verdicts:?}");
    assert!(verdicts[1].result.as_ref().unwrap_err().contains("plugin name"), "{verdicts:?}");
    until_runs(&agent, "a", "1").await;
    let generation = *verdicts[0].result.as_ref().unwrap();
    assert_eq!(agent.view("a").await.unwrap().generation, generation);
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_orders_has_the_number_of_the_last_event_before_them() {
    let agent = Harness::awake().await;
    let submit = async |revision: &str| {
        let submission = Submission::Configure(encoded(&[install("a", revision)]));
        let submit = Submit { submission, asker: None, traceparent: None };
        let answer = agent.run(|system| system.control_plane.send(submit)).await;
        let LastEvent(number) = answer.unwrap().unwrap().last_event;
        until_runs(&agent, "a", revision).await;
        usize::try_from(number).unwrap()
    };
    assert_eq!(submit("1").await, 0, "no event was recorded");
    agent.pass(MINUTE).await;
    let recorded =
        [Table::Outbox, Table::History].map(|table| agent.world.storage.keys(table).len());
    let recorded = recorded.iter().sum::<usize>();
    assert!(recorded > 0);
    assert_eq!(submit("2").await, recorded);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_cannot_keep_orders_refuses_them_and_restarts_plugins() {
    const WHY: &str = "the disk is read-only";
    let mut agent = agent_with("a", "1").await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    agent.settings.refusing = Some(WHY.into());
    agent.crash_and_wake().await;
    agent.connect().await;
    until_runs(&agent, "a", "1").await;
    assert_eq!(agent.world.launcher.launched("a").len(), 1, "it is adopted");
    // The control plane receives an event of the kind that ends an order of this kind.
    order(&agent, "2", &[install("b", "1"), remove("a"), apply("a", "new")]).await;
    until_told(&agent, "b", &[8]).await;
    until_told(&agent, "a", &[1, 4, 3, 10, 13]).await;
    assert!(told(&agent.world, "b")[0].details.ends_with(WHY), "{:?}", told(&agent.world, "b"));
    let orders = encoded(&[install("b", "1"), remove("a")]);
    for verdict in agent.submit(Submission::Configure(orders)).await.unwrap() {
        assert_eq!(verdict.result.unwrap_err(), WHY);
    }
    assert!(agent.view("b").await.is_none());
    // A restart changes nothing on the disk.
    agent.submit(Submission::Restart("a".parse().unwrap())).await.unwrap();
    let restarted = |world: &World, _: &[Listed]| world.launcher.launched("a").len() == 2;
    agent.until("it is started again", MINUTE, restarted).await;
    until_runs(&agent, "a", "1").await;
}

#[tokio::test(start_paused = true)]
async fn orders_of_this_machine_that_cannot_be_decoded_are_malformed() {
    let agent = Harness::awake().await;
    let error = agent.submit(Submission::Configure(vec![0xff; 9])).await.unwrap_err();
    assert!(matches!(&error, SubmitError::Malformed(_)), "{error:?}");
    assert!(error.to_string().contains("ConfigurePluginStates"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_revision_that_is_let_go_and_wanted_again_at_once_survives() {
    let agent = agent_with("a", "1").await;
    agent.world.launcher.launches("a", &vec![Answer::Fail("x".to_owned()); 3]);
    agent.world.installer.discards("a", &[Answer::Late(Duration::from_secs(3))]);
    order(&agent, "2", &[install("a", "2")]).await;
    agent
        .until("it went back", MINUTE, |world, listed| {
            runs(listed, "a", "1") && world.launcher.launched("a").len() == 5
        })
        .await;
    // The failed revision is still being deleted when it is ordered again.
    order(&agent, "3", &[install("a", "2")]).await;
    until_runs(&agent, "a", "2").await;
    agent.pass(Duration::from_secs(4)).await;
    assert_eq!(agent.world.mistakes(), Vec::<String>::new());
    assert!(agent.world.installer.on_disk("a").contains(&"2".to_owned()));
}
