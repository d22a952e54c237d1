//! What all verbs have in common: errors, exit codes, help, and how the socket is found.

use super::*;

#[test]
fn an_unknown_plugin_is_answered_with_its_nearest_neighbour() {
    let agent = FakeAgent::start(everything());
    for verb in ["status", "restart", "events", "logs", "remove"] {
        let ran = ran_on(&agent, &[verb, "metrisc"]);
        assert_eq!(ran.exit, Exit::Failed, "{verb}");
        assert_eq!(
            ran.err, "guest-agent: no plugin has the name metrisc\n  try: did you mean metrics?\n",
            "{verb}"
        );
    }
}

#[test]
fn a_missing_agent_is_exit_code_3_with_advice() {
    let ran = ran(&["status", "--socket", "/nonexistent/agent.sock"]);
    assert_eq!(ran.exit.code(), 3);
    assert_snapshot!(ran.err);
}

#[test]
fn a_socket_that_nobody_listens_on_is_told_apart() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let socket = folder.path().join("agent.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("a socket"));
    let ran = ran(&["status", "--socket", &socket.display().to_string()]);
    assert_eq!(ran.exit, Exit::Unreachable);
    assert!(ran.err.contains("nothing listens on"), "{}", ran.err);
}

#[test]
fn the_socket_comes_from_the_flag_then_the_variable_then_the_configuration() {
    let named = |ran: &Ran, path: &str| assert!(ran.err.contains(path), "{}", ran.err);
    let setting = "agent.runtime_dir=/nonexistent/set";
    named(&ran(&["status", "--set", setting]), "/nonexistent/set/agent.sock");
    let mut environment = MapEnvironment::default();
    let variables = &mut environment.variables;
    variables.insert("GUEST_AGENT_SOCKET".to_owned(), "/nonexistent/variable".to_owned());
    let with =
        |arguments: &[&str]| ran_with(arguments, &environment, &Recorder::default(), Looks::Plain);
    named(&with(&["status", "--set", setting]), "/nonexistent/variable");
    named(&with(&["status", "--socket", "/nonexistent/flag"]), "/nonexistent/flag");
    named(&ran(&["status"]), "/run/guest-agent/agent.sock");
}

#[test]
fn usage_errors_are_exit_code_2_and_help_is_not() {
    for wrong in [
        &["no-such-verb"][..],
        &["install"],
        &["install", "a"],
        &["install", "a", "-f", "x"],
        &["install", "-f", "x", "--timeout", "5"],
        &["status", "a", "--nonsense"],
        &["wait", "a", "--state", "HAPPY"],
        &["wait", "../a"],
        &["logs"],
        &["events", "--since", "yesterday"],
        &["run", "--set", "agent.name"],
        &["run", "--socket", "/x"],
        &["pack", "/", "-o", "/x.tar.gz", "--entry-point", "/abs"],
    ] {
        let ran = ran(wrong);
        assert_eq!(ran.exit.code(), 2, "{wrong:?}: {}", ran.err);
        assert!(!ran.err.is_empty() && ran.out.is_empty(), "{wrong:?}");
    }
    for right in [&["--help"][..], &["--version"], &["install", "--help"], &["config", "--help"]] {
        let ran = ran(right);
        assert_eq!((ran.exit, ran.err.as_str()), (Exit::Done, ""), "{right:?}");
    }
}

#[test]
fn the_flags_of_all_verbs_agree_with_each_other() {
    Arguments::command().debug_assert();
}

#[test]
fn the_help_lists_the_verbs_and_hides_the_sample_plugin() {
    let ran = ran(&["--help"]);
    assert_snapshot!(ran.out);
}
