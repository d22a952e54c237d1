//! What goes over the wire, byte for byte.
//!
//! The hex texts were written from the published field tables and the protobuf wire format
//! (key = number × 8 + wire type; 0 varint, 2 length-delimited, 5 four bytes), not by printing what
//! the encoder makes. One line of hex per field. The tables of fields, enums and calls say the same
//! about names and numbers.

use std::collections::BTreeMap;
use std::fmt::Debug;

use guest_agent_proto::agent_communication as comm;
use guest_agent_proto::agent_controlplane as plane;
use guest_agent_proto::{FILE_DESCRIPTOR_SET, plugin_comm as plugin, rpc};
use prost::Message;
use prost_reflect::{Cardinality, DescriptorPool, FieldDescriptor, Kind};
use prost_types::{Any, Duration, Struct, Timestamp, Value, value};

// === Bytes ===

#[track_caller]
fn golden<M: Message + Default + PartialEq + Debug>(message: M, hex: &[&str]) {
    let bytes = parse(hex);
    assert_eq!(show(&message.encode_to_vec()), show(&bytes), "{message:?} is encoded differently");
    assert_eq!(M::decode(bytes.as_slice()).expect("decodes"), message, "decoded differently");
}

fn parse(lines: &[&str]) -> Vec<u8> {
    lines
        .iter()
        .flat_map(|line| line.split_whitespace())
        .map(|byte| u8::from_str_radix(byte, 16).expect("two hexadecimal digits"))
        .collect()
}

fn show(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x} ")).collect()
}

fn one_and_a_half_seconds() -> Duration {
    // 08 01, 10 80 ca b5 ee 01
    Duration { seconds: 1, nanos: 500_000_000 }
}

fn seconds(seconds: i64) -> Option<Duration> {
    Some(Duration { seconds, nanos: 0 })
}

fn at_300() -> Option<Timestamp> {
    // 08 ac 02
    Some(Timestamp { seconds: 300, nanos: 0 })
}

fn text_value() -> Value {
    // 1a 01 76
    Value { kind: Some(value::Kind::StringValue("v".to_owned())) }
}

fn one_field() -> Struct {
    // 0a 08, 0a 01 6b, 12 03 1a 01 76
    Struct { fields: BTreeMap::from([("k".to_owned(), text_value())]) }
}

fn any() -> Any {
    // 0a 01 74, 12 02 01 02
    Any { type_url: "t".to_owned(), value: vec![1, 2] }
}

fn s(text: &str) -> String {
    text.to_owned()
}

#[test]
fn plugin_start() {
    use plugin::start_request::{Config, ServiceConfig};
    let config = Some(Config { state_directory_path: s("/s") });
    golden(
        plugin::StartRequest {
            config: config.clone(),
            service_config: Some(ServiceConfig::StringConfig(s("a"))),
        },
        &["0a 04 0a 02 2f 73", "12 01 61"],
    );
    golden(
        plugin::StartRequest {
            config,
            service_config: Some(ServiceConfig::StructConfig(one_field())),
        },
        &["0a 04 0a 02 2f 73", "1a 0a 0a 08 0a 01 6b 12 03 1a 01 76"],
    );
    golden(plugin::StartRequest::default(), &[]);
    golden(plugin::StartResponse {}, &[]);
}

#[test]
fn plugin_apply() {
    use plugin::apply_request::ServiceConfig;
    golden(
        plugin::ApplyRequest { service_config: Some(ServiceConfig::StringConfig(s("a"))) },
        &["12 01 61"],
    );
    golden(
        plugin::ApplyRequest { service_config: Some(ServiceConfig::StructConfig(one_field())) },
        &["1a 0a 0a 08 0a 01 6b 12 03 1a 01 76"],
    );
    // An empty configuration is encoded as a field; an absent one has no field.
    golden(
        plugin::ApplyRequest { service_config: Some(ServiceConfig::StringConfig(String::new())) },
        &["12 00"],
    );
    golden(plugin::ApplyRequest { service_config: None }, &[]);
    golden(plugin::ApplyResponse {}, &[]);
}

#[test]
fn plugin_status() {
    // A health check and an empty question are not the same.
    golden(plugin::GetStatusRequest { data: None }, &[]);
    golden(plugin::GetStatusRequest { data: Some(String::new()) }, &["12 00"]);
    golden(plugin::GetStatusRequest { data: Some(s("q")) }, &["12 01 71"]);
    golden(
        plugin::Status { code: 1, results: vec![s("a"), s("b")] },
        &["08 01", "12 01 61", "12 01 62"],
    );
    golden(plugin::Status { code: -1, results: Vec::new() }, &["08 ff ff ff ff ff ff ff ff ff 01"]);
}

#[test]
fn plugin_stop() {
    golden(
        plugin::StopRequest { cleanup: true, deadline: Some(one_and_a_half_seconds()) },
        &["08 01", "12 08 08 01 10 80 ca b5 ee 01"],
    );
    golden(plugin::StopRequest { cleanup: false, deadline: None }, &[]);
    golden(plugin::StopResponse {}, &[]);
}

#[test]
fn information() {
    use plane::agent_info::AgentCapability;
    golden(plane::PlatformInfo { on_gce: true, error: s("a") }, &["08 01", "12 01 61"]);
    golden(plane::GetAgentInfo {}, &[]);
    golden(plane::GetOsInfo {}, &[]);
    golden(plane::ListPluginStates {}, &[]);
    golden(
        plane::AgentInfo {
            name: s("a"),
            version: s("b"),
            architecture: s("c"),
            agent_capabilities: vec![
                AgentCapability::GetAgentInfo.into(),
                AgentCapability::ApplyPluginConfig.into(),
            ],
        },
        // Repeated enums are packed.
        &["0a 01 61", "12 01 62", "1a 01 63", "22 02 01 05"],
    );
    golden(
        plane::OsInfo {
            r#type: s("a"),
            short_name: s("b"),
            long_name: s("c"),
            version: s("d"),
            architecture: s("e"),
            kernel_release: s("f"),
            kernel_version: s("g"),
        },
        &["12 01 61", "1a 01 62", "22 01 63", "2a 01 64", "32 01 65", "3a 01 66", "42 01 67"],
    );
}

#[test]
fn current_plugin_states() {
    use plane::current_plugin_states::{
        DaemonPluginState, Metric, OneShotPluginState, Status, StatusValue,
    };
    let brief = |value: StatusValue| Status { status: value.into(), ..Status::default() };
    golden(
        Status {
            status: StatusValue::Running.into(),
            response_code: 3,
            results: vec![s("a")],
            update_time: at_300(),
        },
        &["08 02", "10 03", "1a 01 61", "22 03 08 ac 02"],
    );
    golden(
        Metric { timestamp: at_300(), cpu_usage: 1.5, memory_usage: 1 },
        &["0a 03 08 ac 02", "35 00 00 c0 3f", "38 01"],
    );
    let metric = Metric { memory_usage: 1, ..Metric::default() };
    golden(
        DaemonPluginState {
            name: s("a"),
            current_revision_id: s("b"),
            current_plugin_status: Some(brief(StatusValue::Running)),
            pending_revision_id: s("c"),
            pending_plugin_status: Some(brief(StatusValue::Installing)),
            current_plugin_metrics: vec![metric],
            config_hash: s("d"),
        },
        &[
            "0a 01 61",
            "12 01 62",
            "1a 02 08 02",
            "22 01 63",
            "2a 02 08 06",
            "32 02 38 01",
            "3a 01 64",
        ],
    );
    golden(
        OneShotPluginState {
            name: s("a"),
            current_revision_id: s("b"),
            current_plugin_status: Some(brief(StatusValue::ExecutionCompleted)),
            pending_revision_id: s("c"),
            pending_plugin_status: Some(brief(StatusValue::ExecutionFailed)),
            current_plugin_metrics: vec![metric, metric],
            config_hash: s("d"),
        },
        &[
            "0a 01 61",
            "12 01 62",
            "1a 02 08 08",
            "22 01 63",
            "2a 02 08 09",
            "32 02 38 01",
            "32 02 38 01",
            "3a 01 64",
        ],
    );
    golden(
        plane::CurrentPluginStates {
            daemon_plugin_states: vec![DaemonPluginState { name: s("a"), ..Default::default() }],
            one_shot_plugin_states: vec![OneShotPluginState { name: s("b"), ..Default::default() }],
        },
        &["0a 03 0a 01 61", "12 03 0a 01 62"],
    );
}

#[test]
fn configure_plugin_states() {
    use plane::configure_plugin_states::{Action, ConfigurePlugin, Manifest, Plugin, manifest};
    golden(
        Plugin {
            name: s("a"),
            revision_id: s("b"),
            gcs_signed_url: s("c"),
            entry_point: s("d"),
            arguments: vec![s("e"), s("f")],
            checksum: s("g"),
        },
        &["0a 01 61", "12 01 62", "1a 01 63", "22 01 64", "2a 01 65", "2a 01 66", "32 01 67"],
    );
    golden(
        Manifest {
            max_memory_usage_bytes: 1,
            max_cpu_usage_percentage: 2,
            metrics_interval: seconds(1),
            download_timeout: seconds(2),
            download_attempt_count: 3,
            start_timeout: seconds(3),
            start_attempt_count: 4,
            stop_timeout: Some(one_and_a_half_seconds()),
            max_metric_datapoints: 300,
            config: Some(manifest::Config::StringConfig(s("a"))),
            start_exp_backoff_factor: 2,
            plugin_type: plane::PluginType::OneShot.into(),
            plugin_installation_type: plane::PluginInstallationType::LocalInstallation.into(),
            execution_model: Some(plane::ExecutionModel {
                boot_critical: true,
                ..Default::default()
            }),
        },
        &[
            "08 01",
            "10 02",
            "1a 02 08 01",
            "22 02 08 02",
            "28 03",
            "32 02 08 03",
            "38 04",
            "42 08 08 01 10 80 ca b5 ee 01",
            "48 ac 02",
            "52 01 61",
            "60 02",
            "68 02",
            "70 01",
            "7a 02 28 01",
        ],
    );
    golden(
        Manifest {
            config: Some(manifest::Config::StructConfig(one_field())),
            ..Default::default()
        },
        &["5a 0a 0a 08 0a 01 6b 12 03 1a 01 76"],
    );
    let install = ConfigurePlugin {
        action: Action::Install.into(),
        plugin: Some(Plugin { name: s("a"), ..Default::default() }),
        manifest: Some(Manifest { max_cpu_usage_percentage: 2, ..Default::default() }),
    };
    let remove = ConfigurePlugin {
        action: Action::Remove.into(),
        plugin: Some(Plugin { name: s("b"), ..Default::default() }),
        manifest: None,
    };
    golden(install.clone(), &["08 01", "12 03 0a 01 61", "1a 02 10 02"]);
    golden(
        plane::ConfigurePluginStates { configure_plugins: vec![install, remove] },
        &["0a 0b 08 01 12 03 0a 01 61 1a 02 10 02", "0a 07 08 02 12 03 0a 01 62"],
    );
}

#[test]
fn execution_models_and_rules() {
    use plane::execution_model::{Daemon, MatchPolicy, OneShot, State, Triggers, Type};
    use plane::rules::{ComparisonOperator, Scope};
    let triggers = Triggers { startup: true, firstboot: true, interval: seconds(1) };
    let one_shot = OneShot { triggers: Some(triggers), execution_timeout: seconds(5) };
    let rule = plane::Rules {
        scope: Scope::Os.into(),
        attribute: s("a"),
        comparison_operator: ComparisonOperator::NotEqual.into(),
        value: Some(text_value()),
    };
    golden(triggers, &["08 01", "10 01", "1a 02 08 01"]);
    golden(one_shot, &["0a 08 08 01 10 01 1a 02 08 01", "12 02 08 05"]);
    golden(rule.clone(), &["08 01", "12 01 61", "18 02", "22 03 1a 01 76"]);
    golden(Daemon {}, &[]);
    golden(
        plane::ExecutionModel {
            on_default: State::Enabled.into(),
            on_match: State::Disabled.into(),
            match_policy: MatchPolicy::Any.into(),
            rules: vec![rule],
            boot_critical: true,
            r#type: Some(Type::OneShot(one_shot)),
        },
        &[
            "08 01",
            "10 02",
            "18 02",
            "22 0c 08 01 12 01 61 18 02 22 03 1a 01 76",
            "28 01",
            "32 0e 0a 08 08 01 10 01 1a 02 08 01 12 02 08 05",
        ],
    );
    golden(
        plane::ExecutionModel { r#type: Some(Type::Daemon(Daemon {})), ..Default::default() },
        &["3a 00"],
    );
}

#[test]
fn plugin_events() {
    use plane::plugin_event_message::PluginEventType;
    golden(
        plane::PluginEventMessage {
            revision_id: s("a"),
            plugin_name: s("b"),
            event_type: PluginEventType::PluginExecutionFailed.into(),
            event_timestamp: at_300(),
            event_details: Some(b"c".to_vec()),
        },
        &["0a 01 61", "12 01 62", "18 0f", "22 03 08 ac 02", "2a 01 63"],
    );
    golden(
        plane::PluginEventMessage { event_details: Some(Vec::new()), ..Default::default() },
        &["2a 00"],
    );
}

#[test]
fn module_metrics() {
    use plane::guest_agent_module_metric::{Metric, ModuleStatus};
    let metric = plane::GuestAgentModuleMetric {
        metric_name: Metric::PluginCleanup.into(),
        start_time: at_300(),
        end_time: at_300(),
        module_status: ModuleStatus::StatusSucceeded.into(),
        enabled: true,
        error: s("a"),
    };
    golden(
        metric.clone(),
        &["08 13", "12 03 08 ac 02", "1a 03 08 ac 02", "20 03", "28 01", "32 01 61"],
    );
    golden(
        plane::GuestAgentModuleMetrics { metrics: vec![metric] },
        &["0a 13 08 13 12 03 08 ac 02 1a 03 08 ac 02 20 03 28 01 32 01 61"],
    );
}

fn labelled() -> comm::MessageBody {
    // 0a 06, 0a 01 6b, 12 01 76
    comm::MessageBody { labels: [(s("k"), s("v"))].into(), body: None }
}

fn refusal() -> comm::MessageResponse {
    // 0a 02 08 08
    comm::MessageResponse { status: Some(rpc::Status { code: 8, ..Default::default() }) }
}

fn registration() -> comm::RegisterConnection {
    comm::RegisterConnection { protocol_version: 1, channel_id: s("a"), resource_id: s("b") }
}

#[test]
fn message_parts() {
    golden(
        comm::MessageBody { body: Some(any()), ..labelled() },
        &["0a 06 0a 01 6b 12 01 76", "12 07 0a 01 74 12 02 01 02"],
    );
    golden(refusal(), &["0a 02 08 08"]);
    golden(comm::MessageResponse { status: None }, &[]);
    golden(registration(), &["08 01", "12 01 61", "1a 01 62"]);
    golden(
        rpc::Status { code: 5, message: s("a"), details: vec![any()] },
        &["08 05", "12 01 61", "1a 07 0a 01 74 12 02 01 02"],
    );
}

#[test]
fn unary_messages() {
    golden(
        comm::SendAgentMessageRequest {
            channel_id: s("a"),
            resource_id: s("b"),
            message_body: Some(labelled()),
        },
        &["0a 01 61", "12 01 62", "1a 08 0a 06 0a 01 6b 12 01 76"],
    );
    golden(
        comm::SendAgentMessageResponse { message_body: Some(labelled()) },
        &["0a 08 0a 06 0a 01 6b 12 01 76"],
    );
}

#[test]
fn stream_messages_from_the_agent() {
    use comm::stream_agent_messages_request::Type;
    let request =
        |r#type| comm::StreamAgentMessagesRequest { message_id: s("m"), r#type: Some(r#type) };
    golden(
        request(Type::RegisterConnection(registration())),
        &["0a 01 6d", "12 08 08 01 12 01 61 1a 01 62"],
    );
    golden(request(Type::MessageResponse(refusal())), &["0a 01 6d", "1a 04 0a 02 08 08"]);
    // An acknowledgement is an empty response, which is not the same as none.
    golden(request(Type::MessageResponse(Default::default())), &["0a 01 6d", "1a 00"]);
    golden(request(Type::MessageBody(labelled())), &["0a 01 6d", "22 08 0a 06 0a 01 6b 12 01 76"]);
}

#[test]
fn stream_messages_from_the_server_have_other_numbers() {
    use comm::stream_agent_messages_response::Type;
    let response =
        |r#type| comm::StreamAgentMessagesResponse { message_id: s("m"), r#type: Some(r#type) };
    golden(response(Type::MessageResponse(refusal())), &["0a 01 6d", "12 04 0a 02 08 08"]);
    golden(response(Type::MessageResponse(Default::default())), &["0a 01 6d", "12 00"]);
    golden(response(Type::MessageBody(labelled())), &["0a 01 6d", "1a 08 0a 06 0a 01 6b 12 01 76"]);
}

#[test]
fn unknown_fields_are_skipped() {
    // Field 15 of a message that has only two, and number 1 of one that reserves it.
    let status = plugin::Status::decode(parse(&["08 01", "7a 01 61"]).as_slice());
    assert_eq!(status, Ok(plugin::Status { code: 1, results: Vec::new() }));
    let apply = plugin::ApplyRequest::decode(parse(&["0a 01 61", "12 01 61"]).as_slice());
    assert!(apply.expect("decodes").service_config.is_some());
}

// === Names and numbers ===

/// Every message of the three packages: full name, and fields as `name=number type`.
const MESSAGES: &[(&str, &str)] = &[
    (
        "plugin_comm.StartRequest",
        "config=1 Config, string_config=2 string of service_config, struct_config=3 Struct of service_config",
    ),
    ("plugin_comm.StartRequest.Config", "state_directory_path=1 string"),
    ("plugin_comm.StartResponse", ""),
    (
        "plugin_comm.ApplyRequest",
        "string_config=2 string of service_config, struct_config=3 Struct of service_config",
    ),
    ("plugin_comm.ApplyResponse", ""),
    ("plugin_comm.GetStatusRequest", "data=2 optional string"),
    ("plugin_comm.Status", "code=1 int32, results=2 rep string"),
    ("plugin_comm.StopRequest", "cleanup=1 bool, deadline=2 Duration"),
    ("plugin_comm.StopResponse", ""),
    ("agent_controlplane.PlatformInfo", "on_gce=1 bool, error=2 string"),
    ("agent_controlplane.GetAgentInfo", ""),
    ("agent_controlplane.GetOSInfo", ""),
    ("agent_controlplane.ListPluginStates", ""),
    (
        "agent_controlplane.AgentInfo",
        "name=1 string, version=2 string, architecture=3 string, agent_capabilities=4 rep AgentCapability",
    ),
    (
        "agent_controlplane.OSInfo",
        "type=2 string, short_name=3 string, long_name=4 string, version=5 string, architecture=6 string, kernel_release=7 string, kernel_version=8 string",
    ),
    (
        "agent_controlplane.CurrentPluginStates",
        "daemon_plugin_states=1 rep DaemonPluginState, one_shot_plugin_states=2 rep OneShotPluginState",
    ),
    ("agent_controlplane.CurrentPluginStates.DaemonPluginState", PLUGIN_STATE),
    ("agent_controlplane.CurrentPluginStates.OneShotPluginState", PLUGIN_STATE),
    (
        "agent_controlplane.CurrentPluginStates.Status",
        "status=1 StatusValue, response_code=2 int32, results=3 rep string, update_time=4 Timestamp",
    ),
    (
        "agent_controlplane.CurrentPluginStates.Metric",
        "timestamp=1 Timestamp, cpu_usage=6 float, memory_usage=7 int64",
    ),
    ("agent_controlplane.ConfigurePluginStates", "configure_plugins=1 rep ConfigurePlugin"),
    (
        "agent_controlplane.ConfigurePluginStates.ConfigurePlugin",
        "action=1 Action, plugin=2 Plugin, manifest=3 Manifest",
    ),
    (
        "agent_controlplane.ConfigurePluginStates.Plugin",
        "name=1 string, revision_id=2 string, gcs_signed_url=3 string, entry_point=4 string, arguments=5 rep string, checksum=6 string",
    ),
    (
        "agent_controlplane.ConfigurePluginStates.Manifest",
        "max_memory_usage_bytes=1 int64, max_cpu_usage_percentage=2 int32, metrics_interval=3 Duration, download_timeout=4 Duration, download_attempt_count=5 int32, start_timeout=6 Duration, start_attempt_count=7 int32, stop_timeout=8 Duration, max_metric_datapoints=9 uint64, string_config=10 string of config, struct_config=11 Struct of config, start_exp_backoff_factor=12 int32, plugin_type=13 PluginType, plugin_installation_type=14 PluginInstallationType, execution_model=15 ExecutionModel",
    ),
    (
        "agent_controlplane.ExecutionModel",
        "on_default=1 State, on_match=2 State, match_policy=3 MatchPolicy, rules=4 rep Rules, boot_critical=5 bool, one_shot=6 OneShot of type, daemon=7 Daemon of type",
    ),
    ("agent_controlplane.ExecutionModel.Daemon", ""),
    (
        "agent_controlplane.ExecutionModel.OneShot",
        "triggers=1 Triggers, execution_timeout=2 Duration",
    ),
    (
        "agent_controlplane.ExecutionModel.Triggers",
        "startup=1 bool, firstboot=2 bool, interval=3 Duration",
    ),
    (
        "agent_controlplane.Rules",
        "scope=1 Scope, attribute=2 string, comparison_operator=3 ComparisonOperator, value=4 Value",
    ),
    (
        "agent_controlplane.PluginEventMessage",
        "revision_id=1 string, plugin_name=2 string, event_type=3 PluginEventType, event_timestamp=4 Timestamp, event_details=5 optional bytes",
    ),
    ("agent_controlplane.GuestAgentModuleMetrics", "metrics=1 rep GuestAgentModuleMetric"),
    (
        "agent_controlplane.GuestAgentModuleMetric",
        "metric_name=1 Metric, start_time=2 Timestamp, end_time=3 Timestamp, module_status=4 ModuleStatus, enabled=5 bool, error=6 string",
    ),
    (
        "google.cloud.agentcommunication.v1.SendAgentMessageRequest",
        "channel_id=1 string, resource_id=2 string, message_body=3 MessageBody",
    ),
    ("google.cloud.agentcommunication.v1.SendAgentMessageResponse", "message_body=1 MessageBody"),
    (
        "google.cloud.agentcommunication.v1.RegisterConnection",
        "protocol_version=1 int32, channel_id=2 string, resource_id=3 string",
    ),
    ("google.cloud.agentcommunication.v1.MessageResponse", "status=1 Status"),
    ("google.cloud.agentcommunication.v1.MessageBody", "labels=1 map<string,string>, body=2 Any"),
    (
        "google.cloud.agentcommunication.v1.StreamAgentMessagesRequest",
        "message_id=1 string, register_connection=2 RegisterConnection of type, message_response=3 MessageResponse of type, message_body=4 MessageBody of type",
    ),
    (
        "google.cloud.agentcommunication.v1.StreamAgentMessagesResponse",
        "message_id=1 string, message_response=2 MessageResponse of type, message_body=3 MessageBody of type",
    ),
    ("google.rpc.Status", "code=1 int32, message=2 string, details=3 rep Any"),
];

const PLUGIN_STATE: &str = "name=1 string, current_revision_id=2 string, current_plugin_status=3 Status, pending_revision_id=4 string, pending_plugin_status=5 Status, current_plugin_metrics=6 rep Metric, config_hash=7 string";

/// Every enum of the three packages; its values are numbered from 0 in this order.
const ENUMS: &[(&str, &str)] = &[
    (
        "agent_controlplane.AgentInfo.AgentCapability",
        "AGENT_CAPABILITY_UNSPECIFIED GET_AGENT_INFO GET_OS_INFO LIST_PLUGIN_STATES CONFIGURE_PLUGIN_STATES APPLY_PLUGIN_CONFIG",
    ),
    ("agent_controlplane.PluginType", "PLUGIN_TYPE_UNSPECIFIED DAEMON ONE_SHOT"),
    ("agent_controlplane.PluginInstallationType", "DYNAMIC_INSTALLATION LOCAL_INSTALLATION"),
    (
        "agent_controlplane.CurrentPluginStates.StatusValue",
        "STATE_VALUE_UNSPECIFIED STARTING RUNNING STOPPING STOPPED CRASHED INSTALLING INSTALL_FAILED EXECUTION_COMPLETED EXECUTION_FAILED",
    ),
    ("agent_controlplane.ConfigurePluginStates.Action", "ACTION_UNSPECIFIED INSTALL REMOVE APPLY"),
    ("agent_controlplane.ExecutionModel.State", "STATE_UNSPECIFIED ENABLED DISABLED"),
    ("agent_controlplane.ExecutionModel.MatchPolicy", "MATCH_POLICY_UNSPECIFIED ALL ANY"),
    (
        "agent_controlplane.Rules.ComparisonOperator",
        "OPERATOR_UNSPECIFIED EQUAL NOT_EQUAL CONTAINS",
    ),
    ("agent_controlplane.Rules.Scope", "NAMESPACE_UNSPECIFIED OS INSTANCE METADATA"),
    (
        "agent_controlplane.PluginEventMessage.PluginEventType",
        "PLUGIN_EVENT_TYPE_UNSPECIFIED PLUGIN_CONFIG_INSTALL PLUGIN_CONFIG_REMOVE PLUGIN_INSTALLED PLUGIN_STARTED PLUGIN_REMOVED PLUGIN_STOPPED PLUGIN_CRASHED PLUGIN_INSTALL_FAILED PLUGIN_START_FAILED PLUGIN_REMOVE_FAILED PLUGIN_CONFIG_APPLY PLUGIN_CONFIG_APPLIED PLUGIN_CONFIG_APPLY_FAILED PLUGIN_EXECUTION_COMPLETED PLUGIN_EXECUTION_FAILED",
    ),
    (
        "agent_controlplane.GuestAgentModuleMetric.Metric",
        "MODULE_UNSPECIFIED NETWORK_INITIALIZATION IOSCHED_INITIALIZATION AGENT_CRYPTO_INITIALIZATION CLOCK_INITIALIZATION COMMAND_INITIALIZATION DIAGNOSTICS_INITIALIZATION FIRST_BOOT_INITIALIZATION HOST_NAME_INITIALIZATION METADATA_SSH_KEY_INITIALIZATION OS_LOGIN_INITIALIZATION PLAT_SCRIPT_INITIALIZATION SNAPSHOT_INITIALIZATION TELEMETRY_INITIALIZATION WORKLOAD_CERT_REFRESH_INITIALIZATION WSFC_HEALTH_CHECK_INITIALIZATION WINDOWS_PASSWORD_RESET CORE_PLUGIN_INITIALIZATION GUEST_COMPAT_MANAGER_INITIALIZATION PLUGIN_CLEANUP",
    ),
    (
        "agent_controlplane.GuestAgentModuleMetric.ModuleStatus",
        "MODULE_STATUS_UNSPECIFIED STATUS_SKIPPED STATUS_FAILED STATUS_SUCCEEDED",
    ),
    (
        "google.cloud.agentcommunication.v1.StreamAgentMessagesResponse.ErrorReason",
        "ERROR_REASON_UNSPECIFIED AGENT_MESSAGE_RATE_QUOTA_EXCEEDED AGENT_BANDWIDTH_RATE_QUOTA_EXCEEDED",
    ),
    (
        "google.cloud.agentcommunication.v1.ErrorReason",
        "ERROR_REASON_UNSPECIFIED MISSING_MESSAGE_ID INVALID_MESSAGE_TYPE MESSAGE_NOT_ACKED INVALID_MESSAGE_RESPONSE INVALID_REGISTER_REQUEST INVALID_STREAM_HEADERS SERVICE_CHECK_FAILURE AGENT_CONNECTION_RATE_QUOTA_EXCEEDED AGENT_MESSAGE_RATE_QUOTA_EXCEEDED AGENT_BANDWIDTH_RATE_QUOTA_EXCEEDED INVALID_SEND_AGENT_MESSAGE_REQUEST",
    ),
];

/// Every call of the services: path, request, response.
const CALLS: &[(&str, &str, &str)] = &[
    ("/plugin_comm.GuestAgentPlugin/Start", "StartRequest", "StartResponse"),
    ("/plugin_comm.GuestAgentPlugin/Stop", "StopRequest", "StopResponse"),
    ("/plugin_comm.GuestAgentPlugin/GetStatus", "GetStatusRequest", "Status"),
    ("/plugin_comm.GuestAgentPlugin/Apply", "ApplyRequest", "ApplyResponse"),
    (
        "/google.cloud.agentcommunication.v1.AgentCommunication/StreamAgentMessages",
        "stream StreamAgentMessagesRequest",
        "stream StreamAgentMessagesResponse",
    ),
    (
        "/google.cloud.agentcommunication.v1.AgentCommunication/SendAgentMessage",
        "SendAgentMessageRequest",
        "SendAgentMessageResponse",
    ),
];

const PACKAGES: [&str; 4] =
    ["plugin_comm", "agent_controlplane", "google.cloud.agentcommunication.v1", "google.rpc"];

fn pool() -> DescriptorPool {
    DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("the committed descriptors are valid")
}

fn field(field: &FieldDescriptor) -> String {
    let kind = match field.kind() {
        _map if field.is_map() => "map<string,string>".to_owned(),
        Kind::Message(message) => message.name().to_owned(),
        Kind::Enum(of) => of.name().to_owned(),
        scalar => format!("{scalar:?}").to_lowercase(),
    };
    let proto = field.field_descriptor_proto();
    let label = match (field.cardinality(), proto.proto3_optional()) {
        (Cardinality::Repeated, _) if !field.is_map() => "rep ",
        (_, true) => "optional ",
        _other => "",
    };
    let group = match field.containing_oneof() {
        Some(oneof) if !proto.proto3_optional() => format!(" of {}", oneof.name()),
        _other => String::new(),
    };
    format!("{}={} {label}{kind}{group}", field.name(), field.number())
}

#[test]
fn messages_have_the_published_names_and_fields() {
    let found: BTreeMap<String, String> = pool()
        .all_messages()
        .filter(|message| PACKAGES.contains(&message.package_name()) && !message.is_map_entry())
        .map(|message| {
            let mut fields: Vec<_> = message.fields().collect();
            fields.sort_by_key(FieldDescriptor::number);
            let fields: Vec<_> = fields.iter().map(field).collect();
            (message.full_name().to_owned(), fields.join(", "))
        })
        .collect();
    let published =
        MESSAGES.iter().map(|(name, fields)| ((*name).to_owned(), (*fields).to_owned())).collect();
    assert_eq!(found, published);
}

#[test]
fn enums_have_the_published_names_and_numbers() {
    let found: BTreeMap<String, Vec<(i32, String)>> = pool()
        .all_enums()
        .filter(|of| PACKAGES.contains(&of.package_name()))
        .map(|of| {
            let values = of.values().map(|value| (value.number(), value.name().to_owned()));
            (of.full_name().to_owned(), values.collect())
        })
        .collect();
    let published = ENUMS
        .iter()
        .map(|(name, values)| {
            let values = values.split(' ').map(str::to_owned);
            ((*name).to_owned(), (0..).zip(values).collect())
        })
        .collect();
    assert_eq!(found, published);
}

#[test]
fn calls_have_the_published_paths() {
    let stream = |streams: bool| if streams { "stream " } else { "" };
    let found: Vec<(String, String, String)> = pool()
        .services()
        .filter(|service| PACKAGES.contains(&service.package_name()))
        .flat_map(|service| service.methods().collect::<Vec<_>>())
        .map(|call| {
            let service = call.parent_service().full_name().to_owned();
            (
                format!("/{service}/{}", call.name()),
                format!("{}{}", stream(call.is_client_streaming()), call.input().name()),
                format!("{}{}", stream(call.is_server_streaming()), call.output().name()),
            )
        })
        .collect();
    for (path, request, response) in CALLS {
        let call = ((*path).to_owned(), (*request).to_owned(), (*response).to_owned());
        assert!(found.contains(&call), "{call:?} is not among {found:#?}");
    }
    assert_eq!(found.len(), CALLS.len());
}

#[test]
fn generated_servers_answer_under_the_published_names() {
    assert_eq!(plugin::guest_agent_plugin_server::SERVICE_NAME, "plugin_comm.GuestAgentPlugin");
    assert_eq!(
        comm::agent_communication_server::SERVICE_NAME,
        "google.cloud.agentcommunication.v1.AgentCommunication"
    );
}
