//! A command that waits for its order while the agent is killed: the order is the agent's, and the
//! command goes on with the agent that comes back.

use std::process::Stdio;

use guest_agent_lab::ArtifactFaults;
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
        let mut child = Command::new(env!("CARGO_BIN_EXE_guest-agent"))
            .args(["install", "-f", "-", "--wait", "--timeout", "25s"])
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
    json!({ "plugin": {
        "name": "p",
        "revisionId": "1",
        "gcsSignedUrl": archive.url,
        "checksum": sha256,
        "entryPoint": archive.entry_point,
    } })
}

/// An archive that comes so slowly that its installation is under way when the agent is killed.
async fn slow(bed: &Bed) -> Archive {
    let archive = bed.archive("slow.tar", ArchiveSpec::echo().padded(512 << 10)).await;
    let bytes_per_second = Some(200_000);
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
