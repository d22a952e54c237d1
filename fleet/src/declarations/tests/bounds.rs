//! What is too long or too much in a declaration is named, and nothing of it is used.

use std::fmt::Write;

use super::super::files::Format;
use super::{DIGEST, parsed};

/// The first problem of a release with these lines in place of others.
#[track_caller]
fn problem(lines: &[(&str, String)]) -> String {
    let mut release = vec![
        ("plugin", "\"p\"".to_owned()),
        ("revision", "\"1\"".to_owned()),
        ("entry_point", "\"p\"".to_owned()),
        ("archives", format!("{{ any = {{ sha256 = \"{DIGEST}\" }} }}")),
    ];
    release.retain(|(name, _)| lines.iter().all(|(line, _)| line != name));
    let mut text = "[[release]]\n".to_owned();
    for (name, value) in release.iter().chain(lines) {
        writeln!(text, "{name} = {value}").expect("a line");
    }
    let problems = parsed(Format::Toml, &text).expect_err("it is refused").0;
    problems[0].to_string()
}

fn quoted(length: usize) -> String {
    format!("\"{}\"", "x".repeat(length))
}

#[test]
fn every_bound_of_a_release_is_kept() {
    let list =
        |count: usize, length: usize| format!("[{}]", vec![quoted(length); count].join(", "));
    let url = format!(
        "{{ any = {{ sha256 = \"{DIGEST}\", url = \"https://e/{}\" }} }}",
        "x".repeat(16 << 10)
    );
    let secrets = format!("{{ a = [{}] }}", vec!["{ \"$secret\" = \"a\" }"; 65].join(", "));
    let name = format!("{{ \"$secret\" = {} }}", quoted(129));
    let deep = format!("{{ a = {}1{} }}", "[".repeat(24), "]".repeat(24));
    for (key, value) in [
        ("plugin", quoted(64)),
        ("revision", quoted(129)),
        ("entry_point", quoted(1025)),
        ("arguments", list(1025, 1)),
        ("arguments", list(1, (128 << 10) + 1)),
        ("archives", url),
        ("config", quoted((1 << 20) + 1)),
        ("config", deep),
        ("config", secrets),
        ("config", name),
    ] {
        let found = problem(&[(key, value)]);
        assert!(found.contains(&format!("release.{key}")), "{key}: {found}");
        assert!(found.len() < 1000, "{key}: a problem of {} bytes", found.len());
    }
}

#[test]
fn every_bound_of_an_assignment_and_a_hold_is_kept() {
    for (key, text) in [
        (
            "assignment.name",
            format!(
                "[[assignment]]\nname = {}\nplugin = \"p\"\nrevision = \"1\"\nselect = \"all\"",
                quoted(64)
            ),
        ),
        (
            "assignment.select",
            format!(
                "[[assignment]]\nname = \"a\"\nplugin = \"p\"\nrevision = \"1\"\nselect = {}",
                quoted(4097)
            ),
        ),
        (
            "hold.reason",
            format!("[[hold]]\nname = \"h\"\nselect = \"all\"\nreason = {}", quoted(1025)),
        ),
    ] {
        let problems = parsed(Format::Toml, &text).expect_err("it is refused").0;
        assert_eq!(problems[0].key, key, "{problems:?}");
    }
}

#[test]
fn of_problems_without_number_a_thousand_are_told() {
    let text = "[[hold]]\nname = \"!\"\n".repeat(2000);
    let problems = parsed(Format::Toml, &text).expect_err("it is refused").0;
    assert_eq!(problems.len(), 1000);
}
