//! A parser of the OpenMetrics text format that shares no code with the encoder reads the page
//! back, with any names and texts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_agent_actors::fakes::sample_view;
use guest_agent_actors::messages::{Listed, Reading};
use guest_agent_actors::model::act::Left;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::history::Crash;
use guest_agent_actors::model::view::{Pending, Reported};
use guest_agent_actors::outbox::Weight;
use guest_agent_actors::ports::{
    Count, Counters, Health, MemoryBasis, MemoryUse, OrderKind, Outcome,
};
use guest_agent_serve_kit::connection_counters;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use proptest::prelude::*;

use guest_agent_observe_kit::open_metrics::OpenMetrics;

use super::catalogue::{Kind, METRICS};
use super::counters::Counted;
use super::own::{Machine, Own, Process};
use super::page::Format;
use super::snapshot::{SetAside, Snapshot};
use super::*;
use crate::config::LogDestination;
use crate::net::certificates::Use;
use crate::observe::forwarding::Figures;

mod files;
pub(crate) mod golden;
mod parser;

use parser::{Family, parse};

fn snapshot(plugins: Vec<Listed>, counted: Counted) -> Snapshot {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    Snapshot {
        now,
        started_at: now - Duration::from_secs(100),
        is_ready: true,
        link_is_up: Some(false),
        connections: 3,
        store_works: true,
        set_aside: SetAside { stores: 1, records: 2 },
        refused: Vec::new(),
        backlog: Some(Weight { events: 7, bytes: 512, oldest: Some(now - Duration::from_secs(9)) }),
        inbox: Some(1),
        offers: 2,
        token_expiries: vec![("grafana".into(), now + Duration::from_secs(86_400))],
        forwarding: forwarded(plugins.first()),
        listeners: vec![connection_counters::Counted {
            label: connection_counters::Label { listener: "http", places: "usual" },
            open: 3,
            limit: 96,
            refused: 2,
            shed: 5,
        }],
        certificates: vec![(Use::Http, now + Duration::from_secs(86400))],
        counted,
        plugins: Some(plugins),
        own: Own {
            process: Some(Process {
                cpu_time: Duration::from_millis(1500),
                memory_bytes: 9 << 20,
                descriptors: Some(20),
                descriptors_max: Some(1024),
            }),
            machine: Some(Machine { memory: 4 << 30, available: 1 << 30 }),
            load: Some(0.5),
        },
    }
}

/// Both destinations, one of which has taken lines of this plugin and has some to take.
fn forwarded(plugin: Option<&Listed>) -> BTreeMap<LogDestination, Figures> {
    let lag = plugin.map(|listed| (listed.view.name.clone(), 77)).into_iter().collect();
    let trouble = Some("it does not answer".to_owned());
    let figures =
        Figures { lines: 12, bytes: 345, missing_bytes: 6, refused: 7, failures: 8, lag, trouble };
    BTreeMap::from([
        (LogDestination::Journald, Figures::default()),
        (LogDestination::Otlp, figures),
    ])
}

/// A snapshot of so many plugins, with a sample of every metric.
pub(crate) fn sample(plugins: usize) -> Snapshot {
    let all = (0..plugins).map(|number| plugin(&format!("p{number}"), "r1"));
    snapshot(all.collect(), counted("p0"))
}

/// A plugin with all values known.
fn plugin(name: &str, revision: &str) -> Listed {
    let mut view = sample_view(name, revision);
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    view.state = Reported::Running;
    let limits = &mut view.limits;
    (limits.memory_bytes, limits.cpu_percent) = (Some(64 << 20), Some(150));
    view.stopped = Some("root".into());
    view.restarts = 4;
    view.history.crashes = vec![Crash { at: SystemTime::UNIX_EPOCH, ran: Duration::ZERO }];
    view.last_exit = Some((ExitCause::Signaled(9), Some(at)));
    view.started_at = Some(at + Duration::from_secs(1));
    view.health = Some((Health { code: -2, results: vec!["bad".to_owned()] }, at));
    view.pending = Some(Pending {
        revision: revision.parse().expect("a revision"),
        state: Reported::InstallFailed,
        error: "\"no\"\nway".into(),
    });
    let memory = MemoryUse { bytes: 1234, basis: MemoryBasis::WorkingSet, resident: 1000 };
    let cpu_time = Duration::from_millis(2500);
    let newest = Some(Reading { at, cpu_percent: Some(10.0), memory, cpu_time });
    Listed { view: Arc::new(view), points: Vec::new(), sampled: 1, newest, refusal: None }
}

fn counted(plugin: &str) -> Counted {
    let counts = Counts::default();
    let plugin: guest_agent_actors::model::id::PluginName = plugin.parse().expect("a name");
    let took = Duration::from_millis(30);
    counts.note(Count::Saved { took, outcome: Outcome::Succeeded });
    counts.note(Count::Saved { took: Duration::from_secs(60), outcome: Outcome::Failed });
    counts.note(Count::Ordered { kind: OrderKind::Remove, outcome: Outcome::Failed });
    let outcome = Outcome::Succeeded;
    counts.note(Count::Installed { plugin: plugin.clone(), took, outcome });
    counts.note(Count::Swept { deleted: 2, failed: 1 });
    counts.note(Count::Crashed {
        plugin: plugin.clone(),
        cause: ExitCause::OverMemoryLimit { peak: None },
    });
    counts.now(Some(&BTreeSet::from([&plugin])))
}

fn page(plugins: Vec<Listed>, counted: Counted) -> BTreeMap<String, Family> {
    let text = page::render(snapshot(plugins, counted), Format::OpenMetrics).expect("a page");
    parse(&text).unwrap_or_else(|why| panic!("{why}\n{text}"))
}

/// The value of the only sample of this name with these labels.
#[track_caller]
fn value(families: &BTreeMap<String, Family>, name: &str, labels: &[(&str, &str)]) -> f64 {
    let samples = families.values().flat_map(|family| &family.samples);
    let wanted = |sample: &&parser::Sample| {
        let has = |(name, value): &(&str, &str)| {
            sample.labels.get(*name).is_some_and(|found| found == value)
        };
        sample.name == name && sample.labels.len() == labels.len() && labels.iter().all(has)
    };
    let found: Vec<f64> = samples.filter(wanted).map(|sample| sample.value).collect();
    assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
    found[0]
}

#[test]
fn everything_in_the_catalogue_is_on_the_page_as_the_catalogue_says() {
    let families = page(vec![plugin("web", "r1")], counted("web"));
    let names: BTreeSet<_> = families.keys().cloned().collect();
    let known: BTreeSet<_> = METRICS.iter().map(|metric| metric.family()).collect();
    assert_eq!(names, known);
    for metric in METRICS {
        let family = &families[&metric.family()];
        assert_eq!(family.help, metric.help);
        assert_eq!(family.unit.as_deref(), metric.unit.as_str());
        let kind = match metric.kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
            Kind::Info => "info",
        };
        assert_eq!(family.kind, kind, "{}", metric.name);
        for sample in &family.samples {
            assert!(metric.samples().contains(&sample.name), "{}", sample.name);
            let labels: BTreeSet<_> = sample.labels.keys().map(String::as_str).collect();
            let mut expected: BTreeSet<_> = metric.labels.iter().copied().collect();
            if sample.name.ends_with("_bucket") {
                expected.insert("le");
            }
            assert_eq!(labels, expected, "{}", sample.name);
        }
    }
}

#[test]
fn numbers_are_those_of_the_snapshot() {
    let families = page(vec![plugin("web", "r1"), plugin("db", "r2")], counted("web"));
    let of = |name: &str, labels: &[(&str, &str)]| value(&families, name, labels);
    let web = ("plugin", "web");
    assert_eq!(of("guest_agent_link_up", &[]), 0.0);
    assert_eq!(of("guest_agent_link_connections_total", &[]), 3.0);
    assert_eq!(of("guest_agent_outbox_lag_seconds", &[]), 9.0);
    assert_eq!(of("guest_agent_outbox_bytes", &[]), 512.0);
    assert_eq!(of("guest_agent_orders_total", &[("kind", "remove"), ("outcome", "refused")]), 1.0);
    assert_eq!(of("guest_agent_orders_total", &[("kind", "install"), ("outcome", "taken")]), 0.0);
    assert_eq!(of("guest_agent_saves_total", &[("outcome", "failed")]), 1.0);
    assert_eq!(of("guest_agent_save_duration_seconds_bucket", &[("le", "0.025")]), 0.0);
    assert_eq!(of("guest_agent_save_duration_seconds_bucket", &[("le", "0.05")]), 1.0);
    assert_eq!(of("guest_agent_save_duration_seconds_bucket", &[("le", "+Inf")]), 2.0);
    assert_eq!(of("guest_agent_plugins", &[("state", "RUNNING")]), 2.0);
    assert_eq!(of("guest_agent_plugins", &[("state", "CRASHED")]), 0.0);
    assert_eq!(of("guest_agent_plugin_state", &[web, ("state", "RUNNING")]), 1.0);
    assert_eq!(of("guest_agent_plugin_restarts_total", &[web]), 4.0);
    assert_eq!(of("guest_agent_plugin_crashes_total", &[web, ("cause", "oom")]), 1.0);
    assert_eq!(of("guest_agent_plugin_crashes_total", &[web, ("cause", "signaled")]), 0.0);
    let db = ("plugin", "db");
    assert_eq!(of("guest_agent_plugin_crashes_total", &[db, ("cause", "oom")]), 0.0);
    assert_eq!(of("guest_agent_plugin_cpu_limit_cores", &[web]), 1.5);
    let verdict = [web, ("verdict", "failing"), ("cause", "unhealthy")];
    assert_eq!(of("guest_agent_plugin_verdict", &verdict), 1.0);
    assert_eq!(of("guest_agent_plugin_held", &[web, ("how", "stopped")]), 1.0);
    assert_eq!(of("guest_agent_store_set_aside", &[("what", "store")]), 1.0);
    assert_eq!(of("guest_agent_store_set_aside", &[("what", "record")]), 2.0);
    assert_eq!(of("guest_agent_plugin_cpu_seconds_total", &[web]), 2.5);
    assert_eq!(of("guest_agent_plugin_memory_bytes", &[web]), 1234.0);
    assert_eq!(of("guest_agent_plugin_health_code", &[web]), -2.0);
    let exit = [web, ("cause", "signaled"), ("detail", "9")];
    assert_eq!(of("guest_agent_plugin_last_exit_timestamp_seconds", &exit), 1_700_000_000.0);
    assert_eq!(of("guest_agent_plugin_last_install_seconds", &[web]), 0.03);
    assert_eq!(of("process_cpu_seconds_total", &[]), 1.5);
}

#[test]
fn a_revision_that_failed_is_pending_and_one_that_a_person_rolled_back_is_not() {
    let failed = plugin("web", "r1");
    let mut rolled = plugin("db", "r2");
    let left = Left { revision: "r2".parse().expect("a revision"), by: "root".into() };
    Arc::make_mut(&mut rolled.view).left = Some(left);
    let families = page(vec![failed, rolled], Counted::default());
    let pending = &families["guest_agent_plugin_pending"].samples;
    assert_eq!(pending.len(), 1);
    assert_eq!(
        (&*pending[0].labels["plugin"], &*pending[0].labels["state"]),
        ("web", "INSTALL_FAILED")
    );
}

#[test]
fn a_page_of_very_many_plugins_ends_and_says_so() {
    let many = figures::PLUGINS_MAX + 5;
    let plugins = (0..many).map(|number| plugin(&format!("p{number}"), "r")).collect();
    let families = page(plugins, Counted::default());
    assert_eq!(value(&families, "guest_agent_plugins_not_shown", &[]), 5.0);
    assert_eq!(families["guest_agent_plugin_state"].samples.len(), figures::PLUGINS_MAX);
    let total: f64 = families["guest_agent_plugins"].samples.iter().map(|it| it.value).sum();
    assert_eq!(total, f64::from(u32::try_from(many).expect("it fits")));
}

#[test]
fn what_is_not_known_is_absent_and_nothing_is_made_up() {
    let mut empty = snapshot(Vec::new(), Counted::default());
    (empty.plugins, empty.backlog, empty.inbox, empty.link_is_up) = (None, None, None, None);
    empty.own = Own::default();
    let families =
        parse(&page::render(empty, Format::OpenMetrics).expect("a page")).expect("OpenMetrics");
    for absent in [
        "guest_agent_plugins",
        "guest_agent_plugin",
        "guest_agent_plugin_state",
        "guest_agent_outbox_events",
        "guest_agent_link_up",
        "process_open_fds",
    ] {
        assert!(!families.contains_key(absent), "{absent}");
    }
    assert_eq!(value(&families, "guest_agent_ready", &[]), 1.0);
}

#[test]
fn the_old_format_has_the_same_samples_under_families_of_their_own_names() {
    let page = |format| {
        page::render(snapshot(vec![plugin("web", "r1")], counted("web")), format).expect("a page")
    };
    let (text, old) = (page(Format::OpenMetrics), page(Format::Prometheus));
    let samples = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    };
    assert_eq!(samples(&text), samples(&old));
    assert!(!old.contains("# EOF") && !old.contains("# UNIT") && old.ends_with('\n'));
    for line in [
        "# TYPE guest_agent_plugin_restarts_total counter",
        "# TYPE guest_agent_build_info gauge",
        "# TYPE guest_agent_save_duration_seconds histogram",
        "# TYPE guest_agent_outbox_bytes gauge",
    ] {
        assert!(old.lines().any(|found| found == line), "{line}\n{old}");
    }
    let mut families = BTreeSet::new();
    for line in old.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        assert!(families.insert(line.split(' ').next()), "{line} stands twice");
    }
}

/// A page with one sample that has these labels.
#[derive(Debug)]
struct Hostile([String; 3]);

impl Collector for Hostile {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let values = self.0.iter().map(String::as_str).collect();
        figures::Writer(&mut OpenMetrics(encoder))
            .gauges(&catalogue::PLUGIN_PENDING, [(values, 1.0)])
    }
}

proptest! {
    #[test]
    fn law_labels_come_back_as_they_were_whatever_stands_in_them(values: [String; 3]) {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Hostile(values.clone())));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("a page");
        let families = parse(&text).expect("OpenMetrics");
        let labels = &families["guest_agent_plugin_pending"].samples[0].labels;
        let [plugin, revision, state] = values;
        prop_assert_eq!(&labels["plugin"], &plugin);
        prop_assert_eq!(&labels["revision"], &revision);
        prop_assert_eq!(&labels["state"], &state);
    }

    #[test]
    fn law_the_page_can_be_read_whatever_plugins_are_called(
        names in proptest::collection::btree_set(r"[a-z0-9][a-zA-Z0-9._-]{0,20}", 0..20),
        restarts: u32,
        memory: u64,
        code: i32,
        exit: i32,
    ) {
        let plugins = names.iter().filter(|name| name.parse::<guest_agent_actors::model::id::PluginName>().is_ok());
        let plugins: Vec<Listed> = plugins.map(|name| {
            let mut listed = plugin(name, "r1");
            let mut view = (*listed.view).clone();
            (view.restarts, view.last_exit) = (restarts, Some((ExitCause::Exited(exit), None)));
            view.health = Some((Health { code, results: Vec::new() }, SystemTime::UNIX_EPOCH));
            listed.view = Arc::new(view);
            listed.newest = listed
                .newest
                .map(|reading| Reading { memory: MemoryUse::of_tree(memory), ..reading });
            listed
        }).collect();
        let count = plugins.len();
        let families = page(plugins, Counted::default());
        let shown = families.get("guest_agent_plugin_restarts").map_or(0, |it| it.samples.len());
        prop_assert_eq!(shown, count);
    }
}
