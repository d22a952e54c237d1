//! What must hold for any bytes at all. Each target panics when it does not.
//!
//! Included by the harness beside it and by the libFuzzer programs in `fuzz/`.

use std::collections::BTreeMap;

use guest_agent_actors::id::{Generation, Sha256Digest};
use guest_agent_actors::plugin::machine::{Order, begin};
use guest_agent_actors::plugin::snapshot::Snapshot;
use guest_agent_actors::plugin::state::State;
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
                same_again(&first(state));
            }
            Ok(_) => {}
            Err(refusal) => {
                assert!(!refusal.reason.is_empty(), "a refusal without a reason");
                assert!(refusal.reason.len() < 4096, "a reason has to stay readable");
            }
        }
    }
}

/// A manifest of a local plugin: binary, and as text.
pub(crate) fn manifests(data: &[u8]) {
    manifest(data);
    let Ok(text) = std::str::from_utf8(data) else { return };
    match guest_agent_control_plane::json::configure_plugin_from_json(text) {
        Ok(order) => manifest(&order.encode_to_vec()),
        Err(error) => assert!(error.to_string().len() < 4096, "an error has to stay readable"),
    }
}

fn manifest(data: &[u8]) {
    let name = "monitor".parse().expect("a name");
    let digest = |_: &std::path::Path| Ok(Sha256Digest::of(b"program"));
    match wire::decode_local(data, &name, "/usr/lib/plugins/monitor", digest) {
        Ok(spec) => {
            assert_eq!(spec.name, name, "a folder holds the plugin of its name");
            let state = begin(Generation(1), spec).next;
            same_again(&first(state));
        }
        Err(reason) => assert!(!reason.is_empty() && reason.len() < 4096, "{reason}"),
    }
}

/// A request on the command socket: it is understood, or there is one reply that says why not.
pub(crate) fn commands(data: &[u8]) {
    let Some(reply) = guest_agent::command_socket::refusal(data) else { return };
    let reply: serde_json::Value = serde_json::from_slice(&reply).expect("a reply is JSON");
    assert_ne!(reply["Status"], 0, "a refusal is no success");
    assert!(reply["StatusMessage"].as_str().is_some_and(|text| text.len() < 4096), "{reply}");
}

/// The metadata server's answer to a recursive question.
pub(crate) fn metadata(data: &[u8]) {
    if let Ok(tree) = guest_agent::metadata::Tree::parse(data) {
        assert!(tree.instance_id().is_none_or(|id| id.len() <= data.len()));
    }
}

/// A signature file, as it stands beside an archive, and a public key, as somebody configured it.
pub(crate) fn signatures(data: &[u8]) {
    use guest_agent::install::trust;

    if let Err(reason) = trust::check_signature(data) {
        assert!(!reason.is_empty());
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Err(error) = trust::check_key(text)
    {
        assert!(error.to_string().len() < 1024, "an error has to stay readable");
    }
}

/// A bundle, as somebody hands it to `install`.
pub(crate) fn bundles(data: &[u8]) {
    use std::io::Read;

    match guest_agent::install::bundle::Bundle::read(data) {
        Ok(mut bundle) => {
            let mut archive = Vec::new();
            bundle.archive.read_to_end(&mut archive).expect("memory is readable");
            let signature = bundle.signature.map_or(0, |bytes| bytes.len());
            assert!(bundle.manifest.len() + signature + archive.len() <= data.len());
        }
        Err(error) => assert!(error.to_string().len() < 1024, "an error has to stay readable"),
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

/// What is kept of a plugin that was just ordered.
fn first(state: State) -> Snapshot {
    Snapshot { state, last_exit_at: None, started_at: None, story: Default::default() }
}

fn same_again(snapshot: &Snapshot) {
    let again = Snapshot::decode(&snapshot.encode()).expect("what was accepted can be kept");
    assert_eq!(again.state, snapshot.state);
}
