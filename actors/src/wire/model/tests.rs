use super::*;

fn model(change: impl FnOnce(&mut pb::ExecutionModel)) -> Option<pb::ExecutionModel> {
    let mut model = pb::ExecutionModel::default();
    change(&mut model);
    Some(model)
}

fn rule() -> pb::Rules {
    pb::Rules {
        scope: pb::rules::Scope::Os.into(),
        attribute: "ID".to_owned(),
        comparison_operator: 0,
        value: text("debian"),
    }
}

fn value(kind: AnyKind) -> Option<prost_types::Value> {
    Some(prost_types::Value { kind: Some(kind) })
}

fn text(text: &str) -> Option<prost_types::Value> {
    value(AnyKind::StringValue(text.to_owned()))
}

fn one_shot(change: impl FnOnce(&mut em::OneShot)) -> Option<pb::ExecutionModel> {
    let mut one_shot = em::OneShot::default();
    change(&mut one_shot);
    model(|model| model.r#type = Some(em::Type::OneShot(one_shot)))
}

fn repeated(seconds: i64, nanos: i32) -> Option<pb::ExecutionModel> {
    let interval = Some(prost_types::Duration { seconds, nanos });
    one_shot(|one_shot| {
        one_shot.triggers = Some(em::Triggers { interval, ..Default::default() });
    })
}

fn limited(seconds: i64, nanos: i32) -> Option<pb::ExecutionModel> {
    let timeout = Some(prost_types::Duration { seconds, nanos });
    one_shot(|one_shot| one_shot.execution_timeout = timeout)
}

const UNSAID: i32 = 0;

fn number(plugin_type: pb::PluginType) -> i32 {
    plugin_type.into()
}

#[track_caller]
fn taken(plugin_type: i32, model: Option<pb::ExecutionModel>) -> Execution {
    decode_execution(plugin_type, model).expect("a good model")
}

#[track_caller]
fn refused(plugin_type: i32, model: Option<pb::ExecutionModel>, naming: &[&str]) {
    let reason = decode_execution(plugin_type, model).expect_err("a bad model");
    for name in naming {
        assert!(reason.contains(name), "{reason:?} does not name {name:?}");
    }
    assert!(reason.len() < 600, "{} bytes: {reason}", reason.len());
}

#[test]
fn the_two_ways_to_say_what_kind_it_is_may_not_contradict_each_other() {
    let (daemon, one_shot_type) = (number(pb::PluginType::Daemon), number(pb::PluginType::OneShot));
    let is_one_shot = |execution: Execution| execution.one_shot().is_some();
    let as_daemon = || model(|model| model.r#type = Some(em::Type::Daemon(em::Daemon {})));
    let as_one_shot = || one_shot(|_| {});
    assert!(!is_one_shot(taken(UNSAID, None)));
    assert!(!is_one_shot(taken(daemon, None)));
    assert!(is_one_shot(taken(one_shot_type, None)));
    assert!(is_one_shot(taken(one_shot_type, model(|_| {}))));
    assert!(!is_one_shot(taken(daemon, model(|_| {}))));
    assert!(is_one_shot(taken(UNSAID, as_one_shot())));
    assert!(is_one_shot(taken(one_shot_type, as_one_shot())));
    assert!(!is_one_shot(taken(daemon, as_daemon())));
    assert!(!is_one_shot(taken(UNSAID, as_daemon())));
    refused(daemon, as_one_shot(), &["plugin_type is DAEMON", "execution_model.type is one_shot"]);
    refused(one_shot_type, as_daemon(), &["plugin_type is ONE_SHOT", "type is daemon"]);
    refused(77, None, &["plugin_type 77"]);
}

#[test]
fn triggers_and_times_are_kept_to_the_nanosecond() {
    let execution = taken(
        UNSAID,
        one_shot(|one_shot| {
            one_shot.triggers = Some(em::Triggers {
                startup: true,
                firstboot: true,
                interval: Some(prost_types::Duration { seconds: 90, nanos: 5 }),
            });
            one_shot.execution_timeout =
                Some(prost_types::Duration { seconds: 0, nanos: 100_000_000 });
        }),
    );
    let triggers =
        Triggers { startup: true, firstboot: true, interval: Some(Duration::new(90, 5)) };
    let timeout = Duration::from_millis(100);
    assert_eq!(execution.kind, Kind::OneShot(OneShot { triggers, timeout }));
    let silent = taken(UNSAID, one_shot(|_| {}));
    assert_eq!(silent.kind, Kind::OneShot(OneShot::default()));
    assert_eq!(taken(UNSAID, limited(0, 0)), silent);
}

#[test]
fn impossible_times_are_refused_by_name() {
    let interval = "triggers.interval";
    for (seconds, nanos) in [
        (0, 0),
        (-1, 0),
        (0, 999_999_999),
        (0, -5),
        (5, 1_000_000_000),
        (i64::MAX, 0),
        (i64::MIN, -1),
    ] {
        refused(UNSAID, repeated(seconds, nanos), &[interval, "between 1 s"]);
    }
    for (seconds, nanos) in [(-1, 0), (0, 1), (86_401, 0), (i64::MAX, i32::MAX)] {
        refused(UNSAID, limited(seconds, nanos), &["execution_timeout", "between 0.1 s"]);
    }
}

#[test]
fn what_is_left_open_follows_from_what_is_not() {
    use em::State::{Disabled, Enabled, Unspecified};
    let decided = |on_default: em::State, on_match: em::State, rules: usize| {
        let execution = decode_execution(
            UNSAID,
            model(|model| {
                model.on_default = on_default.into();
                model.on_match = on_match.into();
                model.rules = vec![rule(); rules];
            }),
        )?;
        Ok::<_, String>((execution.rules.on_default, execution.rules.on_match))
    };
    let (on, off) = (Enablement::Enabled, Enablement::Disabled);
    assert_eq!(decided(Unspecified, Unspecified, 0), Ok((on, on)));
    assert_eq!(decided(Disabled, Unspecified, 0), Ok((off, on)));
    assert_eq!(decided(Unspecified, Enabled, 1), Ok((off, on)));
    assert_eq!(decided(Unspecified, Disabled, 1), Ok((on, off)));
    assert_eq!(decided(Enabled, Unspecified, 1), Ok((on, off)));
    assert_eq!(decided(Disabled, Disabled, 1), Ok((off, off)));
    let reason = decided(Unspecified, Unspecified, 1).expect_err("decides nothing");
    assert!(reason.contains("on_default") && reason.contains("on_match"), "{reason}");
}

#[test]
fn a_rule_is_read_and_its_operator_may_be_left_open() {
    let execution = taken(
        UNSAID,
        model(|model| {
            model.on_match = em::State::Enabled.into();
            model.match_policy = em::MatchPolicy::Any.into();
            model.boot_critical = true;
            let contains = pb::rules::ComparisonOperator::Contains.into();
            let list = prost_types::ListValue { values: vec![text("a").expect("a value")] };
            let member = pb::Rules {
                comparison_operator: contains,
                value: value(AnyKind::ListValue(list)),
                ..rule()
            };
            model.rules = vec![rule(), member, pb::Rules { value: None, ..rule() }];
        }),
    );
    assert_eq!(execution.boot, Boot::Critical);
    assert_eq!(execution.rules.policy, MatchPolicy::Any);
    let seen: Vec<_> =
        execution.rules.all.iter().map(|rule| (rule.operator, rule.value.to_string())).collect();
    let expected = [
        (Operator::Equal, "\"debian\"".to_owned()),
        (Operator::Contains, "[\"a\"]".to_owned()),
        (Operator::Equal, "null".to_owned()),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn impossible_rules_are_refused_by_name() {
    let with = |rules: Vec<pb::Rules>| {
        model(|model| {
            model.on_match = em::State::Enabled.into();
            model.rules = rules;
        })
    };
    let bad = |change: fn(&mut pb::Rules), naming: &str| {
        let mut bad = rule();
        change(&mut bad);
        refused(UNSAID, with(vec![rule(), bad]), &["rules[1]", naming]);
    };
    bad(|rule| rule.scope = 0, "scope");
    bad(|rule| rule.scope = 9, "scope 9");
    bad(|rule| rule.comparison_operator = -1, "comparison_operator -1");
    bad(|rule| rule.attribute.clear(), "attribute");
    bad(|rule| rule.attribute = "a\n".to_owned(), "attribute");
    bad(|rule| rule.attribute = "é".repeat(200), "attribute");
    bad(|rule| rule.value = value(AnyKind::NumberValue(f64::NAN)), "NaN");
    bad(|rule| rule.value = value(AnyKind::NumberValue(f64::INFINITY)), "inf");
    bad(|rule| rule.value = text(&"x".repeat(RULES_BYTES_MAX)), "larger");
    bad(
        |rule| {
            let values = vec![prost_types::Value::default(); 100_000];
            rule.value = value(AnyKind::ListValue(prost_types::ListValue { values }));
        },
        "larger",
    );
    bad(
        |rule| {
            for _ in 0..VALUE_DEPTH_MAX {
                let values = vec![rule.value.take().expect("a value")];
                rule.value = value(AnyKind::ListValue(prost_types::ListValue { values }));
            }
        },
        "nested deeper",
    );
    refused(UNSAID, with(vec![rule(); 1_000_000]), &["1000000 rules", "1000"]);
    refused(UNSAID, model(|model| model.on_default = 7), &["on_default 7"]);
    refused(UNSAID, model(|model| model.on_match = -7), &["on_match -7"]);
    refused(UNSAID, model(|model| model.match_policy = 7), &["match_policy 7"]);
}
