//! What is exported declares the same, and what was applied is not applied again.

use std::collections::BTreeMap;

use guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    Action, ConfigurePlugin, Manifest, Plugin,
};
use guest_fleet_core::rollout::{self, Label, OnHalt, Size, StrategyWave};
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::{
    Archive, Assignment, Hold, Plugins, Release, ReleaseName, Target, Window,
};
use guest_fleet_core::window::Weekly;
use guest_fleet_ledger::records::configuration::{
    ASSIGNMENT, AssignmentRecord, DEFAULTS, DefaultsRecord, HOLD, HoldRecord, ReleaseRecord,
    WINDOW, WindowRecord, release_key,
};
use guest_fleet_ledger::{Bucket, MemoryLedger};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use prost::Message;
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};

use super::super::difference::{Undeclared, difference};
use super::super::export;
use super::{toml, whole_toml, yaml};
use crate::configuration::Configuration;
use crate::configuration::change::{Becomes, Edit};

fn loaded(ledger: &MemoryLedger) -> Configuration {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(Configuration::load(ledger)).expect("it is readable")
}

fn put(ledger: &MemoryLedger, edits: &[Edit]) {
    for edit in edits {
        if let Becomes::Bytes(bytes) = &edit.record {
            ledger.put(Bucket::Configuration, &edit.key, bytes.to_vec());
        }
    }
}

#[test]
fn what_is_there_is_not_changed() {
    let ledger = MemoryLedger::new();
    let declared = toml(&whole_toml());
    let first = difference(&declared, &loaded(&ledger), "alice", Undeclared::Keep).unwrap();
    assert_eq!((first.edits.len(), first.unchanged), (5, 0));
    put(&ledger, &first.edits);
    // Another person, another format.
    let again = yaml(&super::whole_yaml());
    let second = difference(&again, &loaded(&ledger), "bob", Undeclared::Keep).unwrap();
    assert_eq!((second.edits.len(), second.unchanged), (0, 5));
}

#[test]
fn a_release_with_another_content_is_refused_with_the_fix() {
    let ledger = MemoryLedger::new();
    let declared = toml(&whole_toml());
    let first = difference(&declared, &loaded(&ledger), "alice", Undeclared::Keep).unwrap();
    put(&ledger, &first.edits);
    let problem = |from: &str, to: &str| {
        let changed = toml(&whole_toml().replacen(from, to, 1));
        let refused = difference(&changed, &loaded(&ledger), "alice", Undeclared::Keep);
        refused.expect_err("it is refused").0[0].to_string()
    };
    assert_eq!(
        problem("--quiet", "--loud"),
        "a.toml:2:1: release: the ledger has this release with another entry point, arguments, \
         configuration or manifest; a release never changes: declare this as a new revision of \
         `monitor`"
    );
    assert!(problem("9f86", "0000").contains("with other archives;"));
}

#[test]
fn an_assignment_needs_its_release() {
    let ledger = MemoryLedger::new();
    let text = "[[assignment]]\nname = \"a\"\nplugin = \"p\"\nrevision = \"1\"\nselect = \"all\"\n";
    let problem = |mode| {
        let refused = difference(&toml(text), &loaded(&ledger), "alice", mode);
        refused.expect_err("it is refused").0[0].reason.clone()
    };
    assert_eq!(problem(Undeclared::Keep), "there is no release p 1");
    let name = ReleaseName { plugin: "p".to_owned(), revision: "1".to_owned() };
    let record = ReleaseRecord::of(&name, &Release::default());
    ledger.put(Bucket::Configuration, &release_key(&name), record.encode_to_vec());
    assert!(difference(&toml(text), &loaded(&ledger), "alice", Undeclared::Keep).is_ok());
    assert_eq!(problem(Undeclared::Delete), "no file declares the release p 1");
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z .\"'\\\\\n\t]{0,12}", "\\PC{0,8}", any::<String>()]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Kind::BoolValue),
        any::<f64>()
            .prop_filter("JSON has no other", |it| it.is_finite())
            .prop_map(Kind::NumberValue),
        (-1000_i32..1000).prop_map(|it| Kind::NumberValue(it.into())),
        text().prop_map(Kind::StringValue),
    ];
    let kind = leaf.prop_recursive(3, 24, 4, |inner| {
        let value = inner.prop_map(|kind| Value { kind: Some(kind) });
        prop_oneof![
            vec(value.clone(), 0..4).prop_map(|values| Kind::ListValue(ListValue { values })),
            btree_map(text(), value, 0..4).prop_map(|fields| Kind::StructValue(Struct { fields })),
        ]
    });
    kind.prop_map(|kind| Value { kind: Some(kind) })
}

fn config() -> impl Strategy<Value = Option<Config>> {
    prop_oneof![
        Just(None),
        text().prop_map(|text| Some(Config::StringConfig(text))),
        btree_map(text(), value(), 0..5)
            .prop_map(|fields| Some(Config::StructConfig(Struct { fields }))),
    ]
}

fn id() -> impl Strategy<Value = String> {
    "[A-Za-z0-9][A-Za-z0-9._-]{0,8}".prop_filter("it is reserved", |id| id != "current")
}

fn name() -> impl Strategy<Value = String> {
    "[a-z0-9]([a-z0-9-]{0,6}[a-z0-9])?"
}

fn release() -> impl Strategy<Value = (ReleaseName, Release)> {
    let archive =
        ("[0-9a-f]{64}", prop_oneof![Just(String::new()), Just("https://e.org/a".to_owned())]);
    let archive = archive.prop_map(|(digest, url)| Archive { digest, url });
    let archives = btree_map(prop_oneof!["amd64", "arm64", "any"], archive, 1..3);
    let argument = text().prop_filter("agents take no NUL", |text| !text.contains('\0'));
    let limits = (0_i64..=i64::MAX, 0_i32..=i32::MAX, 0_u64..=10_000, 0_i32..=100);
    let timeout = prop_oneof![Just(None), (1_i64..3600).prop_map(Some)];
    let whole = (id(), id(), archives, vec(argument, 0..3), config(), limits, timeout);
    whole.prop_map(|(plugin, revision, archives, arguments, config, limits, timeout)| {
        let manifest = Manifest {
            max_memory_usage_bytes: limits.0,
            max_cpu_usage_percentage: limits.1,
            max_metric_datapoints: limits.2,
            start_attempt_count: limits.3,
            start_timeout: timeout
                .map(|seconds| prost_types::Duration { seconds, nanos: 500_000_000 }),
            config,
            ..Manifest::default()
        };
        let order = ConfigurePlugin {
            action: Action::Install.into(),
            plugin: Some(Plugin {
                name: plugin.clone(),
                revision_id: revision.clone(),
                entry_point: "bin/p".to_owned(),
                arguments,
                ..Plugin::default()
            }),
            manifest: Some(manifest),
        };
        (ReleaseName { plugin, revision }, Release { archives, order: order.encode_to_vec() })
    })
}

fn selector() -> impl Strategy<Value = (Selector, OwnLabels)> {
    let texts = ["all", "env = \"a b\"", "a in (b, c) and not d exists", "self.a = b"];
    proptest::sample::select(texts.to_vec()).prop_map(|text| {
        let selector = Selector::parse(text).expect("a selector");
        let is_own = selector.names_own_labels();
        (selector, if is_own { OwnLabels::Trusted } else { OwnLabels::Ignored })
    })
}

fn plugins() -> impl Strategy<Value = Plugins> {
    prop_oneof![Just(Plugins::All), btree_set(id(), 1..3).prop_map(Plugins::Named)]
}

fn hold() -> impl Strategy<Value = Hold> {
    let reason = "[^\\p{Cc}]{0,10}x";
    let until = prop_oneof![Just(None), (1_u64..4_000_000_000).prop_map(|at| Some(Seconds(at)))];
    (selector(), plugins(), reason, until).prop_map(
        |((selector, own_labels), plugins, reason, until)| Hold {
            selector,
            own_labels,
            plugins,
            reason,
            by: "alice".to_owned(),
            until,
        },
    )
}

fn weekly() -> impl Strategy<Value = Weekly> {
    let days = any::<[bool; 7]>().prop_filter("it opens", |days| days.contains(&true));
    let zone = prop_oneof!["UTC", "Europe/Zurich"];
    (days, 0_u16..1440, 1_u16..1440, zone).prop_map(|(days, opens, minutes, zone)| Weekly {
        days,
        opens,
        minutes,
        zone,
    })
}

fn window() -> impl Strategy<Value = Window> {
    (selector(), plugins(), weekly()).prop_map(|((selector, own_labels), plugins, weekly)| Window {
        selector,
        own_labels,
        plugins,
        weekly,
    })
}

fn strategy() -> impl Strategy<Value = rollout::Strategy> {
    let label = ("[a-z]{1,9}", "[a-z0-9]{1,9}").prop_map(|(key, value)| Label { key, value });
    let size = prop_oneof![
        (1_u32..100).prop_map(Size::Count),
        (1_u8..=100).prop_map(Size::Percent),
        label.prop_map(Size::Label),
    ];
    let soak = || prop::option::of(0_u64..100_000);
    let wave = (size, soak(), any::<bool>())
        .prop_map(|(size, soak, needs_approval)| StrategyWave { size, soak, needs_approval });
    let waves = prop_oneof![
        Just(Vec::new()),
        prop::collection::vec(wave, 0..4).prop_map(|mut waves| {
            waves.push("100%".parse().expect("a wave"));
            waves
        })
    ];
    let on_halt = prop_oneof![Just(None), Just(Some(OnHalt::Stay)), Just(Some(OnHalt::GoBack))];
    let budget = prop::option::of(1_u32..10_000);
    let windows = prop::collection::vec(weekly(), 0..3);
    (waves, soak(), budget, any::<Option<bool>>(), windows, on_halt).prop_map(
        |(waves, soak, budget, approval, windows, on_halt)| rollout::Strategy {
            waves,
            soak,
            budget,
            approval,
            windows,
            on_halt,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn law_no_text_is_too_strange_to_be_refused(
        at in any::<prop::sample::Index>(),
        cut in 0_usize..60,
        put in prop_oneof!["[ \\n\\[\\]{}:,\"'*&!|>?#=-]{0,12}", any::<String>()],
        is_toml in any::<bool>(),
    ) {
        let (format, text) = match is_toml {
            true => (super::Format::Toml, whole_toml()),
            false => (super::Format::Yaml, super::whole_yaml()),
        };
        let from = text.floor_char_boundary(at.index(text.len()));
        let to = text.ceil_char_boundary(from + cut.min(text.len() - from));
        let text = [&text[..from], &put, &text[to..]].concat();
        if let Err(problems) = super::parsed(format, &text) {
            for problem in problems.0 {
                prop_assert!(!problem.reason.is_empty() && !problem.fix.is_empty(), "{problem}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn law_what_is_exported_declares_the_same(
        releases in vec(release(), 1..3),
        assignments in btree_map(name(), (selector(), any::<i32>(), any::<bool>(), strategy()), 0..3),
        defaults in strategy(),
        holds in btree_map(name(), hold(), 0..3),
        windows in btree_map(name(), window(), 0..3),
    ) {
        let releases: BTreeMap<_, _> = releases.into_iter().collect();
        let ledger = MemoryLedger::new();
        let put = |key: String, bytes: Vec<u8>| ledger.put(Bucket::Configuration, &key, bytes);
        for (name, release) in &releases {
            put(release_key(name), ReleaseRecord::of(name, release).encode_to_vec());
        }
        let any = releases.keys().next().expect("a release");
        for (name, ((selector, own_labels), priority, absent, strategy)) in assignments {
            let target =
                if absent { Target::Absent } else { Target::Revision(any.revision.clone()) };
            let plugin = any.plugin.clone();
            let assignment = Assignment {
                plugin,
                target,
                selector,
                own_labels,
                priority,
                attempt: 4,
                strategy,
                declared: None,
            };
            put(format!("{ASSIGNMENT}{name}"), AssignmentRecord::of(&assignment).encode_to_vec());
        }
        for (name, hold) in holds {
            put(format!("{HOLD}{name}"), HoldRecord::of(&hold).encode_to_vec());
        }
        for (name, window) in windows {
            put(format!("{WINDOW}{name}"), WindowRecord::of(&window).encode_to_vec());
        }
        if defaults != rollout::Strategy::default() {
            put(DEFAULTS.to_owned(), DefaultsRecord::of(&defaults).encode_to_vec());
        }
        let before = loaded(&ledger);
        let text = export::text(&before).expect("it can be written");
        let declared = super::parsed(super::Format::Toml, &text)
            .map_err(|problems| TestCaseError::fail(format!("{:#?}\n{text}", problems.0)))?;
        let found = difference(&declared, &before, "bob", Undeclared::Delete)
            .map_err(|problems| TestCaseError::fail(format!("{:#?}\n{text}", problems.0)))?;
        prop_assert!(found.is_none(), "{found:#?}\n{text}");
    }
}
