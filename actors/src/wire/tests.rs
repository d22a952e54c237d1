use std::collections::BTreeMap;
use std::time::SystemTime;

use proptest::prelude::*;

use guest_agent_proto::agent_controlplane::current_plugin_states as cur;

use super::*;
use crate::messages::Point;
use crate::model::event::{DETAILS_MAX, NewEvent, StoredEvent};
use crate::model::exit::ExitCause;
use crate::model::id::{Generation, RevisionId};
use crate::model::runs::Runs;
use crate::model::spec::tests::spec;
use crate::model::spec::{Enablement, Execution, OneShot};
use crate::model::view::{Activity, Pending, PluginView};
use crate::ports::{Health, Receipt, Unenforced};

const CHECKSUM: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

/// An order that nothing is wrong with, and that leaves everything to the defaults.
fn good() -> cfg::ConfigurePlugin {
    cfg::ConfigurePlugin {
        action: cfg::Action::Install.into(),
        plugin: Some(cfg::Plugin {
            name: "ops-agent".to_owned(),
            revision_id: "1.2.3".to_owned(),
            gcs_signed_url: "https://store.example/a.tgz?X-Signature=s3cr3t".to_owned(),
            entry_point: "bin/agent".to_owned(),
            arguments: vec!["--level=1".to_owned()],
            checksum: CHECKSUM.to_owned(),
        }),
        manifest: None,
    }
}

fn decoded(order: cfg::ConfigurePlugin, origin: Origin) -> DecodedOrder {
    let bytes = pb::ConfigurePluginStates { configure_plugins: vec![order] }.encode_to_vec();
    decode_orders(&bytes, origin).unwrap().pop().unwrap()
}

#[track_caller]
fn taken(change: impl FnOnce(&mut cfg::Plugin, &mut cfg::Manifest)) -> Arc<PluginSpec> {
    let mut order = good();
    let mut manifest = cfg::Manifest::default();
    change(order.plugin.as_mut().unwrap(), &mut manifest);
    order.manifest = Some(manifest);
    match decoded(order, Origin::ControlPlane) {
        Ok(NamedOrder { order: Order::Install(spec), .. }) => spec,
        other => panic!("not taken: {other:?}"),
    }
}

/// Every one of these orders is refused, with its field in the reason and no secret.
#[track_caller]
fn refused(expected: &str, change: impl FnOnce(&mut cfg::Plugin, &mut cfg::Manifest)) {
    let mut order = good();
    let mut manifest = cfg::Manifest::default();
    change(order.plugin.as_mut().unwrap(), &mut manifest);
    order.manifest = Some(manifest);
    let refusal = decoded(order, Origin::ControlPlane).unwrap_err();
    assert!(refusal.reason.contains(expected), "{refusal:?} does not name {expected:?}");
    assert!(!refusal.reason.contains("s3cr3t"), "{refusal:?}");
    assert!(refusal.reason.len() < 600, "{} bytes", refusal.reason.len());
    assert_eq!(refusal.notice, PluginEventKind::InstallFailed);
}

fn lasting(seconds: i64, nanos: i32) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos })
}

#[test]
fn an_order_without_a_manifest_gets_every_default() {
    let Ok(NamedOrder { name, revision, order: Order::Install(spec) }) =
        decoded(good(), Origin::ControlPlane)
    else {
        panic!("not taken");
    };
    assert_eq!(&*revision, "1.2.3");
    let s = Duration::from_secs;
    assert_eq!(name.as_str(), "ops-agent");
    assert_eq!(spec.name, name);
    assert_eq!(spec.download, Tries { attempts: 5, timeout: s(60) });
    assert_eq!(spec.start, Tries { attempts: 3, timeout: s(30) });
    assert_eq!(spec.stop_timeout, s(30));
    assert_eq!(spec.metrics, MetricsPolicy { interval: s(10), points: 60 });
    assert_eq!(spec.limits, Limits::default());
    assert_eq!(spec.backoff_factor, 2);
    assert_eq!(spec.config, None);
    assert_eq!(spec.arguments, ["--level=1"]);
    assert_eq!(spec.source.sha256().to_string(), CHECKSUM);
}

#[test]
fn zero_is_the_same_as_silence() {
    let silent = taken(|_, _| {});
    let zeros = taken(|_, manifest| {
        manifest.start_timeout = lasting(0, 0);
        manifest.stop_timeout = lasting(0, 0);
        manifest.download_timeout = lasting(0, 0);
        manifest.metrics_interval = lasting(0, 0);
    });
    assert!(silent.asks_the_same(&zeros), "{silent:?} and {zeros:?}");
}

#[test]
fn an_order_of_a_control_plane_for_one_plugin_alone_is_known_by_the_digest_of_its_message() {
    let digest = |items: usize, origin| {
        let bytes = Items { items: vec![good().encode_to_vec(); items] }.encode_to_vec();
        let order = decode_orders(&bytes, origin).unwrap().remove(0).unwrap().order;
        let Order::Install(spec) = order else { panic!("{order:?}") };
        assert!(spec.order_digest.is_none_or(|digest| digest == Sha256Digest::of(&bytes)));
        spec.order_digest.is_some()
    };
    assert!(digest(1, Origin::ControlPlane));
    assert!(!digest(2, Origin::ControlPlane), "the message is about others, too");
    assert!(!digest(1, Origin::Local), "a person gave it");
}

#[test]
fn what_a_manifest_says_is_kept_to_the_nanosecond() {
    let spec = taken(|_, manifest| {
        manifest.max_memory_usage_bytes = 1 << 30;
        manifest.max_cpu_usage_percentage = 150;
        manifest.metrics_interval = lasting(30, 1);
        manifest.download_timeout = lasting(3600, 0);
        manifest.download_attempt_count = 100;
        manifest.start_timeout = lasting(0, 100_000_000);
        manifest.start_attempt_count = 1;
        manifest.stop_timeout = lasting(1, 500_000_000);
        manifest.max_metric_datapoints = 10_000;
        manifest.start_exp_backoff_factor = 10;
        manifest.plugin_type = pb::PluginType::Daemon.into();
    });
    assert_eq!(
        spec.limits,
        Limits { memory_bytes: Some(1 << 30), cpu_percent: Some(150), tasks: None }
    );
    assert_eq!(spec.metrics.interval, Duration::new(30, 1));
    assert_eq!(spec.metrics.points, 10_000);
    let hour = Duration::from_secs(3600);
    assert_eq!(spec.download, Tries { attempts: 100, timeout: hour });
    assert_eq!(spec.start, Tries { attempts: 1, timeout: Duration::from_millis(100) });
    assert_eq!(spec.stop_timeout, Duration::from_millis(1500));
    assert_eq!(spec.backoff_factor, 10);
}

#[test]
fn metrics_that_are_to_be_taken_more_than_once_a_second_are_refused_with_the_bound() {
    for nanos in [100_000_000, 999_999_999] {
        refused("metrics_interval", |_, manifest| manifest.metrics_interval = lasting(0, nanos));
        refused("between 1s and 3600s", |_, manifest| {
            manifest.metrics_interval = lasting(0, nanos);
        });
    }
    let spec = taken(|_, manifest| manifest.metrics_interval = lasting(1, 0));
    assert_eq!(spec.metrics.interval, Duration::from_secs(1));
}

#[test]
fn an_empty_configuration_is_one_and_has_its_hash() {
    // SHA-256 of nothing: an empty text has no byte, and neither has an empty structure.
    const NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let empty = [
        cfg::manifest::Config::StringConfig(String::new()),
        cfg::manifest::Config::StructConfig(prost_types::Struct::default()),
    ];
    for config in empty {
        let spec = taken(|_, manifest| manifest.config = Some(config.clone()));
        assert_eq!(spec.config.as_ref().unwrap().digest().to_string(), NOTHING, "{config:?}");
    }
}

#[test]
fn names_revisions_and_checksums_are_checked() {
    refused("plugin name", |plugin, _| plugin.name = "../etc".to_owned());
    refused("plugin name", |plugin, _| plugin.name = String::new());
    refused("plugin name", |plugin, _| plugin.name = "x".repeat(100_000));
    refused("revision", |plugin, _| plugin.revision_id = "a/b".to_owned());
    refused("revision", |plugin, _| plugin.revision_id = "current".to_owned());
    refused("revision", |plugin, _| plugin.revision_id = String::new());
    refused("checksum", |plugin, _| plugin.checksum = String::new());
    refused("checksum", |plugin, _| plugin.checksum = CHECKSUM[1..].to_owned());
    refused("checksum", |plugin, _| plugin.checksum = CHECKSUM.replace('9', "z"));
}

#[test]
fn urls_are_checked_and_never_quoted() {
    let url = |url: &str| {
        let url = url.to_owned();
        move |plugin: &mut cfg::Plugin, _: &mut cfg::Manifest| plugin.gcs_signed_url = url
    };
    for bad in [
        "",
        "https://",
        "https:///a?sig=s3cr3t",
        "https://?sig=s3cr3t",
        "https:store/a?sig=s3cr3t",
        "ftp://store/a?sig=s3cr3t",
        "gs://store/a?sig=s3cr3t",
        "s3cr3t",
        "https://store/a b?sig=s3cr3t",
        "https://store/a\n?sig=s3cr3t",
        "unix:relative:/a?sig=s3cr3t",
        "unix:/socket?sig=s3cr3t",
        "file:///tmp/a?sig=s3cr3t",
        "file:/tmp/s3cr3t",
        &format!("https://store/{}?sig=s3cr3t", "a".repeat(20_000)),
    ] {
        refused("gcs_signed_url", url(bad));
    }
    for good in [
        "https://store.example/a",
        "HTTPS://store.example/a",
        "http://127.0.0.1:8080/a.tgz",
        "unix:/run/store.sock:/a.tgz",
    ] {
        let spec = taken(url(good));
        let Source::Archive(artifact) = &spec.source else { panic!("{spec:?}") };
        assert_eq!(artifact.url.expose(), good);
    }
}

#[test]
fn local_archives_are_for_orders_given_on_the_machine() {
    for (url, good) in [("file:/tmp/a.tgz", true), ("file:///tmp/a.tgz", true), ("file:a", false)] {
        let mut order = good_with_url(url);
        assert!(decoded(order.clone(), Origin::ControlPlane).is_err(), "{url}");
        assert_eq!(decoded(order.clone(), Origin::Local).is_ok(), good, "{url}");
        order.action = cfg::Action::Remove.into();
        assert!(decoded(order, Origin::ControlPlane).is_ok(), "a removal needs no archive");
    }
}

fn good_with_url(url: &str) -> cfg::ConfigurePlugin {
    let mut order = good();
    order.plugin.as_mut().unwrap().gcs_signed_url = url.to_owned();
    order
}

#[test]
fn entry_points_and_arguments_are_checked() {
    for bad in ["", "/bin/sh", "../sh", "a/../../b", "."] {
        refused("entry point", |plugin, _| plugin.entry_point = bad.to_owned());
    }
    refused("arguments", |plugin, _| plugin.arguments = vec![String::new(); 1025]);
    refused("arguments", |plugin, _| plugin.arguments = vec!["x".repeat(100_000); 2]);
    refused("argument 1", |plugin, _| {
        plugin.arguments = vec!["fine".to_owned(), "s3cr3t\0".to_owned()];
    });
}

#[test]
fn durations_are_checked() {
    type Field = fn(&mut cfg::Manifest) -> &mut Option<prost_types::Duration>;
    let fields: [(&str, Field); 4] = [
        ("metrics_interval", |manifest| &mut manifest.metrics_interval),
        ("download_timeout", |manifest| &mut manifest.download_timeout),
        ("start_timeout", |manifest| &mut manifest.start_timeout),
        ("stop_timeout", |manifest| &mut manifest.stop_timeout),
    ];
    let bad = [
        (-1, 0),
        (0, -1),
        (0, 1),
        (0, 99_999_999),
        (3600, 1),
        (i64::MAX, 0),
        (i64::MIN, i32::MIN),
        (1, 1_000_000_000),
        (1, -500_000_000),
    ];
    for (name, field) in fields {
        for (seconds, nanos) in bad {
            refused(name, |_, manifest| *field(manifest) = lasting(seconds, nanos));
        }
    }
}

#[test]
fn counts_and_limits_are_checked() {
    type Field = fn(&mut cfg::Manifest) -> &mut i32;
    let counts: [(&str, Field, i32); 3] = [
        ("download_attempt_count", |manifest| &mut manifest.download_attempt_count, 101),
        ("start_attempt_count", |manifest| &mut manifest.start_attempt_count, 101),
        ("start_exp_backoff_factor", |manifest| &mut manifest.start_exp_backoff_factor, 11),
    ];
    for (name, field, over) in counts {
        for bad in [-1, i32::MIN, over, i32::MAX] {
            refused(name, |_, manifest| *field(manifest) = bad);
        }
    }
    refused("max_memory_usage_bytes", |_, manifest| manifest.max_memory_usage_bytes = -1);
    refused("max_cpu_usage_percentage", |_, manifest| manifest.max_cpu_usage_percentage = -1);
    refused("max_metric_datapoints", |_, manifest| manifest.max_metric_datapoints = 10_001);
    refused("max_metric_datapoints", |_, manifest| manifest.max_metric_datapoints = u64::MAX);
}

#[test]
fn what_this_agent_does_not_run_is_refused_and_says_so() {
    refused("plugin_type", |_, manifest| manifest.plugin_type = 77);
    let local = pb::PluginInstallationType::LocalInstallation.into();
    refused("installation", |_, manifest| manifest.plugin_installation_type = local);
    refused("installation", |_, manifest| manifest.plugin_installation_type = 77);
}

#[test]
fn an_execution_model_becomes_part_of_the_spec_and_a_bad_one_is_refused() {
    use pb::execution_model::{self as em, State};
    assert_eq!(taken(|_, _| {}).execution, Execution::default());
    let spec = taken(|_, manifest| {
        manifest.plugin_type = pb::PluginType::OneShot.into();
        manifest.execution_model =
            Some(pb::ExecutionModel { on_default: State::Disabled.into(), ..Default::default() });
    });
    assert_eq!(spec.execution.one_shot(), Some(&OneShot::default()));
    assert_eq!(spec.execution.rules.on_default, Enablement::Disabled);
    refused("execution_model.type is daemon", |_, manifest| {
        manifest.plugin_type = pb::PluginType::OneShot.into();
        manifest.execution_model = Some(pb::ExecutionModel {
            r#type: Some(em::Type::Daemon(em::Daemon {})),
            ..Default::default()
        });
    });
}

#[test]
fn a_value_too_deep_to_be_read_is_refused_by_name() {
    use prost_types::value::Kind;
    let mut value = prost_types::Value { kind: Some(Kind::BoolValue(true)) };
    for _ in 0..500 {
        let list = prost_types::ListValue { values: vec![value] };
        value = prost_types::Value { kind: Some(Kind::ListValue(list)) };
    }
    let rule = pb::Rules { value: Some(value), ..Default::default() };
    let mut order = good();
    order.manifest = Some(cfg::Manifest {
        execution_model: Some(pb::ExecutionModel { rules: vec![rule], ..Default::default() }),
        ..Default::default()
    });
    let bytes = pb::ConfigurePluginStates { configure_plugins: vec![order, good()] };
    let bytes = bytes.encode_to_vec();
    let mut orders = decode_orders(&bytes, Origin::ControlPlane).unwrap();
    assert!(orders.pop().unwrap().is_ok(), "the other one is good");
    let refusal = orders.pop().unwrap().unwrap_err();
    assert_eq!((refusal.name.as_str(), refusal.revision.as_str()), ("ops-agent", "1.2.3"));
    assert_eq!(refusal.notice, PluginEventKind::InstallFailed);
}

#[test]
fn a_refusal_is_told_as_the_failure_of_what_was_wanted() {
    for (action, notice) in [
        (i32::from(cfg::Action::Install), PluginEventKind::InstallFailed),
        (cfg::Action::Remove.into(), PluginEventKind::RemoveFailed),
        (cfg::Action::Apply.into(), PluginEventKind::ApplyFailed),
        (cfg::Action::Unspecified.into(), PluginEventKind::InstallFailed),
        (99, PluginEventKind::InstallFailed),
    ] {
        let plugin = cfg::Plugin { name: "-".to_owned(), ..Default::default() };
        let order = cfg::ConfigurePlugin { action, plugin: Some(plugin), manifest: None };
        assert_eq!(decoded(order, Origin::ControlPlane).unwrap_err().notice, notice, "{action}");
    }
    for action in [0, 99, -1] {
        let order = cfg::ConfigurePlugin { action, ..good() };
        let refusal = decoded(order, Origin::ControlPlane).unwrap_err();
        assert!(refusal.reason.contains("action"), "{refusal:?}");
        assert_eq!((refusal.name.as_str(), refusal.revision.as_str()), ("ops-agent", "1.2.3"));
    }
    let empty = decoded(cfg::ConfigurePlugin::default(), Origin::ControlPlane);
    assert!(empty.unwrap_err().reason.contains("plugin name"));
}

#[test]
fn an_order_says_which_plugin_and_revision_it_named_however_bad_they_are() {
    let named = |name: &str, revision: &str, action: cfg::Action| {
        let plugin = cfg::Plugin {
            name: name.to_owned(),
            revision_id: revision.to_owned(),
            ..Default::default()
        };
        let order =
            cfg::ConfigurePlugin { action: action.into(), plugin: Some(plugin), manifest: None };
        decoded(order, Origin::ControlPlane)
    };
    let long = "n".repeat(200);
    for action in [cfg::Action::Install, cfg::Action::Remove, cfg::Action::Apply] {
        let refusal = named(&long, "r/1", action).unwrap_err();
        assert_eq!((refusal.name.as_str(), refusal.revision.as_str()), (long.as_str(), "r/1"));
        let hostile = named("\u{1b}[31m", &"r".repeat(1 << 20), action).unwrap_err();
        assert_eq!((hostile.name.as_str(), hostile.revision.len()), ("\\u{1b}[31m", NAME_MAX));
    }
    for action in [cfg::Action::Remove, cfg::Action::Apply] {
        // They match by the name of the plugin alone.
        let order = named("ops-agent", "r\n7", action).unwrap();
        assert_eq!((order.name.as_str(), &*order.revision), ("ops-agent", "r\\n7"));
    }
}

#[test]
fn configurations_are_bounded_and_never_quoted() {
    let text = |text: String| Some(cfg::manifest::Config::StringConfig(text));
    refused("configuration", |_, manifest| {
        manifest.config = text("s3cr3t".repeat(200_000));
    });
    let plugin = cfg::Plugin { name: "a".to_owned(), ..Default::default() };
    let manifest = cfg::Manifest { config: text("x".repeat(2 << 20)), ..Default::default() };
    let order = cfg::ConfigurePlugin {
        action: cfg::Action::Apply.into(),
        plugin: Some(plugin),
        manifest: Some(manifest),
    };
    let refusal = decoded(order.clone(), Origin::ControlPlane).unwrap_err();
    assert_eq!(refusal.notice, PluginEventKind::ApplyFailed);
    assert!(refusal.reason.len() < 200);
    let silent = cfg::ConfigurePlugin { manifest: None, ..order };
    let cleared = decoded(silent, Origin::ControlPlane).unwrap();
    assert_eq!(cleared.order, Order::Apply(None), "an APPLY without a configuration clears it");
}

#[test]
fn the_hash_of_a_configuration_depends_on_nothing_but_its_content() {
    use prost_types::value::Kind;
    let value = |text: &str| prost_types::Value { kind: Some(Kind::StringValue(text.to_owned())) };
    let pairs = [("b", "2"), ("a", "1"), ("c", "3")];
    let hash = |pairs: &[(&str, &str)]| {
        let fields = pairs.iter().map(|(key, text)| ((*key).to_owned(), value(text))).collect();
        let config = cfg::manifest::Config::StructConfig(prost_types::Struct { fields });
        decode_config(Some(config)).unwrap().unwrap().digest()
    };
    let mut turned = pairs;
    turned.reverse();
    assert_eq!(hash(&pairs), hash(&turned));
    assert_ne!(hash(&pairs), hash(&pairs[1..]));
    let text = decode_config(Some(cfg::manifest::Config::StringConfig("test".to_owned())));
    assert_eq!(text.unwrap().unwrap().digest().to_string(), CHECKSUM);
    assert_eq!(decode_config(None), Ok(None));
}

#[test]
fn too_many_orders_are_refused_as_a_whole() {
    let many = pb::ConfigurePluginStates {
        configure_plugins: vec![cfg::ConfigurePlugin::default(); ORDERS_MAX + 1],
    };
    let error = decode_orders(&many.encode_to_vec(), Origin::Local).unwrap_err();
    assert!(error.to_string().contains("4097"), "{error}");
}

#[test]
fn a_broken_item_spoils_no_other() {
    let mut broken = good().encode_to_vec();
    let at = broken.windows(9).position(|bytes| bytes == b"ops-agent").unwrap();
    broken[at] = 0xff;
    let items = vec![good().encode_to_vec(), broken, good().encode_to_vec()];
    let orders = decode_orders(&Items { items }.encode_to_vec(), Origin::ControlPlane).unwrap();
    let taken: Vec<bool> = orders.iter().map(Result::is_ok).collect();
    assert_eq!(taken, [true, false, true]);
}

#[test]
fn messages_are_routed_by_their_label_alone() {
    let message = |kind: Option<&str>| InboundMessage {
        receipt: Receipt { stream: 1, message_id: "1".to_owned() },
        labels: kind.map(|kind| (MESSAGE_TYPE.to_owned(), kind.to_owned())).into_iter().collect(),
        body: vec![1],
    };
    let kind = |kind: &str| decode_request(&message(Some(kind)));
    assert_eq!(kind("agent_controlplane.GetAgentInfo").unwrap(), Request::AgentInfo);
    assert_eq!(kind("agent_controlplane.GetOSInfo").unwrap(), Request::OsInfo);
    assert_eq!(kind("agent_controlplane.ListPluginStates").unwrap(), Request::ListStates);
    let configure = kind("agent_controlplane.ConfigurePluginStates").unwrap();
    assert_eq!(configure, Request::Configure(vec![1]));
    assert!(matches!(decode_request(&message(None)), Err(WireError::NoType)));
    let error = kind(&"x".repeat(100_000)).unwrap_err();
    assert!(error.to_string().len() < 200);
}

fn view() -> PluginView {
    let spec = spec("a", "1");
    PluginView {
        name: spec.name.clone(),
        revision: spec.revision.clone(),
        state: Reported::Running,
        reason: "".into(),
        pending: None,
        generation: Generation(1),
        activity: Activity::Settled,
        pid: Some(1),
        endpoint: None,
        config_hash: None,
        restarts: 0,
        last_exit: None,
        started_at: None,
        health: None,
        progress: None,
        metrics: spec.metrics,
        runs: Runs::default(),
        last_output: "".into(),
        unenforced: Unenforced::default(),
        current: Some(spec.clone()),
        spec,
        history: crate::model::history::History::default(),
        limits: crate::model::spec::Limits::default(),
        limit_override: None,
        stopped: None,
        held: None,
        left: None,
        on_trial: false,
        way_back: None,
        needed: std::collections::BTreeSet::new(),
        outlook: crate::model::view::Outlook::default(),
    }
}

fn state_of(view: PluginView, points: Vec<Point>) -> cur::DaemonPluginState {
    let message = InboundMessage {
        receipt: Receipt { stream: 1, message_id: "1".to_owned() },
        labels: BTreeMap::new(),
        body: Vec::new(),
    };
    let sampled = points.len() as u64;
    let listed = Listed { view: Arc::new(view), points, sampled, newest: None, refusal: None };
    let reply = encode_states(&message, &[listed]);
    let mut states = pb::CurrentPluginStates::decode(&*reply.body).unwrap();
    states.daemon_plugin_states.pop().unwrap()
}

#[test]
fn every_state_has_its_wire_name() {
    for (state, name) in [
        (Reported::Installing, "INSTALLING"),
        (Reported::InstallFailed, "INSTALL_FAILED"),
        (Reported::Starting, "STARTING"),
        (Reported::Running, "RUNNING"),
        (Reported::Stopping, "STOPPING"),
        (Reported::Stopped, "STOPPED"),
        (Reported::Crashed, "CRASHED"),
    ] {
        let shown = state_of(PluginView { state, ..view() }, Vec::new());
        let status = shown.current_plugin_status.unwrap();
        assert_eq!(status.status().as_str_name(), name);
        assert_eq!(state_name(state), name);
    }
}

#[test]
fn a_status_has_the_time_of_the_health_check_that_it_shows() {
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1500);
    let (revision, health) = ("2".parse().unwrap(), Health { code: 0, results: Vec::new() });
    let pending = Pending { revision, state: Reported::Installing, error: "".into() };
    let checked = PluginView { health: Some((health, at)), pending: Some(pending), ..view() };
    let shown = state_of(checked, Vec::new());
    let time = shown.current_plugin_status.unwrap().update_time.unwrap();
    assert_eq!((time.seconds, time.nanos), (1, 500_000_000));
    let pending = shown.pending_plugin_status.unwrap();
    assert_eq!(pending.update_time, None, "nobody checked the revision that is coming");
    let shown = state_of(view(), Vec::new());
    assert_eq!(shown.current_plugin_status.unwrap().update_time, None, "before the first");
    let last_exit = Some((ExitCause::Exited(1), Some(at)));
    let crashed = PluginView { state: Reported::Crashed, last_exit, ..view() };
    let shown = state_of(crashed, Vec::new());
    assert_eq!(shown.current_plugin_status.unwrap().update_time, None, "it shows no check");
}

#[test]
fn a_plain_plugin_is_shown_without_what_it_does_not_have() {
    let shown = state_of(view(), Vec::new());
    assert_eq!((shown.name.as_str(), shown.current_revision_id.as_str()), ("a", "1"));
    assert_eq!(shown.pending_revision_id, "");
    assert_eq!(shown.pending_plugin_status, None);
    assert_eq!(shown.config_hash, "");
    assert_eq!(shown.current_plugin_status.unwrap().results, Vec::<String>::new());
}

#[test]
fn health_reason_pending_and_samples_are_shown() {
    let revision: RevisionId = "2".parse().unwrap();
    let pending = Pending { revision, state: Reported::InstallFailed, error: "404".into() };
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(7);
    let points = vec![
        Point { at, cpu_percent: 12.5, memory_bytes: 4096, cpu_time: Duration::ZERO },
        Point { at, cpu_percent: 200.0, memory_bytes: u64::MAX, cpu_time: Duration::MAX },
    ];
    let health = Health { code: 3, results: vec!["disk full".to_owned()] };
    let shown = state_of(
        PluginView {
            reason: "crashed".into(),
            pending: Some(pending),
            health: Some((health, at)),
            config_hash: Some(Sha256Digest::of(b"test")),
            ..view()
        },
        points,
    );
    let current = shown.current_plugin_status.unwrap();
    assert_eq!((current.response_code, current.results), (3, vec!["disk full".to_owned()]));
    assert_eq!(shown.pending_revision_id, "2");
    let pending = shown.pending_plugin_status.unwrap();
    assert_eq!(pending.status().as_str_name(), "INSTALL_FAILED");
    assert_eq!(pending.results, ["404"]);
    assert_eq!(shown.config_hash, CHECKSUM);
    assert_eq!(shown.current_plugin_metrics.len(), 2);
    assert_eq!(shown.current_plugin_metrics[0].cpu_usage, 12.5);
    assert_eq!(shown.current_plugin_metrics[0].memory_usage, 4096);
    assert_eq!(shown.current_plugin_metrics[1].memory_usage, i64::MAX);

    let reason = PluginView { reason: "exited with code 1".into(), ..view() };
    let shown = state_of(reason, Vec::new());
    assert_eq!(shown.current_plugin_status.unwrap().results, ["exited with code 1"]);
}

#[test]
fn every_kind_of_event_has_its_own_number_and_name_on_the_wire() {
    let mut numbers = std::collections::BTreeSet::new();
    for &kind in PluginEventKind::ALL {
        assert!(numbers.insert(event_number(kind)), "{kind:?} shares its number");
        assert_eq!(event_kind(event_number(kind)), Some(kind));
        assert!(event_name(kind).starts_with("PLUGIN_"));
    }
    assert_eq!(event_kind(0), None);
    assert_eq!(event_kind(99), None);
    let (public, own): (Vec<_>, Vec<_>) = numbers.into_iter().partition(|number| *number < 1000);
    assert_eq!(public, (1..=15).collect::<Vec<_>>());
    assert_eq!(own, [1001, 1002]);
    for &kind in PluginEventKind::ALL {
        assert_eq!(kind.is_public(), event_number(kind) <= 15, "{kind:?}");
    }
}

#[test]
fn every_kind_of_event_comes_back_from_its_record_and_is_sent_as_itself() {
    for &kind in PluginEventKind::ALL {
        let event = NewEvent::new(kind, "a", "1", SystemTime::UNIX_EPOCH, "details");
        let stored = StoredEvent { seq: 7, id: "id".into(), event };
        let key = crate::keys::number_key(stored.seq);
        let read = StoredEvent::decode(&key, &stored.encode());
        assert_eq!(read.expect("a record of its own"), stored);
        let sent = encode_event(&stored).body;
        let sent = pb::PluginEventMessage::decode(sent.as_slice()).expect("a message of its own");
        assert_eq!(event_kind(sent.event_type), Some(kind));
    }
}

#[test]
fn an_event_is_encoded_under_its_id_and_its_details_are_bounded() {
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(9);
    let event = NewEvent::new(
        PluginEventKind::Crashed,
        &"p".repeat(999),
        "1",
        at,
        &"é".repeat(DETAILS_MAX),
    );
    assert!(event.details.len() <= DETAILS_MAX && event.details.len() > DETAILS_MAX - 2);
    let recorded = StoredEvent { seq: 1, id: "id-1".into(), event };
    let message = encode_event(&recorded);
    assert_eq!(message.id, "id-1");
    assert_eq!(message.type_url, "type.googleapis.com/agent_controlplane.PluginEventMessage");
    let body = pb::PluginEventMessage::decode(&*message.body).unwrap();
    assert_eq!(body.event_type, 7);
    assert_eq!(body.plugin_name.len(), 256);
    assert_eq!(body.event_timestamp.unwrap().seconds, 9);
    assert_eq!(body.event_details.unwrap().len(), recorded.event.details.len());
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "[a-z0-9.-]{1,12}",
        ".{0,80}",
        Just(CHECKSUM.to_owned()),
        Just("https://store/a?sig=s3cr3t".to_owned()),
        Just("bin/agent".to_owned()),
    ]
}

fn any_duration() -> impl Strategy<Value = Option<prost_types::Duration>> {
    proptest::option::of(prop_oneof![
        (0i64..4000, 0i32..1_000_000_000)
            .prop_map(|(seconds, nanos)| prost_types::Duration { seconds, nanos }),
        any::<(i64, i32)>().prop_map(|(seconds, nanos)| prost_types::Duration { seconds, nanos }),
    ])
}

prop_compose! {
    fn any_order()(
        action in -1i32..6,
        texts in proptest::array::uniform6(any_text()),
        durations in proptest::array::uniform4(any_duration()),
        numbers in any::<(i64, i32, i32, i32, u64)>(),
        small in (0i32..120, 0i32..120, 0i32..12),
        use_small in any::<bool>(),
        kinds in (0i32..4, 0i32..3),
        config in proptest::option::of(".{0,40}"),
    ) -> cfg::ConfigurePlugin {
        let [name, revision_id, gcs_signed_url, entry_point, argument, checksum] = texts;
        let [metrics_interval, download_timeout, start_timeout, stop_timeout] = durations;
        let (memory, cpu, a, b, points) = numbers;
        let (download, start, factor) = if use_small { small } else { (a, b, cpu) };
        let plugin = cfg::Plugin {
            name, revision_id, gcs_signed_url, entry_point, checksum, arguments: vec![argument],
        };
        let manifest = cfg::Manifest {
            max_memory_usage_bytes: if use_small { 0 } else { memory },
            max_cpu_usage_percentage: if use_small { 0 } else { cpu },
            metrics_interval, download_timeout, start_timeout, stop_timeout,
            download_attempt_count: download,
            start_attempt_count: start,
            max_metric_datapoints: if use_small { points % 100 } else { points },
            start_exp_backoff_factor: factor,
            plugin_type: kinds.0,
            plugin_installation_type: kinds.1,
            execution_model: None,
            config: config.map(cfg::manifest::Config::StringConfig),
        };
        cfg::ConfigurePlugin { action, plugin: Some(plugin), manifest: Some(manifest) }
    }
}

proptest! {
    #[test]
    fn law_arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(orders) = decode_orders(&bytes, Origin::Local) {
            prop_assert!(orders.len() <= bytes.len());
        }
    }

    #[test]
    fn law_arbitrary_orders_are_taken_within_bounds_or_refused_without_secrets(
        orders in proptest::collection::vec(any_order(), 0..4)
    ) {
        let message = pb::ConfigurePluginStates { configure_plugins: orders };
        let decoded = decode_orders(&message.encode_to_vec(), Origin::ControlPlane).unwrap();
        prop_assert_eq!(decoded.len(), message.configure_plugins.len());
        for order in decoded {
            match order {
                Ok(NamedOrder { name, order: Order::Install(spec), .. }) => {
                    let hour = Duration::from_secs(3600);
                    prop_assert_eq!(name, spec.name.clone());
                    prop_assert!((1..=100).contains(&spec.download.attempts));
                    prop_assert!((1..=100).contains(&spec.start.attempts));
                    prop_assert!(spec.start.timeout <= hour && !spec.start.timeout.is_zero());
                    prop_assert!(spec.stop_timeout <= hour && !spec.stop_timeout.is_zero());
                    prop_assert!(spec.metrics.interval >= Duration::from_secs(1));
                    prop_assert!((1..=10_000).contains(&spec.metrics.points));
                    let shown = format!("{spec:?}");
                    prop_assert!(!shown.contains("s3cr3t"), "{}", shown);
                }
                Ok(_) => {}
                Err(refusal) => {
                    prop_assert!(!refusal.reason.is_empty());
                    prop_assert!(refusal.reason.len() < 1000);
                }
            }
        }
    }
}
