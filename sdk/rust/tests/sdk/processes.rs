//! The examples as processes: arguments, signals, exit codes, error log, and the misbehaviours the
//! tests of the agent rely on.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tonic::Code;

use crate::harness::{Client, PATIENCE, Process, eventually};

const SECOND: Duration = Duration::from_secs(1);

/// The one line of the answer to a question.
async fn answer(client: &mut Client, question: &str) -> String {
    let answer = client.ask(question).await.expect("answered");
    assert_eq!(answer.code, 0, "{question}: {:?}", answer.results);
    answer.results.into_iter().next().unwrap_or_default()
}

fn is_running(pid: &str) -> bool {
    Path::new("/proc").join(pid).exists()
}

/// The process group and the session of a process. Either is 0 when its leader is outside of this
/// PID namespace, which wrappers of the system calls do not expect.
fn group_and_session(pid: &str) -> Option<(String, String)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may have spaces.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(2).map(str::to_owned);
    Some((fields.next()?, fields.next()?))
}

#[tokio::test]
async fn echo_answers_applies_and_exits_with_zero_after_stop() {
    let mut echo = Process::launch("echo_plugin", &["--greeting", "good day"]);
    let mut client = echo.connect().await;
    client.start(echo.state(), Some("one")).await.expect("started");
    assert_eq!(client.health().await.expect("healthy").code, 0);
    assert_eq!(answer(&mut client, "echo some words").await, "some words");
    assert_eq!(answer(&mut client, "pid").await, echo.pid().to_string());
    assert_eq!(answer(&mut client, "config").await, "one");
    client.apply(Some("two")).await.expect("applied");
    assert_eq!(answer(&mut client, "config").await, "two");

    let news = r#"{"Command":"VmEvent","Event":"startup"}"#;
    let error = client.apply(Some(news)).await.expect_err("not interested");
    assert_eq!(error.code(), Code::Unimplemented);
    assert_eq!(answer(&mut client, "config").await, "two");

    client.stop(false, 5 * SECOND).await.expect("stopped");
    assert_eq!(echo.exit().await.code(), Some(0));
    assert!(!echo.state().join("plugin.sock").exists());
}

#[tokio::test]
async fn sigterm_ends_a_plugin_with_exit_code_zero() {
    let mut echo = Process::launch("echo_plugin", &[]);
    let mut client = echo.connect().await;
    client.start(echo.state(), None).await.expect("started");
    echo.terminate();
    assert_eq!(echo.exit().await.code(), Some(0));
}

#[tokio::test]
async fn an_address_others_can_reach_is_refused_in_the_error_log() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let agents = ["--protocol=tcp", "--address=192.0.2.1:7000"];
    let mut echo = Process::launch_at(directory, "echo_plugin", &[], &agents);
    assert_eq!(echo.exit().await.code(), Some(1));
    let log = echo.error_log();
    assert!(log.contains("other machines") && log.contains("--protocol=unix"), "{log}");
}

#[tokio::test]
async fn a_panic_is_written_to_the_error_log_with_its_place() {
    let trouble = Process::launch("trouble_plugin", &[]);
    let mut client = trouble.connect().await;
    let error = client.ask("panic what a day").await.expect_err("panicked");
    assert_eq!(error.code(), Code::Internal);
    let log = trouble.error_log();
    assert!(log.contains("panicked at") && log.contains("trouble_plugin.rs"), "{log}");
    assert!(log.trim_end().ends_with("what a day"), "{log}");
    assert_eq!(client.health().await.expect("still alive").code, 0);
}

#[tokio::test]
async fn exit_before_start_exits_without_a_socket() {
    let mut trouble = Process::launch("trouble_plugin", &["--exit-before-start=42"]);
    assert_eq!(trouble.exit().await.code(), Some(42));
    assert!(!trouble.state().join("plugin.sock").exists());
}

#[tokio::test]
async fn start_failures_are_counted_across_processes() {
    let mut trouble = Process::launch("trouble_plugin", &["--start-fails=2"]);
    let mut client = trouble.connect().await;
    client.start(trouble.state(), None).await.expect_err("the first start fails");
    trouble.terminate();
    assert_eq!(trouble.exit().await.code(), Some(0));

    let again = Process::launch("trouble_plugin", &["--start-fails=2"]);
    let mut client = again.connect().await;
    client.start(trouble.state(), None).await.expect_err("the second start fails");
    client.start(trouble.state(), None).await.expect("the third start succeeds");
}

#[tokio::test]
async fn a_hung_runtime_answers_nothing_and_survives_sigterm() {
    let mut trouble = Process::launch("trouble_plugin", &["--hang-after-start-ms=50"]);
    let mut client = trouble.connect().await;
    client.start(trouble.state(), None).await.expect("started");
    let address = trouble.socket();
    eventually("the runtime hangs", || async {
        let mut client = Client::try_connect(&address).await.ok()?;
        let health = tokio::time::timeout(SECOND / 4, client.health());
        health.await.is_err().then_some(())
    })
    .await;
    trouble.terminate();
    assert!(tokio::time::timeout(SECOND / 4, client.health()).await.is_err());
    assert!(trouble.is_alive());
}

#[tokio::test]
async fn crashes_and_exits_have_their_codes() {
    let mut trouble = Process::launch("trouble_plugin", &["--crash-after-ms=1"]);
    let mut client = trouble.connect().await;
    // The crash may be faster than the answer.
    drop(client.start(trouble.state(), None).await);
    assert_eq!(trouble.exit().await.code(), Some(70));

    let mut trouble = Process::launch("trouble_plugin", &[]);
    trouble.connect().await.ask("exit 9").await.expect_err("it exits");
    assert_eq!(trouble.exit().await.code(), Some(9));
}

#[tokio::test]
async fn an_ignored_stop_is_answered_and_the_process_lives_until_sigterm() {
    let mut trouble = Process::launch("trouble_plugin", &["--ignore-stop"]);
    let mut client = trouble.connect().await;
    client.stop(false, SECOND).await.expect("answered");
    let socket = trouble.state().join("plugin.sock");
    eventually("the server is gone", || async { (!socket.exists()).then_some(()) }).await;
    assert!(trouble.is_alive());
    trouble.terminate();
    assert_eq!(trouble.exit().await.code(), Some(0));
}

#[tokio::test]
async fn an_ignored_sigterm_changes_nothing() {
    let mut trouble = Process::launch("trouble_plugin", &["--ignore-sigterm"]);
    let mut client = trouble.connect().await;
    trouble.terminate();
    assert_eq!(answer(&mut client, "echo alive").await, "alive");
    client.stop(false, SECOND).await.expect("stopped");
    assert_eq!(trouble.exit().await.code(), Some(0));
}

#[tokio::test]
async fn apply_is_answered_as_told() {
    for (told, code) in [("refuse", Code::InvalidArgument), ("unimplemented", Code::Unimplemented)]
    {
        let trouble = Process::launch("trouble_plugin", &["--apply", told]);
        let mut client = trouble.connect().await;
        client.start(trouble.state(), Some("kept")).await.expect("started");
        assert_eq!(client.apply(Some("new")).await.expect_err(told).code(), code);
        assert_eq!(answer(&mut client, "config").await, "kept");
    }
    let trouble = Process::launch("trouble_plugin", &["--unhealthy-code=5"]);
    let mut client = trouble.connect().await;
    client.start(trouble.state(), None).await.expect("started");
    client.apply(Some("new")).await.expect("applied");
    assert_eq!(answer(&mut client, "config").await, "new");
    assert_eq!(client.health().await.expect("alive").code, 5);
}

#[tokio::test]
async fn what_the_process_was_given_is_written_down() {
    let own = ["--write-args-to=given.json", "--slow-socket-ms=1"];
    let trouble = Process::launch("trouble_plugin", &own);
    let mut client = trouble.connect().await;
    client.start(trouble.state(), None).await.expect("started");
    let text = std::fs::read_to_string(trouble.state().join("given.json")).expect("written");
    let given: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(given["argv"][1], "--write-args-to=given.json");
    assert_eq!(given["pid"], trouble.pid());
    assert_eq!(given["descriptors"]["0"], "/dev/null");
    assert!(given["oom_score_adj"].is_i64(), "{given}");
    assert!(given["session"].is_u64(), "{given}");
    assert!(given["environment"].is_object() && given["cwd"].is_string(), "{given}");
}

#[tokio::test]
async fn children_are_in_the_process_group_or_in_sessions_of_their_own() {
    let own = ["--fork-children=1", "--setsid-children=1"];
    let trouble = Process::launch("trouble_plugin", &own);
    let mut client = trouble.connect().await;
    client.start(trouble.state(), None).await.expect("started");
    let children = client.ask("children").await.expect("answered").results;
    assert_eq!(children.len(), 2);
    assert!(children.iter().all(|pid| is_running(pid)));
    let [near, far] = [&children[0], &children[1]];
    let (group, session) = group_and_session(&trouble.pid().to_string()).expect("it runs");
    assert_eq!(group_and_session(near), Some((group, session)));
    eventually("the other one has a session of its own", || async {
        (group_and_session(far)? == (far.clone(), far.clone())).then_some(())
    })
    .await;
    for child in [near, far] {
        let pid = rustix::process::Pid::from_raw(child.parse().expect("a number"));
        let pid = pid.expect("not zero");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("ours");
    }
}

#[tokio::test]
async fn allocated_memory_is_resident() {
    let trouble = Process::launch("trouble_plugin", &["--allocate-mb=64"]);
    let mut client = trouble.connect().await;
    client.start(trouble.state(), None).await.expect("started");
    let status = format!("/proc/{}/status", trouble.pid());
    eventually("64 MiB are resident", || async {
        let status = std::fs::read_to_string(&status).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
        (kib >= 64 * 1024).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_start_that_hangs_can_still_be_stopped() {
    let mut trouble = Process::launch("trouble_plugin", &["--start-hangs"]);
    let mut client = trouble.connect().await;
    let start = tokio::time::timeout(SECOND / 4, client.start(trouble.state(), None));
    assert!(start.await.is_err(), "start is never answered");
    assert_eq!(answer(&mut client, "echo alive").await, "alive");
    let stop = tokio::time::timeout(PATIENCE, client.stop(false, SECOND));
    stop.await.expect("in time").expect("stopped");
    assert_eq!(trouble.exit().await.code(), Some(0));
}

#[tokio::test]
async fn as_many_bytes_go_to_stdout_as_told() {
    let own = ["--spam-stdout=300000"];
    let mut trouble = Process::launch("trouble_plugin", &own);
    let stdout = trouble.stdout();
    let count = std::thread::spawn(move || std::io::copy(&mut { stdout }, &mut std::io::sink()));
    let mut client = trouble.connect().await;
    client.start(trouble.state(), None).await.expect("started");
    let written = || async { (trouble.bytes_written() >= 300_000).then_some(()) };
    eventually("everything is written", written).await;
    trouble.terminate();
    trouble.exit().await;
    assert_eq!(count.join().expect("no panic").expect("read"), 300_000);
}

#[tokio::test]
async fn a_plugin_told_never_to_bind_lives_without_a_socket() {
    let mut trouble = Process::launch("trouble_plugin", &["--never-bind"]);
    let status = format!("/proc/{}/status", trouble.pid());
    eventually("it sleeps", || async {
        let status = std::fs::read_to_string(&status).ok()?;
        let asleep = status.contains("trouble_plugin") && status.contains("(sleeping)");
        asleep.then_some(())
    })
    .await;
    assert!(trouble.is_alive());
    assert!(!trouble.state().join("plugin.sock").exists());
}
