//! `enroll`: what is refused before a server is asked. `enroll/tests.rs` has the rest.

use super::*;

const SERVER: &str = "https://127.0.0.1:1";

#[test]
fn a_token_and_at_most_one_way_to_know_the_server_are_needed() {
    let digest = "0".repeat(64);
    for arguments in [
        &["enroll", "--server", SERVER][..],
        &["enroll", "--token", "a.b"],
        &["enroll", "--server", SERVER, "--token", "a.b", "--token-file", "x"],
        &["enroll", "--server", SERVER, "--token", "a.b", "--ca", "x", "--ca-sha256", &digest],
        &["enroll", "--server", SERVER, "--token", "a.b", "--ca-sha256", "00"],
    ] {
        assert_eq!(ran(arguments).exit, Exit::Usage, "{arguments:?}");
    }
}

#[test]
fn what_keeps_a_machine_from_enrolling_is_said_with_what_to_try() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let place = folder.path().display().to_string();
    let setting = format!("agent.state_dir={place}/state");
    let empty = folder.path().join("token");
    std::fs::write(&empty, "\n").expect("written");
    let empty = empty.display().to_string();
    let missing = format!("{place}/missing");
    let digest = "0".repeat(64);
    for (arguments, reason) in [
        (["--server", SERVER, "--token-file", &empty], "the join token is empty"),
        (["--server", SERVER, "--token-file", &missing], "failed to read the token in"),
        (["--server", "http://127.0.0.1", "--token", "a.b"], "it begins with https://"),
        (["--server", SERVER, "--token", "a.b"], "guest-fleet ca show"),
    ] {
        let whole =
            [&["enroll", "--set", &setting, "--ca-sha256", &digest], &arguments[..]].concat();
        let ran = ran(&whole);
        assert_eq!(ran.exit, Exit::Failed, "{arguments:?}");
        assert!(ran.err.contains(reason), "{arguments:?}: {}", ran.err);
        assert_eq!(ran.out, "");
    }
}
