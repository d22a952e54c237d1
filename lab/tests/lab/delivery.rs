//! Messages to agents: acknowledged, resent, redelivered, correlated.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use guest_agent_lab::{
    Acknowledged, ConfigureError, ControlPlane, DeliveryError, FrameContent, RequestError, Timings,
    messages,
};
use guest_agent_proto::agent_communication::{MessageBody, StreamAgentMessagesResponse};
use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    Action, ConfigurePlugin, Plugin,
};
use guest_agent_proto::agent_controlplane::current_plugin_states::DaemonPluginState;
use guest_agent_proto::agent_controlplane::{
    AgentInfo, ConfigurePluginStates, CurrentPluginStates, OsInfo,
};
use guest_agent_proto::rpc;
use guest_fleet_sessions as sessions;
use guest_fleet_sessions::desk::{Desk, OpenSession};
use tonic::{Code, Status};

use crate::client::{AGENT, Agent, Down, LONG, event, reply};

const SOON: Duration = Duration::from_millis(100);

/// Sends nothing again while an agent of this machine may still answer.
fn install(name: &str, revision: &str) -> ConfigurePluginStates {
    ConfigurePluginStates {
        configure_plugins: vec![ConfigurePlugin {
            action: Action::Install.into(),
            plugin: Some(Plugin {
                name: name.to_owned(),
                revision_id: revision.to_owned(),
                ..Plugin::default()
            }),
            manifest: None,
        }],
    }
}

async fn start() -> ControlPlane {
    start_with(LONG).await
}

/// Sends again soon what is not acknowledged.
async fn start_impatient() -> ControlPlane {
    start_with(SOON).await
}

async fn start_with(acknowledgement: Duration) -> ControlPlane {
    let timings = Timings { acknowledgement, attempts: 100, ..Timings::default() };
    ControlPlane::builder()
        .listen_tcp((Ipv4Addr::LOCALHOST, 0).into())
        .timings(timings)
        .start()
        .await
        .unwrap()
}

/// A desk that refuses one message.
#[derive(Default)]
struct Picky {
    session: Mutex<Option<Arc<OpenSession>>>,
    answered: Mutex<Vec<String>>,
}

#[async_trait]
impl Desk for Picky {
    async fn opened(&self, session: Arc<OpenSession>) -> Result<(), Status> {
        *self.session.lock().unwrap() = Some(session);
        Ok(())
    }

    async fn received(
        &self,
        _: &str,
        _: Option<u64>,
        id: &str,
        _: &MessageBody,
    ) -> Result<(), rpc::Status> {
        let code = Code::InvalidArgument.into();
        let refused = || rpc::Status { code, ..rpc::Status::default() };
        if id == "bad" { Err(refused()) } else { Ok(()) }
    }

    async fn answered(&self, _: &OpenSession, id: &str, _: Option<&rpc::Status>) {
        self.answered.lock().unwrap().push(id.to_owned());
    }

    fn closed(&self, _: &OpenSession) {
        *self.session.lock().unwrap() = None;
    }
}

#[tokio::test]
async fn a_configuration_is_delivered_when_the_agent_acknowledged_it() {
    let control_plane = start().await;
    let mut agent = Agent::connect(&control_plane).await;
    let delivery = control_plane.configure(AGENT, &install("a", "1")).unwrap();
    let (id, body) = agent.body().await;
    assert_eq!(id, delivery.message_id());
    assert_eq!(messages::message_type(&body), messages::CONFIGURE_PLUGIN_STATES);
    assert_eq!(messages::unpack::<ConfigurePluginStates>(&body).unwrap(), install("a", "1"));
    assert_eq!(body.body.as_ref().unwrap().type_url.split('/').next(), Some("type.googleapis.com"));
    agent.answer(&id, None).await;
    assert_eq!(delivery.wait(LONG).await, Ok(Acknowledged));
}

#[tokio::test]
async fn an_unacknowledged_message_is_resent_with_the_same_id() {
    let control_plane = start_impatient().await;
    let mut agent = Agent::connect(&control_plane).await;
    let delivery = control_plane.configure(AGENT, &install("a", "1")).unwrap();
    let first = agent.body().await;
    let second = agent.body().await;
    assert_eq!(first, second);
    assert_eq!(
        delivery.wait(Duration::from_millis(1)).await,
        Err(DeliveryError::TimedOut(Duration::from_millis(1)))
    );
}

#[tokio::test]
async fn a_message_that_is_never_acknowledged_ends_the_stream() {
    let timings = Timings { acknowledgement: SOON, attempts: 2, ..Timings::default() };
    let control_plane = ControlPlane::builder()
        .listen_tcp((Ipv4Addr::LOCALHOST, 0).into())
        .timings(timings)
        .start()
        .await
        .unwrap();
    let mut agent = Agent::connect(&control_plane).await;
    drop(control_plane.configure(AGENT, &install("a", "1")).unwrap());
    assert_eq!(agent.body().await, agent.body().await);
    let status = agent.end().await.unwrap();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(status.message().starts_with("MESSAGE_NOT_ACKED"), "{status}");
}

#[tokio::test]
async fn an_unacknowledged_configuration_comes_again_on_the_next_stream_with_its_id() {
    let control_plane = start().await;
    let mut agent = Agent::connect(&control_plane).await;
    let delivery = control_plane.configure(AGENT, &install("a", "1")).unwrap();
    let first = agent.body().await;
    drop(agent);
    control_plane.gateway().wait_disconnected(AGENT, LONG).await.unwrap();
    let mut agent = Agent::connect(&control_plane).await;
    assert_eq!(agent.body().await, first);
    agent.answer(&first.0, None).await;
    assert_eq!(delivery.wait(LONG).await, Ok(Acknowledged));
}

#[tokio::test]
async fn an_acknowledged_configuration_does_not_come_again() {
    let control_plane = start().await;
    let mut agent = Agent::connect(&control_plane).await;
    let delivery = control_plane.configure(AGENT, &install("a", "1")).unwrap();
    let (id, _) = agent.body().await;
    agent.answer(&id, None).await;
    delivery.wait(LONG).await.unwrap();
    drop(agent);
    control_plane.gateway().wait_disconnected(AGENT, LONG).await.unwrap();
    let mut agent = Agent::connect(&control_plane).await;
    // What comes first is the next configuration, not the old one.
    drop(control_plane.configure(AGENT, &install("b", "1")).unwrap());
    let (_, body) = agent.body().await;
    assert_eq!(messages::unpack::<ConfigurePluginStates>(&body).unwrap(), install("b", "1"));
}

#[tokio::test]
async fn configurations_for_an_absent_agent_wait_for_it_and_for_each_other() {
    let control_plane = start().await;
    let older = control_plane.configure(AGENT, &install("a", "1")).unwrap();
    let newer = control_plane.configure(AGENT, &install("a", "2")).unwrap();
    let mut agent = Agent::connect(&control_plane).await;
    let (id, body) = agent.body().await;
    assert_eq!(id, older.message_id());
    assert_eq!(messages::unpack::<ConfigurePluginStates>(&body).unwrap(), install("a", "1"));
    agent.answer(&id, None).await;
    assert_eq!(older.wait(LONG).await, Ok(Acknowledged));
    let (id, _) = agent.body().await;
    assert_eq!(id, newer.message_id());
    agent.answer(&id, None).await;
    assert_eq!(newer.wait(LONG).await, Ok(Acknowledged));
}

#[tokio::test]
async fn a_control_plane_that_ends_says_so_of_what_it_still_had() {
    let control_plane = start().await;
    let sent = control_plane.configure(AGENT, &install("a", "1")).unwrap();
    let waiting = control_plane.configure(AGENT, &install("a", "2")).unwrap();
    control_plane.shutdown().await;
    let late = control_plane.configure(AGENT, &install("a", "3")).unwrap();
    for delivery in [sent, waiting, late] {
        assert_eq!(delivery.wait(LONG).await, Err(DeliveryError::Closed));
    }
}

#[tokio::test]
async fn orders_and_requests_beyond_the_bound_are_refused() {
    let control_plane = start().await;
    let mut deliveries = Vec::new();
    let refused = loop {
        match control_plane.configure(AGENT, &install("a", "1")) {
            Ok(delivery) => deliveries.push(delivery),
            Err(error) => break error,
        }
        assert!(deliveries.len() < 1000, "the queue has no bound");
    };
    assert!(matches!(refused, ConfigureError::QueueFull), "{refused:?}");
    let ask = || control_plane.agent_info(AGENT, Duration::from_millis(10));
    let answers = futures_util::future::join_all(std::iter::repeat_with(ask).take(100)).await;
    let is_full = |answer: &Result<_, _>| matches!(answer, Err(RequestError::QueueFull));
    assert_eq!(answers.iter().filter(|answer| is_full(answer)).count(), 100 - 64);
    // A request whose caller gave up frees its place.
    assert!(!is_full(&ask().await));
}

#[tokio::test]
async fn a_desk_that_decides_sees_what_the_agent_sends_and_its_refusals_count() {
    let desk = Arc::new(Picky::default());
    let control_plane = ControlPlane::builder()
        .listen_tcp((Ipv4Addr::LOCALHOST, 0).into())
        .desk(desk.clone())
        .start()
        .await
        .unwrap();
    let mut agent = Agent::connect(&control_plane).await;
    agent.send_body("bad", event("a")).await;
    assert_eq!(agent.acknowledgement().await.1.unwrap().code, i32::from(Code::InvalidArgument));
    assert!(control_plane.events(AGENT).is_empty());
    agent.send_body("good", event("b")).await;
    assert_eq!(agent.acknowledgement().await, ("good".to_owned(), None));
    assert_eq!(control_plane.events(AGENT).len(), 1);
    // The desk sends by itself, and has the answer.
    let session = desk.session.lock().unwrap().clone().unwrap();
    let raw = StreamAgentMessagesResponse {
        message_id: "of the desk".to_owned(),
        r#type: Some(Down::MessageBody(Default::default())),
    };
    assert!(session.hand_over(raw.clone(), Box::new(|| true)));
    assert_eq!(agent.next().await.unwrap().unwrap(), raw);
    agent.answer("of the desk", None).await;
    let delivery = control_plane.configure(AGENT, &install("a", "1")).unwrap();
    let (id, _) = agent.body().await;
    agent.answer(&id, None).await;
    assert_eq!(delivery.wait(LONG).await, Ok(Acknowledged));
    drop(agent);
    control_plane.gateway().wait_disconnected(AGENT, LONG).await.unwrap();
    let closed = async {
        while desk.session.lock().unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, closed).await.expect("the desk learns that the stream ended");
    assert_eq!(*desk.answered.lock().unwrap(), ["of the desk".to_owned(), id]);
}

#[tokio::test]
async fn a_configuration_too_large_for_any_agent_is_not_taken_on() {
    let control_plane = start().await;
    let refused = control_plane.configure(AGENT, &install("a", &"1".repeat(4 << 20)));
    assert!(matches!(refused, Err(ConfigureError::TooLarge(_))), "{refused:?}");
}

#[tokio::test]
async fn a_refused_configuration_is_reported_and_not_sent_again() {
    let control_plane = start().await;
    let mut agent = Agent::connect(&control_plane).await;
    let delivery = control_plane.configure(AGENT, &install("a", "1")).unwrap();
    let (id, _) = agent.body().await;
    let status = rpc::Status { code: 3, message: "no".into(), details: Vec::new() };
    agent.answer(&id, Some(status)).await;
    assert_eq!(
        delivery.wait(LONG).await,
        Err(DeliveryError::Refused { code: 3, message: "no".into() })
    );
}

#[tokio::test]
async fn an_agent_that_is_busy_gets_the_message_again() {
    let control_plane = start_impatient().await;
    let mut agent = Agent::connect(&control_plane).await;
    let delivery = control_plane.configure(AGENT, &install("a", "1")).unwrap();
    let first = agent.body().await;
    let busy = rpc::Status { code: 8, ..rpc::Status::default() };
    agent.answer(&first.0, Some(busy)).await;
    assert_eq!(agent.body().await, first);
    agent.answer(&first.0, None).await;
    assert_eq!(delivery.wait(LONG).await, Ok(Acknowledged));
}

#[tokio::test]
async fn replies_find_their_request_whatever_their_order() {
    let control_plane = start().await;
    let mut agent = Agent::connect(&control_plane).await;
    let asked = {
        let control_plane = control_plane.clone();
        tokio::spawn(async move {
            tokio::join!(
                control_plane.agent_info(AGENT, LONG),
                control_plane.os_info(AGENT, LONG),
                control_plane.list_plugin_states(AGENT, LONG),
                control_plane.list_plugin_states(AGENT, LONG),
            )
        })
    };
    let mut requests = Vec::new();
    for _ in 0..4 {
        let (id, body) = agent.body().await;
        agent.answer(&id, None).await;
        requests.push(body);
    }
    // The answers come in reverse order; only the request id shows which list is which.
    let mut lists = 0;
    for (number, request) in requests.iter().enumerate().rev() {
        let body = match messages::message_type(request) {
            messages::GET_AGENT_INFO => messages::pack(
                messages::AGENT_INFO,
                &AgentInfo { name: "agent".into(), ..AgentInfo::default() },
            ),
            messages::GET_OS_INFO => messages::pack(
                messages::OS_INFO,
                &OsInfo { short_name: "debian".into(), ..OsInfo::default() },
            ),
            messages::LIST_PLUGIN_STATES => {
                lists += 1;
                let name = request.labels[messages::REQUEST_ID].clone();
                let state = DaemonPluginState { name, ..DaemonPluginState::default() };
                let states = CurrentPluginStates {
                    daemon_plugin_states: vec![state],
                    ..CurrentPluginStates::default()
                };
                messages::pack(messages::CURRENT_PLUGIN_STATES, &states)
            }
            other => panic!("unexpected request {other}"),
        };
        agent.send_body(&format!("reply-{number}"), reply(&request.labels, body)).await;
    }
    let (agent_info, os_info, first, second) = asked.await.unwrap();
    assert_eq!(agent_info.unwrap().name, "agent");
    assert_eq!(os_info.unwrap().short_name, "debian");
    assert_eq!(lists, 2);
    let ids: Vec<_> = requests
        .iter()
        .filter(|r| messages::message_type(r) == messages::LIST_PLUGIN_STATES)
        .map(|r| r.labels[messages::REQUEST_ID].clone())
        .collect();
    assert_eq!(first.unwrap().daemon_plugin_states[0].name, ids[0]);
    assert_eq!(second.unwrap().daemon_plugin_states[0].name, ids[1]);
    // What was reported is remembered.
    let reports = control_plane.reports(AGENT);
    assert_eq!(reports.agent_info.unwrap().value.name, "agent");
    assert_eq!(reports.os_info.unwrap().value.short_name, "debian");
    assert!(reports.plugin_states.is_some());
}

#[tokio::test]
async fn an_unacknowledged_configuration_does_not_delay_a_request() {
    let control_plane = start().await;
    let mut agent = Agent::connect(&control_plane).await;
    drop(control_plane.configure(AGENT, &install("a", "1")).unwrap());
    agent.body().await;
    let asked = {
        let control_plane = control_plane.clone();
        tokio::spawn(async move { control_plane.os_info(AGENT, LONG).await })
    };
    let (id, request) = loop {
        let (id, body) = agent.body().await;
        if messages::message_type(&body) == messages::GET_OS_INFO {
            break (id, body);
        }
    };
    agent.answer(&id, None).await;
    let info = messages::pack(messages::OS_INFO, &OsInfo::default());
    agent.send_body("r", reply(&request.labels, info)).await;
    asked.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_request_survives_a_reconnect() {
    let control_plane = start().await;
    let mut agent = Agent::connect(&control_plane).await;
    let asked = {
        let control_plane = control_plane.clone();
        tokio::spawn(async move { control_plane.os_info(AGENT, LONG).await })
    };
    let first = agent.body().await;
    control_plane.disconnect(AGENT, Code::Unavailable).unwrap();
    let mut agent = Agent::connect(&control_plane).await;
    let second = agent.body().await;
    assert_eq!(first, second);
    agent.answer(&second.0, None).await;
    let info = messages::pack(messages::OS_INFO, &OsInfo::default());
    agent.send_body("r", reply(&second.1.labels, info)).await;
    asked.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_missing_reply_and_a_missing_agent_are_told_apart() {
    let control_plane = start().await;
    let absent = control_plane.agent_info(AGENT, Duration::from_millis(10)).await;
    assert!(matches!(absent, Err(RequestError::NotConnected(_))), "{absent:?}");
    let mut agent = Agent::connect(&control_plane).await;
    let silent = control_plane.agent_info(AGENT, SOON / 2).await;
    assert!(matches!(silent, Err(RequestError::NoReply(_))), "{silent:?}");
    // The withdrawn request of the absent agent never arrives; the other one did.
    let (_, body) = agent.body().await;
    assert_eq!(messages::message_type(&body), messages::GET_AGENT_INFO);
    drop(control_plane.configure(AGENT, &install("a", "1")).unwrap());
    let (_, body) = agent.body().await;
    assert_eq!(messages::message_type(&body), messages::CONFIGURE_PLUGIN_STATES);
}

#[tokio::test]
async fn raw_frames_pass_unchanged_and_the_tap_sees_both_directions() {
    let control_plane = start().await;
    let mut agent = Agent::connect(&control_plane).await;
    let mut frames = control_plane.frames();
    let raw = StreamAgentMessagesResponse {
        message_id: String::new(),
        r#type: Some(Down::MessageBody(Default::default())),
    };
    control_plane.send_raw(AGENT, raw.clone()).unwrap();
    assert_eq!(agent.next().await.unwrap().unwrap(), raw);
    agent.answer("unknown", None).await;
    let down = frames.recv().await.unwrap();
    assert!(matches!(&down.content, FrameContent::ToAgent(frame) if *frame == raw));
    let up = frames.recv().await.unwrap();
    assert!(matches!(&up.content, FrameContent::FromAgent(f) if f.message_id == "unknown"));
    assert_eq!((&*up.resource, up.stream), (AGENT, down.stream));
}

#[tokio::test]
async fn an_agent_that_does_not_read_loses_its_stream() {
    let sessions = sessions::Timings { send: SOON, ..Default::default() };
    let timings = Timings { sessions, ..Timings::default() };
    let control_plane = ControlPlane::builder()
        .listen_tcp((Ipv4Addr::LOCALHOST, 0).into())
        .timings(timings)
        .start()
        .await
        .unwrap();
    let _agent = Agent::connect(&control_plane).await;
    let large = MessageBody {
        body: Some(prost_types::Any { type_url: String::new(), value: vec![0; 1 << 20] }),
        ..MessageBody::default()
    };
    for _ in 0..60 {
        let r#type = Some(Down::MessageBody(large.clone()));
        let frame = StreamAgentMessagesResponse { message_id: "large".into(), r#type };
        control_plane.send_raw(AGENT, frame).unwrap();
    }
    control_plane.gateway().wait_disconnected(AGENT, LONG).await.unwrap();
}
