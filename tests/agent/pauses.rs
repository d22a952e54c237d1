//! A machine that stands still, played by stopping the agent and its plugins together.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::harness::{Bed, orders, signal};

/// Longer than any delay that the agent takes for that of a busy machine.
const STILL: Duration = Duration::from_secs(8);

#[tokio::test]
async fn an_agent_that_was_stopped_with_its_plugins_knows_and_blames_no_plugin() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("web", "1", &echo).order()]).await;
    let before = bed.running("web", "1").await;
    bed.expect_events("web", &[1, 4, 3]).await;
    let mut all = bed.processes("web");
    all.push(bed.agent_pid());
    all.iter().for_each(|pid| signal(*pid, Signal::SIGSTOP));
    tokio::time::sleep(STILL).await;
    all.iter().for_each(|pid| signal(*pid, Signal::SIGCONT));
    bed.until("the pause is noticed", async || {
        bed.log().contains("the machine stood still").then_some(())
    })
    .await;
    assert_eq!(bed.running("web", "1").await.pid, before.pid);
    bed.expect_events("web", &[1, 4, 3]).await;
    bed.finish().await;
}
