//! What a report says of changes by people on the machine, and when it no longer does.

use guest_agent_actors::fakes::{Answer, CrashPoint, Harness, Reply};
use guest_agent_actors::messages::Submission;
use guest_agent_actors::model::act::Act;
use guest_agent_actors::model::audit::{Asker, Via};
use guest_agent_actors::ports::{ServerKind, Table};
use guest_agent_actors::wire::FLEET_GENERATION;
use guest_agent_proto::agent_controlplane::configure_plugin_states as cfg;
use guest_agent_proto::fleet::owners_change::Kind;
use guest_agent_proto::fleet::{OwnersChange, PluginReport};

use super::local::{manifest, rescan};
use super::reports::{agent_of_a_fleet, last, plugin};
use super::support::*;

/// A fleet gives a numbered order.
async fn ordered(agent: &Harness, number: u64, order: cfg::ConfigurePlugin) {
    let number = number.to_string();
    let labels = [("message_type", CONFIGURE), (FLEET_GENERATION, &*number)];
    agent.receive(&format!("fleet-{number}"), &labels, encoded(&[order])).await;
}

/// An agent that runs revision 1 of "a" by the fleet's order 4.
async fn fleets_agent() -> Harness {
    let agent = agent_of_a_fleet().await;
    ordered(&agent, 4, install("a", "1")).await;
    until_runs(&agent, "a", "1").await;
    agent.pass(MINUTE).await;
    assert_eq!(kinds(&agent), []);
    agent
}

/// A person gives an order.
async fn gives(agent: &Harness, order: cfg::ConfigurePlugin) {
    submit(agent, "alice", Submission::Configure(encoded(&[order]))).await;
}

/// A person asks for something.
async fn asks(agent: &Harness, act: Act) {
    submit(agent, "alice", Submission::Asked("a".parse().unwrap(), act)).await;
}

async fn submit(agent: &Harness, who: &str, submission: Submission) {
    let asker = Asker { who: who.into(), via: Via::AgentSocket, detail: "".into() };
    agent.submit_as(Some(asker), submission).await.unwrap();
    agent.pass(MINUTE).await;
}

/// The agent is killed and comes back.
async fn again(agent: &mut Harness) {
    agent.crash();
    agent.wake().await;
    agent.connect_to(ServerKind::Fleet).await;
    agent.pass(MINUTE).await;
}

fn changes(agent: &Harness) -> Vec<OwnersChange> {
    plugin(agent, "a").owners_changes
}

fn kinds(agent: &Harness) -> Vec<Kind> {
    changes(agent).iter().map(OwnersChange::kind).collect()
}

/// What is recorded of people's deeds.
fn recorded(agent: &Harness) -> usize {
    let keys = agent.world.storage.keys(Table::Facts);
    keys.iter().filter(|key| key.starts_with(b"deeds/")).count()
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_a_person_removed_is_listed_with_who_did_it() {
    let mut agent = fleets_agent().await;
    gives(&agent, remove("a")).await;
    let gone = plugin(&agent, "a");
    assert_eq!((&*gone.revision, gone.generation), ("", 4));
    let [removed] = &*gone.owners_changes else { panic!("{gone:?}") };
    assert_eq!((removed.kind(), &*removed.by), (Kind::Removed, "alice"));
    assert!(removed.at.is_some());
    again(&mut agent).await;
    assert_eq!(plugin(&agent, "a"), gone, "it is durable");
    ordered(&agent, 5, install("a", "1")).await;
    until_runs(&agent, "a", "1").await;
    agent.pass(MINUTE).await;
    assert_eq!((kinds(&agent), recorded(&agent)), (vec![], 0));
    again(&mut agent).await;
    assert_eq!(kinds(&agent), []);
}

#[tokio::test(start_paused = true)]
async fn a_removal_of_a_person_ends_with_one_of_the_fleet() {
    let agent = fleets_agent().await;
    gives(&agent, remove("a")).await;
    assert_eq!(kinds(&agent), [Kind::Removed]);
    ordered(&agent, 5, remove("a")).await;
    agent.pass(MINUTE).await;
    let gone = PluginReport { name: "a".to_owned(), generation: 5, ..Default::default() };
    assert_eq!(last(&agent).plugins, std::slice::from_ref(&gone));
    // There is nothing left that a person could remove.
    gives(&agent, remove("a")).await;
    assert_eq!((last(&agent).plugins, recorded(&agent)), (vec![gone], 0));
}

#[tokio::test(start_paused = true)]
async fn a_removal_of_the_fleet_is_no_change_of_a_person_who_wants_it_too() {
    let agent = fleets_agent().await;
    // It is still being removed when the person asks for the same.
    ordered(&agent, 5, remove("a")).await;
    gives(&agent, remove("a")).await;
    let gone = PluginReport { name: "a".to_owned(), generation: 5, ..Default::default() };
    assert_eq!(last(&agent).plugins, [gone]);
}

#[tokio::test(start_paused = true)]
async fn a_person_who_installs_what_was_removed_has_installed_it() {
    let mut agent = fleets_agent().await;
    gives(&agent, remove("a")).await;
    gives(&agent, install("a", "2")).await;
    assert_eq!(kinds(&agent), [Kind::Installed]);
    again(&mut agent).await;
    assert_eq!(kinds(&agent), [Kind::Installed]);
    gives(&agent, remove("a")).await;
    assert_eq!(kinds(&agent), [Kind::Removed]);
    ordered(&agent, 5, remove("a")).await;
    gives(&agent, install("a", "3")).await;
    assert_eq!(kinds(&agent), [Kind::Installed], "the fleet wants it gone");
    gives(&agent, remove("a")).await;
    assert_eq!(kinds(&agent), [], "as the fleet wants it");
}

#[tokio::test(start_paused = true)]
async fn plugins_that_no_fleet_ordered_have_no_changes() {
    let agent = agent_of_a_fleet().await;
    gives(&agent, install("a", "1")).await;
    gives(&agent, apply("a", "x")).await;
    asks(&agent, Act::Stop("alice: maintenance".into())).await;
    assert_eq!((changes(&agent), recorded(&agent)), (vec![], 0));
    gives(&agent, remove("a")).await;
    assert_eq!((last(&agent).plugins, recorded(&agent)), (vec![], 0));
}

#[tokio::test(start_paused = true)]
async fn another_revision_of_a_person_is_told_until_an_order_of_the_fleet_takes_over() {
    let mut agent = fleets_agent().await;
    gives(&agent, install("a", "2")).await;
    let [installed] = &*changes(&agent) else { panic!("{:?}", changes(&agent)) };
    assert_eq!((installed.kind(), &*installed.by), (Kind::Installed, "alice"));
    let before = changes(&agent);
    again(&mut agent).await;
    assert_eq!(changes(&agent), before);
    // An order that fails leaves it where it was.
    agent.world.launcher.always("a", "3", Answer::Fail("it does not start".to_owned()));
    ordered(&agent, 5, install("a", "3")).await;
    agent.pass(HOUR).await;
    assert_eq!((&*plugin(&agent, "a").revision, changes(&agent)), ("2", before));
    ordered(&agent, 6, install("a", "2")).await;
    agent.pass(MINUTE).await;
    assert_eq!((&*plugin(&agent, "a").revision, kinds(&agent)), ("2", vec![]));
    again(&mut agent).await;
    assert_eq!(kinds(&agent), []);
}

#[tokio::test(start_paused = true)]
async fn the_same_revision_with_other_limits_is_a_change() {
    let agent = fleets_agent().await;
    let limited = install_with("a", "1", |manifest| manifest.max_memory_usage_bytes = 1 << 20);
    gives(&agent, limited).await;
    assert_eq!((&*plugin(&agent, "a").revision, kinds(&agent)), ("1", vec![Kind::Installed]));
    ordered(&agent, 4, install("a", "1")).await;
    agent.pass(MINUTE).await;
    assert_eq!(kinds(&agent), [], "the newest order once more");
}

#[tokio::test(start_paused = true)]
async fn an_installation_of_a_person_that_fails_is_no_change() {
    let agent = fleets_agent().await;
    agent.world.launcher.always("a", "2", Answer::Fail("it does not start".to_owned()));
    gives(&agent, install("a", "2")).await;
    agent.pass(HOUR).await;
    assert_eq!((&*plugin(&agent, "a").revision, kinds(&agent)), ("1", vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_failure_after_another_installation_does_not_change_who_installed() {
    let agent = fleets_agent().await;
    gives(&agent, install("a", "2")).await;
    agent.world.launcher.always("a", "3", Answer::Fail("it does not start".to_owned()));
    submit(&agent, "bob", Submission::Configure(encoded(&[install("a", "3")]))).await;
    agent.pass(HOUR).await;
    let [installed] = &*changes(&agent) else { panic!("{:?}", changes(&agent)) };
    assert_eq!((&*plugin(&agent, "a").revision, &*installed.by), ("2", "alice"));
}

#[tokio::test(start_paused = true)]
async fn what_the_agent_does_by_itself_is_no_change_of_a_person() {
    let agent = fleets_agent().await;
    agent.world.launcher.always("a", "2", Answer::Fail("it does not start".to_owned()));
    ordered(&agent, 5, install("a", "2")).await;
    agent.pass(HOUR).await;
    assert_eq!((&*plugin(&agent, "a").revision, kinds(&agent)), ("1", vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_rollback_is_told_until_it_is_released_or_another_order_comes() {
    let mut agent = fleets_agent().await;
    ordered(&agent, 5, install("a", "2")).await;
    until_runs(&agent, "a", "2").await;
    agent.pass(MINUTE).await;
    asks(&agent, Act::Rollback("alice: slow".into())).await;
    let told = changes(&agent);
    let [back] = &*told else { panic!("{told:?}") };
    assert_eq!((back.kind(), &*back.by), (Kind::RolledBack, "alice: slow"));
    assert!(back.at.is_some() && plugin(&agent, "a").revision == "1");
    again(&mut agent).await;
    assert_eq!(changes(&agent), told);
    asks(&agent, Act::Release).await;
    assert_eq!(kinds(&agent), []);
    ordered(&agent, 6, install("a", "2")).await;
    until_runs(&agent, "a", "2").await;
    agent.pass(MINUTE).await;
    asks(&agent, Act::Rollback("alice: slow".into())).await;
    assert_eq!(kinds(&agent), [Kind::RolledBack]);
    ordered(&agent, 7, install("a", "3")).await;
    until_runs(&agent, "a", "3").await;
    agent.pass(MINUTE).await;
    assert_eq!(kinds(&agent), []);
}

#[tokio::test(start_paused = true)]
async fn another_configuration_is_told_until_the_fleet_gives_one() {
    let mut agent = agent_of_a_fleet().await;
    let ours = |revision: &str, config: &str| {
        let config = cfg::manifest::Config::StringConfig(config.to_owned());
        install_with("a", revision, |manifest| manifest.config = Some(config))
    };
    ordered(&agent, 4, ours("1", "fleet")).await;
    until_runs(&agent, "a", "1").await;
    gives(&agent, apply("a", "alice")).await;
    let told = changes(&agent);
    let [configured] = &*told else { panic!("{told:?}") };
    assert_eq!((configured.kind(), &*configured.by), (Kind::Configured, "alice"));
    again(&mut agent).await;
    assert_eq!(changes(&agent), told);
    gives(&agent, apply("a", "fleet")).await;
    assert_eq!(kinds(&agent), [], "it has what was ordered");
    gives(&agent, apply("a", "alice")).await;
    ordered(&agent, 5, ours("1", "alice")).await;
    agent.pass(MINUTE).await;
    assert_eq!((kinds(&agent), recorded(&agent)), (vec![], 0), "the fleet wants it, too");
    gives(&agent, apply("a", "bob")).await;
    assert_eq!(kinds(&agent), [Kind::Configured]);
    ordered(&agent, 6, ours("2", "fleet")).await;
    until_runs(&agent, "a", "2").await;
    agent.pass(MINUTE).await;
    assert_eq!(kinds(&agent), []);
}

#[tokio::test(start_paused = true)]
async fn a_configuration_that_the_plugin_refuses_is_no_change() {
    let agent = fleets_agent().await;
    gives(&agent, apply("a", "alice")).await;
    let told = changes(&agent);
    agent.world.rpc.applies("a", &[Reply::Bad(3, "no such key".to_owned())]);
    submit(&agent, "bob", Submission::Configure(encoded(&[apply("a", "bad")]))).await;
    assert_eq!(changes(&agent), told, "the configuration before stays");
}

#[tokio::test(start_paused = true)]
async fn a_stop_is_told_until_the_plugin_is_started() {
    let mut agent = fleets_agent().await;
    asks(&agent, Act::Stop("alice: maintenance".into())).await;
    let told = changes(&agent);
    let [stopped] = &*told else { panic!("{told:?}") };
    assert_eq!((stopped.kind(), &*stopped.by), (Kind::Stopped, "alice: maintenance"));
    assert!(stopped.at.is_some() && plugin(&agent, "a").stopped_by_owner);
    again(&mut agent).await;
    assert_eq!(changes(&agent), told);
    ordered(&agent, 5, install("a", "2")).await;
    agent.pass(MINUTE).await;
    assert_eq!(kinds(&agent), [Kind::Stopped], "no control plane starts it");
    asks(&agent, Act::Start).await;
    assert_eq!(kinds(&agent), []);
}

#[tokio::test(start_paused = true)]
async fn a_version_of_the_machine_is_told_as_the_removal_that_let_it_run() {
    let agent = fleets_agent().await;
    agent.world.local.put(manifest("a", "image"));
    rescan(&agent).await;
    agent.pass(MINUTE).await;
    assert_eq!(kinds(&agent), [], "the machine is no person");
    gives(&agent, remove("a")).await;
    let report = plugin(&agent, "a");
    assert_eq!((&*report.revision, report.generation, kinds(&agent)), {
        ("image", 4, vec![Kind::Removed])
    });
    ordered(&agent, 5, remove("a")).await;
    agent.pass(MINUTE).await;
    assert_eq!(kinds(&agent), []);
}

#[tokio::test(start_paused = true)]
async fn a_removal_and_who_gave_it_are_durable_together() {
    for point in [CrashPoint::Before, CrashPoint::After] {
        for commit in 1..8 {
            let mut agent = fleets_agent().await;
            agent.world.storage.crash_at(agent.world.storage.commits() + commit, point);
            agent.run(|_| async {}).await;
            let removal = Submission::Configure(encoded(&[remove("a")]));
            drop(tokio::time::timeout(MINUTE, agent.submit(removal)).await);
            agent.pass(MINUTE).await;
            again(&mut agent).await;
            let report = plugin(&agent, "a");
            let is_there = !report.revision.is_empty();
            let expected = if is_there { vec![] } else { vec![Kind::Removed] };
            assert_eq!(kinds(&agent), expected, "{point:?} {commit}");
            assert_eq!(is_there, recorded(&agent) == 0, "{point:?} {commit}");
            assert!(!is_there || commit == 1, "{point:?} {commit}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_made_durable_is_no_change() {
    let agent = fleets_agent().await;
    agent.world.storage.set_failing(true);
    let removal = Submission::Configure(encoded(&[remove("a")]));
    assert!(agent.submit(removal).await.is_err());
    agent.world.storage.set_failing(false);
    agent.pass(MINUTE).await;
    asks(&agent, Act::Stop("alice".into())).await;
    asks(&agent, Act::Start).await;
    ordered(&agent, 5, remove("a")).await;
    agent.pass(MINUTE).await;
    assert_eq!((kinds(&agent), recorded(&agent)), (vec![], 0));
}

#[tokio::test(start_paused = true)]
async fn deeds_that_cannot_be_read_are_set_aside() {
    let mut agent = fleets_agent().await;
    asks(&agent, Act::Stop("alice".into())).await;
    agent.crash();
    agent.world.storage.plant(Table::Facts, b"deeds/a", &[0xff; 11]);
    agent.wake().await;
    agent.connect_to(ServerKind::Fleet).await;
    agent.pass(MINUTE).await;
    let aside = agent.world.storage.aside();
    assert!(aside.iter().any(|(_, key, _)| key == b"deeds/a"), "{aside:?}");
    let [stopped] = &*changes(&agent) else { panic!("{:?}", changes(&agent)) };
    assert_eq!((&*stopped.by, stopped.at), ("alice", None));
}
