//! The first list after a restart of the agent: it waits until the plugins know whether their
//! processes still live, and not for long.

use std::time::Duration;

use guest_agent_actors::fakes::{Answer, Harness};
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::view::Reported;
use guest_agent_proto::agent_controlplane as pb;
use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use prost::Message;
use tokio::time::Instant;

use super::support::*;

fn late(seconds: u64) -> Answer {
    Answer::Late(Duration::from_secs(seconds))
}

/// The states of the first list that the control plane gets from an agent which just started.
async fn first_list(agent: &Harness) -> pb::CurrentPluginStates {
    let before = agent.world.link.heard().len();
    agent.receive("list", &[("message_type", LIST)], Vec::new()).await;
    loop {
        let heard = agent.world.link.heard();
        let mut fresh = heard[before..].iter().map(|heard| &heard.message);
        let is_list = |label: &String| label == "agent_controlplane.CurrentPluginStates";
        if let Some(list) = fresh.find(|it| it.labels.get("message_type").is_some_and(is_list)) {
            return pb::CurrentPluginStates::decode(&*list.body).unwrap();
        }
        agent.pass(Duration::from_millis(10)).await;
    }
}

fn statuses(list: &pb::CurrentPluginStates) -> Vec<(&str, StatusValue)> {
    let status = |plugin: &pb::current_plugin_states::DaemonPluginState| {
        plugin.current_plugin_status.as_ref().unwrap().status()
    };
    list.daemon_plugin_states.iter().map(|it| (it.name.as_str(), status(it))).collect()
}

#[tokio::test(start_paused = true)]
async fn it_does_not_say_that_a_plugin_runs_which_died_meanwhile() {
    let mut agent = agent_with("a", "1").await;
    order(&agent, "2", &[install("b", "1")]).await;
    until_runs(&agent, "b", "1").await;
    agent.crash();
    agent.world.launcher.exit("a", ExitCause::Signaled(9));
    agent.world.launcher.finding("a", &[late(1)]);
    // The next process takes long to start, so a list that says RUNNING would mean the dead one.
    agent.world.launcher.launches("a", &[late(20)]);
    agent.wake().await;
    agent.connect().await;
    let began = Instant::now();
    let list = first_list(&agent).await;
    let statuses = statuses(&list);
    assert_eq!(statuses[1], ("b", StatusValue::Running));
    let (name, status) = statuses[0];
    assert_eq!(name, "a");
    assert!(matches!(status, StatusValue::Crashed | StatusValue::Starting), "{status:?}");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn it_waits_two_seconds_for_a_search_that_never_ends_and_the_next_does_not_wait() {
    let mut agent = agent_with("a", "1").await;
    agent.crash();
    agent.world.launcher.finding("a", &[Answer::Never]);
    agent.wake().await;
    agent.connect().await;
    let began = Instant::now();
    let list = first_list(&agent).await;
    assert_eq!(list.daemon_plugin_states.len(), 1, "a list is never empty for that");
    let waited = began.elapsed();
    assert!((1_900..2_100).contains(&waited.as_millis()), "{waited:?}");
    let began = Instant::now();
    assert_eq!(agent.list().await.len(), 1);
    assert!(began.elapsed() < Duration::from_millis(10), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn plugins_look_for_their_processes_at_the_same_time_and_orders_do_not_wait() {
    let names: Vec<String> = (0..30).map(|number| format!("p{number:02}")).collect();
    let mut agent = Harness::awake().await;
    let all: Vec<_> = names.iter().map(|name| install(name, "1")).collect();
    order(&agent, "1", &all).await;
    for name in &names {
        until_runs(&agent, name, "1").await;
    }
    agent.crash();
    for name in &names {
        agent.world.launcher.finding(name, &[late(1)]);
    }
    agent.wake().await;
    agent.connect().await;
    let began = Instant::now();
    order(&agent, "2", &[install("new", "1")]).await;
    agent.pass(Duration::from_millis(500)).await;
    assert_eq!(agent.world.launcher.launched("new").len(), 1, "an order waits for no list");
    assert_eq!(first_list(&agent).await.daemon_plugin_states.len(), 31);
    assert!(began.elapsed() < Duration::from_millis(1_200), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_turns_out_to_be_gone_holds_no_list_up() {
    let mut agent = agent_with("a", "1").await;
    agent.world.installer.removals("a", &[late(10)]);
    order(&agent, "2", &[remove("a")]).await;
    agent.until("it is removed", SOON, |world, _| world.launcher.alive("a").is_empty()).await;
    agent.crash();
    agent.wake().await;
    agent.connect().await;
    let began = Instant::now();
    let list = agent.list().await;
    assert!(list.iter().all(|plugin| plugin.view.state == Reported::Stopping), "{list:?}");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    agent.until("it is gone", MINUTE, |_, listed| listed.is_empty()).await;
}
