//! Plugins that run to completion: when they run, and which events they cause.

use std::time::{Duration, SystemTime};

use guest_agent_actors::fakes::{Answer, Harness, World};
use guest_agent_actors::messages::{PlanOf, Submission};
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::facts::Attributes;
use guest_agent_actors::model::runs::Trigger;
use guest_agent_actors::model::view::Reported;
use guest_agent_actors::ports::StopManner;
use guest_agent_proto::agent_controlplane as pb;
use guest_agent_proto::agent_controlplane::configure_plugin_states as cfg;
use guest_agent_proto::agent_controlplane::execution_model as em;

use super::rules::where_role_is;
use super::support::*;

/// An INSTALL of a plugin that runs to completion.
fn once(
    name: &str,
    revision: &str,
    change: impl FnOnce(&mut em::OneShot, &mut em::Triggers),
) -> cfg::ConfigurePlugin {
    let (mut one_shot, mut triggers) = (em::OneShot::default(), em::Triggers::default());
    change(&mut one_shot, &mut triggers);
    one_shot.triggers = Some(triggers);
    let model =
        pb::ExecutionModel { r#type: Some(em::Type::OneShot(one_shot)), ..Default::default() };
    install_with(name, revision, |manifest| manifest.execution_model = Some(model))
}

fn every(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

/// How many runs there were.
fn run_count(world: &World) -> usize {
    world.launcher.launched("a").len()
}

/// Waits for the `n`th run and lets it end.
async fn finish(agent: &Harness, n: usize, code: i32) {
    agent
        .until("it runs", HOUR, move |world, listed| {
            run_count(world) == n && runs(listed, "a", "1")
        })
        .await;
    assert!(agent.world.launcher.exit("a", ExitCause::Exited(code)));
    let state = if code == 0 { Reported::ExecutionCompleted } else { Reported::ExecutionFailed };
    agent.until("it ended", SOON, move |_, listed| is(listed, "a", "1", state)).await;
}

async fn agent_with_run(install: cfg::ConfigurePlugin) -> Harness {
    let agent = Harness::awake().await;
    order(&agent, "first", &[install]).await;
    agent
}

#[tokio::test(start_paused = true)]
async fn a_run_is_told_as_started_installed_and_completed() {
    let agent = agent_with_run(once("a", "1", |_, _| {})).await;
    agent.world.launcher.writes("a", "all done");
    finish(&agent, 1, 0).await;
    until_told(&agent, "a", &[1, 4, 3, 14]).await;
    assert_eq!(told(&agent.world, "a")[3].details, "its last output:\nall done");
    agent.pass(24 * HOUR).await;
    assert_eq!(run_count(&agent.world), 1, "nothing triggers it");
    assert!(agent.world.rpc.checks("a").is_empty(), "it is not asked for its health");
    let view = agent.view("a").await.unwrap();
    assert_eq!(&*view.last_output, "all done");
    assert_eq!(view.pid, None);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_exits_with_another_code_failed() {
    let agent = agent_with_run(once("a", "1", |_, _| {})).await;
    agent.world.launcher.writes("a", "no space left");
    finish(&agent, 1, 3).await;
    until_told(&agent, "a", &[1, 4, 3, 15]).await;
    let details = &told(&agent.world, "a")[3].details;
    assert_eq!(details, "exited with code 3; its last output:\nno space left");
}

#[tokio::test(start_paused = true)]
async fn a_run_is_listed_among_the_one_shot_plugins_with_its_code_and_output() {
    use prost::Message;
    let agent = agent_with_run(once("a", "1", |_, _| {})).await;
    agent.world.launcher.writes("a", "no space left");
    finish(&agent, 1, 3).await;
    order(&agent, "second", &[install("b", "1")]).await;
    until_runs(&agent, "b", "1").await;
    agent.receive("list", &[("message_type", LIST)], Vec::new()).await;
    agent
        .until("it answers", SOON, |world, _| {
            world.link.heard().iter().any(|heard| {
                heard.message.labels["message_type"] == "agent_controlplane.CurrentPluginStates"
            })
        })
        .await;
    let heard = agent.world.link.heard();
    let states = heard
        .iter()
        .rfind(|heard| {
            heard.message.labels["message_type"] == "agent_controlplane.CurrentPluginStates"
        })
        .unwrap();
    let states = pb::CurrentPluginStates::decode(&*states.message.body).unwrap();
    let names: Vec<_> = states.daemon_plugin_states.iter().map(|state| &*state.name).collect();
    assert_eq!(names, ["b"]);
    let [state] = &states.one_shot_plugin_states[..] else { panic!("{states:?}") };
    let status = state.current_plugin_status.as_ref().unwrap();
    assert_eq!(status.status().as_str_name(), "EXECUTION_FAILED");
    assert_eq!(status.response_code, 3);
    assert_eq!(status.results, ["exited with code 3", "no space left"]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_takes_too_long_is_stopped_politely_and_failed() {
    let install = once("a", "1", |one_shot, _| one_shot.execution_timeout = every(60));
    let agent = agent_with_run(install).await;
    agent.until("it runs", SOON, |_, listed| runs(listed, "a", "1")).await;
    agent.pass(Duration::from_secs(58)).await;
    assert_eq!(agent.world.launcher.alive("a").len(), 1);
    until_told(&agent, "a", &[1, 4, 3, 15]).await;
    assert!(told(&agent.world, "a")[3].details.contains("did not end within 60s"));
    assert_eq!(agent.world.launcher.alive("a"), []);
    let stops = agent.world.launcher.stops("a");
    assert!(matches!(stops[..], [ref stop] if matches!(stop.manner, StopManner::Politely { .. })));
    assert_eq!(agent.view("a").await.unwrap().state, Reported::ExecutionFailed);
}

#[tokio::test(start_paused = true)]
async fn restarts_of_the_agent_do_not_extend_the_time_of_a_run_for_ever() {
    let install = once("a", "1", |one_shot, _| one_shot.execution_timeout = every(60));
    let mut agent = agent_with_run(install).await;
    agent.until("it runs", SOON, |_, listed| runs(listed, "a", "1")).await;
    for _ in 0..12 {
        agent.pass(Duration::from_secs(12)).await;
        agent.crash_and_wake().await;
    }
    until_told(&agent, "a", &[1, 4, 3, 15]).await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_crashes_adopts_the_run_and_hears_how_it_ended() {
    let mut agent = agent_with_run(once("a", "1", |_, _| {})).await;
    agent.until("it runs", SOON, |_, listed| runs(listed, "a", "1")).await;
    agent.crash_and_wake().await;
    finish(&agent, 1, 0).await;
    until_told(&agent, "a", &[1, 4, 3, 14]).await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ended_while_no_agent_looked_is_not_run_again() {
    let mut agent = agent_with_run(once("a", "1", |_, triggers| triggers.startup = true)).await;
    agent.until("it runs", SOON, |_, listed| runs(listed, "a", "1")).await;
    agent.crash();
    agent.world.launcher.exit("a", ExitCause::Exited(0));
    agent.wake().await;
    agent.connect().await;
    // The kernel still tells.
    until_told(&agent, "a", &[1, 4, 3, 14]).await;
    agent.pass(HOUR).await;
    assert_eq!(run_count(&agent.world), 1);
}

#[tokio::test(start_paused = true)]
async fn a_startup_trigger_runs_once_per_boot() {
    let mut agent = agent_with_run(once("a", "1", |_, triggers| triggers.startup = true)).await;
    finish(&agent, 1, 0).await;
    for _ in 0..3 {
        agent.crash_and_wake().await;
        agent.pass(HOUR).await;
    }
    assert_eq!(run_count(&agent.world), 1, "the boot is the same");
    agent.crash();
    agent.world.machine.reboot("boot-2");
    agent.wake().await;
    agent.connect().await;
    finish(&agent, 2, 0).await;
    agent.crash_and_wake().await;
    agent.pass(HOUR).await;
    assert_eq!(run_count(&agent.world), 2);
    until_told(&agent, "a", &[1, 4, 3, 14, 4, 14]).await;
}

#[tokio::test(start_paused = true)]
async fn a_reboot_in_the_middle_of_a_run_fails_it_and_runs_it_for_the_new_boot() {
    let mut agent = agent_with_run(once("a", "1", |_, triggers| triggers.startup = true)).await;
    agent.until("it runs", SOON, |_, listed| runs(listed, "a", "1")).await;
    agent.crash();
    agent.world.machine.reboot("boot-2");
    agent.wake().await;
    agent.connect().await;
    finish(&agent, 2, 0).await;
    until_told(&agent, "a", &[1, 4, 3, 15, 4, 14]).await;
    assert!(told(&agent.world, "a")[3].details.contains("cut short by a restart"));
}

#[tokio::test(start_paused = true)]
async fn a_firstboot_trigger_does_not_run_again_after_a_reboot() {
    let mut agent = agent_with_run(once("a", "1", |_, triggers| triggers.firstboot = true)).await;
    finish(&agent, 1, 0).await;
    agent.crash();
    agent.world.machine.reboot("boot-2");
    agent.wake().await;
    agent.pass(24 * HOUR).await;
    assert_eq!(run_count(&agent.world), 1);
}

#[tokio::test(start_paused = true)]
async fn an_interval_keeps_its_phase_over_restarts_of_the_agent() {
    let began = tokio::time::Instant::now();
    let mut agent = agent_with_run(once("a", "1", |_, t| t.interval = every(600))).await;
    finish(&agent, 1, 0).await;
    for n in 2..6 {
        agent.pass(Duration::from_secs(100)).await;
        agent.crash_and_wake().await;
        finish(&agent, n, 0).await;
    }
    let starts = agent.world.launcher.launched("a");
    for (n, (start, _)) in starts.iter().enumerate().skip(1) {
        let beat = Duration::from_secs(600) * u32::try_from(n).unwrap();
        let late = (*start - began).checked_sub(beat).expect("not before its beat");
        assert!(late < Duration::from_secs(2), "run {n} is {late:?} late");
    }
}

#[tokio::test(start_paused = true)]
async fn runs_that_were_missed_are_one_run() {
    let mut agent = agent_with_run(once("a", "1", |_, t| t.interval = every(60))).await;
    finish(&agent, 1, 0).await;
    finish(&agent, 2, 0).await;
    agent.crash();
    tokio::time::sleep(Duration::from_secs(3600 + 5)).await;
    agent.wake().await;
    finish(&agent, 3, 0).await;
    agent.pass(Duration::from_secs(30)).await;
    assert_eq!(run_count(&agent.world), 3, "an hour without an agent is one run");
}

#[tokio::test(start_paused = true)]
async fn beats_during_a_run_do_not_pile_up() {
    let agent = agent_with_run(once("a", "1", |_, t| t.interval = every(60))).await;
    agent.until("it runs", SOON, |_, listed| runs(listed, "a", "1")).await;
    agent.pass(Duration::from_secs(30 * 60 + 10)).await;
    finish(&agent, 1, 0).await;
    agent.pass(Duration::from_secs(40)).await;
    assert_eq!(run_count(&agent.world), 1, "the beats of that half hour are over");
    finish(&agent, 2, 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_makes_no_burst_and_no_silence() {
    let agent = agent_with_run(once("a", "1", |_, t| t.interval = every(600))).await;
    finish(&agent, 1, 0).await;
    agent.pass(Duration::from_secs(5)).await;
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_780_000_000);
    let year = Duration::from_secs(365 * 24 * 3600);
    // To and fro, a hundred times within five minutes.
    for n in 0..100u32 {
        let to = if n % 2 == 0 { now + year } else { now };
        agent.world.clock.set(to);
        agent.pass(Duration::from_secs(3)).await;
        agent.world.launcher.exit("a", ExitCause::Exited(0));
    }
    let after = run_count(&agent.world);
    assert!(after <= 3, "{after} runs in five minutes");
    // It was set back in the end, and beats go on.
    for _ in 0..20 {
        agent.pass(Duration::from_secs(120)).await;
        agent.world.launcher.exit("a", ExitCause::Exited(0));
    }
    let later = run_count(&agent.world);
    assert!((after + 3..=after + 5).contains(&later), "{after} runs, then {later}");
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_cancels_the_run_and_has_no_probation() {
    let agent = agent_with_run(once("a", "1", |_, _| {})).await;
    agent.until("it runs", SOON, |_, listed| runs(listed, "a", "1")).await;
    order(&agent, "second", &[once("a", "2", |_, _| {})]).await;
    agent.until("it runs", MINUTE, |_, listed| runs(listed, "a", "2")).await;
    agent.world.launcher.exit("a", ExitCause::Exited(0));
    until_story(
        &agent,
        &["1(1)", "4(1)", "3(1)", "1(2)", "6(1)", "15(1)", "2(1)", "5(1)", "4(2)", "3(2)", "14(2)"],
    )
    .await;
    assert_eq!(agent.world.installer.on_disk("a").into_iter().collect::<Vec<_>>(), ["2"]);
}

/// Waits until the events of the plugin are exactly these.
async fn until_story(agent: &Harness, expected: &[&str]) {
    agent.until("it is told", MINUTE, |world, _| story(world, "a").len() >= expected.len()).await;
    assert_eq!(story(&agent.world, "a"), expected);
}

#[tokio::test(start_paused = true)]
async fn the_same_revision_again_does_not_run_again() {
    let agent = agent_with_run(once("a", "1", |_, _| {})).await;
    finish(&agent, 1, 0).await;
    order(&agent, "second", &[once("a", "1", |_, _| {})]).await;
    until_told(&agent, "a", &[1, 4, 3, 14, 1, 3]).await;
    order(&agent, "third", &[apply("a", "new")]).await;
    until_told(&agent, "a", &[1, 4, 3, 14, 1, 3, 11, 12]).await;
    agent.pass(HOUR).await;
    assert_eq!(run_count(&agent.world), 1);
    assert!(agent.view("a").await.unwrap().config_hash.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_is_removed_during_its_run_has_an_outcome() {
    let agent = agent_with_run(once("a", "1", |_, _| {})).await;
    agent.until("it runs", SOON, |_, listed| runs(listed, "a", "1")).await;
    order(&agent, "second", &[remove("a")]).await;
    until_told(&agent, "a", &[1, 4, 3, 2, 6, 15, 5]).await;
    agent.until("it is gone", SOON, |_, listed| find(listed, "a").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn the_plan_says_what_was_heeded_and_when_the_next_beat_is() {
    let install = once("a", "1", |_, triggers| {
        (triggers.startup, triggers.firstboot) = (true, true);
        triggers.interval = every(600);
    });
    let agent = agent_with_run(install).await;
    finish(&agent, 1, 0).await;
    let name: guest_agent_actors::model::id::PluginName = "a".parse().unwrap();
    let plan = agent.run(|system| system.scheduler.send(PlanOf(name))).await.unwrap();
    let last: Vec<_> = plan.iter().map(|trigger| &*trigger.last).collect();
    let heeded = ["this boot: used", "this instance: used", "tick 0 of the instance: used"];
    assert_eq!(last, heeded);
    let next: Vec<_> = plan.iter().map(|trigger| trigger.next.is_some()).collect();
    assert_eq!(next, [false, false, true]);
}

/// A person asks for a run.
async fn ask_for_run(agent: &Harness) {
    agent.submit(Submission::Restart("a".parse().unwrap())).await.unwrap();
}

/// What the runs so far were told that they are for.
fn told_for(agent: &Harness) -> Vec<&'static str> {
    let told = agent.world.launcher.triggers("a").into_iter();
    told.map(|trigger| trigger.map_or("nothing", Trigger::name)).collect()
}

#[tokio::test(start_paused = true)]
async fn each_run_is_told_what_it_is_for() {
    let install = once("a", "1", |_, triggers| {
        (triggers.startup, triggers.firstboot) = (true, true);
        triggers.interval = every(600);
    });
    let mut agent = agent_with_run(install).await;
    finish(&agent, 1, 0).await;
    finish(&agent, 2, 0).await;
    agent.crash();
    agent.world.machine.reboot("boot-2");
    agent.wake().await;
    agent.connect().await;
    finish(&agent, 3, 0).await;
    ask_for_run(&agent).await;
    finish(&agent, 4, 0).await;
    assert_eq!(told_for(&agent), ["install", "interval", "startup", "run"]);
    let shown = agent.view("a").await.unwrap().runs.trigger;
    assert_eq!(shown, Some(Trigger::Person));
    agent.crash_and_wake().await;
    let shown = agent.view("a").await.unwrap().runs.trigger;
    assert_eq!(shown, Some(Trigger::Person), "it is durable");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_waits_while_the_agent_restarts_is_told_what_it_was_decided_for() {
    let mut agent = agent_with_run(once("a", "1", |_, _| {})).await;
    agent.until("it runs", SOON, |_, listed| runs(listed, "a", "1")).await;
    // The run is cut short and begins anew; its stop takes longer than the agent lives.
    agent.world.launcher.stopping("a", &[Answer::Late(Duration::from_secs(5))]);
    ask_for_run(&agent).await;
    agent.pass(Duration::from_secs(1)).await;
    agent.crash_and_wake().await;
    finish(&agent, 2, 0).await;
    assert_eq!(told_for(&agent), ["install", "run"]);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_tried_again_is_for_the_same() {
    let agent = agent_with_run(once("a", "1", |_, t| t.interval = every(600))).await;
    finish(&agent, 1, 0).await;
    agent.world.launcher.launches("a", &[Answer::Fail("busy".to_owned())]);
    finish(&agent, 3, 0).await;
    assert_eq!(told_for(&agent), ["install", "interval", "interval"]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_rules_held_back_is_for_the_rules() {
    let mut install = once("a", "1", |_, _| {});
    let model = install.manifest.as_mut().unwrap().execution_model.as_mut().unwrap();
    *model = pb::ExecutionModel { r#type: model.r#type.take(), ..where_role_is("worker") };
    let agent = Harness::awake().await;
    agent.world.facts.change(|facts| facts.metadata = Attributes::texts([("role", "other")]));
    order(&agent, "first", &[install]).await;
    agent.until("it rests", MINUTE, |_, l| is(l, "a", "1", Reported::Stopped)).await;
    agent.world.facts.change(|facts| facts.metadata = Attributes::texts([("role", "worker")]));
    finish(&agent, 1, 0).await;
    assert_eq!(told_for(&agent), ["rule"]);
}

#[tokio::test(start_paused = true)]
async fn a_daemon_is_told_of_no_trigger() {
    let agent = agent_with("a", "1").await;
    assert_eq!(told_for(&agent), ["nothing"]);
    assert_eq!(agent.view("a").await.unwrap().runs.trigger, None);
}
