//! The health of plugins after their orders, and who is there.

use guest_agent_proto::agent_communication::stream_agent_messages_response::Type;
use guest_agent_proto::agent_controlplane::current_plugin_states::{
    DaemonPluginState, Status, StatusValue,
};
use guest_agent_proto::agent_controlplane::{AgentInfo, CurrentPluginStates};
use guest_agent_proto::fleet::{PluginFault, plugin_fault};
use guest_fleet_core::presence::{Beat, Links, Presence, Session};
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::Faults;
use guest_fleet_ledger::records::report::{FaultPart, ReportRecord};
use guest_fleet_sessions::desk::Outgoing;

use super::*;
use crate::gateways::ends;

async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// The fault of the plugin in the last report.
async fn fault(ledger: &MemoryLedger) -> Option<FaultPart> {
    let found = ledger.get(Bucket::Reports, AGENT).await.expect("it is read")?;
    let report: ReportRecord = records::decode(AGENT, &found.value).expect("it decodes");
    report.plugins.into_iter().find(|plugin| plugin.name == "monitor")?.fault
}

#[tokio::test(start_paused = true)]
async fn the_fault_of_a_plugin_is_kept_as_the_agent_reports_it_and_goes_with_it() {
    let ledger = MemoryLedger::new();
    let gateway = gateway(&ledger);
    let session = open(&gateway, 1).await;
    let told =
        |fault| PluginReport { name: "monitor".to_owned(), fault, ..PluginReport::default() };
    let unhealthy = PluginFault {
        level: plugin_fault::Level::Failing.into(),
        cause: plugin_fault::Cause::Unhealthy.into(),
        reason: "code 7: no disk".to_owned(),
        since: Some((std::time::UNIX_EPOCH + Duration::from_secs(1234)).into()),
    };
    report_of(&gateway, &session, vec![told(Some(unhealthy))]).await;
    let kept = fault(&ledger).await.expect("a fault");
    assert_eq!((kept.level, kept.cause, kept.since), (2, 4, Some(1234)));
    assert_eq!(kept.reason, "code 7: no disk");
    report_of(&gateway, &session, vec![told(None)]).await;
    assert_eq!(fault(&ledger).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_report_that_the_ledger_does_not_take_is_kept_later() {
    let ledger = MemoryLedger::with_faults(1, Faults::default());
    let gateway = gateway(&ledger);
    let session = open(&gateway, 1).await;
    let down = PluginFault { level: plugin_fault::Level::Failing.into(), ..PluginFault::default() };
    let told =
        PluginReport { name: "monitor".to_owned(), fault: Some(down), ..PluginReport::default() };
    ledger.set_faults(Faults { unavailable: 1.0, ..Faults::default() });
    report_of(&gateway, &session, vec![told]).await;
    seconds(60).await;
    ledger.set_faults(Faults::default());
    assert_eq!(fault(&ledger).await, None);
    seconds(120).await;
    assert!(fault(&ledger).await.is_some(), "the agent says it once");
}

#[tokio::test(start_paused = true)]
async fn a_report_is_kept_after_one_of_which_nobody_knows_whether_it_was() {
    let ledger = MemoryLedger::new();
    let gateway = gateway(&ledger);
    let session = open(&gateway, 1).await;
    let told = |is_faulty: bool| {
        let fault = PluginFault { level: 2, cause: 5, ..PluginFault::default() };
        let fault = is_faulty.then_some(fault);
        vec![PluginReport { name: "monitor".to_owned(), fault, ..PluginReport::default() }]
    };
    report_of(&gateway, &session, told(false)).await;
    // The write lands, and its answer is lost.
    ledger.script([Fate::Happened]);
    report_of(&gateway, &session, told(true)).await;
    report_of(&gateway, &session, told(false)).await;
    seconds(60).await;
    assert_eq!(fault(&ledger).await, None);
}

/// An agent that sends no report.
struct Public {
    gateway: Arc<Orders>,
    session: Arc<OpenSession>,
    frames: Outgoing,
}

impl Public {
    /// Answers what was asked last with a list of one plugin in this state; whether anything was asked.
    async fn lists(&self, status: StatusValue, code: i32, result: &str) -> bool {
        let mut asked = None;
        while let Some(guarded) = self.frames.next() {
            let Some(Type::MessageBody(body)) = guarded.frame.r#type else { continue };
            if messages::message_type(&body) == messages::LIST_PLUGIN_STATES {
                asked = body.labels.get(messages::REQUEST_ID).cloned();
            }
        }
        let Some(request) = asked else { return false };
        let status = Status {
            status: status.into(),
            response_code: code,
            results: vec![result.to_owned()],
            ..Status::default()
        };
        let plugin = DaemonPluginState {
            name: "monitor".to_owned(),
            current_revision_id: "1".to_owned(),
            current_plugin_status: Some(status),
            ..DaemonPluginState::default()
        };
        let states = CurrentPluginStates {
            daemon_plugin_states: vec![plugin],
            ..CurrentPluginStates::default()
        };
        let mut list = messages::pack(messages::CURRENT_PLUGIN_STATES, &states);
        list.labels.insert(messages::REQUEST_ID.to_owned(), request);
        let info = AgentInfo { architecture: "amd64".to_owned(), ..AgentInfo::default() };
        for body in [messages::pack(messages::AGENT_INFO, &info), list] {
            let stream = Some(self.session.stream);
            self.gateway.received(AGENT, stream, "list", &body).await.expect("it is taken");
        }
        // It may still send a report.
        seconds(5).await;
        true
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_sends_no_report_is_asked_every_few_minutes_how_its_plugins_are() {
    let ledger = MemoryLedger::new();
    let gateway = gateway(&ledger);
    let renewed = tokio::spawn(gateway.clone().run());
    let (session, frames) = OpenSession::unserved(AGENT, 1);
    let session = Arc::new(session);
    gateway.opened(session.clone()).await.expect("it is opened");
    let agent = Public { gateway: gateway.clone(), session, frames };
    seconds(1).await;
    assert!(agent.lists(StatusValue::Running, 0, "well").await, "it is asked when it comes");
    assert_eq!(fault(&ledger).await, None);
    seconds(200).await;
    assert!(!agent.lists(StatusValue::Running, 0, "well").await);
    seconds(200).await;
    assert!(agent.lists(StatusValue::Running, 7, "no disk").await);
    let unhealthy = fault(&ledger).await.expect("a fault");
    assert_eq!((unhealthy.cause, unhealthy.reason.as_str()), (4, "code 7: no disk"));
    // It goes on failing since then, for another reason, in words that stay for a while.
    seconds(400).await;
    assert!(agent.lists(StatusValue::Crashed, 0, "exit code 3").await);
    let down = fault(&ledger).await.expect("a fault");
    assert_eq!((down.cause, down.reason.as_str(), down.since), (5, "exit code 3", unhealthy.since));
    gateway.stop();
    renewed.await.expect("it ends");
}

async fn session(ledger: &MemoryLedger) -> Session {
    let found = ledger.get(Bucket::Journal, AGENT).await.expect("it is read").expect("a journal");
    let record: JournalRecord = records::decode(AGENT, &found.value).expect("it decodes");
    record.session().expect("a session")
}

/// How present the agent is, some seconds from now.
async fn presence(ledger: &MemoryLedger, later: u64) -> Presence {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = Seconds(now.expect("after 1970").as_secs() + later);
    let links = Links { gateways: ends::beats(ledger).await.expect("read"), ..Links::default() };
    links.presence(links.of(Some(&session(ledger).await), None, now), now)
}

#[tokio::test(start_paused = true)]
async fn the_beginning_and_the_end_of_a_session_are_recorded() {
    let ledger = MemoryLedger::new();
    let (first, second) = (gateway(&ledger), gateway(&ledger));
    let renewed = [first.clone(), second.clone()].map(|it| tokio::spawn(it.run()));
    seconds(1).await;
    let stream = open(&first, 1).await;
    let begun = session(&ledger).await;
    let id = |gateway: &Orders| gateway.key().trim_start_matches("gateway/").to_owned();
    assert_eq!((begun.gateway, begun.ended), (id(&first), None));
    assert_eq!(presence(&ledger, 0).await, Presence::Connected);
    first.closed(&stream);
    seconds(1).await;
    assert_eq!(session(&ledger).await.ended, None, "it may be back in a moment");
    seconds(10).await;
    let ended = session(&ledger).await;
    assert!(ended.ended.is_some_and(|at| at >= ended.begun), "{ended:?}");
    assert_eq!(presence(&ledger, 0).await, Presence::Disconnected);
    assert_eq!(presence(&ledger, 200).await, Presence::Offline);
    // Sessions that follow each other quickly end once, when the last one does; and the next one goes on, whatever
    // becomes of the one that was replaced.
    let left = open(&first, 2).await;
    let _stays = open(&second, 3).await;
    first.closed(&left);
    seconds(60).await;
    let next = session(&ledger).await;
    assert_eq!((next.gateway, next.ended), (id(&second), None));
    // A gateway that ends is the end of its sessions.
    second.stop();
    seconds(1).await;
    let beats = ends::beats(&ledger).await.expect("read");
    assert!(matches!(beats.get(&id(&second)), Some(Beat::End(_))), "{beats:?}");
    assert_eq!(session(&ledger).await.ended, None, "nothing is written for each of them");
    assert_eq!(presence(&ledger, 0).await, Presence::Disconnected);
    first.stop();
    for task in renewed {
        task.await.expect("it ends");
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_session_is_recorded_however_long_the_ledger_does_not_take_it() {
    let ledger = MemoryLedger::with_faults(1, Faults::default());
    let gateway = gateway(&ledger);
    let stream = open(&gateway, 1).await;
    ledger.set_faults(Faults { unavailable: 1.0, ..Faults::default() });
    gateway.closed(&stream);
    seconds(600).await;
    ledger.set_faults(Faults::default());
    assert_eq!(session(&ledger).await.ended, None);
    seconds(400).await;
    assert!(session(&ledger).await.ended.is_some());
}
