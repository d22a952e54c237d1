//! What is counted of the plugins, for the metrics.

use guest_agent_actors::fakes::{Harness, World};
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::view::Reported;
use guest_agent_actors::ports::Count;
use guest_agent_proto::agent_controlplane as pb;
use guest_agent_proto::agent_controlplane::execution_model as em;

use super::support::*;

/// The causes of the crashes that were counted of `a`, the oldest first.
fn crashes(world: &World) -> Vec<ExitCause> {
    let notes = world.counters.notes().into_iter();
    notes
        .filter_map(|note| match note {
            Count::Crashed { plugin, cause } if plugin.as_str() == "a" => Some(cause),
            _ => None,
        })
        .collect()
}

/// Lets the process of `a` end so, and waits for the next one.
async fn crash(agent: &Harness, cause: ExitCause) {
    let launches = agent.world.launcher.launched("a").len();
    assert!(agent.world.launcher.exit("a", cause));
    agent
        .until("it is started again", HOUR, move |world, listed| {
            runs(listed, "a", "1") && world.launcher.launched("a").len() > launches
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn every_crash_is_counted_once_with_its_cause_also_when_no_event_reports_it() {
    let agent = agent_with("a", "1").await;
    crash(&agent, ExitCause::OutOfMemory { peak: None }).await;
    for _ in 0..8 {
        crash(&agent, ExitCause::Exited(3)).await;
    }
    let mut expected = vec![ExitCause::OutOfMemory { peak: None }];
    expected.extend([ExitCause::Exited(3); 8]);
    assert_eq!(crashes(&agent.world), expected);
    let reported = numbers(&agent.world, "a").iter().filter(|kind| **kind == 7).count();
    assert!(reported < expected.len(), "not each has an event: {reported}");

    // A stop that was asked for is no crash.
    order(&agent, "2", &[remove("a")]).await;
    agent.until("it is gone", SOON, |_, listed| listed.is_empty()).await;
    assert_eq!(crashes(&agent.world), expected);
}

#[tokio::test(start_paused = true)]
async fn a_crash_on_probation_and_one_while_no_agent_ran_are_counted() {
    let mut agent = agent_with("a", "1").await;
    order(&agent, "2", &[install("a", "2")]).await;
    until_runs(&agent, "a", "2").await;
    agent.world.launcher.exit("a", ExitCause::Signaled(11));
    until_runs(&agent, "a", "1").await;
    assert_eq!(crashes(&agent.world), [ExitCause::Signaled(11)]);

    agent.crash();
    agent.world.launcher.exit("a", ExitCause::Exited(1));
    agent.wake().await;
    agent.until("it is noticed", SOON, |world, _| crashes(world).len() == 2).await;
    assert_eq!(crashes(&agent.world), [ExitCause::Signaled(11), ExitCause::Unknown]);
}

/// An agent whose plugin `a` runs for each boot.
async fn agent_with_run() -> Harness {
    let once = em::OneShot {
        triggers: Some(em::Triggers { startup: true, ..em::Triggers::default() }),
        ..em::OneShot::default()
    };
    let model = pb::ExecutionModel { r#type: Some(em::Type::OneShot(once)), ..Default::default() };
    let install = install_with("a", "1", |manifest| manifest.execution_model = Some(model));
    let agent = Harness::awake().await;
    order(&agent, "1", &[install]).await;
    until_runs(&agent, "a", "1").await;
    agent
}

#[tokio::test(start_paused = true)]
async fn a_run_that_fails_is_counted_and_one_that_ends_well_is_not() {
    for code in [0, 4] {
        let agent = agent_with_run().await;
        assert!(agent.world.launcher.exit("a", ExitCause::Exited(code)));
        let state =
            if code == 0 { Reported::ExecutionCompleted } else { Reported::ExecutionFailed };
        agent.until("it ended", SOON, move |_, listed| is(listed, "a", "1", state)).await;
        let expected: &[ExitCause] = if code == 0 { &[] } else { &[ExitCause::Exited(4)] };
        assert_eq!(crashes(&agent.world), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_a_reboot_cuts_short_is_not_counted_as_the_end_before_it() {
    let mut agent = agent_with_run().await;
    for (boot, runs_before) in [("boot-2", 1), ("boot-3", 2)] {
        if runs_before == 1 {
            agent.world.launcher.exit("a", ExitCause::OutOfMemory { peak: None });
            agent.until("it is counted", SOON, |world, _| crashes(world).len() == 1).await;
        }
        agent.crash();
        agent.world.machine.reboot(boot);
        agent.wake().await;
        agent.connect().await;
        agent
            .until("it runs for the new boot", HOUR, move |world, listed| {
                world.launcher.launched("a").len() > runs_before && runs(listed, "a", "1")
            })
            .await;
    }
    assert_eq!(crashes(&agent.world), [ExitCause::OutOfMemory { peak: None }]);
}
