//! Whole conversations as they are on the wire, against captures that are kept beside this file.
//!
//! What differs from run to run (ids, times, the agent's version, what the machine is called) is
//! replaced by a name; every other byte of every frame has to stay what it is. A change of a
//! capture is a change of the protocol that servers see.

use std::collections::HashMap;
use std::fmt::Write;

use guest_agent_proto::agent_communication::StreamAgentMessagesRequest;
use guest_agent_proto::agent_communication::stream_agent_messages_request::Type as Up;
use guest_agent_proto::agent_controlplane::{CurrentPluginStates, ListPluginStates};
use prost::Message;
use prost_types::Timestamp;

use super::{Raw, body, configure, event_in};
use crate::harness::orders;

/// Writes frames down, with names for what cannot be the same twice.
#[derive(Default)]
struct Capture {
    text: String,
    ids: HashMap<String, usize>,
}

impl Capture {
    fn note(&mut self, frame: &StreamAgentMessagesRequest) {
        let mut frame = frame.clone();
        let next = self.ids.len() + 1;
        let id = *self.ids.entry(frame.message_id.clone()).or_insert(next);
        // Only ids of the agent's own making differ; those of the server are echoed.
        if uuid::Uuid::parse_str(&frame.message_id).is_ok() {
            frame.message_id = format!("id-{id}");
        }
        let what = match &mut frame.r#type {
            Some(Up::RegisterConnection(_)) => "register_connection".to_owned(),
            Some(Up::MessageResponse(_)) => "message_response".to_owned(),
            Some(Up::MessageBody(body)) => {
                // One label's order is the only one that can be relied on in a map.
                assert!(body.labels.len() <= 1, "a capture needs frames with one label");
                let any = body.body.as_mut().expect("a message has a body");
                any.value = settled(&body.labels["message_type"], &any.value);
                format!("message_body {}", body.labels["message_type"])
            }
            None => "nothing".to_owned(),
        };
        writeln!(self.text, "{what}").unwrap();
        for line in frame.encode_to_vec().chunks(32) {
            let hex: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
            let seen = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { '.' };
            let shown: String = line.iter().map(seen).collect();
            writeln!(self.text, "    {hex:<64}  {shown}").unwrap();
        }
    }
}

/// A body with its times set to the first second, after checking that there were some.
fn settled(kind: &str, bytes: &[u8]) -> Vec<u8> {
    let first = Some(Timestamp { seconds: 1, nanos: 0 });
    match kind {
        "agent_controlplane.PluginEventMessage" => {
            let mut event =
                guest_agent_proto::agent_controlplane::PluginEventMessage::decode(bytes).unwrap();
            assert!(event.event_timestamp.is_some());
            event.event_timestamp = first;
            // Free text, on which no reader may rely; only its presence is kept.
            event.event_details = event.event_details.map(|_| b"...".to_vec());
            event.encode_to_vec()
        }
        "agent_controlplane.CurrentPluginStates" => {
            let mut states = CurrentPluginStates::decode(bytes).unwrap();
            for state in &mut states.daemon_plugin_states {
                let status = state.current_plugin_status.as_mut().expect("it has a status");
                assert!(status.update_time.is_some());
                status.update_time = first;
                // How much it used, and what it was called by its health check, is its own affair.
                state.current_plugin_metrics.clear();
                status.results.clear();
            }
            states.encode_to_vec()
        }
        other => panic!("no rule for {other}"),
    }
}

#[tokio::test]
async fn the_conversation_about_an_install_is_the_captured_one() {
    let mut raw = Raw::new().await;
    let mut capture = Capture::default();
    let mut peer = raw.server.stream().await;
    let registration = peer.frame().await.unwrap();
    capture.note(&registration);
    peer.acknowledge(&registration.message_id).await;

    let echo = raw.bed.echo().await;
    let install = orders::install("echo", "rev-1", &echo).config("hello");
    peer.say("order", configure(vec![install.order()])).await;
    let mut last = 0;
    while last != 3 {
        let frame = peer.frame().await.unwrap();
        capture.note(&frame);
        if let Some(event) = event_in(&frame) {
            last = event.event_type;
            peer.acknowledge(&frame.message_id).await;
        }
    }
    // The answer has the time of the first health check, which is soon but not at once over.
    raw.bed.status_where("echo", "its health is known", |status| status.health.is_some()).await;
    let list = body("agent_controlplane.ListPluginStates", &[], &ListPluginStates {});
    peer.say("list", list).await;
    for _acknowledgement_and_answer in 0..2 {
        let frame = peer.frame().await.unwrap();
        capture.note(&frame);
        if matches!(frame.r#type, Some(Up::MessageBody(_))) {
            peer.acknowledge(&frame.message_id).await;
        }
    }
    peer.say("remove", configure(vec![orders::remove("echo")])).await;
    while last != 5 {
        let frame = peer.frame().await.unwrap();
        capture.note(&frame);
        if let Some(event) = event_in(&frame) {
            last = event.event_type;
            peer.acknowledge(&frame.message_id).await;
        }
    }
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!("install", capture.text);
    });
    raw.finish().await;
}
