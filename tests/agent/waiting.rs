//! Commands that wait for their order: they report the end of this very order, also when the agent is
//! killed meanwhile.

use std::process::Stdio;

use guest_agent_lab::ArtifactFaults;
use guest_agent_proto::local::RestartRequest;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::harness::{Archive, ArchiveSpec, Bed, PATIENCE, Said, orders, signal};

/// A command that was started and not waited for.
struct Waiting {
    child: tokio::process::Child,
}

impl Waiting {
    /// `install -f - --wait`, with the order on its standard input.
    async fn install(bed: &Bed, order: &Value) -> Self {
        Self::install_with(bed, order, &["--timeout", "25s"]).await
    }

    /// The same with more flags.
    async fn install_with(bed: &Bed, order: &Value, flags: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_guest-agent"))
            .args(["install", "-f", "-", "--wait"])
            .args(flags)
            .env("GUEST_AGENT_SOCKET", bed.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(order.to_string().as_bytes()).await.unwrap();
        Self { child }
    }

    fn signal(&self, wanted: Signal) {
        signal(self.child.id().unwrap(), wanted);
    }

    async fn said(self, bed: &Bed) -> Said {
        let ended = tokio::time::timeout(PATIENCE, self.child.wait_with_output()).await;
        let output = bed.check("the command ends", ended).unwrap();
        Said {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

fn order(archive: &Archive, sha256: &str) -> Value {
    order_of("1", archive, sha256)
}

fn order_of(revision: &str, archive: &Archive, sha256: &str) -> Value {
    json!({ "plugin": {
        "name": "p",
        "revisionId": revision,
        "gcsSignedUrl": archive.url,
        "checksum": sha256,
        "entryPoint": archive.entry_point,
    } })
}

/// An archive that comes so slowly that its installation is under way when the agent is killed.
async fn slow(bed: &Bed) -> Archive {
    slow_at(bed, 200_000).await
}

/// An archive of half a megabyte that comes at this rate.
async fn slow_at(bed: &Bed, bytes_per_second: u64) -> Archive {
    let archive = bed.archive("slow.tar", ArchiveSpec::echo().padded(512 << 10)).await;
    let bytes_per_second = Some(bytes_per_second);
    bed.artifacts.set_faults("slow.tar", ArtifactFaults { bytes_per_second, ..Default::default() });
    archive
}

async fn is_under_way(bed: &Bed) {
    bed.status_where("p", "its archive is on the way", |plugin| {
        plugin.progress.as_ref().is_some_and(|progress| progress.received_bytes > 0)
    })
    .await;
}

fn at_full_speed(bed: &Bed) {
    bed.artifacts.set_faults("slow.tar", ArtifactFaults::default());
}

#[tokio::test]
async fn a_wait_outlives_the_agent_and_tells_the_end_of_its_order() {
    let mut bed = Bed::new().await;
    let archive = slow(&bed).await;
    let waiting = Waiting::install(&bed, &order(&archive, &archive.sha256)).await;
    is_under_way(&bed).await;
    bed.kill_agent().await;
    at_full_speed(&bed);
    bed.start_agent().await;
    let said = waiting.said(&bed).await;
    assert_eq!((said.code, said.stdout.as_str()), (0, "p: RUNNING\n"), "{said:?}");
    bed.running("p", "1").await;
    bed.finish().await;
}

#[tokio::test]
async fn a_wait_outlives_the_agent_and_tells_why_its_order_failed() {
    let mut bed = Bed::new().await;
    let archive = slow(&bed).await;
    let waiting = Waiting::install(&bed, &order(&archive, &"0".repeat(64))).await;
    is_under_way(&bed).await;
    bed.kill_agent().await;
    at_full_speed(&bed);
    bed.start_agent().await;
    let said = waiting.said(&bed).await;
    assert_eq!((said.code, said.stdout.as_str()), (1, ""), "{said:?}");
    assert!(said.stderr.contains("failed to verify the archive: the checksum of"), "{said:?}");
    bed.in_state("p", "INSTALL_FAILED").await;
    bed.finish().await;
}

/// The command sleeps while its order ends and a newer one changes the plugin.
#[tokio::test]
async fn the_end_that_came_while_nobody_was_connected_is_told_all_the_same() {
    let mut bed = Bed::new().await;
    let archive = slow(&bed).await;
    let waiting = Waiting::install(&bed, &order(&archive, &archive.sha256)).await;
    is_under_way(&bed).await;
    waiting.signal(Signal::SIGSTOP);
    bed.kill_agent().await;
    at_full_speed(&bed);
    bed.start_agent().await;
    bed.running("p", "1").await;
    bed.expect_events("p", &[1, 4, 3]).await;
    bed.configure(vec![orders::install("p", "2", &archive).order()]).await;
    bed.running("p", "2").await;
    waiting.signal(Signal::SIGCONT);
    let said = waiting.said(&bed).await;
    let expected = "p: RUNNING with revision 2 after it was installed\n";
    assert_eq!((said.code, said.stdout.as_str()), (0, expected), "{said:?}");
    bed.finish().await;
}

#[tokio::test]
async fn a_wait_for_an_agent_that_stays_away_is_exit_code_3() {
    let mut bed = Bed::new().await;
    let archive = slow(&bed).await;
    let text = order(&archive, &archive.sha256).to_string();
    let file = bed.dir().join("order.json");
    std::fs::write(&file, text).unwrap();
    let file = file.display().to_string();
    let arguments = ["install", "-f", &file, "--wait", "--timeout", "8s"];
    let (said, ()) = tokio::join!(bed.cli(&arguments), async {
        is_under_way(&bed).await;
        signal(bed.agent_pid(), Signal::SIGKILL);
    });
    assert_eq!(said.code, 3, "{said:?}");
    assert!(said.stderr.contains("did not come back within 8s"), "{said:?}");
    at_full_speed(&bed);
    bed.kill_agent().await;
    bed.start_agent().await;
    bed.running("p", "1").await;
    bed.finish().await;
}

/// The output and exit code of `install --wait` for an order.
async fn installed(bed: &Bed, order: &Value, flags: &[&str]) -> Said {
    Waiting::install_with(bed, order, flags).await.said(bed).await
}

#[tokio::test]
async fn an_older_failure_says_nothing_of_a_restart_nor_of_an_installation() {
    let bed = Bed::builder().by_hand().set("plugins.probation=200ms").start().await;
    let echo = bed.echo().await;
    for revision in ["1", "2"] {
        let said = installed(&bed, &order_of(revision, &echo, &echo.sha256), &[]).await;
        assert_eq!((said.code, said.stdout.as_str()), (0, "p: RUNNING\n"), "{said:?}");
        let status = bed.running("p", revision).await;
        assert!(!status.on_trial, "its trial is over: {status:?}");
    }
    let wrong = installed(&bed, &order_of("3", &echo, &"0".repeat(64)), &[]).await;
    assert_eq!(wrong.code, 1, "{wrong:?}");
    assert!(wrong.stderr.contains("revision 2 is RUNNING instead"), "{wrong:?}");
    assert!(wrong.stderr.contains("the checksum of"), "{wrong:?}");
    let before = bed.running("p", "2").await;
    assert_eq!(bed.cli(&["restart", "p"]).await.ok(), "p: RUNNING\n");
    assert_ne!(bed.running("p", "2").await.pid, before.pid);
    assert_eq!(bed.cli(&["start", "p"]).await.ok(), "p: RUNNING\n");

    // Another archive of the revision that runs, and a revision that a person does not want.
    let other = installed(&bed, &order_of("2", &echo, &"0".repeat(64)), &[]).await;
    assert_eq!(other.code, 1, "{other:?}");
    let why = "revision 2 is installed with the checksum";
    assert!(other.stderr.contains(why), "{other:?}");
    bed.cli(&["rollback", "p", "--reason", "it leaks", "--wait"]).await.ok();
    let refused = installed(&bed, &order_of("2", &echo, &echo.sha256), &[]).await;
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("revision 2 was rolled back by root: it leaks"), "{refused:?}");
    assert!(refused.stderr.contains("`guest-agent release p`"), "{refused:?}");
    assert!(!refused.stderr.contains("the checksum of"), "an older order: {refused:?}");
    bed.finish().await;
}

#[tokio::test]
async fn an_installation_is_waited_for_until_its_trial_is_over() {
    let bed = Bed::builder().by_hand().set("plugins.probation=25s").start().await;
    let (echo, trouble) = (bed.echo().await, bed.trouble().await);
    let first = installed(&bed, &order_of("1", &echo, &echo.sha256), &[]).await;
    assert_eq!(first.code, 0, "a first installation has no trial: {first:?}");
    let second = order_of("2", &trouble, &trouble.sha256);
    let runs = installed(&bed, &second, &["--until", "running"]).await;
    assert_eq!((runs.code, runs.stdout.as_str()), (0, "p: RUNNING\n"), "{runs:?}");
    let status = bed.running("p", "2").await;
    assert!(status.on_trial && status.trial_ends.is_some(), "{status:?}");
    let shown = bed.cli(&["status", "p"]).await.ok();
    let for_so_long = shown.lines().any(|line| {
        line.contains("on trial") && line.contains("for ") && line.contains("s; the agent returns")
    });
    assert!(for_so_long, "{shown}");

    // The same order again waits for the end of the trial, which fails.
    let waiting = Waiting::install_with(&bed, &second, &[]).await;
    let ordered = status.generation;
    bed.status_where("p", "the order is taken", |status| status.generation > ordered).await;
    bed.tell("p", "exit 9").await;
    let said = waiting.said(&bed).await;
    assert_eq!((said.code, said.stdout.as_str()), (1, ""), "{said:?}");
    let why = "p: revision 1 is RUNNING instead: exited with code 9";
    assert!(said.stderr.contains(why), "{said:?}");
    assert!(said.stderr.contains("while on probation"), "{said:?}");
    assert_eq!(bed.running("p", "1").await.trial_ends, None);
    bed.finish().await;
}

/// The newer order is for the same revision, so its events name it as well.
#[tokio::test]
async fn the_failure_of_a_newer_order_for_the_revision_is_not_that_of_this_one() {
    let bed = Bed::builder().by_hand().set("plugins.probation=8s").start().await;
    let (echo, trouble) = (bed.echo().await, bed.trouble().await);
    assert_eq!(installed(&bed, &order_of("1", &echo, &echo.sha256), &[]).await.code, 0);
    let mut second = order_of("2", &trouble, &trouble.sha256);
    second["plugin"]["arguments"] = json!(["--apply=refuse"]);
    let waiting = Waiting::install(&bed, &second).await;
    bed.status_where("p", "its trial is under way", |status| {
        status.revision == "2" && status.on_trial && status.state == "RUNNING"
    })
    .await;
    second["manifest"] = json!({ "stringConfig": "x" });
    let newer = installed(&bed, &second, &["--until", "running"]).await;
    assert_eq!(newer.code, 1, "{newer:?}");
    assert!(newer.stderr.contains("told to refuse"), "{newer:?}");
    let said = waiting.said(&bed).await;
    assert_eq!((said.code, said.stdout.as_str()), (0, "p: RUNNING\n"), "{said:?}");
    assert!(!bed.running("p", "2").await.on_trial);
    bed.finish().await;
}

#[tokio::test]
async fn a_stop_and_a_start_do_not_wait_for_the_archive_of_the_next_revision() {
    let bed = Bed::builder().by_hand().start().await;
    let (echo, slow) = (bed.echo().await, slow_at(&bed, 10_000).await);
    assert_eq!(installed(&bed, &order_of("1", &echo, &echo.sha256), &[]).await.code, 0);
    bed.configure(vec![orders::install("p", "2", &slow).order()]).await;
    is_under_way(&bed).await;
    let before = bed.status("p").await.unwrap().pid;
    for (verb, state) in [("restart", "RUNNING"), ("stop", "STOPPED"), ("start", "RUNNING")] {
        let said = bed.cli(&[verb, "p", "--timeout", "10s"]).await;
        assert_eq!(said.ok(), format!("p: {state}\n"), "{verb}");
        let status = bed.status("p").await.unwrap();
        assert_eq!(status.pid.is_some(), state == "RUNNING", "{verb}: {status:?}");
        assert_ne!(status.pid, before, "{verb}");
        let pending = status.pending.unwrap();
        assert_eq!((&*pending.revision, &*pending.state), ("2", "INSTALLING"), "{verb}");
    }
    // A first installation has no process that a stop could wait for.
    bed.configure(vec![orders::install("q", "1", &slow).order()]).await;
    bed.in_state("q", "INSTALLING").await;
    assert_eq!(bed.cli(&["stop", "q", "--timeout", "10s"]).await.ok(), "q: INSTALLING\n");
    // A hold ends both downloads.
    bed.cli(&["hold", "--all", "--reason", "freeze"]).await.ok();
    for (verb, state) in [("restart", "RUNNING"), ("stop", "STOPPED"), ("start", "RUNNING")] {
        assert_eq!(bed.cli(&[verb, "p"]).await.ok(), format!("p: {state}\n"), "{verb}");
    }
    let waits = bed.status("p").await.unwrap().hold.unwrap().waits;
    assert_eq!(waits, "an INSTALL of revision 2");
    at_full_speed(&bed);
    bed.cli(&["release", "--all"]).await.ok();
    bed.running("p", "2").await;
    bed.finish().await;
}

#[tokio::test]
async fn a_stop_a_start_and_a_restart_wait_unless_they_are_not_to() {
    let bed = Bed::builder().by_hand().start().await;
    let trouble = bed.trouble().await;
    let order = orders::install("p", "1", &trouble).arg("--ignore-stop");
    let order = order.manifest(|it| it.stop_timeout = orders::seconds(1.0)).order();
    bed.configure(vec![order]).await;
    bed.running("p", "1").await;
    let stopping = bed.cli(&["stop", "p", "--no-wait"]).await.ok();
    assert!(stopping.starts_with("p: accepted as order "), "{stopping}");
    bed.in_state("p", "STOPPING").await;
    assert_eq!(bed.cli(&["stop", "p"]).await.ok(), "p: STOPPED\n");
    assert!(bed.processes("p").is_empty());
    assert_eq!(bed.cli(&["start", "p", "--wait"]).await.ok(), "p: RUNNING\n");
    let before = bed.running("p", "1").await;
    assert_eq!(bed.cli(&["restart", "p"]).await.ok(), "p: RUNNING\n");
    let after = bed.running("p", "1").await;
    assert_ne!(after.pid, before.pid);
    let late = bed.cli(&["restart", "p", "--timeout", "100ms"]).await;
    assert_eq!(late.code, 4, "{late:?}");
    assert!(late.stderr.contains("not done after 100ms"), "{late:?}");
    assert!(late.stderr.contains("the order is kept"), "{late:?}");
    bed.running_again("p", &after).await;

    // The agent knows how long an order may take.
    let mut client = bed.client().await.unwrap();
    let request = RestartRequest { name: "p".to_owned() };
    let at_most = client.restart(request).await.unwrap().into_inner().at_most.unwrap();
    assert!(at_most.seconds > 30, "its stop and its start: {at_most:?}");
    bed.finish().await;
}

#[tokio::test]
async fn a_restart_after_which_the_plugin_does_not_start_fails_with_the_reason() {
    let bed = Bed::builder().by_hand().start().await;
    let trouble = bed.trouble().await;
    bed.configure(vec![orders::install("p", "1", &trouble).arg("--start-fails=0").order()]).await;
    bed.running("p", "1").await;
    let count = bed.plugin_state("p").join("start-count");
    let good = std::fs::read(&count).unwrap();
    std::fs::write(&count, "x").unwrap();
    let failed = bed.cli(&["restart", "p"]).await;
    assert_eq!((failed.code, failed.stdout.as_str()), (1, ""), "{failed:?}");
    assert!(failed.stderr.contains("p: it is CRASHED: "), "{failed:?}");
    assert!(failed.stderr.contains("start-count is not a number"), "{failed:?}");
    std::fs::write(&count, good).unwrap();
    assert_eq!(bed.cli(&["start", "p"]).await.ok(), "p: RUNNING\n");
    bed.finish().await;
}

#[tokio::test]
async fn an_order_that_is_held_is_waited_for_by_nobody() {
    let bed = Bed::builder().by_hand().start().await;
    let echo = bed.echo().await;
    let first = order_of("1", &echo, &echo.sha256);
    assert_eq!(installed(&bed, &first, &[]).await.code, 0);
    bed.cli(&["hold", "p", "--reason", "freeze"]).await.ok();
    let second = order_of("2", &echo, &echo.sha256);
    let held = [
        installed(&bed, &second, &[]).await,
        bed.cli(&["apply", "p", "--string", "x", "--wait"]).await,
        bed.cli(&["remove", "p", "--wait"]).await,
    ];
    for said in held {
        assert_eq!(said.code, 4, "{said:?}");
        assert!(said.stderr.contains("p is held by root: freeze"), "{said:?}");
        assert!(said.stderr.contains("guest-agent release p"), "{said:?}");
    }
    // A person's stop and start do not wait for the end of a hold.
    for (verb, state) in [("restart", "RUNNING"), ("stop", "STOPPED"), ("start", "RUNNING")] {
        assert_eq!(bed.cli(&[verb, "p"]).await.ok(), format!("p: {state}\n"), "{verb}");
    }
    let waits = bed.status("p").await.unwrap().hold.unwrap().waits;
    assert_eq!(waits, "a REMOVE");
    bed.cli(&["release", "p"]).await.ok();
    bed.gone("p").await;
    bed.finish().await;
}

#[tokio::test]
async fn a_start_is_held_while_the_first_installation_is() {
    let bed = Bed::builder().by_hand().start().await;
    let echo = bed.echo().await;
    bed.cli(&["hold", "--all", "--reason", "freeze"]).await.ok();
    let first = installed(&bed, &order(&echo, &echo.sha256), &[]).await;
    assert_eq!(first.code, 4, "{first:?}");
    for verb in ["start", "restart"] {
        let said = bed.cli(&[verb, "p", "--timeout", "10s"]).await;
        assert_eq!((said.code, said.stdout.as_str()), (4, ""), "{verb}: {said:?}");
        assert!(said.stderr.contains("p is held by root: freeze"), "{verb}: {said:?}");
        assert!(said.stderr.contains("guest-agent release p"), "{verb}: {said:?}");
    }
    assert_eq!(bed.cli(&["stop", "p"]).await.ok(), "p: INSTALLING\n");
    assert_eq!(bed.cli(&["start", "p"]).await.code, 4);
    bed.cli(&["release", "--all"]).await.ok();
    bed.running("p", "1").await;
    bed.finish().await;
}

#[tokio::test]
async fn a_configuration_that_is_refused_fails_its_order() {
    let bed = Bed::builder().by_hand().start().await;
    let trouble = bed.trouble().await;
    let mut order = order_of("1", &trouble, &trouble.sha256);
    order["plugin"]["arguments"] = json!(["--apply=refuse"]);
    let first = installed(&bed, &order, &[]).await;
    assert_eq!(first.code, 0, "{first:?}");
    order["manifest"] = json!({ "stringConfig": "x" });
    let refused = installed(&bed, &order, &[]).await;
    assert_eq!((refused.code, refused.stdout.as_str()), (1, ""), "{refused:?}");
    assert!(refused.stderr.contains("told to refuse"), "{refused:?}");
    assert!(refused.stderr.contains("the old configuration stays"), "{refused:?}");
    let applied = bed.cli(&["apply", "p", "--string", "x", "--wait"]).await;
    assert_eq!(applied.code, 1, "{applied:?}");
    assert!(applied.stderr.contains("told to refuse"), "{applied:?}");
    bed.finish().await;
}

#[tokio::test]
async fn the_answer_that_was_waited_for_is_printed() {
    let bed = Bed::builder().by_hand().start().await;
    let trouble = bed.trouble().await;
    bed.configure(vec![orders::install("p", "1", &trouble).order()]).await;
    let ask = ["wait", "p", "--status-code", "0", "--request", "echo \u{1b}[31mred"];
    let said = bed.cli(&ask).await.ok();
    assert!(said.starts_with("p: answers 0\n"), "{said}");
    assert!(said.ends_with("red\n") && !said.contains('\u{1b}'), "{said:?}");
    let document = bed.cli(&[&ask[..], &["--json"]].concat()).await.ok();
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["results"], json!(["\u{1b}[31mred"]));
    bed.finish().await;
}
