//! What must hold for any bytes at all. Each target panics when it does not.
//!
//! Included by the harness beside it and by the libFuzzer programs in `fuzz/`.

use std::collections::BTreeMap;

use guest_agent_actors::id::Generation;
use guest_agent_actors::plugin::machine::{Order, begin};
use guest_agent_actors::plugin::snapshot::Snapshot;
use guest_agent_actors::ports::{InboundMessage, Receipt};
use guest_agent_actors::records::{InboxEntry, Origin};
use guest_agent_actors::wire::{self, Request};
use guest_agent_proto::agent_communication::StreamAgentMessagesResponse;
use guest_agent_proto::agent_communication::stream_agent_messages_response::Type;
use prost::Message;

/// A frame as it comes from a server.
pub(crate) fn frames(data: &[u8]) {
    let Ok(frame) = StreamAgentMessagesResponse::decode(data) else { return };
    let Some(Type::MessageBody(body)) = frame.r#type else { return };
    let labels: BTreeMap<String, String> = body.labels.into_iter().collect();
    let message = InboundMessage {
        receipt: Receipt { stream: 1, message_id: frame.message_id },
        labels,
        body: body.body.map(|any| any.value).unwrap_or_default(),
    };
    match wire::decode_request(&message) {
        Ok(Request::Configure(bytes)) => orders(&bytes),
        Ok(_) => {}
        Err(error) => assert!(error.to_string().len() < 1024, "an error has to stay readable"),
    }
}

/// An encoded `ConfigurePluginStates`. An accepted INSTALL can be made durable and read back.
pub(crate) fn orders(data: &[u8]) {
    let Ok(orders) = wire::decode_orders(data, Origin::ControlPlane) else { return };
    for order in orders {
        match order {
            Ok((name, Order::Install(spec))) => {
                assert_eq!(name, spec.name);
                let state = begin(Generation(1), spec).next;
                same_again(&Snapshot {
                    state,
                    last_exit_at: None,
                    started_at: None,
                    story: Default::default(),
                });
            }
            Ok(_) => {}
            Err(refusal) => {
                assert!(!refusal.reason.is_empty(), "a refusal without a reason");
                assert!(refusal.reason.len() < 4096, "a reason has to stay readable");
            }
        }
    }
}

/// A record of the store, of whichever kind.
pub(crate) fn records(data: &[u8]) {
    if let Ok(snapshot) = Snapshot::decode(data) {
        same_again(&snapshot);
    }
    if let Ok(entry) = InboxEntry::decode(data) {
        let again = InboxEntry::decode(&entry.encode()).expect("what was read can be written");
        assert_eq!(again, entry);
    }
    let key = 7_u64.to_be_bytes();
    if let Ok(event) = guest_agent_actors::event::Recorded::decode(&key, data) {
        let again = guest_agent_actors::event::Recorded::decode(&key, &event.encode());
        assert_eq!(again.expect("what was read can be written"), event);
    }
}

fn same_again(snapshot: &Snapshot) {
    let again = Snapshot::decode(&snapshot.encode()).expect("what was accepted can be kept");
    assert_eq!(again.state, snapshot.state);
}
