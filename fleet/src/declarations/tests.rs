//! Reading, refusing and writing declarations.

mod bounds;
mod problems;
mod round_trip;

use std::fmt::Write;
use std::path::Path;

use guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{Action, ConfigurePlugin};
use guest_fleet_core::selector::OwnLabels;
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::{Plugins, ReleaseName, Target};
use guest_fleet_core::window::Weekly;
use prost::Message;

use super::files::{FILE_BYTES, Format, Source, Sources, SourcesError};
use super::problem::Problems;
use super::set::{Declarations, OBJECTS};

const DIGEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

fn parsed(format: Format, text: &str) -> Result<Declarations, Problems> {
    let name = if format == Format::Toml { "a.toml" } else { "a.yaml" };
    let file = Source { name: name.to_owned(), text: text.as_bytes().to_vec(), format };
    Declarations::parse(&Sources { files: vec![file], ..Sources::default() })
}

#[track_caller]
fn toml(text: &str) -> Declarations {
    parsed(Format::Toml, text).unwrap_or_else(|problems| panic!("{:#?}", problems.0))
}

#[track_caller]
fn yaml(text: &str) -> Declarations {
    parsed(Format::Yaml, text).unwrap_or_else(|problems| panic!("{:#?}", problems.0))
}

fn order(declarations: &Declarations) -> ConfigurePlugin {
    let release = declarations.releases.values().next().expect("a release");
    ConfigurePlugin::decode(release.value.order.as_slice()).expect("an order")
}

fn whole_toml() -> String {
    format!(
        r#"
[[release]]
plugin = "monitor"
revision = "1.2"
entry_point = "bin/monitor"
arguments = ["--quiet"]
archives.amd64 = {{ sha256 = "{DIGEST}" }}
archives.arm64 = {{ sha256 = "{DIGEST}", url = "https://example.org/monitor-arm64.tar.gz" }}
manifest = {{ max_memory_usage_bytes = 1048576, startTimeout = "30s", plugin_type = "DAEMON" }}
[release.config]
targets = ["a", "b"]
interval = 30
deep = {{ on = true, share = 0.5 }}

[[assignment]]
name = "monitor-prod"
plugin = "monitor"
revision = "1.2"
select = "env = prod"
priority = 5

[[assignment]]
name = "no-old"
plugin = "old"
absent = true
select = "self.rack = r7"
own_labels = true

[[hold]]
name = "freeze"
select = "all"
plugins = ["monitor"]
reason = "end of the year"
until = 2030-01-01T00:00:00Z

[[window]]
name = "nights"
select = "env = prod"
days = ["mon", "sun"]
from = "23:00"
to = "01:30"
zone = "europe/zurich"
"#
    )
}

fn whole_yaml() -> String {
    format!(
        r#"
release:
  - plugin: monitor
    revision: "1.2"
    archives:
      amd64: {{ sha256: &digest {DIGEST} }}
      arm64:
        url: https://example.org/monitor-arm64.tar.gz
        sha256: *digest
    arguments: [--quiet]
    entry_point: bin/monitor
    config:
      interval: 30
      deep: {{ share: 0.5, on: true }}
      targets: [a, b]
    manifest: {{ maxMemoryUsageBytes: 1048576, start_timeout: 30s, pluginType: DAEMON }}
---
assignment:
  - {{ name: monitor-prod, plugin: monitor, revision: "1.2", select: env = prod, priority: 5 }}
  - {{ name: no-old, plugin: old, absent: true, select: self.rack = r7, own_labels: true }}
---
# Nothing.
---
hold:
  name: freeze
  select: all
  plugins: [monitor]
  reason: end of the year
  until: "2030-01-01T00:00:00Z"
window:
  name: nights
  select: env = prod
  days: [mon, sun]
  from: 23:00
  to: 01:30
  zone: Europe/Zurich
"#
    )
}

#[test]
fn a_whole_file_says_what_it_says() {
    let found = toml(&whole_toml());
    let order = order(&found);
    assert_eq!(order.action(), Action::Install);
    let plugin = order.plugin.expect("a plugin");
    assert_eq!((plugin.name.as_str(), plugin.revision_id.as_str()), ("monitor", "1.2"));
    assert_eq!((plugin.gcs_signed_url.as_str(), plugin.checksum.as_str()), ("", ""));
    assert_eq!((plugin.entry_point.as_str(), plugin.arguments.len()), ("bin/monitor", 1));
    let manifest = order.manifest.expect("a manifest");
    assert_eq!(manifest.max_memory_usage_bytes, 1 << 20);
    assert_eq!(manifest.start_timeout.map(|timeout| timeout.seconds), Some(30));
    let Some(Config::StructConfig(config)) = manifest.config else { panic!("no table") };
    assert_eq!(config.fields.len(), 3);
    let name = ReleaseName { plugin: "monitor".to_owned(), revision: "1.2".to_owned() };
    assert_eq!(found.releases[&name].value.archives["amd64"].digest, DIGEST);
    let assignment = &found.assignments["no-old"].value;
    assert_eq!((&assignment.target, assignment.own_labels), (&Target::Absent, OwnLabels::Trusted));
    assert_eq!(found.assignments["monitor-prod"].value.priority, 5);
    let hold = &found.holds["freeze"].value;
    assert_eq!(hold.until, Some(Seconds(1_893_456_000)));
    assert_eq!(hold.plugins, Plugins::Named(["monitor".to_owned()].into()));
    let window = &found.windows["nights"].value;
    let days = [true, false, false, false, false, false, true];
    let zone = "Europe/Zurich".to_owned();
    assert_eq!(window.weekly, Weekly { days, opens: 1380, minutes: 150, zone });
}

#[test]
fn both_formats_say_the_same_byte_for_byte() {
    let (toml, yaml) = (toml(&whole_toml()), yaml(&whole_yaml()));
    assert_eq!(toml.len(), yaml.len());
    for (name, declared) in &toml.releases {
        assert_eq!(declared.value, yaml.releases[name].value);
    }
    for (name, declared) in &toml.assignments {
        assert_eq!(declared.value, yaml.assignments[name].value);
    }
    assert_eq!(toml.holds["freeze"].value, yaml.holds["freeze"].value);
    assert_eq!(toml.windows["nights"].value, yaml.windows["nights"].value);
}

#[test]
fn a_whole_day_ends_at_24() {
    let text = "[[window]]\nname = \"w\"\nselect = \"all\"\ndays = [\"tue\"]\nfrom = \"00:00\"\nto = \"24:00\"\nzone = \"UTC\"\n";
    let weekly = &toml(text).windows["w"].value.weekly;
    assert_eq!((weekly.opens, weekly.minutes), (0, 1440));
}

fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        std::fs::write(path, text).expect("a file");
    }
    directory
}

#[test]
fn a_directory_is_read_with_what_is_below_and_the_rest_is_named() {
    let release = |revision: &str| {
        format!(
            "[[release]]\nplugin = \"p\"\nrevision = \"{revision}\"\nentry_point = \"p\"\n\
             archives.any.sha256 = \"{DIGEST}\"\nconfig_file = \"p.conf\"\n"
        )
    };
    let directory = directory(&[
        ("a.toml", "[[hold]]\nname = \"h\"\nselect = \"all\"\nreason = \"r\"\n"),
        ("deep/b.toml", &release("1")),
        ("deep/p.conf", "level = 3\n"),
        (".hidden/c.toml", "nonsense"),
        ("README.md", "words"),
    ]);
    let sources = Sources::read(directory.path()).expect("sources");
    let names: Vec<&str> = sources.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["a.toml", "deep/b.toml"]);
    assert_eq!(
        sources.notes,
        [
            "\".hidden\" is passed over: it is hidden",
            "\"README.md\" is passed over: it ends with neither .toml nor .yaml",
            "\"deep/p.conf\" is passed over: it ends with neither .toml nor .yaml",
        ]
    );
    let found = Declarations::parse(&sources).expect("declarations");
    let manifest = order(&found).manifest.expect("a manifest");
    assert_eq!(manifest.config, Some(Config::StringConfig("level = 3\n".to_owned())));
    let one = Sources::read(&directory.path().join("deep/b.toml")).expect("sources");
    assert_eq!(Declarations::parse(&one).expect("declarations").releases.len(), 1);
}

#[test]
fn a_config_file_stays_in_the_directory() {
    let text = |path: &str| {
        format!(
            "[[release]]\nplugin = \"p\"\nrevision = \"1\"\nentry_point = \"p\"\n\
             archives.any.sha256 = \"{DIGEST}\"\nconfig_file = \"{path}\"\n"
        )
    };
    let reason = |path: &str, link: bool| {
        let directory = directory(&[("a.toml", &text(path))]);
        if link {
            let link = directory.path().join(path);
            std::os::unix::fs::symlink("/etc/hostname", link).expect("a link");
        }
        let sources = Sources::read(directory.path()).expect("sources");
        let problems = Declarations::parse(&sources).expect_err("it is refused").0;
        assert_eq!((problems.len(), problems[0].key.as_str()), (1, "release.config_file"));
        problems[0].reason.clone()
    };
    for outside in ["/etc/hostname", "../a", "x/../../a", ""] {
        assert_eq!(reason(outside, false), "the path leads elsewhere", "{outside}");
    }
    assert_eq!(reason("link", true), "a link leads out of the directory");
    assert!(reason("missing", false).starts_with("the file cannot be read"));
    // Standard input is in no directory.
    let sources = Sources::text("standard input", text("a").into_bytes());
    let problems = Declarations::parse(&sources).expect_err("it is refused").0;
    assert_eq!(problems[0].reason, "there is no directory in which the file could be");
}

#[test]
fn every_bound_of_files_is_kept() {
    let directory = directory(&[]);
    let path = directory.path().join("large.toml");
    let file = std::fs::File::create(&path).expect("a file");
    file.set_len(FILE_BYTES + 1).expect("a sparse file");
    assert!(matches!(Sources::read(directory.path()), Err(SourcesError::TooLong(_))));
    std::fs::remove_file(&path).expect("it goes");
    for number in 0..=super::files::FILES {
        std::fs::write(directory.path().join(format!("{number}.toml")), "").expect("a file");
    }
    assert!(matches!(Sources::read(directory.path()), Err(SourcesError::TooMany(_))));
    let deep = (0..40).fold(directory.path().join("deep"), |path, _| path.join("d"));
    std::fs::create_dir_all(deep).expect("directories");
    for number in 0..=super::files::FILES {
        std::fs::remove_file(directory.path().join(format!("{number}.toml"))).expect("it goes");
    }
    assert!(matches!(Sources::read(directory.path()), Err(SourcesError::TooDeep(_))));
    assert!(matches!(Sources::read(Path::new("/nowhere")), Err(SourcesError::Read { .. })));
    assert!(matches!(Sources::read(Path::new("/etc/hostname")), Err(SourcesError::Format(_))));
}

#[test]
fn more_declarations_than_the_bound_are_refused() {
    let hold = |number| format!("- {{name: h{number}, select: all, reason: r}}\n");
    let text: String =
        std::iter::once("hold:\n".to_owned()).chain((0..=OBJECTS).map(hold)).collect();
    let problems = parsed(Format::Yaml, &text).expect_err("it is refused").0;
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].reason, "up to here there are 10000 declarations");
}

#[test]
fn aliases_of_aliases_end_at_a_bound() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..30 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        writeln!(text, "a{level}: &a{level} [{aliases}]").unwrap();
    }
    let problems = parsed(Format::Yaml, &text).expect_err("it is refused").0;
    assert!(problems[0].reason.contains("more than 200000 values"), "{problems:?}");
    // The same in depth instead of width.
    let mut text = "a0: &a0 [x]\n".to_owned();
    for level in 1..80 {
        writeln!(text, "a{level}: &a{level} [*a{}]", level - 1).unwrap();
    }
    let problems = parsed(Format::Yaml, &text).expect_err("it is refused").0;
    assert!(problems[0].reason.contains("nested deeper than 64"), "{problems:?}");
}

#[test]
fn hostile_texts_are_refused_and_end_soon() {
    let deep = "[".repeat(100_000);
    let flow = "{a: ".repeat(50_000);
    let long = "x".repeat(1 << 20);
    for text in [
        &*deep,
        &*flow,
        &*long,
        "a: *b",
        "&a a: *a",
        "a: &a [*a]",
        "\u{0}",
        "- - - -",
        "? [a] : b",
        "%TAG ! x",
        "<<: {a: b}",
    ] {
        for format in [Format::Toml, Format::Yaml] {
            let found = parsed(format, text);
            assert!(found.is_err(), "{format:?} {}", &text[..text.len().min(40)]);
        }
    }
    let file = Source { name: "a".to_owned(), text: vec![0xff, 0xfe], format: Format::Toml };
    let sources = Sources { files: vec![file], ..Sources::default() };
    let problems = Declarations::parse(&sources).expect_err("it is refused").0;
    assert_eq!(problems[0].to_string(), "a: it is not UTF-8 from byte 0 on; save it as UTF-8");
}

#[test]
fn standard_input_may_be_either_format() {
    for text in [
        "hold:\n  name: h\n  select: all\n  reason: r\n",
        "# x\n\n[[hold]]\nname = \"h\"\nselect = \"all\"\nreason = \"r\"\n",
    ] {
        let found = Declarations::parse(&Sources::text("standard input", text.into()));
        assert_eq!(found.expect("declarations").holds.len(), 1, "{text}");
    }
}

#[test]
fn the_examples_of_the_book_say_the_same_in_both_formats() {
    let page = include_str!("../../../docs/fleet-declarations.md");
    let example = |language: &str| {
        let (_, rest) = page.split_once(&format!("```{language}\n")).expect("an example");
        rest.split("```").next().expect("its text")
    };
    let (toml, yaml) = (toml(example("toml")), yaml(example("yaml")));
    assert_eq!(toml.len(), 5);
    let values = |found: &Declarations| {
        let releases: Vec<_> = found.releases.values().map(|it| it.value.clone()).collect();
        let assignments: Vec<_> = found.assignments.values().map(|it| it.value.clone()).collect();
        let holds: Vec<_> = found.holds.values().map(|it| it.value.clone()).collect();
        let windows: Vec<_> = found.windows.values().map(|it| it.value.clone()).collect();
        (releases, assignments, holds, windows)
    };
    assert_eq!(values(&toml), values(&yaml));
}
