//! The reference of an order, `docs/reference/order.md`: every field of the .proto, with what an agent makes of it.
//!
//! What is written here is tried: an agent takes each example and each value at a bound, refuses each value beyond
//! it, and makes the same of a default that is written out as of one that is left out.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use guest_agent_actors::model::origin::Origin;
use guest_agent_actors::model::spec::PluginSpec;
use guest_agent_actors::plugin::event::Order;
use guest_agent_actors::wire::{self, NamedOrder};
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::json::configure_plugin_from_json;
use prost::Message as _;
use serde_json::{Value, json};

use crate::pages;
use crate::reference::{is_up_to_date, row};

const PROTO: &str = "proto/proto/agent_controlplane.proto";

/// A message of the .proto, where its fields stand in an order, and what it is for.
const MESSAGES: [(&str, &str, &str); 6] = [
    ("Plugin", "plugin", "Which plugin, and the archive that it is made of."),
    (
        "Manifest",
        "manifest",
        "How it is fetched, started, stopped and limited. Every field may be left out.",
    ),
    (
        "ExecutionModel",
        "manifest.executionModel",
        "Whether it runs on and on or to completion, and on which machines. Without rules it runs on all.",
    ),
    ("OneShot", "manifest.executionModel.oneShot", "A plugin that runs to completion."),
    (
        "Triggers",
        "manifest.executionModel.oneShot.triggers",
        "When it runs beside its installation. Each trigger that is set counts.",
    ),
    (
        "Rules",
        "manifest.executionModel.rules[]",
        "One condition. It holds where the attribute of the machine is there and compares as it says.",
    ),
];

/// What is known of a field.
struct Field {
    /// Its path in JSON.
    path: &'static str,
    meaning: &'static str,
    /// What holds where it is left out; `None` where it has to be there.
    default: Option<&'static str>,
    /// The same as a value that can be written, if there is one.
    written: Value,
    bounds: &'static str,
    example: Value,
    /// Values at the bounds, which an agent takes.
    taken: Vec<Value>,
    /// Values beyond the bounds, which it refuses.
    refused: Vec<Value>,
}

fn must(
    path: &'static str,
    meaning: &'static str,
    bounds: &'static str,
    example: Value,
    taken: Vec<Value>,
    refused: Vec<Value>,
) -> Field {
    Field { path, meaning, default: None, written: Value::Null, bounds, example, taken, refused }
}

fn may(
    path: &'static str,
    meaning: &'static str,
    (default, written): (&'static str, Value),
    bounds: &'static str,
    example: Value,
    taken: Vec<Value>,
    refused: Vec<Value>,
) -> Field {
    let default = Some(default);
    Field { path, meaning, default, written, bounds, example, taken, refused }
}

fn text(letters: usize) -> Value {
    "a".repeat(letters).into()
}

fn plugin() -> Vec<Field> {
    let address = |bytes: usize| Value::from(format!("https://h/{}", "a".repeat(bytes - 10)));
    let many = |count: usize| Value::from(vec!["a"; count]);
    vec![
        must(
            "name",
            "The plugin.",
            "1 to 63 letters, digits and `._-`",
            json!("metrics"),
            vec![text(63)],
            vec![json!(""), text(64), json!("../a")],
        ),
        must(
            "revisionId",
            "The revision. It never changes what it is made of.",
            "1 to 128 of the same",
            json!("1.4"),
            vec![text(128)],
            vec![json!(""), text(129)],
        ),
        must(
            "gcsSignedUrl",
            "The archive. A signed URL is a secret, and never shown with its query.",
            "`http:`, `https:`, `unix:SOCKET:/PATH`, and from this machine `file:/PATH`; 16384 bytes",
            json!("https://artifacts.example/metrics-1.4.tar"),
            vec![address(16384)],
            vec![json!(""), address(16385), json!("ftp://h/a")],
        ),
        must(
            "entryPoint",
            "The program in the archive.",
            "a relative path without `..`",
            json!("bin/metrics"),
            vec![json!("run")],
            vec![json!(""), json!("../run"), json!("/bin/sh")],
        ),
        may(
            "arguments",
            "Its arguments, before those that the agent adds.",
            ("none", json!([])),
            "1024 of them, 131072 bytes together, without NUL",
            json!(["--quiet"]),
            vec![many(1024), json!(["a".repeat(131_072)])],
            vec![many(1025), json!(["a".repeat(131_073)]), json!(["\u{0}"])],
        ),
        must(
            "checksum",
            "The SHA-256 of the archive.",
            "64 hexadecimal digits",
            "ab".repeat(32).into(),
            vec![text(64)],
            vec![json!(""), text(63), "x".repeat(64).into()],
        ),
    ]
}

fn manifest() -> Vec<Field> {
    let long = |bytes: usize| Value::from("a".repeat(bytes));
    vec![
        may(
            "maxMemoryUsageBytes",
            "Memory of all its processes. Beyond it the kernel ends the plugin.",
            ("no limit", json!("0")),
            "not negative",
            json!("67108864"),
            vec![json!("1"), json!(i64::MAX.to_string())],
            vec![json!("-1")],
        ),
        may(
            "maxCpuUsagePercentage",
            "CPU time of all its processes, in percent of one core.",
            ("no limit", json!(0)),
            "not negative",
            json!(50),
            vec![json!(1), json!(i32::MAX)],
            vec![json!(-1)],
        ),
        may(
            "metricsInterval",
            "Time between two measurements of its usage.",
            ("10s", json!("10s")),
            "1s to 3600s",
            json!("30s"),
            vec![json!("1s"), json!("3600s")],
            vec![json!("0.999s"), json!("3600.001s"), json!("-1s")],
        ),
        may(
            "downloadTimeout",
            "Longest that one attempt of the download may take.",
            ("60s", json!("60s")),
            "0.1s to 3600s",
            json!("120s"),
            vec![json!("0.1s"), json!("3600s")],
            vec![json!("0.099s"), json!("3601s")],
        ),
        may(
            "downloadAttemptCount",
            "How often the download is tried.",
            ("5", json!(5)),
            "1 to 100",
            json!(3),
            vec![json!(1), json!(100)],
            vec![json!(-1), json!(101)],
        ),
        may(
            "startTimeout",
            "Longest until Start is answered.",
            ("30s", json!("30s")),
            "0.1s to 3600s",
            json!("10s"),
            vec![json!("0.1s"), json!("3600s")],
            vec![json!("0.099s"), json!("3601s")],
        ),
        may(
            "startAttemptCount",
            "How many processes one start may take.",
            ("3", json!(3)),
            "1 to 100",
            json!(5),
            vec![json!(1), json!(100)],
            vec![json!(-1), json!(101)],
        ),
        may(
            "stopTimeout",
            "Longest until Stop is answered; also the longest time from Stop to SIGTERM.",
            ("30s", json!("30s")),
            "0.1s to 3600s",
            json!("5s"),
            vec![json!("0.1s"), json!("3600s")],
            vec![json!("0.099s"), json!("3601s")],
        ),
        may(
            "maxMetricDatapoints",
            "How many measurements are reported.",
            ("60", json!("60")),
            "1 to 10000",
            json!("120"),
            vec![json!("1"), json!("10000")],
            vec![json!("10001")],
        ),
        may(
            "stringConfig",
            "The configuration as a text. Not together with `structConfig`.",
            ("no configuration", Value::Null),
            "1048576 bytes",
            json!("greeting = \"hello\""),
            vec![long(1 << 20)],
            vec![long((1 << 20) + 1)],
        ),
        may(
            "structConfig",
            "The configuration as a structure.",
            ("no configuration", Value::Null),
            "1048576 bytes as protobuf",
            json!({ "greeting": "hello", "times": 3 }),
            vec![json!({ "a": [null, true, 1.5, { "b": "c" }] })],
            vec![json!({ "a": "a".repeat(1 << 20) })],
        ),
        may(
            "startExpBackoffFactor",
            "How much longer each pause between starts is than the last.",
            ("2", json!(2)),
            "1 to 10",
            json!(3),
            vec![json!(1), json!(10)],
            vec![json!(-1), json!(11)],
        ),
        may(
            "pluginType",
            "Whether it runs on and on or to completion; as `executionModel` says it, if that does.",
            ("`DAEMON`", json!("DAEMON")),
            "`DAEMON`, `ONE_SHOT`",
            json!("ONE_SHOT"),
            vec![],
            vec![json!(3)],
        ),
        may(
            "pluginInstallationType",
            "Local plugins come from the machine, never with an order.",
            ("`DYNAMIC_INSTALLATION`", json!("DYNAMIC_INSTALLATION")),
            "`DYNAMIC_INSTALLATION`",
            json!("DYNAMIC_INSTALLATION"),
            vec![],
            vec![json!("LOCAL_INSTALLATION")],
        ),
        may(
            "executionModel",
            "When and where it runs, [below](#executionmodel).",
            ("on and on, everywhere", json!({})),
            "",
            json!({ "daemon": {}, "bootCritical": true }),
            vec![],
            vec![],
        ),
    ]
}

fn execution_model() -> Vec<Field> {
    let rule =
        |number: usize| json!({ "scope": "OS", "attribute": number.to_string(), "value": "a" });
    let rules = |count: usize| json!((0..count).map(rule).collect::<Vec<_>>());
    vec![
        may(
            "onDefault",
            "Whether it may run where the rules do not hold.",
            ("the opposite of `onMatch`; `ENABLED` without rules", json!("DISABLED")),
            "`ENABLED`, `DISABLED`",
            json!("DISABLED"),
            vec![json!("ENABLED")],
            vec![json!(3)],
        ),
        may(
            "onMatch",
            "Whether it may run where they hold. With rules, one of the two has to be there.",
            ("the opposite of `onDefault`", json!("ENABLED")),
            "`ENABLED`, `DISABLED`",
            json!("ENABLED"),
            vec![json!("DISABLED")],
            vec![json!(3)],
        ),
        may(
            "matchPolicy",
            "Whether all rules have to hold, or one.",
            ("`ALL`", json!("ALL")),
            "`ALL`, `ANY`",
            json!("ANY"),
            vec![],
            vec![json!(3)],
        ),
        may(
            "rules",
            "The conditions, [below](#rules).",
            ("none", Value::Null),
            "1000 of them, 65536 bytes together",
            rules(1),
            vec![rules(1000)],
            vec![rules(1001)],
        ),
        may(
            "bootCritical",
            "Whether the machine counts as started only when it runs.",
            ("false", json!(false)),
            "",
            json!(true),
            vec![],
            vec![],
        ),
        may(
            "oneShot",
            "It runs to completion, [below](#oneshot). Not together with `daemon`.",
            ("a daemon", Value::Null),
            "",
            json!({ "triggers": { "startup": true } }),
            vec![],
            vec![],
        ),
        may("daemon", "It runs on and on.", ("it does", json!({})), "", json!({}), vec![], vec![]),
    ]
}

fn one_shot() -> Vec<Field> {
    vec![
        may(
            "triggers",
            "When it runs beside its installation, [below](#triggers).",
            ("never", json!({})),
            "",
            json!({ "firstboot": true }),
            vec![],
            vec![],
        ),
        may(
            "executionTimeout",
            "Longest that one run may take.",
            ("3600s", json!("3600s")),
            "0.1s to 86400s",
            json!("60s"),
            vec![json!("0.1s"), json!("86400s")],
            vec![json!("0.099s"), json!("86401s")],
        ),
    ]
}

fn triggers() -> Vec<Field> {
    vec![
        may("startup", "At every boot.", ("false", json!(false)), "", json!(true), vec![], vec![]),
        may(
            "firstboot",
            "At the first boot of an instance.",
            ("false", json!(false)),
            "",
            json!(true),
            vec![],
            vec![],
        ),
        may(
            "interval",
            "So long after the run before.",
            ("not repeated", Value::Null),
            "1s to 31622400s",
            json!("3600s"),
            vec![json!("1s"), json!("31622400s")],
            vec![json!("0s"), json!("0.999s"), json!("31622401s")],
        ),
    ]
}

fn rules() -> Vec<Field> {
    let deep = |depth: usize| (1..depth).fold(json!(1), |inner, _| json!([inner]));
    vec![
        must(
            "scope",
            "Where the attribute is looked up: keys of os-release, attributes of the instance, or custom metadata.",
            "`OS`, `INSTANCE`, `METADATA`",
            json!("OS"),
            vec![json!("INSTANCE"), json!("METADATA")],
            vec![json!(4)],
        ),
        must(
            "attribute",
            "Its name.",
            "1 to 256 bytes without control characters",
            json!("ID"),
            vec![text(256)],
            vec![json!(""), text(257), json!("a\nb")],
        ),
        may(
            "comparisonOperator",
            "How it is compared.",
            ("`EQUAL`", json!("EQUAL")),
            "`EQUAL`, `NOT_EQUAL`, `CONTAINS`",
            json!("CONTAINS"),
            vec![json!("NOT_EQUAL")],
            vec![json!(4)],
        ),
        may(
            "value",
            "With what: any JSON value.",
            ("null", json!(null)),
            "nested 16 deep",
            json!("debian"),
            vec![deep(16), json!(true), json!({ "a": 1 })],
            vec![deep(17)],
        ),
    ]
}

/// The fields of a message, in the order of the .proto.
fn fields(message: &str) -> Vec<Field> {
    match message {
        "Plugin" => plugin(),
        "Manifest" => manifest(),
        "ExecutionModel" => execution_model(),
        "OneShot" => one_shot(),
        "Triggers" => triggers(),
        "Rules" => rules(),
        other => panic!("no fields of {other}"),
    }
}

/// The names of the fields of a message, with their types, as the .proto has them.
fn of_proto(message: &str) -> Vec<(String, String)> {
    let source = pages::text(PROTO);
    let head = format!("message {message} {{\n");
    let start = source.find(&head).unwrap_or_else(|| panic!("{message} in {PROTO}")) + head.len();
    // What is open below the message; fields of a oneof are its own.
    let (mut found, mut open) = (Vec::new(), Vec::new());
    for line in source[start..].lines().map(str::trim) {
        if line.ends_with('{') {
            open.push(line.starts_with("oneof "));
        } else if line == "}" && open.pop().is_none() {
            break;
        }
        if open.contains(&false) {
            continue;
        }
        let field = line.strip_suffix(';').filter(|line| !line.starts_with("//"));
        let Some((left, _number)) = field.and_then(|it| it.split_once(" = ")) else { continue };
        let (kind, name) = left.rsplit_once(' ').unwrap_or_else(|| panic!("a field in {line}"));
        found.push((json_name(name), kind.to_owned()));
    }
    found
}

fn json_name(name: &str) -> String {
    let mut parts = name.split('_');
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (first, rest) = part.split_at(1);
        whole.push_str(&first.to_uppercase());
        whole.push_str(rest);
    }
    whole
}

/// An order with a value at a place, and as little else as possible; without the field where there is no value.
fn order(inside: &str, field: &str, value: Option<&Value>) -> Value {
    let mut order = json!({
        "action": "INSTALL",
        "plugin": {
            "name": "web", "revisionId": "1", "gcsSignedUrl": "https://h/a", "entryPoint": "run",
            "checksum": "0".repeat(64),
        },
        "manifest": {},
    });
    let mut at = &mut order;
    for part in inside.split('.') {
        at = match part.strip_suffix("[]") {
            None => &mut at[part],
            Some(list) => {
                at["onMatch"] = "ENABLED".into();
                at[list] = json!([{ "scope": "OS", "attribute": "ID", "value": "debian" }]);
                &mut at[list][0]
            }
        };
        if at.is_null() {
            *at = json!({});
        }
    }
    // What has an effect only beside another field.
    match field {
        "rules" => at["onMatch"] = "ENABLED".into(),
        "onDefault" | "onMatch" | "matchPolicy" => {
            let (other, enablement) = match field {
                "onMatch" => ("onDefault", "DISABLED"),
                _ => ("onMatch", "ENABLED"),
            };
            at[other] = enablement.into();
            at["rules"] = json!([{ "scope": "OS", "attribute": "ID", "value": "debian" }]);
        }
        _ => {}
    }
    match (value, at.as_object_mut()) {
        (Some(value), _) => at[field] = value.clone(),
        (None, Some(fields)) => drop(fields.remove(field)),
        (None, None) => {}
    }
    order
}

/// What an agent makes of an order.
fn decoded(order: &Value) -> Result<PluginSpec, String> {
    let order =
        configure_plugin_from_json(&order.to_string()).map_err(|error| error.to_string())?;
    let bytes = ConfigurePluginStates { configure_plugins: vec![order] }.encode_to_vec();
    let orders = wire::decode_orders(&bytes, Origin::Local).map_err(|error| error.to_string())?;
    match orders.into_iter().next() {
        Some(Ok(NamedOrder { order: Order::Install(spec), .. })) => Ok((*spec).clone()),
        Some(Err(refusal)) => Err(refusal.reason),
        other => panic!("not an installation: {other:?}"),
    }
}

/// A value of any length, in a line.
fn brief(value: &Value) -> String {
    value.to_string().chars().take(100).collect()
}

#[test]
fn an_agent_takes_what_the_order_reference_says_and_refuses_the_rest() {
    for (message, inside, _) in MESSAGES {
        for field in fields(message) {
            let decode = |value: Option<&Value>| decoded(&order(inside, field.path, value));
            let at = format!("{inside}.{}", field.path);
            for value in std::iter::once(&field.example).chain(&field.taken) {
                if let Err(why) = decode(Some(value)) {
                    panic!("{at} is refused as {}: {why}", brief(value));
                }
            }
            for value in &field.refused {
                assert!(decode(Some(value)).is_err(), "{at} is taken as {}", brief(value));
            }
            match (field.default, decode(None)) {
                (None, without) => assert!(without.is_err(), "{at} may be left out"),
                (Some(_), without) => {
                    let without =
                        without.unwrap_or_else(|why| panic!("{at} has to be there: {why}"));
                    let written = &field.written;
                    if !written.is_null() {
                        assert_eq!(decode(Some(written)), Ok(without), "{at} is not {written}");
                    }
                }
            }
        }
    }
}

fn page() -> String {
    let mut page = String::from(
        "# Order reference\n\n\
         Every field of an order to install a plugin, made from `proto/proto/agent_controlplane.proto`. A test lets an agent decode each\n\
         example, each default and each bound. [plugin.toml](../plugin-manifest.md) says the same in other words; `pack` makes the order of it.\n\n\
         An order is a `ConfigurePlugin`. In a file, as `guest-agent install -f` takes it, it is protobuf JSON: durations are texts in\n\
         seconds, integers of 64 bits are texts, enums are names. `snake_case` names are taken, too. An `action` is `INSTALL`, which may be left out in a\n\
         file, `REMOVE`, which has the name alone, or `APPLY`, which has the name and a configuration.\n\n\
         A value that is not valid refuses its order by name, as an event; the other orders of the message are carried out.\n\n\
         ```json\n",
    );
    let example = json!({
        "action": "INSTALL",
        "plugin": {
            "name": "metrics", "revisionId": "1.4", "entryPoint": "bin/metrics",
            "gcsSignedUrl": "https://artifacts.example/metrics-1.4.tar", "checksum": "ab".repeat(32),
        },
        "manifest": { "maxMemoryUsageBytes": "67108864", "stopTimeout": "5s", "structConfig": { "port": 9100 } },
    });
    decoded(&example).expect("the example of the page");
    writeln!(page, "{example:#}\n```").expect("text takes text");
    for (message, inside, about) in MESSAGES {
        write!(page, "\n## {message}\n\n`{inside}`: {about}\n\n").expect("text takes text");
        page.push_str(
            "| field | type | left out | bounds | example | meaning |\n|---|---|---|---|---|---|\n",
        );
        let types = of_proto(message);
        for field in fields(message) {
            let kind =
                types.iter().find(|(name, _)| name == field.path).map_or("", |(_, kind)| kind);
            let example = field.example.to_string();
            page.push_str(&row(&[
                &format!("`{}`", field.path),
                &format!("`{}`", kind.trim_start_matches("google.protobuf.")),
                field.default.unwrap_or("*has to be there*"),
                field.bounds,
                &format!("`{example}`"),
                field.meaning,
            ]));
        }
    }
    page
}

#[test]
fn the_order_reference_is_up_to_date() {
    for (message, _, _) in MESSAGES {
        let known: BTreeSet<String> =
            fields(message).iter().map(|field| field.path.to_owned()).collect();
        let there: BTreeSet<String> = of_proto(message).into_iter().map(|(name, _)| name).collect();
        assert_eq!(known, there, "the fields of {message} here and in {PROTO} differ");
    }
    is_up_to_date("docs/reference/order.md", &page());
}
