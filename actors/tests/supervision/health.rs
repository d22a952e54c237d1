//! What the monitor and the metrics actor make of running plugins.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use guest_agent_actors::fakes::{Delivery, Harness, Reply};
use guest_agent_actors::messages::{Listed, Submission};
use guest_agent_actors::model::act::Act;
use guest_agent_actors::model::event::{PluginEventKind, SettledEvent, Settlement};
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::verdict::{Cause, Verdict};
use guest_agent_actors::model::view::{PluginView, Reported};
use guest_agent_actors::ports::{ServerKind, Table};
use guest_agent_proto::agent_controlplane as pb;
use prost::Message;

use super::support::*;

#[tokio::test(start_paused = true)]
async fn a_hung_plugin_is_stopped_and_started_again() {
    let agent = agent_with("a", "1").await;
    agent.world.launcher.writes("a", "waiting for lock");
    agent.world.rpc.health("a", &[Reply::Silence, Reply::Silence, Reply::Silence]);
    agent
        .until("it is started again", MINUTE, |world, listed| {
            world.launcher.launched("a").len() == 2 && runs(listed, "a", "1")
        })
        .await;
    until_told(&agent, "a", &[1, 4, 3, 7, 4]).await;
    let crash = &told(&agent.world, "a")[3].details;
    assert!(crash.contains("hung") && crash.contains("waiting for lock"), "{crash}");
}

/// What the control plane is answered about plugin `a`.
async fn listed_status(agent: &Harness, id: &str) -> pb::current_plugin_states::Status {
    let before = agent.world.link.attempts().len();
    agent.receive(id, &[("message_type", LIST)], Vec::new()).await;
    agent
        .until("the list is answered", MINUTE, |world, _| world.link.attempts().len() > before)
        .await;
    let heard = agent.world.link.heard();
    let states = pb::CurrentPluginStates::decode(&*heard.last().unwrap().message.body).unwrap();
    states.daemon_plugin_states[0].current_plugin_status.clone().unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_first_check_follows_start_at_once_and_a_list_has_its_time() {
    let agent = Harness::awake().await;
    agent.world.rpc.health("a", &[Reply::Bad(7, "warming up".to_owned())]);
    order(&agent, "1", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
    let began = agent.world.clock.now();
    agent.pass(Duration::from_millis(50)).await;
    let view = agent.view("a").await.unwrap();
    let (health, at) = view.health.clone().unwrap();
    assert_eq!(health.code, 7);
    assert!(at <= began + Duration::from_millis(50), "{at:?} is long after {began:?}");
    until_told(&agent, "a", &[1, 4, 3]).await;
    let status = listed_status(&agent, "2").await;
    assert_eq!((status.response_code, status.update_time), (7, Some(at.into())));
    agent.pass(Duration::from_secs(20)).await;
    let later = listed_status(&agent, "3").await.update_time.unwrap();
    let later = std::time::SystemTime::try_from(later).unwrap();
    assert!(later > at, "each check has its own time");
}

#[tokio::test(start_paused = true)]
async fn before_the_first_answer_there_is_no_time_of_one() {
    let agent = Harness::awake().await;
    agent.world.rpc.health("a", &[Reply::Silence]);
    order(&agent, "1", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    assert_eq!(listed_status(&agent, "2").await.update_time, None);
    agent.pass(Duration::from_secs(20)).await;
    assert!(listed_status(&agent, "3").await.update_time.is_some());
}

/// An agent for which one failed check is a judgement, and a revision of `a` that ran for long.
async fn strict_agent_with_a() -> Harness {
    let mut agent = Harness::asleep();
    agent.settings.health.failures = 1;
    agent.wake().await;
    agent.connect().await;
    order(&agent, "first", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
    agent.pass(MINUTE).await;
    agent
}

#[tokio::test(start_paused = true)]
async fn a_revision_that_warms_up_for_less_than_an_interval_is_not_taken_back() {
    let agent = strict_agent_with_a().await;
    let warming_up = Reply::Bad(7, "warming up".to_owned());
    // The check at once, and the one at its turn.
    agent.world.rpc.health("a", &[warming_up.clone(), warming_up]);
    order(&agent, "2", &[install("a", "2")]).await;
    until_runs(&agent, "a", "2").await;
    until_told(&agent, "a", &[1, 4, 3, 1, 6, 4, 3, 2, 5]).await;
}

#[tokio::test(start_paused = true)]
async fn a_revision_that_stays_unwell_is_taken_back() {
    let agent = strict_agent_with_a().await;
    let unwell = Reply::Bad(7, "unwell".to_owned());
    agent.world.rpc.health("a", &[unwell.clone(), unwell.clone(), unwell]);
    order(&agent, "2", &[install("a", "2")]).await;
    until_told(&agent, "a", &[1, 4, 3, 1, 6, 4, 3, 7, 8, 4]).await;
}

#[tokio::test(start_paused = true)]
async fn one_slow_reply_is_no_crash() {
    let agent = agent_with("a", "1").await;
    let slow = [Reply::Silence, Reply::Silence, Reply::Good, Reply::Silence, Reply::Good];
    agent.world.rpc.health("a", &slow);
    agent.pass(10 * MINUTE).await;
    assert_eq!(agent.world.launcher.launched("a").len(), 1);
    assert_eq!(numbers(&agent.world, "a"), [1, 4, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_check_that_never_ends_counts_as_silence() {
    let agent = agent_with("a", "1").await;
    agent.world.rpc.health("a", &[Reply::Forever, Reply::Forever, Reply::Forever]);
    agent
        .until("it is started again", MINUTE, |world, _| world.launcher.launched("a").len() == 2)
        .await;
}

#[tokio::test(start_paused = true)]
async fn bad_health_is_shown_and_not_punished() {
    let agent = agent_with("a", "1").await;
    agent.world.rpc.always("a", Reply::Bad(3, "disk full".to_owned()));
    agent.pass(5 * MINUTE).await;
    let view = agent.view("a").await.unwrap();
    assert_eq!(view.state, Reported::Running);
    let (health, _) = view.health.clone().unwrap();
    assert_eq!((health.code, health.results), (3, vec!["disk full".to_owned()]));
    assert_eq!(agent.world.launcher.launched("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_without_health_checks_is_left_alone() {
    let agent = agent_with("a", "1").await;
    agent.world.rpc.always("a", Reply::Unimplemented);
    agent.pass(5 * MINUTE).await;
    assert_eq!(agent.world.launcher.launched("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn checks_of_many_plugins_are_spread() {
    let agent = Harness::awake().await;
    let names: Vec<String> = (0..50).map(|n| format!("plugin-{n}")).collect();
    let orders: Vec<_> = names.iter().map(|name| install(name, "1")).collect();
    order(&agent, "1", &orders).await;
    agent
        .until("all run", MINUTE, |_, listed| names.iter().all(|name| runs(listed, name, "1")))
        .await;
    let began = tokio::time::Instant::now();
    agent.pass(Duration::from_secs(100)).await;
    let mut moments = BTreeSet::new();
    for name in &names {
        let checks = agent.world.rpc.checks(name);
        assert!((9..=11).contains(&checks.len()), "{name} was checked {} times", checks.len());
        moments.extend(
            checks
                .iter()
                .filter(|at| **at >= began)
                .map(|at| (at.duration_since(began).as_millis() / 1000) % 10),
        );
    }
    assert!(moments.len() >= 7, "all checks fall into {moments:?} of ten seconds");
}

#[tokio::test(start_paused = true)]
async fn an_exit_that_was_ordered_is_no_crash() {
    let agent = agent_with("a", "1").await;
    agent
        .world
        .launcher
        .stopping("a", &[guest_agent_actors::fakes::Answer::Late(Duration::from_secs(5))]);
    order(&agent, "2", &[remove("a")]).await;
    agent.pass(Duration::from_secs(1)).await;
    // It goes by itself while it is being stopped.
    agent.world.launcher.exit("a", ExitCause::Exited(1));
    agent.until("it is gone", MINUTE, |_, listed| listed.is_empty()).await;
    until_told(&agent, "a", &[1, 4, 3, 2, 6, 5]).await;
}

async fn listed_points(agent: &Harness, id: &str) -> usize {
    let before = agent.world.link.attempts().len();
    agent.receive(id, &[("message_type", LIST)], Vec::new()).await;
    agent
        .until("the list is answered", MINUTE, |world, _| world.link.attempts().len() > before)
        .await;
    let heard = agent.world.link.heard();
    let reply = heard.last().unwrap();
    let states = pb::CurrentPluginStates::decode(&*reply.message.body).unwrap();
    states.daemon_plugin_states[0].current_plugin_metrics.len()
}

#[tokio::test(start_paused = true)]
async fn samples_are_kept_until_their_report_was_acknowledged() {
    let agent = agent_with("a", "1").await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    agent.pass(Duration::from_secs(55)).await;
    // The reply is sent again until it is acknowledged, so that must not have happened when the
    // next question comes.
    agent.world.link.script(&[
        Delivery::LoseAcknowledgement,
        Delivery::LoseAcknowledgement,
        Delivery::LoseAcknowledgement,
        Delivery::LoseAcknowledgement,
    ]);
    let first = listed_points(&agent, "1").await;
    assert_eq!(first, 5);
    agent.pass(Duration::from_secs(7)).await;
    let again = listed_points(&agent, "2").await;
    assert!(again >= first, "{again} of {first} samples are left though nobody acknowledged them");
    agent.pass(Duration::from_secs(1)).await;
    assert_eq!(listed_points(&agent, "3").await, 0, "what was acknowledged is not kept");
    agent.pass(Duration::from_secs(21)).await;
    assert!((1..=3).contains(&listed_points(&agent, "4").await));
}

#[tokio::test(start_paused = true)]
async fn samples_that_came_after_a_report_are_kept_though_the_clock_was_set_back() {
    let agent = agent_with("a", "1").await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    agent.pass(Duration::from_secs(55)).await;
    // The report is on its way while the clock is set back and samples are taken.
    agent.world.link.script(&[const { Delivery::LoseAcknowledgement }; 8]);
    assert_eq!(listed_points(&agent, "1").await, 5);
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    agent.world.clock.set(long_ago);
    agent.pass(Duration::from_secs(15)).await;
    let newest = agent.list().await[0].newest.unwrap();
    assert!(newest.at < long_ago + HOUR, "it has the time that the clock shows: {newest:?}");
    agent.until("the report is acknowledged", MINUTE, |_, listed| listed[0].points.len() < 5).await;
    let left = agent.list().await.remove(0).points;
    assert!(!left.is_empty() && left.iter().all(|point| point.at < long_ago + HOUR), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn a_window_of_samples_is_bounded_and_says_what_was_used() {
    let agent = Harness::awake().await;
    let few = install_with("a", "1", |manifest| manifest.max_metric_datapoints = 3);
    order(&agent, "1", &[few]).await;
    until_runs(&agent, "a", "1").await;
    agent.pass(10 * MINUTE).await;
    let listed = agent.list().await;
    let points = &listed[0].points;
    assert_eq!(points.len(), 3);
    assert!(points.windows(2).all(|pair| pair[0].at < pair[1].at), "oldest first");
    for point in points {
        assert!((49.0..51.0).contains(&point.cpu_percent), "{point:?}");
        assert_eq!(point.memory_bytes, 1 << 20);
    }
}

#[tokio::test(start_paused = true)]
async fn figures_are_there_at_once_after_a_start_and_after_a_restart_of_the_agent() {
    let second = Duration::from_secs(1);
    let mut agent = agent_with("a", "1").await;
    for life in ["the plugin was started", "it was adopted"] {
        let known = |listed: &[Listed]| listed.first().and_then(Listed::usage);
        agent.until(life, second / 2, |_, listed| known(listed).is_some()).await;
        let first = known(&agent.list().await).unwrap();
        assert_eq!((first.memory.bytes, first.memory.resident), (1 << 20, 1 << 19), "{life}");
        assert_eq!(first.cpu_percent, None, "{life}: one look shows no use of the CPU");
        let has_cpu = |listed: &[Listed]| known(listed).unwrap().cpu_percent.is_some();
        agent.until(life, 2 * second, |_, listed| has_cpu(listed)).await;
        let cpu = known(&agent.list().await).unwrap().cpu_percent.unwrap();
        assert!((49.0..51.0).contains(&cpu), "{life}: {cpu}");
        // From then on at the interval of its reports, and no report has a sample of one second.
        let looks = agent.world.meter.sweeps().len();
        agent.pass(7 * second).await;
        assert_eq!(agent.world.meter.sweeps().len(), looks, "{life}");
        assert!(agent.list().await[0].points.is_empty(), "{life}");
        agent.pass(3 * second).await;
        assert_eq!(agent.world.meter.sweeps().len(), looks + 1, "{life}");
        assert_eq!(agent.list().await[0].points.len(), 1, "{life}");
        agent.crash_and_wake().await;
        until_runs(&agent, "a", "1").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_plugin_without_a_process_uses_nothing() {
    let agent = agent_with("a", "1").await;
    agent.pass(Duration::from_secs(30)).await;
    assert!(agent.list().await[0].usage().is_some());
    let stop = Submission::Asked("a".parse().unwrap(), Act::Stop("a test".into()));
    agent.submit(stop).await.unwrap();
    agent.until("it is down", SOON, |_, listed| is(listed, "a", "1", Reported::Stopped)).await;
    let listed = agent.list().await.remove(0);
    assert_eq!(listed.usage(), None);
    assert!(listed.newest.is_some(), "its last process used something");
}

#[tokio::test(start_paused = true)]
async fn one_sweep_measures_all_and_a_hung_one_is_given_up() {
    let agent = Harness::awake().await;
    let orders: Vec<_> = (0..20).map(|n| install(&format!("p{n}"), "1")).collect();
    order(&agent, "1", &orders).await;
    agent
        .until("all run", MINUTE, |_, listed| {
            listed.len() == 20 && listed.iter().all(|p| p.view.state == Reported::Running)
        })
        .await;
    agent.pass(Duration::from_secs(15)).await;
    let before = agent.world.meter.sweeps().len();
    agent.world.meter.hang_once();
    agent.pass(Duration::from_secs(100)).await;
    let sweeps = agent.world.meter.sweeps();
    let regular = &sweeps[before..];
    assert!((7..=11).contains(&regular.len()), "{regular:?}");
    assert!(regular.iter().all(|size| *size == 20), "{regular:?}");
}

/// The kinds of the settled events of a plugin that are no events of the public protocol, and whether a control
/// plane acknowledged each.
fn own_events(agent: &Harness, plugin: &str) -> Vec<(PluginEventKind, Settlement)> {
    let storage = &agent.world.storage;
    let settled = storage.keys(Table::History).into_iter().filter_map(|key| {
        let value = storage.read(Table::History, &key)?;
        SettledEvent::decode(&key, &value).ok()
    });
    let own = settled.filter(|it| {
        let event = &it.recorded.event;
        *event.plugin == *plugin && !event.kind.is_public()
    });
    own.map(|it| (it.recorded.event.kind, it.how)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_fleet_is_sent_each_change_of_health_with_the_words_of_the_plugin() {
    let mut agent = Harness::asleep();
    agent.wake().await;
    agent.connect_to(ServerKind::Fleet).await;
    order(&agent, "first", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
    agent.pass(MINUTE).await;
    agent.world.rpc.always("a", Reply::Bad(7, "disk\u{1b}[2J full".to_owned()));
    agent.pass(MINUTE).await;
    until_told(&agent, "a", &[1, 4, 3, 1001]).await;
    assert_eq!(told(&agent.world, "a")[3].details, "code 7: disk\\u{1b}[2J full");
    agent.world.rpc.always("a", Reply::Good);
    until_told(&agent, "a", &[1, 4, 3, 1001, 1002]).await;
    let told = told(&agent.world, "a").remove(4).details;
    assert!(told.starts_with("it was unhealthy for 60s"), "{told}");
    agent.pass(SOON).await;
    let acknowledged = |kind| (kind, Settlement::Acknowledged);
    let both = [PluginEventKind::Unhealthy, PluginEventKind::Healthy].map(acknowledged);
    assert_eq!(own_events(&agent, "a"), both);
}

#[tokio::test(start_paused = true)]
async fn a_public_control_plane_is_sent_no_type_that_it_does_not_know() {
    let agent = agent_with("a", "1").await;
    agent.world.rpc.always("a", Reply::Bad(7, "disk full".to_owned()));
    agent.pass(MINUTE).await;
    agent.world.launcher.exit("a", ExitCause::Exited(3));
    until_told(&agent, "a", &[1, 4, 3, 7, 4]).await;
    agent.pass(SOON).await;
    assert_eq!(own_events(&agent, "a"), [(PluginEventKind::Unhealthy, Settlement::Unaddressed)]);
}

#[tokio::test(start_paused = true)]
async fn an_event_about_health_that_waits_keeps_no_other_one_from_a_public_control_plane() {
    let agent = agent_with("a", "1").await;
    agent.disconnect().await;
    agent.world.rpc.always("a", Reply::Bad(7, "disk full".to_owned()));
    agent.pass(MINUTE).await;
    assert_eq!(own_events(&agent, "a"), [], "which control plane comes next is not known");
    agent.world.launcher.exit("a", ExitCause::Exited(3));
    agent.pass(MINUTE).await;
    agent.connect().await;
    until_told(&agent, "a", &[1, 4, 3, 7, 4]).await;
    agent.pass(SOON).await;
    assert_eq!(own_events(&agent, "a"), [(PluginEventKind::Unhealthy, Settlement::Unaddressed)]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_restarts_knows_that_a_plugin_is_unhealthy_and_reports_it_no_second_time() {
    let mut agent = agent_with("a", "1").await;
    agent.world.rpc.always("a", Reply::Bad(7, "disk full".to_owned()));
    agent.pass(MINUTE).await;
    let since = |agent: &Harness, view: &PluginView| {
        let verdict = Verdict::of(view, None, agent.world.clock.now());
        (verdict.cause, verdict.since)
    };
    let before = since(&agent, &agent.view("a").await.unwrap());
    assert_eq!(before.0, Cause::Unhealthy);
    agent.crash();
    // It answers no check any more, so that the agent has what it remembers.
    agent.world.rpc.always("a", Reply::Unimplemented);
    agent.wake().await;
    agent.connect().await;
    agent.pass(SOON).await;
    let view = agent.view("a").await.unwrap();
    assert_eq!(since(&agent, &view), before);
    let (health, _) = view.health.clone().unwrap();
    assert_eq!((health.code, health.results), (7, vec!["disk full".to_owned()]));
    agent.world.rpc.always("a", Reply::Bad(7, "disk full".to_owned()));
    agent.pass(30 * MINUTE).await;
    assert_eq!(own_events(&agent, "a"), [(PluginEventKind::Unhealthy, Settlement::Unaddressed)]);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_changes_its_mind_with_every_check_has_few_events() {
    let agent = agent_with("a", "1").await;
    let replies = (0..1000).map(|number| match number % 2 {
        0 => Reply::Bad(7, String::new()),
        _ => Reply::Good,
    });
    agent.world.rpc.health("a", &replies.collect::<Vec<_>>());
    agent.pass(60 * MINUTE).await;
    let events = own_events(&agent, "a");
    assert!((10..=14).contains(&events.len()), "{} events within an hour", events.len());
}
