use boon::{Compiler, Schemas};

use super::*;

const WHOLE: &str = r#"
name = "greeter"
revision = "1.0"
entry_point = "bin/greeter"
arguments = ["--quiet"]
url = "https://artifacts.example/{file}"
architectures = ["amd64", "arm64"]
boot_critical = true

[limits]
memory_bytes = 67108864
cpu_percent = 50

[download]
timeout = "1m30s"
attempts = 2

[start]
timeout = "1500ms"
attempts = 4
backoff_factor = 3

[stop]
timeout = "5s"

[metrics]
interval = "30s"
points = 10

[one_shot]
startup = true
firstboot = true
interval = "1h"
timeout = "1m"

[rules]
on_default = "disabled"
on_match = "enabled"
policy = "any"

[[rules.all]]
scope = "os"
attribute = "ID"
value = "debian"

[[rules.all]]
scope = "metadata"
attribute = "targets"
operator = "contains"
value = ["a", 1, true]

[config]
greeting = "hello"
every = 30

[config.deep]
list = [1.5, { a = "b" }]

[signature]
key_file = "release.key"

[build]
command = "make"

[pack]
folder = "build/{architecture}"
include = ["bin"]
exclude = ["*.o"]
compression = "zstd"
"#;

fn order_of(text: &str) -> serde_json::Value {
    parse(text).expect("a manifest").manifest_json().expect("it has a form").into()
}

#[track_caller]
fn mistake(text: &str, line: usize, words: &str) {
    let problems = parse(text).expect_err(text);
    let first = &problems[0];
    assert!(first.line == line && first.reason.contains(words), "{problems:?}");
}

#[test]
fn a_manifest_says_everything_that_an_order_has() {
    let expected = serde_json::json!({
        "maxMemoryUsageBytes": "67108864",
        "maxCpuUsagePercentage": 50,
        "metricsInterval": "30s",
        "maxMetricDatapoints": "10",
        "downloadTimeout": "90s",
        "downloadAttemptCount": 2,
        "startTimeout": "1.500s",
        "startAttemptCount": 4,
        "startExpBackoffFactor": 3,
        "stopTimeout": "5s",
        "structConfig": {
            "greeting": "hello",
            "every": 30,
            "deep": { "list": [1.5, { "a": "b" }] },
        },
        "pluginType": "ONE_SHOT",
        "executionModel": {
            "onDefault": "DISABLED",
            "onMatch": "ENABLED",
            "matchPolicy": "ANY",
            "rules": [
                { "scope": "OS", "attribute": "ID", "comparisonOperator": "EQUAL", "value": "debian" },
                {
                    "scope": "METADATA",
                    "attribute": "targets",
                    "comparisonOperator": "CONTAINS",
                    "value": ["a", 1, true],
                },
            ],
            "oneShot": {
                "triggers": { "startup": true, "firstboot": true, "interval": "3600s" },
                "executionTimeout": "60s",
            },
            "bootCritical": true,
        },
    });
    assert_eq!(order_of(WHOLE), expected);
    // The message has no field that a manifest cannot set, but for where the files come from.
    let fields = ["stringConfig", "pluginInstallationType"];
    let text = order_of("name = \"a\"\nconfig = \"text\"");
    assert_eq!(text, serde_json::json!({ "stringConfig": "text" }));
    assert_eq!(
        expected.as_object().map(|it| it.len() + fields.len()),
        Some(15),
        "of its 15 fields"
    );
}

#[test]
fn a_manifest_with_a_name_alone_asks_for_defaults() {
    assert_eq!(order_of("name = \"a\""), serde_json::json!({}));
    assert_eq!(order_of("name = \"a\"\n[one_shot]")["pluginType"], "ONE_SHOT");
}

#[test]
fn unknown_keys_are_refused_with_their_line_and_the_nearest_known_one() {
    mistake("name = \"a\"\n\nentrypoint = \"x\"", 3, "did you mean \"entry_point\"?");
    mistake(
        "name = \"a\"\n[limits]\nmemory = 3",
        3,
        "\"limits.memory\" is not known; did you mean \"memory_bytes\"",
    );
    mistake("name = \"a\"\n[one_shot]\n# x\ninterwal = \"1h\"", 4, "did you mean \"interval\"?");
    mistake("name = \"a\"\n[[rules.all]]\nscop = \"os\"", 3, "did you mean \"scope\"?");
    mistake("name = \"a\"\n[zzz]", 2, "known here are architectures");
    let both = parse("nmae = \"a\"\n[start]\ntimeuot = \"1s\"").expect_err("two mistakes");
    assert_eq!(both.iter().map(|problem| problem.line).collect::<Vec<_>>(), [1, 3]);
    // What a configuration holds is the plugin's business.
    parse("name = \"a\"\n[config]\nanything = { goes = 1 }").expect("a manifest");
}

#[test]
fn values_of_the_wrong_kind_are_refused_with_their_line() {
    mistake("name = 7", 1, "string");
    mistake("name = \"a\"\n[start]\ntimeout = \"30\"", 3, "is not a duration");
    mistake("name = \"a\"\n[rules]\npolicy = \"most\"", 3, "most");
    mistake("name = \"a\"\n[[rules.all]]\nscope = \"os\"", 2, "attribute");
    mistake("name = ", 1, "it is not TOML");
    mistake("arguments = []", 1, "\"name\" is missing");
}

#[test]
fn what_an_agent_refuses_is_refused_here_with_the_line_of_its_key() {
    mistake("name = \"not/a name\"", 1, "not/a name");
    mistake("name = \"a\"\nrevision = \"current\"", 2, "current");
    mistake("name = \"a\"\nentry_point = \"../x\"", 2, "..");
    mistake("name = \"a\"\n[limits]\n\nmemory_bytes = -1", 4, "limits.memory_bytes is -1");
    mistake(
        "name = \"a\"\n[start]\nattempts = 101",
        3,
        "start.attempts is 101; it has to be between",
    );
    mistake("name = \"a\"\n[stop]\ntimeout = \"2h\"", 3, "stop.timeout is");
    mistake("name = \"a\"\n[metrics]\ninterval = \"1ms\"", 3, "metrics.interval is");
    mistake("name = \"a\"\n[metrics]\npoints = 10001", 3, "metrics.points is 10001");
    mistake("name = \"a\"\n[one_shot]\ninterval = \"0s\"", 3, "one_shot.interval is");
    mistake(
        "name = \"a\"\n[rules]\n[[rules.all]]\nscope = \"os\"\nattribute = \"ID\"",
        2,
        "no effect",
    );
    mistake("name = \"a\"\nurl = \"ftp://x/y\"", 2, "neither http");
    let large = format!("name = \"a\"\nconfig = \"{}\"", "x".repeat((1 << 20) + 1));
    mistake(&large, 2, "at most 1048576");
}

#[test]
fn a_configuration_that_would_reach_the_plugin_as_another_is_refused() {
    mistake("name = \"a\"\n[config]\nn = 9007199254740993", 2, "beyond 2^53");
    mistake("name = \"a\"\n[config]\nn = nan", 2, "not finite");
    mistake("name = \"a\"\n[config]\nn = 2026-01-01", 2, "date");
}

#[test]
fn architectures_and_folders_have_to_fit_each_other() {
    mistake("name = \"a\"\narchitectures = [\"AMD 64\"]", 2, "not an architecture");
    mistake("name = \"a\"\narchitectures = [\"amd64\", \"arm64\"]", 2, "need a folder each");
    mistake("name = \"a\"\n[pack]\nfolder = \"../x\"", 3, "leads out");
    mistake("name = \"a\"\nconfig = \"x\"\nconfig_file = \"y\"", 3, "remove one of them");
}

#[test]
fn the_manifest_of_a_folder_has_its_configuration_from_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(PluginManifest::find(folder.path()).expect("no mistake").is_none());
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("it is written");
    };
    write(FILE, "name = \"a\"\nconfig_file = \"settings.ini\"\n[pack]\nfolder = \"out\"");
    let missing = PluginManifest::find(folder.path()).expect_err("no such file");
    assert!(missing.to_string().contains("settings.ini"), "{missing}");
    write("settings.ini", "[a]\nb = 1\n");
    let found = PluginManifest::find(folder.path()).expect("no mistake").expect("it is there");
    assert_eq!(found.says.manifest_json().expect("a form")["stringConfig"], "[a]\nb = 1\n");
    assert_eq!(found.packed_folder("any"), folder.path().join("out"));
    assert!(!found.choice().takes(FILE) && found.choice().takes("main"));
    write("settings.ini", &"x".repeat((1 << 20) + 1));
    assert!(PluginManifest::find(folder.path()).is_err(), "it is longer than agents take");
}

#[test]
fn the_schema_takes_what_the_parser_takes() {
    let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
    compiler.add_resource("file:///manifest.json", schema()).expect("a schema");
    let index = compiler.compile("file:///manifest.json", &mut schemas).expect("it compiles");
    let verdict = |text: &str| {
        let value: toml::Value = toml::from_str(text).expect("TOML");
        let value = serde_json::to_value(value).expect("JSON");
        schemas.validate(&value, index).map_err(|error| error.to_string())
    };
    verdict(WHOLE).expect("every key is known");
    for wrong in
        ["", "nmae = \"a\"", "name = \"a\"\n[start]\ntimeout = 3", "name = \"a\"\n[limits]\nx = 1"]
    {
        assert!(verdict(wrong).is_err(), "{wrong}");
    }
}
