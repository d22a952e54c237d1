//! Well-formed inputs to begin with.

use std::collections::HashMap;
use std::path::Path;

use guest_agent_proto::agent_communication::stream_agent_messages_response::Type;
use guest_agent_proto::agent_communication::{
    MessageBody, MessageResponse, StreamAgentMessagesResponse,
};
use guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    Action, ConfigurePlugin, Manifest, Plugin,
};
use guest_agent_proto::agent_controlplane::execution_model::{
    self, MatchPolicy, OneShot, State, Triggers,
};
use guest_agent_proto::agent_controlplane::rules::{ComparisonOperator, Scope};
use guest_agent_proto::agent_controlplane::{
    ConfigurePluginStates, ExecutionModel, PluginInstallationType, Rules,
};
use prost::Message;
use prost_types::value::Kind;
use prost_types::{Any, Duration, ListValue, Struct, Value};

fn seconds(seconds: i64) -> Option<Duration> {
    Some(Duration { seconds, nanos: 500_000_000 })
}

fn execution_model() -> ExecutionModel {
    let text = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
    let rule = |scope: Scope, attribute: &str, operator: ComparisonOperator, value| Rules {
        scope: scope.into(),
        attribute: attribute.to_owned(),
        comparison_operator: operator.into(),
        value: Some(value),
    };
    let list = ListValue { values: vec![text("a"), text("b")] };
    ExecutionModel {
        on_default: State::Disabled.into(),
        on_match: State::Enabled.into(),
        match_policy: MatchPolicy::Any.into(),
        rules: vec![
            rule(Scope::Os, "ID", ComparisonOperator::Equal, text("debian")),
            rule(Scope::Instance, "v1/instance/zone", ComparisonOperator::Contains, text("eu")),
            rule(
                Scope::Metadata,
                "roles",
                ComparisonOperator::NotEqual,
                Value { kind: Some(Kind::ListValue(list)) },
            ),
        ],
        boot_critical: true,
        r#type: Some(execution_model::Type::OneShot(OneShot {
            triggers: Some(Triggers { startup: true, firstboot: true, interval: seconds(3600) }),
            execution_timeout: seconds(60),
        })),
    }
}

fn full() -> ConfigurePlugin {
    let deep = (0..8).fold(Value { kind: Some(Kind::BoolValue(true)) }, |inner, _| Value {
        kind: Some(Kind::StructValue(Struct { fields: [("k".to_owned(), inner)].into() })),
    });
    ConfigurePlugin {
        action: Action::Install.into(),
        plugin: Some(Plugin {
            name: "monitor".to_owned(),
            revision_id: "1.2.3".to_owned(),
            gcs_signed_url: "https://store.example/monitor.tar.gz?signature=secret".to_owned(),
            entry_point: "bin/monitor".to_owned(),
            arguments: vec!["--verbose".to_owned(), "--level=3".to_owned()],
            checksum: "0123456789abcdef".repeat(4),
        }),
        manifest: Some(Manifest {
            max_memory_usage_bytes: 1 << 26,
            max_cpu_usage_percentage: 20,
            metrics_interval: seconds(10),
            download_timeout: seconds(60),
            download_attempt_count: 5,
            start_timeout: seconds(30),
            start_attempt_count: 3,
            stop_timeout: seconds(30),
            max_metric_datapoints: 60,
            start_exp_backoff_factor: 2,
            execution_model: Some(execution_model()),
            config: Some(Config::StructConfig(Struct {
                fields: [("deep".to_owned(), deep)].into(),
            })),
            ..Manifest::default()
        }),
    }
}

pub(crate) fn orders() -> Vec<Vec<u8>> {
    let named = |action: Action, config| ConfigurePlugin {
        action: action.into(),
        plugin: Some(Plugin { name: "monitor".to_owned(), ..Plugin::default() }),
        manifest: Some(Manifest { config, ..Manifest::default() }),
    };
    let text = Some(Config::StringConfig("level = 3".to_owned()));
    let batches = [
        vec![full()],
        vec![named(Action::Remove, None)],
        vec![named(Action::Apply, text), full(), named(Action::Apply, None)],
        vec![],
    ];
    let encode = |orders| ConfigurePluginStates { configure_plugins: orders }.encode_to_vec();
    batches.map(encode).to_vec()
}

pub(crate) fn frames() -> Vec<Vec<u8>> {
    let frame = |r#type| {
        StreamAgentMessagesResponse { message_id: "m-1".to_owned(), r#type }.encode_to_vec()
    };
    let body = |kind: &str, value: Vec<u8>| {
        let labels = [("message_type", kind), ("request_id", "r-1")];
        let labels: HashMap<_, _> =
            labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let type_url = format!("type.googleapis.com/{kind}");
        Some(Type::MessageBody(MessageBody { labels, body: Some(Any { type_url, value }) }))
    };
    let mut all = vec![
        frame(None),
        frame(Some(Type::MessageResponse(MessageResponse { status: None }))),
        frame(body("agent_controlplane.GetAgentInfo", Vec::new())),
        frame(body("agent_controlplane.ListPluginStates", Vec::new())),
    ];
    all.extend(
        orders()
            .into_iter()
            .map(|orders| frame(body("agent_controlplane.ConfigurePluginStates", orders))),
    );
    all
}

/// The records of every version that is kept as a fixture.
pub(crate) fn records() -> Vec<Vec<u8>> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("actors/tests/fixtures");
    let mut files: Vec<_> = std::fs::read_dir(fixtures)
        .unwrap()
        .flat_map(|version| std::fs::read_dir(version.unwrap().path()).unwrap())
        .map(|file| file.unwrap().path())
        .filter(|file| file.extension().is_some_and(|end| end == "bin"))
        .collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

pub(crate) fn manifests() -> Vec<Vec<u8>> {
    let mut local = full();
    let plugin = local.plugin.get_or_insert_default();
    plugin.gcs_signed_url.clear();
    plugin.checksum.clear();
    local.manifest.get_or_insert_default().plugin_installation_type =
        PluginInstallationType::LocalInstallation.into();
    let json = guest_agent_proto::json::configure_plugin_to_json(&local).unwrap();
    let small = br#"{"action":"INSTALL","plugin":{"name":"monitor","revisionId":"1","entryPoint":
        "run"},"manifest":{"pluginInstallationType":"LOCAL_INSTALLATION","stopTimeout":"1.5s"}}"#;
    vec![local.encode_to_vec(), json.into_bytes(), small.to_vec()]
}

pub(crate) fn commands() -> Vec<Vec<u8>> {
    let texts = [
        r#"{"Command":"VmEvent","Event":"startup"}"#,
        r#"{"command":"agent.config.getoption","OPTION":"Plugins.Probation"}"#,
        r#"{"Command":"VmEvent","Event":7,"Extra":{"deep":[[[null,1e309,"\ud83d\ude00"]]]}}"#,
        r#"{"Command":"reboot"}"#,
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

pub(crate) fn metadata() -> Vec<Vec<u8>> {
    let texts = [
        r#"{"instance":{"id":1234567890123456789,"zone":"projects/1/zones/eu-1","attributes":
            {"role":"db","n":"3","nested":{"a":[1,true,null]}},"disks":[{"index":0}],
            "serviceAccounts":{"default":{"scopes":["a"]}}},
            "project":{"numericProjectId":42,"attributes":{"role":"web"}}}"#,
        r#"{"instance":{}}"#,
        r#"{"instance":{"id":"text","attributes":null}}"#,
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

pub(crate) fn signatures() -> Vec<Vec<u8>> {
    let pair = minisign::KeyPair::generate_unencrypted_keypair().unwrap();
    let comments = ["plugin:monitor revision:1", "", "timestamp:1\tfile:a b\thashed"];
    let sign = |comment| minisign::sign(None, &pair.sk, &b"archive"[..], Some(comment), None);
    let mut all: Vec<_> =
        comments.map(|comment| sign(comment).unwrap().into_string().into_bytes()).to_vec();
    all.push(pair.pk.to_base64().into_bytes());
    all
}

pub(crate) fn bundles() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let (archive, out) = (folder.path().join("archive"), folder.path().join("bundle"));
    std::fs::write(&archive, [7; 700]).unwrap();
    let signature = String::from_utf8(signatures().swap_remove(0)).unwrap();
    let order = r#"{"plugin":{"name":"monitor"}}"#;
    let make = |signature: Option<&str>| {
        guest_agent::install::bundle::write(&out, order, signature, &archive).unwrap();
        std::fs::read(&out).unwrap()
    };
    vec![make(None), make(Some(&signature))]
}

/// Archives with every kind of header, under each compression, with and without right checksums.
pub(crate) fn archives() -> Vec<Vec<u8>> {
    let script = b"#!/bin/sh\nexit 0\n";
    let run = member(b"run", b'0', b"", script);
    let path = b"14 path=d/pax\n13 size=1000\n";
    let everything = [
        run.clone(),
        member(b"g", b'g', b"", b"20 comment=harmless\n"),
        member(b"d/", b'5', b"", b""),
        member(b"x", b'x', b"", path),
        member(b"short", b'0', b"", &[7; 1000]),
        member(b"L", b'L', b"", b"d/a long name"),
        member(b"short", b'0', b"", b"content"),
        member(b"K", b'K', b"", b"../run"),
        member(b"d/link", b'2', b"short", b""),
        member(b"hard", b'1', b"run", b""),
        vec![0; 1024],
    ]
    .concat();
    let hostile = [
        run,
        member(b"../precious", b'0', b"", b"spoilt"),
        member(b"out", b'2', b"../../../precious", b""),
        member(b"twin", b'1', b"../../../precious", b""),
        member(b"null", b'3', b"", b""),
        member(b"holes", b'S', b"", &[1; 512]),
        vec![0; 1024],
    ]
    .concat();
    let mut seeds = Vec::new();
    for tar in [everything, hostile] {
        seeds.extend((0..5u8).map(|how| [&[how][..], &tar].concat()));
    }
    seeds
}

/// Deltas and compressed archives, right and with another dictionary.
pub(crate) fn codings() -> Vec<Vec<u8>> {
    let [old, new] = super::targets::revisions();
    let frame = |dictionary: &[u8]| {
        let mut encoder = zstd::stream::raw::Encoder::with_ref_prefix(3, dictionary)
            .map(|encoder| zstd::stream::zio::Writer::new(Vec::new(), encoder))
            .unwrap();
        std::io::Write::write_all(&mut encoder, &new).unwrap();
        encoder.finish().unwrap();
        encoder.into_inner().0
    };
    let (delta, whole) = (frame(&old), frame(b""));
    let coded = [(0, &delta), (1, &whole), (0, &whole), (1, &delta), (2, &delta), (1, &new)];
    coded.map(|(how, frame)| [&[how][..], frame].concat()).to_vec()
}

/// One member of a tar stream.
fn member(name: &[u8], kind: u8, target: &[u8], data: &[u8]) -> Vec<u8> {
    let mut block = [0; 512];
    let size = format!("{:011o}\0", data.len());
    let fields: [(usize, &[u8]); 7] = [
        (0, name),
        (100, b"0000755\0"),
        (124, size.as_bytes()),
        (136, b"07346545000\0"),
        (156, &[kind]),
        (157, target),
        (257, b"ustar\x0000"),
    ];
    for (at, field) in fields {
        block[at..at + field.len()].copy_from_slice(field);
    }
    super::targets::sum(&mut block);
    let mut member = [&block[..], data].concat();
    member.resize(member.len().next_multiple_of(512), 0);
    member
}
