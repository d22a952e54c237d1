//! The stream: questions, orders, events, and everything that goes wrong with it.

use std::collections::BTreeMap;
use std::time::Duration;

use guest_agent_actors::fakes::{Answer, Delivery, Harness};
use guest_agent_actors::messages::LinkChanged;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::outbox::{Bounds, Destination};
use guest_agent_actors::ports::{ServerKind, Table};
use guest_agent_proto::agent_controlplane as pb;
use prost::Message;

use super::support::*;

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test(start_paused = true)]
async fn replies_echo_every_label_and_replace_the_type() {
    let agent = agent_with("a", "1").await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    let before = agent.world.link.heard().len();
    for kind in ["GetAgentInfo", "GetOSInfo", "ListPluginStates"] {
        let kind = format!("agent_controlplane.{kind}");
        let labels = [("message_type", &*kind), ("request_id", "r-7"), ("other", "Läbel.x")];
        agent.receive("same-id", &labels, Vec::new()).await;
    }
    agent.until("all are answered", SOON, |world, _| world.link.heard().len() == before + 3).await;
    let heard = agent.world.link.heard();
    let reply = |kind: &str| {
        let wanted = labels(&[("message_type", kind), ("request_id", "r-7"), ("other", "Läbel.x")]);
        let found = heard[before..].iter().find(|heard| heard.message.labels == wanted);
        let message = &found.unwrap_or_else(|| panic!("no reply {kind}")).message;
        assert_eq!(message.type_url, format!("type.googleapis.com/{kind}"));
        assert_ne!(message.id, "same-id", "a reply is a new message");
        message.body.clone()
    };
    let info = pb::AgentInfo::decode(&*reply("agent_controlplane.AgentInfo")).unwrap();
    assert_eq!((info.name.as_str(), info.version.as_str()), ("guest-agent", "1.2.3"));
    assert_eq!(info.agent_capabilities, [1, 2, 3, 4, 5]);
    let os = pb::OsInfo::decode(&*reply("agent_controlplane.OSInfo")).unwrap();
    assert_eq!((os.r#type.as_str(), os.kernel_release.as_str()), ("linux", "6.18.0"));
    let states = reply("agent_controlplane.CurrentPluginStates");
    let states = pb::CurrentPluginStates::decode(&*states).unwrap();
    assert_eq!(states.daemon_plugin_states.len(), 1);
    assert_eq!(states.daemon_plugin_states[0].name, "a");
    assert_eq!(agent.world.link.acknowledged().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_understood_is_acknowledged_and_the_stream_lives_on() {
    let agent = Harness::awake().await;
    agent.receive("1", &[], Vec::new()).await;
    agent.receive("2", &[("message_type", "agent_controlplane.MakeCoffee")], Vec::new()).await;
    agent.receive("3", &[("message_type", CONFIGURE)], vec![0xff; 40]).await;
    agent.receive("4", &[("message_type", CONFIGURE)], Vec::new()).await;
    assert_eq!(agent.world.link.acknowledged().len(), 4);
    order(&agent, "6", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
    assert!(all_told(&agent.world).iter().all(|told| told.plugin == "a"));
}

#[tokio::test(start_paused = true)]
async fn a_message_with_too_many_orders_is_refused_as_a_whole() {
    let agent = Harness::awake().await;
    let many = vec![remove("x"); 4097];
    agent.receive("many", &[("message_type", CONFIGURE)], encoded(&many)).await;
    let refused = agent.world.link.refused();
    let [(receipt, reason)] = refused.as_slice() else { panic!("{refused:?}") };
    assert_eq!(receipt.message_id, "many");
    assert!(reason.contains("4097") && reason.contains("4096"), "{reason}");
    assert!(agent.world.link.acknowledged().is_empty());
    // As many as are taken are all carried out.
    order(&agent, "most", &many[..4096]).await;
    agent.until("they are answered", MINUTE, |world, _| numbers(world, "x").len() == 4096).await;
    agent.pass(MINUTE).await;
    assert_eq!(numbers(&agent.world, "x").len(), 4096, "nothing of the refused ones was done");
}

#[tokio::test(start_paused = true)]
async fn a_reply_is_sent_again_under_its_id_while_its_question_is_young() {
    let agent = Harness::awake().await;
    let labels = [("message_type", "agent_controlplane.GetAgentInfo")];
    agent.world.link.always(Some(Delivery::LoseAcknowledgement));
    agent.receive("1", &labels, Vec::new()).await;
    agent.pass(Duration::from_secs(59)).await;
    let heard = agent.world.link.heard();
    assert!((28..=30).contains(&heard.len()), "every two seconds: {}", heard.len());
    assert!(heard.iter().all(|one| one.message == heard[0].message), "under one id");
    agent.pass(HOUR).await;
    let after = agent.world.link.heard().len();
    assert!(after <= 30, "the question is too old: {after}");

    // One that is acknowledged late is not sent again.
    agent.receive("2", &labels, Vec::new()).await;
    agent.pass(Duration::from_secs(20)).await;
    agent.world.link.always(None);
    agent.pass(MINUTE).await;
    let heard = agent.world.link.heard().len();
    assert!((after + 10..=after + 12).contains(&heard), "{heard} after {after}");
}

#[tokio::test(start_paused = true)]
async fn a_reply_follows_the_agent_to_its_next_stream() {
    let agent = Harness::awake().await;
    let labels = [("message_type", "agent_controlplane.GetAgentInfo")];
    agent.world.link.always(Some(Delivery::Lose));
    agent.receive("1", &labels, Vec::new()).await;
    agent.pass(Duration::from_secs(1)).await;
    agent.disconnect().await;
    agent.pass(Duration::from_secs(30)).await;
    agent.world.link.always(None);
    agent.connect().await;
    agent
        .until("it is answered", Duration::from_secs(2), |world, _| world.link.heard().len() == 1)
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_comes_again_on_a_later_stream_is_acknowledged_and_ignored() {
    let agent = agent_with("a", "1").await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    agent.disconnect().await;
    agent.connect().await;
    order(&agent, "first", &[install("a", "1")]).await;
    assert_eq!(agent.world.link.acknowledged().len(), 2, "it is acknowledged again");
    agent.pass(SOON).await;
    assert_eq!(numbers(&agent.world, "a"), [1, 4, 3], "and not acted upon again");
    // Another body under the same id is another message.
    order(&agent, "first", &[install("b", "1")]).await;
    until_runs(&agent, "b", "1").await;
    // The same on the same stream is an order of its own.
    order(&agent, "first", &[install("b", "1")]).await;
    until_told(&agent, "b", &[1, 4, 3, 1, 3]).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_an_earlier_agent_took_is_acknowledged_and_ignored() {
    let mut agent = agent_with("a", "1").await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    // It died before its acknowledgement arrived, so the control plane sends the message again.
    agent.crash_and_wake().await;
    let before = agent.world.link.acknowledged().len();
    order(&agent, "first", &[install("a", "1")]).await;
    assert_eq!(agent.world.link.acknowledged().len(), before + 1);
    agent.pass(SOON).await;
    assert_eq!(numbers(&agent.world, "a"), [1, 4, 3]);
    // Long after, the same words are a new order.
    agent.pass(Duration::from_secs(601)).await;
    agent.disconnect().await;
    agent.connect().await;
    order(&agent, "first", &[install("a", "1")]).await;
    until_told(&agent, "a", &[1, 4, 3, 1, 3]).await;
}

#[tokio::test(start_paused = true)]
async fn a_question_does_not_wait_behind_an_order() {
    let agent = Harness::awake().await;
    agent.world.installer.downloads("a", &[Answer::Held]);
    order(&agent, "1", &[install("a", "1")]).await;
    agent.receive("2", &[("message_type", "agent_controlplane.GetAgentInfo")], Vec::new()).await;
    agent
        .until("it is answered", SOON, |world, _| {
            world.link.heard().iter().any(|heard| heard.message.type_url.ends_with(".AgentInfo"))
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_question_from_before_the_registration_is_answered_after_it() {
    let mut agent = Harness::asleep();
    agent.wake().await;
    agent.receive("1", &[("message_type", "agent_controlplane.GetAgentInfo")], Vec::new()).await;
    agent.pass(Duration::from_millis(100)).await;
    agent.connect().await;
    agent
        .until("it is answered", SOON, |world, _| {
            world.link.heard().iter().any(|heard| heard.message.type_url.ends_with(".AgentInfo"))
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_disk_holds_no_question_up_and_a_resend_meanwhile_is_no_second_order() {
    let agent = Harness::awake().await;
    agent.world.storage.set_slow_commits(Duration::from_secs(5));
    order(&agent, "1", &[install("a", "1")]).await;
    agent.receive("2", &[("message_type", "agent_controlplane.GetAgentInfo")], Vec::new()).await;
    agent
        .until("it is answered", Duration::from_secs(1), |world, _| {
            world.link.heard().iter().any(|heard| heard.message.type_url.ends_with(".AgentInfo"))
        })
        .await;
    let acknowledged = agent.world.link.acknowledged();
    assert_eq!(acknowledged.len(), 1, "only the question: {acknowledged:?}");
    // The server waits 2 s for its acknowledgement, then sends the order again.
    order(&agent, "1", &[install("a", "1")]).await;
    agent.world.storage.set_slow_commits(Duration::ZERO);
    until_told(&agent, "a", &[1, 4, 3]).await;
    agent.pass(MINUTE).await;
    assert_eq!(numbers(&agent.world, "a"), [1, 4, 3], "it was obeyed once");
    assert_eq!(agent.world.link.acknowledged().len(), 3, "both sendings are acknowledged");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_asked_too_early_waits_for_the_plugins() {
    let mut agent = agent_with("a", "1").await;
    agent.crash();
    // Reading the store takes as long as it takes; the question comes first.
    agent.world.storage.set_slow_reads(Duration::from_secs(3));
    agent.wake().await;
    agent.connect().await;
    let before = agent.world.link.heard().len();
    agent.receive("2", &[("message_type", LIST)], Vec::new()).await;
    agent.pass(Duration::from_secs(1)).await;
    assert_eq!(agent.world.link.heard().len(), before, "it is not answered empty");
    agent.until("it is answered", MINUTE, |world, _| world.link.heard().len() > before).await;
    let heard = agent.world.link.heard();
    let states = pb::CurrentPluginStates::decode(&*heard.last().unwrap().message.body).unwrap();
    assert_eq!(states.daemon_plugin_states.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_event_is_sent_again_under_its_id_until_it_is_acknowledged() {
    let agent = Harness::awake().await;
    agent.world.link.script(&[
        Delivery::Lose,
        Delivery::LoseAcknowledgement,
        Delivery::LoseAcknowledgement,
    ]);
    order(&agent, "1", &[install("a", "1")]).await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    let told = all_told(&agent.world);
    assert_eq!(told.len(), 5, "the first event came three times: {told:#?}");
    assert!(told[..3].iter().all(|event| event.id == told[0].id));
    agent
        .until("nothing waits", SOON, |world, _| {
            world.storage.keys(Table::Outbox).is_empty()
                && world.storage.keys(Table::History).len() == 3
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn events_wait_for_the_stream_and_keep_their_order() {
    let agent = agent_with("a", "1").await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    agent.disconnect().await;
    agent.world.launcher.exit("a", ExitCause::Exited(1));
    agent
        .until("it is started again", MINUTE, |world, listed| {
            world.launcher.launched("a").len() == 2 && runs(listed, "a", "1")
        })
        .await;
    agent.pass(MINUTE).await;
    assert_eq!(numbers(&agent.world, "a"), [1, 4, 3]);
    agent.connect().await;
    until_told(&agent, "a", &[1, 4, 3, 7, 4]).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_replaced_under_an_event_does_not_strand_it() {
    let agent = Harness::awake().await;
    agent.world.link.script(&[Delivery::Lose]);
    order(&agent, "1", &[install("a", "1")]).await;
    agent.pass(Duration::from_millis(100)).await;
    // The outbox learns of the new stream before its event on the old one fails.
    let stream = agent.world.link.stream() + 1;
    agent
        .run(|system| {
            system.link_changed.send(LinkChanged::Connected { stream, server: ServerKind::Public })
        })
        .await
        .unwrap();
    agent.pass(Duration::from_millis(10)).await;
    assert_eq!(agent.world.link.connect(), stream);
    until_told(&agent, "a", &[1, 4, 3]).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_without_room_is_given_growing_pauses() {
    let agent = Harness::awake().await;
    agent.world.link.script(&vec![Delivery::Exhausted; 6]);
    order(&agent, "1", &[install("a", "1")]).await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    let attempts = agent.world.link.attempts();
    let pauses: Vec<u128> =
        attempts.windows(2).take(6).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
    for (n, pause) in pauses.iter().enumerate() {
        let expected = 250 * (n as u128 + 1);
        // The protocol's pause, and up to a quarter of it more.
        assert!((expected..expected * 5 / 4 + 50).contains(pause), "{pauses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_an_event_is_not_hammered() {
    let agent = Harness::awake().await;
    agent.world.link.always(Some(Delivery::Refuse));
    order(&agent, "1", &[install("a", "1")]).await;
    agent.pass(HOUR).await;
    let attempts = agent.world.link.attempts().len();
    assert!((60..130).contains(&attempts), "{attempts} attempts in an hour");
    agent.world.link.always(None);
    agent.until("it is told", 2 * MINUTE, |world, _| numbers(world, "a") == [1, 4, 3]).await;
}

#[tokio::test(start_paused = true)]
async fn events_that_are_refused_hold_no_other_plugin_up() {
    let agent = Harness::awake().await;
    agent.world.link.script(&vec![Delivery::Refuse; 32]);
    let names: Vec<String> = (0..40).map(|n| format!("p{n:02}")).collect();
    let orders: Vec<_> = names.iter().map(|name| remove(name)).collect();
    order(&agent, "1", &orders).await;
    let at_once = Duration::from_millis(500);
    agent
        .until("the others are told", at_once, |world, _| {
            names[32..].iter().all(|name| numbers(world, name) == [10])
        })
        .await;
    agent
        .until("all are told", MINUTE, |world, _| {
            names.iter().all(|name| numbers(world, name) == [10])
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn an_outbox_at_its_bound_drops_the_oldest_and_says_so() {
    let mut agent = Harness::asleep();
    agent.settings.outbox = Bounds { events: 6, bytes: 1 << 20, history: 4 };
    agent.wake().await;
    order(&agent, "1", &[install("quiet", "1")]).await;
    until_runs(&agent, "quiet", "1").await;
    for n in 0..20 {
        order(&agent, &n.to_string(), &[install("noisy", "1")]).await;
        until_runs(&agent, "noisy", "1").await;
    }
    assert!(agent.world.storage.keys(Table::Outbox).len() <= 6);
    agent.connect().await;
    agent
        .until("nothing waits", MINUTE, |world, _| world.storage.keys(Table::Outbox).is_empty())
        .await;
    assert_eq!(numbers(&agent.world, "quiet"), [1, 4, 3], "the quiet one loses nothing");
    let noisy = told(&agent.world, "noisy");
    assert_eq!(noisy.iter().map(|told| told.number).collect::<Vec<_>>(), [4, 1, 3]);
    assert!(noisy[0].details.starts_with("39 events from "), "{noisy:#?}");
    assert!(noisy[2].details.ends_with("already installed"), "{noisy:#?}");
    assert!(agent.world.storage.keys(Table::History).len() <= 4);
}

#[tokio::test(start_paused = true)]
async fn without_a_control_plane_events_are_history_at_once() {
    let mut agent = Harness::asleep();
    agent.wake().await;
    agent.submit(configure(&[install("a", "1")])).await.unwrap();
    until_runs(&agent, "a", "1").await;
    agent.until("they wait", SOON, |world, _| world.storage.keys(Table::Outbox).len() == 3).await;
    // The control plane is taken out of the configuration.
    agent.crash();
    agent.settings.destination = Destination::Nobody;
    agent.wake().await;
    agent.submit(configure(&[install("a", "1")])).await.unwrap();
    agent
        .until("they are settled", SOON, |world, _| {
            world.storage.keys(Table::Outbox).is_empty()
                && world.storage.keys(Table::History).len() == 5
        })
        .await;
    let depth = agent.run(|system| std::future::ready(*system.events.depth.borrow())).await;
    assert_eq!(depth, 0);
    assert!(agent.world.link.attempts().is_empty());
}

fn configure(
    orders: &[pb::configure_plugin_states::ConfigurePlugin],
) -> guest_agent_actors::messages::Submission {
    guest_agent_actors::messages::Submission::Configure(encoded(orders))
}
