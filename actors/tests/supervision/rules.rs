//! Plugins that run only where rules say so, and the ones that the machine waits for.

use std::time::Duration;

use guest_agent_actors::fakes::{Answer, Harness};
use guest_agent_actors::manager::readiness::Readiness;
use guest_agent_actors::messages::Explain;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::facts::Attributes;
use guest_agent_actors::model::view::Reported;
use guest_agent_actors::plugin::explain::Explanation;
use guest_agent_actors::ports::Cleanup;
use guest_agent_actors::scheduler::rules::{RuleVerdict, Weighed};
use guest_agent_proto::agent_controlplane as pb;
use guest_agent_proto::agent_controlplane::configure_plugin_states as cfg;
use guest_agent_proto::agent_controlplane::execution_model as em;

use super::support::*;

/// Runs where the custom attribute `role` is this.
pub(crate) fn where_role_is(role: &str) -> pb::ExecutionModel {
    let kind = prost_types::value::Kind::StringValue(role.to_owned());
    pb::ExecutionModel {
        on_default: em::State::Disabled.into(),
        on_match: em::State::Enabled.into(),
        rules: vec![pb::Rules {
            scope: pb::rules::Scope::Metadata.into(),
            attribute: "role".to_owned(),
            comparison_operator: pb::rules::ComparisonOperator::Equal.into(),
            value: Some(prost_types::Value { kind: Some(kind) }),
        }],
        ..Default::default()
    }
}

fn modelled(name: &str, model: pb::ExecutionModel) -> cfg::ConfigurePlugin {
    install_with(name, "1", |manifest| manifest.execution_model = Some(model))
}

fn critical(name: &str, change: impl FnOnce(&mut cfg::Manifest)) -> cfg::ConfigurePlugin {
    install_with(name, "1", |manifest| {
        manifest.execution_model =
            Some(pb::ExecutionModel { boot_critical: true, ..Default::default() });
        change(manifest);
    })
}

fn become_a(agent: &Harness, role: &str) {
    agent.world.facts.change(|facts| facts.metadata = Attributes::texts([("role", role)]));
}

async fn explain(agent: &Harness, name: &str) -> Explanation {
    let name = name.parse().unwrap();
    agent.run(|system| system.manager.send(Explain(name))).await.unwrap().unwrap().explanation
}

#[track_caller]
fn until_stopped(agent: &Harness) -> impl Future<Output = ()> {
    agent.until("it is stopped", MINUTE, |world, listed| {
        is(listed, "a", "1", Reported::Stopped) && world.launcher.alive("a").is_empty()
    })
}

#[tokio::test(start_paused = true)]
async fn a_plugin_follows_the_facts_its_rules_are_about() {
    let agent = Harness::awake().await;
    become_a(&agent, "db");
    order(&agent, "1", &[modelled("a", where_role_is("web"))]).await;
    until_told(&agent, "a", &[1, 3]).await;
    until_stopped(&agent).await;
    let view = agent.view("a").await.unwrap();
    assert_eq!(&*view.reason, "rule 1 (METADATA role EQUAL) does not hold");
    assert_eq!(agent.world.installer.on_disk("a").len(), 1);

    become_a(&agent, "web");
    until_runs(&agent, "a", "1").await;
    become_a(&agent, "db");
    until_stopped(&agent).await;
    until_told(&agent, "a", &[1, 3, 4, 6]).await;
    let stops = agent.world.launcher.stops("a");
    assert!(stops.iter().all(|stop| stop.cleanup == Cleanup::Keep), "{stops:?}");
    assert!(told(&agent.world, "a")[3].details.contains("does not hold"));
}

#[tokio::test(start_paused = true)]
async fn a_plugin_whose_rules_cannot_be_decided_yet_waits_for_them() {
    let agent = Harness::awake().await;
    order(&agent, "1", &[modelled("a", where_role_is("web"))]).await;
    until_told(&agent, "a", &[1, 3]).await;
    until_stopped(&agent).await;
    assert!(agent.view("a").await.unwrap().reason.contains("cannot be decided"));
    become_a(&agent, "web");
    until_runs(&agent, "a", "1").await;
    // What cannot be told any more leaves it as it is, also when it has to be started again.
    agent.world.facts.change(|facts| facts.metadata = Attributes::Unavailable("away".into()));
    agent.pass(MINUTE).await;
    assert_eq!(agent.world.launcher.launched("a").len(), 1);
    agent.world.launcher.exit("a", ExitCause::Exited(1));
    agent
        .until("it runs again", MINUTE, |world, listed| {
            world.launcher.launched("a").len() == 2 && runs(listed, "a", "1")
        })
        .await;
    let explanation = explain(&agent, "a").await;
    let rules = explanation.rules.unwrap();
    assert!(matches!(rules.verdict, RuleVerdict::Unknown { why } if why.contains("away")));
}

#[tokio::test(start_paused = true)]
async fn rules_are_looked_at_when_the_agent_comes_back() {
    let mut agent = Harness::awake().await;
    become_a(&agent, "web");
    order(&agent, "1", &[modelled("a", where_role_is("web"))]).await;
    until_runs(&agent, "a", "1").await;
    agent.crash();
    become_a(&agent, "db");
    agent.wake().await;
    agent.connect().await;
    until_stopped(&agent).await;
    agent.crash();
    become_a(&agent, "web");
    agent.wake().await;
    until_runs(&agent, "a", "1").await;
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_is_never_to_run_is_installed_all_the_same() {
    let agent = Harness::awake().await;
    let never = pb::ExecutionModel { on_default: em::State::Disabled.into(), ..Default::default() };
    order(&agent, "1", &[modelled("a", never)]).await;
    until_told(&agent, "a", &[1, 3]).await;
    until_stopped(&agent).await;
    // The same revision without it runs.
    order(&agent, "2", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
    until_told(&agent, "a", &[1, 3, 1, 4, 3]).await;
    order(&agent, "3", &[remove("a")]).await;
    agent.until("it is gone", MINUTE, |_, listed| find(listed, "a").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn an_explanation_says_what_each_rule_found_and_what_is_waited_for() {
    let agent = Harness::awake().await;
    become_a(&agent, "web");
    order(&agent, "1", &[modelled("a", where_role_is("web"))]).await;
    until_runs(&agent, "a", "1").await;
    agent.world.launcher.launches("a", &[Answer::Held]);
    agent.world.launcher.exit("a", ExitCause::Signaled(11));
    agent.until("it starts", MINUTE, |_, l| is(l, "a", "1", Reported::Starting)).await;
    let explanation = explain(&agent, "a").await;
    assert_eq!(explanation.doing, "starting 1");
    let waits: Vec<_> = explanation.waits.iter().map(|wait| wait.what).collect();
    assert_eq!(waits, ["the start"]);
    let moves: Vec<_> =
        explanation.moves.iter().map(|step| format!("{}: {}", step.state, step.why)).collect();
    let pid = agent.world.launcher.alive("a")[0].0;
    let expected = [
        "installing 1: order 1: install".to_owned(),
        "starting 1: the files are in place".to_owned(),
        "running 1: process 1000 is up".to_owned(),
        "pausing after a crash 1: process 1000 killed by SIGSEGV".to_owned(),
        "starting 1: the wait is over for the pause before the next start".to_owned(),
    ];
    assert_eq!(moves, expected, "the process is {pid} now");
    let trouble = explanation.trouble.unwrap();
    assert_eq!((&*trouble.kind, &*trouble.why), ("PLUGIN_CRASHED", "killed by SIGSEGV"));
    let rules = explanation.rules.unwrap();
    assert!(matches!(rules.verdict, RuleVerdict::Enabled { .. }));
    assert!(matches!(&rules.rules[..], [(_, Weighed::Decided { holds: true, found: Some(_) })]));
    let nobody = "nobody".parse().unwrap();
    let none = agent.run(|system| system.manager.send(Explain(nobody))).await.unwrap();
    assert_eq!(none, None);
}

// === Readiness ===

async fn readiness(agent: &Harness) -> Readiness {
    agent.run(|system| std::future::ready(system.readiness.borrow().clone())).await
}

async fn until_ready(agent: &Harness, within: Duration) -> Readiness {
    let mut readiness = agent.run(|system| std::future::ready(system.readiness.clone())).await;
    let ready = agent.run(|_| async move {
        let ready = tokio::time::timeout(within, readiness.wait_for(Readiness::is_ready)).await;
        ready.expect("ready in time").expect("the manager lives").clone()
    });
    ready.await
}

#[tokio::test(start_paused = true)]
async fn an_agent_without_critical_plugins_is_ready_at_once() {
    let agent = Harness::awake().await;
    let ready = until_ready(&agent, SOON).await;
    assert_eq!(ready, Readiness::Ready { without: Vec::new() });
}

#[tokio::test(start_paused = true)]
async fn readiness_waits_for_a_critical_plugin_and_for_nobody_else() {
    let mut agent = Harness::awake().await;
    order(&agent, "1", &[critical("a", |_| {}), install("b", "1")]).await;
    until_runs(&agent, "a", "1").await;
    until_runs(&agent, "b", "1").await;
    agent.crash();
    agent.world.machine.reboot("boot-2");
    for name in ["a", "b"] {
        agent.world.launcher.launches(name, &[Answer::Held]);
    }
    agent.wake().await;
    agent.pass(SOON).await;
    let waiting = readiness(&agent).await;
    assert_eq!(waiting, Readiness::Waiting { on: vec!["a".parse().unwrap()] });
    agent.world.launcher.release("a");
    let ready = until_ready(&agent, SOON).await;
    assert_eq!(ready, Readiness::Ready { without: Vec::new() });
}

#[tokio::test(start_paused = true)]
async fn a_critical_plugin_that_hangs_holds_readiness_up_for_its_own_time_only() {
    let mut agent = Harness::awake().await;
    let quick = |manifest: &mut cfg::Manifest| {
        manifest.start_timeout = Some(prost_types::Duration { seconds: 5, nanos: 0 });
        manifest.start_attempt_count = 2;
    };
    order(&agent, "1", &[critical("a", quick)]).await;
    until_runs(&agent, "a", "1").await;
    agent.crash();
    agent.world.machine.reboot("boot-2");
    agent.world.launcher.always("a", "1", Answer::Held);
    let began = tokio::time::Instant::now();
    agent.wake().await;
    let ready = until_ready(&agent, MINUTE).await;
    assert_eq!(ready, Readiness::Ready { without: vec!["a".parse().unwrap()] });
    let waited = began.elapsed();
    assert!((Duration::from_secs(9)..Duration::from_secs(12)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn readiness_waits_for_the_run_of_a_critical_one_shot() {
    let mut agent = Harness::awake().await;
    let one_shot = em::OneShot {
        triggers: Some(em::Triggers { startup: true, ..Default::default() }),
        ..Default::default()
    };
    let model = pb::ExecutionModel {
        boot_critical: true,
        r#type: Some(em::Type::OneShot(one_shot)),
        ..Default::default()
    };
    order(&agent, "1", &[modelled("a", model)]).await;
    until_runs(&agent, "a", "1").await;
    agent.world.launcher.exit("a", ExitCause::Exited(0));
    until_told(&agent, "a", &[1, 4, 3, 14]).await;
    agent.crash();
    agent.world.machine.reboot("boot-2");
    agent.wake().await;
    until_runs(&agent, "a", "1").await;
    let waiting = readiness(&agent).await.is_ready();
    assert!(!waiting, "its run is not over");
    agent.world.launcher.exit("a", ExitCause::Exited(0));
    until_ready(&agent, SOON).await;
}
