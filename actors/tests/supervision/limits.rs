//! What becomes of limits that were ordered.

use guest_agent_actors::ports::{Shortfall, Unenforced};

use super::support::*;

fn no_memory_limit() -> Unenforced {
    [Shortfall::new("memory limit of 5 bytes", "no memory controller", "enable it")]
        .into_iter()
        .collect()
}

#[tokio::test(start_paused = true)]
async fn what_a_launch_cannot_enforce_is_told_shown_and_kept_until_one_can() {
    let mut agent = guest_agent_actors::fakes::Harness::awake().await;
    agent.world.launcher.does_not_enforce("a", no_memory_limit());
    order(&agent, "1", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    let installed = told(&agent.world, "a").remove(2);
    assert_eq!(
        installed.details,
        "memory limit of 5 bytes is not enforced: no memory controller; enable it"
    );
    assert_eq!(agent.view("a").await.unwrap().unenforced, no_memory_limit());

    // The process is the same after a restart of the agent, and so is what holds of it.
    agent.crash_and_wake().await;
    agent.connect().await;
    until_runs(&agent, "a", "1").await;
    assert_eq!(agent.world.launcher.launched("a").len(), 1);
    assert_eq!(agent.view("a").await.unwrap().unenforced, no_memory_limit());

    agent.world.launcher.does_not_enforce("a", Unenforced::default());
    agent.world.launcher.exit("a", guest_agent_actors::exit::ExitCause::Exited(1));
    agent
        .until("it is started again", MINUTE, |world, listed| {
            runs(listed, "a", "1") && world.launcher.launched("a").len() == 2
        })
        .await;
    assert!(agent.view("a").await.unwrap().unenforced.is_empty());
}
