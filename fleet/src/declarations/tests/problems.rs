//! Every mistake is named with its place, its key, the reason and the fix.

use super::super::files::Format;
use super::{DIGEST, parsed};

/// What is wrong with a text, a line for each problem.
fn problems(format: Format, text: &str) -> String {
    match parsed(format, text) {
        Ok(found) => panic!("it is taken: {found:?}"),
        Err(problems) => problems.0.iter().map(|problem| format!("{problem}\n")).collect(),
    }
}

fn release(line: &str) -> String {
    let mut lines = vec![
        ("plugin", "plugin = \"p\"".to_owned()),
        ("revision", "revision = \"1\"".to_owned()),
        ("entry_point", "entry_point = \"p\"".to_owned()),
        ("archives", format!("archives = {{ any = {{ sha256 = \"{DIGEST}\" }} }}")),
    ];
    let key = line.split([' ', '=', '.']).next().unwrap_or_default();
    lines.retain(|(name, _)| *name != key);
    let lines: Vec<String> = lines.into_iter().map(|(_, text)| text).collect();
    format!("[[release]]\n{line}\n{}\n", lines.join("\n"))
}

#[test]
fn mistakes_in_releases() {
    let wrong = [
        "plugin = \"-p\"",
        "plugin = 7",
        "revision = 1.2",
        "revision = \"current\"",
        "revision = \"a/b\"",
        "entry_point = \"/bin/p\"",
        "entry_point = \"../p\"",
        "entry_point = \"./\"",
        "archives = {}",
        "archives = { x86_64 = { sha256 = \"00\" } }",
        "archives = { any = { sha256 = \"00\" } }",
        "archives = { any = { url = \"https://e.org/a?sig=SECRET x\" } }",
        "archives = { sha256 = \"00\" }",
        "arguments = \"-v\"",
        "arguments = [\"a\\u0000\"]",
        "config = 5",
        "config = { a = 9007199254740993, b = nan, c = 2030-01-01 }",
        "config = { a = { \"$secret\" = \"../x\" }, b = [{ \"$secret\" = 1 }], c = { \"$secret\" = \"x\", d = 1 } }",
        "config_file = \"x\"\nconfig = \"y\"",
        "manifest = { max_memory = 1 }",
        "manifest = { max_memory_usage_bytes = -1, start_timeout = \"30 s\", stop_timeout = \"2h\" }",
        "manifest = { start_timeout = \"1s\", startTimeout = \"2s\" }",
        "manifest = { plugin_type = \"DEMON\", download_attempt_count = 101 }",
        "manifest = { string_config = \"SECRET\" }",
        "manifest = { execution_model = { one_shot = { triggers = { bot = true } } } }",
        "signature = \"x\"",
        "entrypoint = \"p\"",
    ];
    let all: String = wrong
        .iter()
        .map(|line| format!("{line}\n{}\n", problems(Format::Toml, &release(line))))
        .collect();
    let told = all.lines().filter(|line| line.starts_with("a.toml"));
    assert!(!told.clone().any(|line| line.contains("SECRET")), "{all}");
    insta::assert_snapshot!(all);
}

#[test]
fn mistakes_in_assignments_holds_and_windows() {
    let wrong = [
        "[[assignment]]\nplugin = \"p\"\nrevision = \"1\"\nselect = \"all\"\n",
        "[[assignment]]\nname = \"A_b\"\nplugin = \"p\"\nselect = \"all\"\n",
        "[[assignment]]\nname = \"a\"\nplugin = \"p\"\nrevision = \"1\"\nabsent = true\nselect = \"all\"\n",
        "[[assignment]]\nname = \"a\"\nplugin = \"p\"\nabsent = \"yes\"\nselector = \"all\"\n",
        "[[assignment]]\nname = \"a\"\nplugin = \"p\"\nabsent = true\nselect = \"env == prod\"\n",
        "[[assignment]]\nname = \"a\"\nplugin = \"p\"\nabsent = true\nselect = \"not self.env = prod\"\n",
        "[[assignment]]\nname = \"a\"\nplugin = \"p\"\nabsent = true\nselect = \"all\"\npriority = 1.5\n",
        "[[assignment]]\nname = \"a\"\nplugin = \"p\"\nabsent = true\nselect = \"all\"\npriority = 99999999999\n",
        "[[hold]]\nname = \"a\"\nselect = \"all\"\nreason = \" \"\nuntil = \"tomorrow\"\n",
        "[[hold]]\nname = \"a\"\nselect = \"all\"\nreason = \"x\"\nplugins = []\nuntil = 2030-01-01\n",
        "[[hold]]\nname = \"a\"\nselect = \"all\"\nreason = \"a\\nb\"\nplugins = [\"p\", 3]\n",
        "[[window]]\nname = \"a\"\nselect = \"all\"\ndays = [\"Monday\", \"x\"]\nfrom = \"2:00\"\nto = \"25:00\"\nzone = \"Europe/Zurch\"\n",
        "[[window]]\nname = \"a\"\nselect = \"all\"\ndays = []\nfrom = \"02:00\"\nto = \"02:00\"\nzone = \"Mars\"\n",
        "[[window]]\nname = \"a\"\nselect = \"all\"\ndays = \"mon\"\nfrom = \"24:00\"\nto = 300\nzone = 1\n",
        "[[assignment]]\nname = \"a\"\nplugin = \"p\"\nabsent = true\nselect = \"all\"\n[[assignment]]\nname = \"a\"\nplugin = \"q\"\nabsent = true\nselect = \"all\"\n",
        "assignment = 3\n[[asignment]]\n",
        "[[assignment]\n",
    ];
    let all: String =
        wrong.iter().map(|text| format!("{text}{}\n", problems(Format::Toml, text))).collect();
    insta::assert_snapshot!(all);
}

#[test]
fn mistakes_in_yaml() {
    let wrong = [
        "holds:\n- name: a\n",
        "hold:\n- name: a\n  select: all\n  reason: yes\n  until: 2030-01-01T00:00:00\n",
        "hold:\n- name: 7\n  select: ~\n  reason: true\n",
        "hold:\n- name: a\n  name: b\n",
        "hold:\n- !!str name: a\n",
        "hold:\n- <<: *x\n",
        "hold: [a\n",
        "- name: a\n",
        "hold:\n\t- name: a\n",
        "release:\n- {plugin: p, revision: 1.10, entry_point: p, archives: {any: {sha256: 00}}, config: {a: null}}\n",
    ];
    let all: String =
        wrong.iter().map(|text| format!("{text}{}\n", problems(Format::Yaml, text))).collect();
    insta::assert_snapshot!(all);
}
