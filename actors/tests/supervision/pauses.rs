//! A machine that stands still: what that must not cost a plugin, and who hears of it.

use std::time::Duration;

use guest_agent_actors::fakes::{Answer, Harness, Reply};
use guest_agent_actors::messages::Register;
use guest_agent_actors::model::id::{BootId, Process};
use guest_agent_actors::model::pause::{Pause, PauseKind};
use guest_agent_actors::model::spec::Config;
use guest_agent_actors::model::view::Reported;
use guest_agent_actors::ports::ServerKind;
use guest_agent_actors::registry::entry::{Offer, RawOffer, Registrant};
use guest_agent_proto::fleet::AgentReport;
use guest_agent_proto::fleet::pause::Kind;
use prost::Message;

use super::support::*;

const RESUME: &str = r#"{"Command":"VmEvent","Event":"resume"}"#;

/// Everything stands still for so long: the clock goes on, and nothing else.
async fn stand_still(agent: &Harness, kind: PauseKind, lasted: Duration) {
    tokio::time::advance(lasted).await;
    let ended = agent.world.clock.now();
    agent.world.pauses.ended(Pause { kind, lasted, ended }, lasted);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_a_pause_holds_up_has_all_its_time() {
    let agent = Harness::awake().await;
    agent.world.launcher.always("a", "1", Answer::Never);
    order(&agent, "one", &[install("a", "1")]).await;
    agent
        .until("it is being started", MINUTE, |_, listed| is(listed, "a", "1", Reported::Starting))
        .await;
    stand_still(&agent, PauseKind::Stopped, 2 * HOUR).await;
    agent.pass(SOON).await;
    assert!(is(&agent.list().await, "a", "1", Reported::Starting));
    assert_eq!(numbers(&agent.world, "a"), [1], "it is given up only when it had its time");
    assert_eq!(agent.world.launcher.launched("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_probation_does_not_pass_while_nothing_runs() {
    let agent = agent_with("a", "1").await;
    order(&agent, "two", &[install("a", "2")]).await;
    until_runs(&agent, "a", "2").await;
    // Far longer than the whole probation, but only one part of it could have been over.
    for _ in 0..20 {
        stand_still(&agent, PauseKind::Stopped, MINUTE).await;
        agent.pass(Duration::from_millis(10)).await;
    }
    assert!(agent.view("a").await.unwrap().on_trial);
    agent.pass(HOUR).await;
    assert!(!agent.view("a").await.unwrap().on_trial);
}

#[tokio::test(start_paused = true)]
async fn checks_that_a_pause_makes_fail_make_no_plugin_hang() {
    let mut agent = Harness::asleep();
    agent.settings.health.failures = 1;
    agent.wake().await;
    agent.connect().await;
    order(&agent, "one", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
    agent.pass(MINUTE).await;
    agent.world.rpc.health("a", &[Reply::Silence]);
    // It is asked within ten seconds, and the answer has two.
    for _ in 0..100 {
        agent.pass(Duration::from_millis(100)).await;
        stand_still(&agent, PauseKind::Stopped, Duration::from_millis(100)).await;
    }
    agent.pass(MINUTE).await;
    assert_eq!(numbers(&agent.world, "a"), [1, 4, 3]);
    agent.world.rpc.health("a", &[Reply::Silence]);
    agent.pass(MINUTE).await;
    assert_eq!(numbers(&agent.world, "a"), [1, 4, 3, 7, 4], "without a pause, it hangs");
}

/// A plugin asks for an event.
async fn ask_for(agent: &Harness, plugin: &str, event: &str) {
    let (pid, _) = agent.world.launcher.alive(plugin)[0];
    let process = Process { pid, start_ticks: pid.into(), boot: BootId("boot-1".into()) };
    let raw = RawOffer {
        kind: "vm-event".to_owned(),
        name: event.to_owned(),
        socket: format!("/run/{plugin}.sock"),
        ..RawOffer::default()
    };
    let name = plugin.parse().unwrap();
    let offer = Offer::parse(raw, &name).unwrap();
    let by = Registrant { plugin: name, process, uid: 0 };
    agent.run(|system| system.registry.send(Register { by, offer })).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn only_plugins_that_ask_hear_that_the_machine_goes_on() {
    let agent = Harness::awake().await;
    order(&agent, "one", &[install("a", "1"), install("b", "1"), install("c", "1")]).await;
    for name in ["a", "b", "c"] {
        until_runs(&agent, name, "1").await;
    }
    ask_for(&agent, "b", "resume").await;
    ask_for(&agent, "c", "something-else").await;
    let resumed = |name: &str| {
        let applied = agent.world.rpc.applied(name);
        applied.iter().filter(|it| **it == Some(Config::Text(RESUME.into()))).count()
    };
    stand_still(&agent, PauseKind::Suspended, HOUR).await;
    agent.pass(MINUTE).await;
    assert_eq!(["a", "b", "c"].map(resumed), [0, 1, 0]);
    // A host that is too busy is no reason to look at the world anew.
    stand_still(&agent, PauseKind::Stolen, MINUTE).await;
    agent.pass(MINUTE).await;
    assert_eq!(["a", "b", "c"].map(resumed), [0, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_fleet_hears_how_long_a_machine_stood_still() {
    let mut agent = Harness::asleep();
    agent.wake().await;
    agent.connect_to(ServerKind::Fleet).await;
    agent.pass(MINUTE).await;
    stand_still(&agent, PauseKind::Suspended, HOUR).await;
    agent.pass(MINUTE).await;
    let is_report = |kind: &String| kind == "guest_agent.fleet.v1.AgentReport";
    let heard = agent.world.link.heard();
    let report =
        heard.iter().rfind(|it| it.message.labels.get("message_type").is_some_and(is_report));
    let report = AgentReport::decode(&*report.unwrap().message.body).unwrap();
    let pause = report.last_pause.expect("the report has the pause");
    assert_eq!((pause.kind(), pause.lasted.unwrap().seconds), (Kind::Suspended, 3600));
}
