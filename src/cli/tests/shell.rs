//! `completions` and `man`.

use std::process::{Command, Stdio};

use guest_agent_actors::model::id::Sha256Digest;

use super::*;

const SHELLS: [&str; 5] = ["bash", "elvish", "fish", "powershell", "zsh"];

/// Returns the completions of the last word. They are those for fish, which reads one candidate per
/// line.
fn completed(agent: Option<&FakeAgent>, words: &[&str]) -> Vec<String> {
    let mut environment = MapEnvironment::default();
    let variables = &mut environment.variables;
    variables.insert(completions::VARIABLE.to_owned(), "fish".to_owned());
    if let Some(agent) = agent {
        let socket = agent.socket.display().to_string();
        variables.insert("GUEST_AGENT_SOCKET".to_owned(), socket);
    }
    let arguments = [&["--", "guest-agent"][..], words].concat();
    let ran = ran_with(&arguments, &environment, &Recorder::default(), Looks::Plain);
    assert_eq!((ran.exit, ran.err.as_str()), (Exit::Done, ""));
    let candidate = |line: &str| line.split('\t').next().unwrap_or_default().to_owned();
    ran.out.lines().map(candidate).filter(|line| !line.starts_with('-')).collect()
}

#[test]
fn every_shell_gets_a_script_that_asks_this_program() {
    for shell in SHELLS {
        let ran = ran(&["completions", shell]);
        assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
        assert!(ran.out.contains(completions::VARIABLE), "{shell}: {}", ran.out);
        assert!(ran.out.contains("guest-agent"), "{shell}: {}", ran.out);
    }
    assert_eq!(ran(&["completions", "tcsh"]).exit, Exit::Usage);
}

#[test]
fn verbs_are_completed_without_an_agent_and_the_hidden_ones_are_not() {
    let verbs = completed(None, &["re"]);
    assert_eq!(verbs, ["remove", "restart", "release", "registry"]);
    assert_eq!(completed(None, &["sample"]), Vec::<String>::new());
    assert_eq!(completed(None, &["completions", "z"]), ["zsh"]);
}

#[test]
fn the_names_of_plugins_are_those_of_the_agent() {
    let agent = FakeAgent::start(everything());
    for verb in ["status", "remove", "restart", "explain", "wait", "events", "logs", "apply"] {
        assert_eq!(completed(Some(&agent), &[verb, "me"]), ["metrics"], "{verb}");
    }
    let socket = agent.socket.display().to_string();
    assert_eq!(completed(None, &["--socket", &socket, "status", "up"]), ["upgrading"]);
    assert_eq!(completed(None, &["status", "--socket=/nonexistent", "m"]), Vec::<String>::new());
}

#[test]
fn a_shell_that_is_not_known_is_told_which_are() {
    let mut environment = MapEnvironment::default();
    environment.variables.insert(completions::VARIABLE.to_owned(), "tcsh".to_owned());
    let ran = ran_with(&["--", "x"], &environment, &Recorder::default(), Looks::Plain);
    assert_eq!(ran.exit, Exit::Usage);
    assert!(ran.err.contains("bash, elvish, fish, powershell, zsh"), "{}", ran.err);
}

#[test]
fn every_verb_that_a_person_types_has_a_page() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let dir = folder.path().join("man1").display().to_string();
    let written = json(&ran(&["man", "--out", &dir, "--json"]));
    let mut names: Vec<&str> = written["pages"]
        .as_array()
        .expect("an array")
        .iter()
        .map(|path| path.as_str().expect("a path").rsplit('/').next().expect("a name"))
        .collect();
    assert_eq!(names.first(), Some(&"guest-agent.1"));
    let mut expected = vec!["guest-agent.1".to_owned()];
    for verb in Arguments::command().get_subcommands() {
        expected.push(format!("guest-agent-{}.1", verb.get_name()));
        for below in verb.get_subcommands() {
            expected.push(format!("guest-agent-{}-{}.1", verb.get_name(), below.get_name()));
        }
    }
    expected.sort_unstable();
    names.sort_unstable();
    assert_eq!(names, expected);
    assert_eq!(std::fs::read_dir(&dir).expect("the directory").count(), names.len());
}

#[test]
fn the_page_of_the_program_says_how_it_ends_and_which_files_it_reads() {
    let page = ran(&["man"]).out;
    for heading in ["NAME", "SYNOPSIS", "SUBCOMMANDS", "EXIT STATUS", "ENVIRONMENT", "FILES"] {
        assert!(page.contains(heading), "{heading}");
    }
    let again = ran(&["man"]).out;
    let digest = |text: &str| Sha256Digest::of(text.as_bytes());
    assert_eq!(digest(&page), digest(&again), "packages can be reproduced");
}

#[test]
fn the_formatter_has_nothing_to_complain_about() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let dir = folder.path().display().to_string();
    assert_eq!(ran(&["man", "--out", &dir]).exit, Exit::Done);
    for page in std::fs::read_dir(&dir).expect("the directory") {
        let page = page.expect("a page").path();
        let mut groff = Command::new("groff");
        groff.args(["-man", "-Tascii", "-ww", "-z"]).arg(&page).stdin(Stdio::null());
        let Ok(checked) = groff.output() else {
            eprintln!("SKIPPED: there is no groff to read the manual pages with");
            return;
        };
        let complaints = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success() && complaints.is_empty(), "{page:?}: {complaints}");
    }
}
