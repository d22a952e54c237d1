//! The program: agents that their labels bring to an assignment, changes that a policy forbids, and the way back
//! of rollouts that are done.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::gateway::binary::{Machine, RELEASE, Served, ask, declare, program};
use crate::gateway::{AGENT, LONG};

/// How changes go here: nobody watches for long.
const QUICK: &str = "[defaults.rollout]\nsoak = \"1s\"\n";

/// Waits until a verb prints this.
async fn until(path: &Path, verb: &[&str], text: &str) {
    let late = Instant::now() + LONG;
    loop {
        let printed = ask(path, verb).await;
        if printed.contains(text) {
            return;
        }
        assert!(Instant::now() < late, "{printed}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until the agent has done what it was ordered.
async fn until_done(path: &Path, revision: &str) {
    let late = Instant::now() + LONG;
    loop {
        let explained = ask(path, &["explain", AGENT, "monitor"]).await;
        if explained.contains(&format!("monitor {revision} since")) && explained.contains(": done")
        {
            return;
        }
        assert!(Instant::now() < late, "{explained}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn an_agent_that_its_label_brings_to_an_assignment_is_rolled_out_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let served = Served::start(path).await;
    let mut declared = QUICK.to_owned();
    for (env, revision) in [("prod", "1"), ("test", "2")] {
        declared += &RELEASE.replace("REVISION", revision);
        writeln!(
            declared,
            "[[assignment]]\nname = \"{env}\"\nplugin = \"monitor\"\nrevision = \"{revision}\"\n\
             select = \"env = {env}\""
        )
        .unwrap();
    }
    let file = path.join("declared.toml");
    fs::write(&file, declared).unwrap();
    let applied = ask(path, &["apply", "-f", file.to_str().unwrap()]).await;
    assert!(!applied.contains("rollout prod"), "there is no agent yet: {applied}");

    // A new machine gets what is assigned to it, at once.
    let mut machine = Machine::connect(path, "").await;
    ask(path, &["agent", "label", AGENT, "env=test"]).await;
    let (id, revision, _) = machine.ordered().await;
    assert_eq!(revision, "2");
    machine.does(&id, "2").await;
    until_done(path, "2").await;
    assert!(!ask(path, &["rollout", "list"]).await.contains("prod"));

    ask(path, &["agent", "label", AGENT, "env=prod"]).await;
    let (id, revision, _) = machine.ordered().await;
    assert_eq!(revision, "1");
    machine.does(&id, "1").await;
    until_done(path, "1").await;
    let shown = ask(path, &["rollout", "show", "prod"]).await;
    assert!(shown.contains("prod-1: monitor (each its own) to 1"), "{shown}");
    let audit = ask(path, &["audit", "--limit", "50"]).await;
    assert!(audit.contains("rollout begin: agents came to the assignment prod"), "{audit}");

    // Each agent had its own before, so it goes back to that.
    until(path, &["rollout", "show", "prod"], "to 1, done").await;
    ask(path, &["rollout", "rollback", "prod-1", "--reason", "too early"]).await;
    let (id, revision, _) = machine.ordered().await;
    assert_eq!(revision, "2");
    machine.does(&id, "2").await;
    until(path, &["rollout", "show", "prod"], "to 1, rolled back").await;
    served.stop().await;
}

#[tokio::test]
async fn a_rollout_that_is_done_goes_back_by_a_new_one_and_the_file_does_not_push_it_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let served = Served::start(path).await;
    let mut machine = Machine::connect(path, "").await;
    ask(path, &["agent", "label", AGENT, "env=prod"]).await;
    let declared = path.join("declared");
    fs::create_dir_all(&declared).unwrap();
    fs::write(declared.join("defaults.toml"), QUICK).unwrap();
    for revision in ["1", "2"] {
        declare(path, revision).await;
        let (id, ordered, _) = machine.ordered().await;
        assert_eq!(ordered, revision);
        machine.does(&id, revision).await;
        let done = format!("to {revision}, done");
        until(path, &["rollout", "show", "monitor-prod"], &done).await;
    }

    let back = ask(path, &["rollout", "rollback", "monitor-prod", "--reason", "it leaks"]).await;
    assert!(back.contains("monitor-prod-3: monitor 2 to 1, running"), "{back}");
    assert!(
        back.contains("name = \"monitor-prod\"\nplugin = \"monitor\"\nrevision = \"1\""),
        "{back}"
    );
    // A server that is killed begins where it was, and waits for no lease of the one before it.
    served.kill().await;
    let begun = Instant::now();
    let served = Served::start(path).await;
    let mut machine = Machine::connect(path, "2").await;
    let (id, ordered, _) = machine.ordered().await;
    assert_eq!(ordered, "1");
    let elapsed = begun.elapsed();
    assert!(
        elapsed < Duration::from_secs(9),
        "as long as the lease of a process that may live: {elapsed:?}"
    );
    machine.does(&id, "1").await;
    until(path, &["rollout", "show", "monitor-prod"], "2 to 1, done").await;

    // A pipeline that applies its file again pushes nothing, and says why.
    let file = declared.to_str().unwrap();
    for verb in ["diff", "apply"] {
        let said = ask(path, &[verb, "-f", file]).await;
        assert!(said.contains("the files say 2 for the assignment monitor-prod, and "), "{said}");
        assert!(said.contains("`rollout rollback`") && !said.contains('~'), "{said}");
    }
    let ended = ask(path, &["rollout", "list", "--ended"]).await;
    let given: Vec<&str> = ended.lines().filter(|line| line.ends_with("1 of 1")).collect();
    assert_eq!(given.len(), 3, "{ended}");
    let shown = ask(path, &["rollout", "show", "monitor-prod-2"]).await;
    assert!(shown.contains("rollout finish by the controller"), "{shown}");
    let history = ask(path, &["rollout", "history", "monitor-prod-2"]).await;
    assert!(history.contains("rollout rollback: it leaks"), "{history}");
    assert!(history.contains("rollout grant") && !history.contains("2 to 1, done"), "{history}");
    served.stop().await;
}

#[tokio::test]
async fn a_policy_of_the_server_forbids_changes_at_once_until_the_server_takes_it_away() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let file = path.join("policies.toml");
    let policy = "[[policy]]\nname = \"by-rollout\"\nselect = \"env = prod\"\nat_once = false\n";
    let listen = format!("unix:{}/cp.sock", path.display());
    let arguments = ["--listen", &listen, "--policies", file.to_str().unwrap()];

    fs::write(&file, policy.replace("false", "true")).unwrap();
    let output = program(path).arg("serve").args(arguments).output().await.unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && err.contains("the policy forbids nothing"), "{err}");

    fs::write(&file, policy).unwrap();
    let mut served = Served::spawn(path, &arguments);
    served.line("listening unix:").await;
    let mut machine = Machine::connect(path, "").await;
    ask(path, &["agent", "label", AGENT, "env=prod"]).await;
    declare(path, "1").await;
    let (id, revision, _) = machine.ordered().await;
    assert_eq!(revision, "1");
    machine.does(&id, "1").await;
    until_done(path, "1").await;

    let declared = path.join("declared");
    let release = RELEASE.replace("REVISION", "2");
    fs::write(declared.join("monitor-2.toml"), release).unwrap();
    let assignments = declared.join("assignments.toml");
    let text = fs::read_to_string(&assignments).unwrap().replace("\"1\"", "\"2\"");
    fs::write(&assignments, text).unwrap();
    let at_once = ["apply", "-f", declared.to_str().unwrap(), "--at-once", "--reason", "a fire"];
    let output = program(path).args(at_once).output().await.unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    let expected = "the policy by-rollout forbids a change at once for 1 of its agents";
    assert!(!output.status.success() && err.contains(expected), "{err}");
    assert!(err.contains("assignments.toml:") && err.contains("leave --at-once out"), "{err}");
    // A server that does not name the file leaves the policy; one with an empty file takes it away.
    served.stop().await;
    fs::write(&file, "").unwrap();
    let mut served = Served::spawn(path, &arguments);
    served.line("listening unix:").await;
    let mut machine = Machine::connect(path, "1").await;
    ask(path, &at_once).await;
    assert_eq!(machine.ordered().await.1, "2");
    let audit = ask(path, &["audit", "--limit", "50"]).await;
    assert!(audit.contains("- policy by-rollout") && audit.contains("a fire"), "{audit}");
    served.stop().await;
}
