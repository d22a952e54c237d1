//! What comes over the wire and goes back. Beside each, prost alone with the same bytes.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use guest_agent_actors::fakes::sample_view;
use guest_agent_actors::messages::{Listed, Point};
use guest_agent_actors::model::event::PluginEventKind;
use guest_agent_actors::model::event::{NewEvent, StoredEvent};
use guest_agent_actors::model::origin::Origin;
use guest_agent_actors::ports::{InboundMessage, Receipt};
use guest_agent_actors::wire;
use guest_agent_proto::agent_communication::stream_agent_messages_response::Type;
use guest_agent_proto::agent_communication::{MessageBody, StreamAgentMessagesResponse};
use guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    Action, ConfigurePlugin, Manifest, Plugin,
};
use guest_agent_proto::agent_controlplane::{
    ConfigurePluginStates, CurrentPluginStates, PluginEventMessage,
};
use prost::Message;
use prost_types::value::Kind;
use prost_types::{Struct, Value};

use super::core::Fields;
use super::{Pair, calls};

/// Orders in one message.
const ORDERS: u32 = 100;

/// Fields of a large configuration.
const FIELDS: u32 = 500;

/// Plugins that are listed, and the samples of each.
const PLUGINS: u32 = 200;
const POINTS: u32 = 60;

pub(crate) fn pairs() -> Vec<Pair> {
    vec![frame(), orders(), config(), event(), event_record(), states()]
}

/// A frame with a kilobyte of orders, up to where it is known what it is.
fn frame() -> Pair {
    let body = message((0..2).map(|number| install(number, structure(4))));
    let body = prost_types::Any { type_url: "type.googleapis.com/orders".to_owned(), value: body };
    let label = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let labels =
        [("message_type", "agent_controlplane.ConfigurePluginStates"), ("traceparent", "00")];
    let bytes = StreamAgentMessagesResponse {
        message_id: "2b9e1f4e-5a7c-4a51-9a8d-0a1c8a1b2c3d".to_owned(),
        r#type: Some(Type::MessageBody(MessageBody {
            labels: labels.map(label).into(),
            body: Some(body),
        })),
    }
    .encode_to_vec();
    let plain = bytes.clone();
    let own = calls(move || {
        let frame = StreamAgentMessagesResponse::decode(bytes.as_slice()).expect("a frame");
        let Some(Type::MessageBody(body)) = frame.r#type else { panic!("it has a body") };
        let message = InboundMessage {
            receipt: Receipt { stream: 1, message_id: frame.message_id },
            labels: body.labels.into_iter().collect(),
            body: body.body.map(|any| any.value).unwrap_or_default(),
        };
        wire::decode_request(&message).expect("a request")
    });
    let reference =
        calls(move || StreamAgentMessagesResponse::decode(plain.as_slice()).expect("a frame"));
    Pair { name: "frame-decode", own, reference }
}

fn orders() -> Pair {
    let bytes = message((0..ORDERS).map(|number| install(number, structure(20))));
    let all = wire::decode_orders(&bytes, Origin::ControlPlane).expect("orders");
    assert!(all.iter().all(Result::is_ok), "all orders make sense");
    decoding("orders-decode", bytes)
}

/// One order with a large configuration, which is kept in the agent's own form.
fn config() -> Pair {
    decoding("config-decode", message([install(0, structure(FIELDS))]))
}

fn decoding(name: &'static str, bytes: Vec<u8>) -> Pair {
    let plain = bytes.clone();
    let own = calls(move || {
        wire::decode_orders(&bytes, Origin::ControlPlane).expect("it is well formed")
    });
    let reference =
        calls(move || ConfigurePluginStates::decode(plain.as_slice()).expect("it is well formed"));
    Pair { name, own, reference }
}

fn event() -> Pair {
    let recorded = recorded();
    let body = wire::encode_event(&recorded).body;
    let message = PluginEventMessage::decode(body.as_slice()).expect("it was just encoded");
    Pair {
        name: "event-encode",
        own: calls(move || wire::encode_event(&recorded)),
        reference: calls(move || message.encode_to_vec()),
    }
}

/// An event as it is kept until it is acknowledged. Beside it a message of the same size.
fn event_record() -> Pair {
    let recorded = recorded();
    let plain = Fields::of(&recorded.encode());
    let key = recorded.seq.to_be_bytes();
    let own =
        calls(move || StoredEvent::decode(&key, &recorded.encode()).expect("it was just encoded"));
    let reference = calls(move || {
        Fields::decode(plain.encode_to_vec().as_slice()).expect("it was just encoded")
    });
    Pair { name: "event-record", own, reference }
}

/// Encodes the states of all plugins for a control plane. The reference encodes the finished
/// message.
fn states() -> Pair {
    let listed: Vec<Listed> = (0..PLUGINS).map(listed).collect();
    let receipt = Receipt { stream: 1, message_id: "id".to_owned() };
    let to = InboundMessage { receipt, labels: BTreeMap::new(), body: Vec::new() };
    let body = wire::encode_states(&to, &listed).body;
    let states = CurrentPluginStates::decode(body.as_slice()).expect("it was just encoded");
    Pair {
        name: "states-encode",
        own: calls(move || wire::encode_states(&to, &listed)),
        reference: calls(move || states.encode_to_vec()),
    }
}

fn listed(number: u32) -> Listed {
    let view = sample_view(&format!("plugin-{number}"), "1");
    let second = |second: u32| SystemTime::UNIX_EPOCH + Duration::from_secs(second.into());
    let point = |time: u32| Point {
        at: second(1_800_000_000 + time),
        cpu_percent: 12.5,
        memory_bytes: u64::from(time) << 20,
        cpu_time: Duration::from_secs(time.into()),
    };
    let points: Vec<Point> = (0..POINTS).map(point).collect();
    Listed { view: view.into(), points, sampled: POINTS.into(), newest: None, refusal: None }
}

fn recorded() -> StoredEvent {
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let details =
        "killed by signal 9 (SIGKILL); it wrote last: ".to_owned() + &"a line\n".repeat(30);
    StoredEvent {
        seq: 4711,
        id: "2b9e1f4e-5a7c-4a51-9a8d-0a1c8a1b2c3d".into(),
        event: NewEvent::new(
            PluginEventKind::Crashed,
            "metrics-helper",
            "20261122-1",
            at,
            &details,
        ),
    }
}

fn message(orders: impl IntoIterator<Item = ConfigurePlugin>) -> Vec<u8> {
    ConfigurePluginStates { configure_plugins: orders.into_iter().collect() }.encode_to_vec()
}

fn install(number: u32, config: Struct) -> ConfigurePlugin {
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    ConfigurePlugin {
        action: Action::Install.into(),
        plugin: Some(Plugin {
            name: format!("plugin-{number:04}"),
            revision_id: "20261122-1".to_owned(),
            gcs_signed_url: format!(
                "https://store.example/{number}.tar.gz?X-Signature={:0>64}",
                number
            ),
            entry_point: "bin/plugin".to_owned(),
            arguments: ["--verbose", "--interval=10s"].map(str::to_owned).into(),
            checksum: format!("{number:064x}"),
        }),
        manifest: Some(Manifest {
            start_timeout: seconds(30),
            stop_timeout: seconds(30),
            download_timeout: seconds(60),
            start_attempt_count: 3,
            max_memory_usage_bytes: 64 << 20,
            config: Some(Config::StructConfig(config)),
            ..Manifest::default()
        }),
    }
}

/// A configuration with so many fields, a third of them nested.
fn structure(fields: u32) -> Struct {
    let value = |kind| Value { kind: Some(kind) };
    let field = |number: u32| {
        let text = value(Kind::StringValue(format!("value of field {number}")));
        let kind = match number % 3 {
            0 => Kind::NumberValue(number.into()),
            1 => return (format!("field_{number}"), text),
            _ => Kind::StructValue(Struct { fields: [("inner".to_owned(), text)].into() }),
        };
        (format!("field_{number}"), value(kind))
    };
    Struct { fields: (0..fields).map(field).collect() }
}
