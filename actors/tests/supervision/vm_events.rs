//! The VM events that plugins receive.

use std::time::Duration;

use guest_agent_actors::fakes::{Answer, CrashPoint, Harness, Reply};
use guest_agent_actors::messages::NotifyVm;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::spec::Config;
use guest_agent_actors::model::view::Reported;
use guest_agent_actors::model::vm_event::{Notification, Notified, VmEvent};
use guest_agent_actors::ports::RpcError;
use guest_agent_actors::vm_events::{NOTIFY_WAIT, STARTUP_WAIT, forget_boot};

use super::support::*;

const STARTUP: &str = r#"{"Command":"VmEvent","Event":"startup"}"#;

/// An agent with these plugins running, which has sent the event of this boot already.
async fn agent_with(names: &[&str]) -> Harness {
    let agent = Harness::awake().await;
    let orders: Vec<_> = names.iter().map(|name| install(name, "1")).collect();
    order(&agent, "1", &orders).await;
    for name in names {
        until_runs(&agent, name, "1").await;
    }
    agent
}

async fn notify(agent: &Harness, request: NotifyVm) -> Vec<Notified> {
    agent.run(|system| system.vm_events.send(request)).await.unwrap().unwrap()
}

fn outcomes(notified: &[Notified]) -> Vec<(&str, &Notification)> {
    notified.iter().map(|told| (told.plugin.as_str(), &told.outcome)).collect()
}

/// How often a plugin was handed this.
fn handed(agent: &Harness, name: &str, request: &str) -> usize {
    let applied = agent.world.rpc.applied(name);
    applied.iter().filter(|config| **config == Some(Config::Text(request.into()))).count()
}

#[tokio::test(start_paused = true)]
async fn every_running_plugin_is_handed_the_request_unchanged_and_answers_are_sorted() {
    let agent = agent_with(&["b", "a", "c"]).await;
    agent.world.rpc.applies("b", &[Reply::Unimplemented]);
    agent.world.rpc.applies("c", &[Reply::Bad(1, "no room".to_owned())]);
    let request: std::sync::Arc<str> =
        "{ \"event\" : \"specialize\", \"COMMAND\":\"VmEvent\"}\n".into();
    let event = VmEvent::Specialize;
    let told = notify(&agent, NotifyVm { event, request: request.clone(), within: NOTIFY_WAIT });
    let told = told.await;
    let failed = Notification::Failed(RpcError::Refused {
        code: "INVALID_ARGUMENT".to_owned(),
        message: "no room".to_owned(),
    });
    assert_eq!(
        outcomes(&told),
        [("a", &Notification::Delivered), ("b", &Notification::NotInterested), ("c", &failed)]
    );
    for name in ["a", "b", "c"] {
        assert_eq!(handed(&agent, name, &request), 1, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn plugins_that_hang_are_given_up_on_together_and_those_that_do_not_run_are_named() {
    let agent = agent_with(&["a", "b", "c"]).await;
    agent.world.launcher.launches("d", &[Answer::Held]);
    order(&agent, "2", &[install("d", "1")]).await;
    agent.pass(SOON).await;
    agent.world.rpc.applies("a", &[Reply::Forever]);
    agent.world.rpc.applies("b", &[Reply::Silence]);
    let began = tokio::time::Instant::now();
    let told = notify(&agent, NotifyVm::of(VmEvent::Shutdown)).await;
    assert!(began.elapsed() <= NOTIFY_WAIT + Duration::from_millis(10), "{:?}", began.elapsed());
    let late = Notification::Failed(RpcError::TimedOut(NOTIFY_WAIT));
    assert_eq!(
        outcomes(&told),
        [
            ("a", &late),
            ("b", &late),
            ("c", &Notification::Delivered),
            ("d", &Notification::NotRunning)
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn startup_is_told_once_per_boot_however_often_the_agent_starts() {
    let mut agent = agent_with(&["a", "b"]).await;
    agent.crash_and_wake().await;
    agent.pass(MINUTE).await;
    assert_eq!(handed(&agent, "a", STARTUP), 0, "it was installed after the machine had started");
    agent.crash();
    agent.world.machine.reboot("boot-2");
    agent.wake().await;
    for _ in 0..3 {
        agent.connect().await;
        until_runs(&agent, "a", "1").await;
        agent.pass(MINUTE).await;
        assert_eq!((handed(&agent, "a", STARTUP), handed(&agent, "b", STARTUP)), (1, 1));
        agent.crash();
        agent.wake().await;
    }
}

#[tokio::test(start_paused = true)]
async fn startup_waits_for_plugins_that_are_being_started_but_not_for_ever() {
    let mut agent = agent_with(&["quick", "slow", "stuck"]).await;
    agent.crash();
    agent.world.machine.reboot("boot-2");
    agent.world.launcher.launches("slow", &[Answer::Held]);
    agent.world.launcher.launches("stuck", &[Answer::Held]);
    agent.wake().await;
    agent.pass(SOON).await;
    assert_eq!(handed(&agent, "quick", STARTUP), 0, "the others still start");
    agent.world.launcher.release("slow");
    agent.pass(STARTUP_WAIT).await;
    assert_eq!(handed(&agent, "quick", STARTUP), 1);
    assert_eq!(handed(&agent, "slow", STARTUP), 1);
    assert_eq!(handed(&agent, "stuck", STARTUP), 0);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_dies_while_the_machine_starts_tells_startup_in_its_next_life_once() {
    for commit in 1..6 {
        for point in [CrashPoint::Before, CrashPoint::After] {
            let mut agent = agent_with(&["a"]).await;
            agent.pass(MINUTE).await;
            agent.crash();
            agent.world.machine.reboot("boot-2");
            let commits = agent.world.storage.commits();
            agent.world.storage.crash_at(commits + commit, point);
            agent.wake().await;
            agent.run(|_| tokio::time::sleep(Duration::from_secs(1))).await;
            agent.crash_and_wake().await;
            until_runs(&agent, "a", "1").await;
            agent.pass(STARTUP_WAIT + SOON).await;
            let told = handed(&agent, "a", STARTUP);
            assert!(told <= 1, "commit {commit}, {point:?}: told {told} times");
            // Only an agent that died between promising not to tell again and telling has not told.
            if commit == 1 {
                assert_eq!(told, 1, "commit {commit}, {point:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_the_wait_for_startup() {
    let mut agent = agent_with(&["a", "stuck"]).await;
    agent.crash();
    agent.world.machine.reboot("boot-2");
    agent.world.launcher.launches("stuck", &[Answer::Held]);
    agent.wake().await;
    agent.pass(SOON).await;
    let told = notify(&agent, NotifyVm::of(VmEvent::Shutdown)).await;
    assert_eq!(outcomes(&told)[0], ("a", &Notification::Delivered));
    agent.pass(STARTUP_WAIT + SOON).await;
    assert_eq!(handed(&agent, "a", STARTUP), 0);
}

#[tokio::test(start_paused = true)]
async fn plugins_that_ended_with_their_agent_are_told_of_the_startup_that_follows() {
    let mut agent = agent_with(&["a"]).await;
    agent.pass(SOON).await;
    let save =
        guest_agent_actors::messages::Save { writes: vec![forget_boot()], ..Default::default() };
    agent.run(|system| system.store.send(save)).await.unwrap().unwrap();
    agent.crash();
    agent.wake().await;
    agent.pass(MINUTE).await;
    assert_eq!(handed(&agent, "a", STARTUP), 1);
}

/// A machine that still runs this long after its `shutdown` event did not shut down.
const RUNS_ON: Duration = Duration::from_secs(600);

async fn shut_down(agent: &Harness) {
    notify(agent, NotifyVm::of(VmEvent::Shutdown)).await;
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_takes_the_shutdown_and_exits_well_has_ended_and_not_crashed() {
    let agent = agent_with(&["a", "deaf"]).await;
    agent.world.rpc.applies("deaf", &[Reply::Unimplemented]);
    shut_down(&agent).await;
    for name in ["a", "deaf"] {
        agent.world.launcher.exit(name, ExitCause::Exited(0));
    }
    agent.pass(SOON).await;
    let view = agent.view("a").await.unwrap();
    assert_eq!((view.state, view.restarts), (Reported::Stopped, 0));
    assert!(view.reason.contains("shutdown"), "{}", view.reason);
    until_told(&agent, "a", &[1, 4, 3, 6]).await;
    // One that did not take the event crashed.
    until_told(&agent, "deaf", &[1, 4, 3, 7, 4]).await;
    agent.pass(RUNS_ON - MINUTE).await;
    assert_eq!(agent.world.launcher.launched("a").len(), 1, "the machine may still shut down");
    agent.pass(MINUTE).await;
    until_runs(&agent, "a", "1").await;
    until_told(&agent, "a", &[1, 4, 3, 6, 4]).await;
}

#[tokio::test(start_paused = true)]
async fn an_exit_that_is_known_before_the_answer_waits_for_it() {
    let agent = agent_with(&["takes", "breaks"]).await;
    agent.world.rpc.applies("takes", &[Reply::Late(Duration::from_secs(2))]);
    agent.world.rpc.applies("breaks", &[Reply::Silence]);
    let calls = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        for name in ["takes", "breaks"] {
            agent.world.launcher.exit(name, ExitCause::Exited(0));
        }
    };
    tokio::join!(shut_down(&agent), calls);
    until_told(&agent, "takes", &[1, 4, 3, 6]).await;
    until_told(&agent, "breaks", &[1, 4, 3, 7, 4]).await;
    assert_eq!(agent.view("takes").await.unwrap().state, Reported::Stopped);
}

#[tokio::test(start_paused = true)]
async fn any_other_exit_after_a_shutdown_is_a_crash() {
    for cause in [ExitCause::Exited(1), ExitCause::Signaled(15)] {
        let agent = agent_with(&["a"]).await;
        shut_down(&agent).await;
        agent.world.launcher.exit("a", cause);
        until_told(&agent, "a", &[1, 4, 3, 7, 4]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn in_a_machine_that_runs_on_the_shutdown_is_void() {
    let agent = agent_with(&["a"]).await;
    shut_down(&agent).await;
    agent.pass(RUNS_ON + SOON).await;
    agent.world.launcher.exit("a", ExitCause::Exited(0));
    until_told(&agent, "a", &[1, 4, 3, 7, 4]).await;
}

#[tokio::test(start_paused = true)]
async fn the_next_process_has_not_taken_the_shutdown_of_the_one_before() {
    let agent = agent_with(&["a"]).await;
    shut_down(&agent).await;
    agent.world.launcher.exit("a", ExitCause::Exited(1));
    until_told(&agent, "a", &[1, 4, 3, 7, 4]).await;
    agent.world.launcher.exit("a", ExitCause::Exited(0));
    until_told(&agent, "a", &[1, 4, 3, 7, 4, 7, 4]).await;
}

#[tokio::test(start_paused = true)]
async fn what_ended_with_the_machine_rests_over_restarts_of_the_agent_until_a_new_boot() {
    let mut agent = agent_with(&["a"]).await;
    shut_down(&agent).await;
    agent.world.launcher.exit("a", ExitCause::Exited(0));
    until_told(&agent, "a", &[1, 4, 3, 6]).await;
    agent.crash_and_wake().await;
    agent.pass(RUNS_ON - MINUTE).await;
    let view = agent.view("a").await.unwrap();
    assert_eq!(view.state, Reported::Stopped, "{}", view.reason);
    agent.crash();
    agent.world.machine.reboot("boot-2");
    agent.wake().await;
    agent.connect().await;
    until_runs(&agent, "a", "1").await;
    until_told(&agent, "a", &[1, 4, 3, 6, 4]).await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_killed_still_knows_who_took_the_shutdown() {
    let mut agent = agent_with(&["a"]).await;
    shut_down(&agent).await;
    agent.pass(SOON).await;
    agent.crash_and_wake().await;
    until_runs(&agent, "a", "1").await;
    agent.world.launcher.exit("a", ExitCause::Exited(0));
    until_told(&agent, "a", &[1, 4, 3, 6]).await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_during_probation_takes_no_revision_back() {
    let agent = agent_with(&["a"]).await;
    order(&agent, "2", &[install("a", "2")]).await;
    until_runs(&agent, "a", "2").await;
    shut_down(&agent).await;
    agent.world.launcher.exit("a", ExitCause::Exited(0));
    until_told(&agent, "a", &[1, 4, 3, 1, 6, 4, 3, 6]).await;
    agent.pass(RUNS_ON + SOON).await;
    until_runs(&agent, "a", "2").await;
    until_told(&agent, "a", &[1, 4, 3, 1, 6, 4, 3, 6, 4, 2, 5]).await;
}
