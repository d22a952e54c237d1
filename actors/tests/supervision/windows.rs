//! Maintenance windows: what waits outside of them, what does not, and when it is carried out.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_agent_actors::fakes::{Answer, Harness, windows};
use guest_agent_actors::messages::UseWindows;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::verdict::{Cause, Level, Verdict};
use guest_agent_actors::model::view::Reported;
use guest_agent_actors::ports::{ServerKind, Table};
use guest_agent_proto::fleet::AgentReport;
use prost::Message;

use super::support::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A window that opens so long after now, and lasts for an hour.
fn window(agent: &Harness, after: Duration) -> (SystemTime, SystemTime) {
    let opens = agent.world.clock.now() + after;
    (opens, opens + HOUR)
}

/// The plugin `a`, which runs, and whose next window opens after so long.
async fn agent_outside(after: Duration) -> Harness {
    let agent = agent_with("a", "1").await;
    agent.world.windows.set("a", vec![window(&agent, after)]);
    reload(&agent).await;
    agent
}

/// The configuration is read again.
async fn reload(agent: &Harness) {
    let windows = agent.settings.windows.clone();
    agent
        .run(|system| {
            system.use_windows(windows);
            std::future::ready(())
        })
        .await;
    agent.pass(SOON).await;
}

#[tokio::test(start_paused = true)]
async fn an_order_waits_for_a_window_over_restarts_of_the_agent_and_a_crash_is_answered() {
    let mut agent = agent_outside(2 * HOUR).await;
    order(&agent, "two", &[install("a", "2")]).await;
    agent.pass(MINUTE).await;
    let view = agent.view("a").await.unwrap();
    let outside = view.outside.clone().unwrap();
    assert_eq!(outside.waits.as_deref(), Some("an INSTALL of revision 2"));
    let verdict = Verdict::of(&view, None, agent.world.clock.now());
    assert_eq!((verdict.level, verdict.cause), (Level::Held, Cause::OutsideWindow));
    assert_eq!(verdict.until, outside.until);
    assert!(
        told(&agent.world, "a")[3].details.starts_with("held: outside of its maintenance windows")
    );
    agent.world.launcher.exit("a", ExitCause::Signaled(11));
    until_told(&agent, "a", &[1, 4, 3, 1, 7, 4]).await;
    agent.crash_and_wake().await;
    agent.pass(HOUR).await;
    assert!(runs(&agent.list().await, "a", "1"));
    agent.pass(HOUR).await;
    until_runs(&agent, "a", "2").await;
    agent.pass(HOUR).await;
    assert_eq!(numbers(&agent.world, "a"), [1, 4, 3, 1, 7, 4, 6, 4, 3, 2, 5]);
}

#[tokio::test(start_paused = true)]
async fn an_order_comes_at_once_while_a_window_is_open_and_waits_after_it() {
    let agent = agent_outside(Duration::ZERO).await;
    order(&agent, "two", &[install("a", "2")]).await;
    until_runs(&agent, "a", "2").await;
    agent.pass(HOUR).await;
    order(&agent, "three", &[install("a", "3")]).await;
    agent.pass(DAY).await;
    let view = agent.view("a").await.unwrap();
    assert_eq!(view.revision.as_str(), "2");
    assert_eq!(view.outside.clone().unwrap().until, None, "no other window is known");
}

#[tokio::test(start_paused = true)]
async fn a_window_that_a_new_configuration_opens_is_open_at_once() {
    let agent = agent_outside(DAY).await;
    order(&agent, "two", &[install("a", "2")]).await;
    agent.pass(HOUR).await;
    assert!(runs(&agent.list().await, "a", "1"));
    agent.world.windows.clear();
    reload(&agent).await;
    until_runs(&agent, "a", "2").await;
    assert_eq!(agent.view("a").await.unwrap().outside, None);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_opens_a_window_and_closes_it() {
    let agent = agent_outside(10 * DAY).await;
    order(&agent, "two", &[install("a", "2")]).await;
    agent.pass(HOUR).await;
    let before = agent.world.clock.now();
    agent.world.clock.set(before + 10 * DAY - HOUR + MINUTE);
    agent.pass(MINUTE).await;
    until_runs(&agent, "a", "2").await;
    // An order is judged by the clock of its moment, not by the last look.
    agent.world.clock.set(before);
    order(&agent, "three", &[install("a", "3")]).await;
    agent.pass(HOUR).await;
    assert!(runs(&agent.list().await, "a", "2"));
}

#[tokio::test(start_paused = true)]
async fn a_new_plugin_waits_with_nothing_on_disk_and_goes_when_it_is_removed() {
    let agent = Harness::awake().await;
    agent.world.windows.set("a", vec![window(&agent, HOUR)]);
    order(&agent, "one", &[install("a", "1"), install("b", "1")]).await;
    until_runs(&agent, "b", "1").await;
    assert!(is(&agent.list().await, "a", "1", Reported::Installing));
    assert!(agent.world.installer.on_disk("a").is_empty());
    agent.pass(HOUR).await;
    until_runs(&agent, "a", "1").await;
}

#[tokio::test(start_paused = true)]
async fn another_agent_that_knows_of_no_window_carries_out_what_waited() {
    let mut agent = agent_outside(DAY).await;
    order(&agent, "two", &[install("a", "2")]).await;
    agent.pass(MINUTE).await;
    agent.settings.windows = Arc::new(windows().0);
    agent.crash_and_wake().await;
    until_runs(&agent, "a", "2").await;
}

#[tokio::test(start_paused = true)]
async fn windows_of_which_no_opening_is_known_are_looked_at_again() {
    let agent = agent_with("a", "1").await;
    agent.world.windows.set("a", Vec::new());
    reload(&agent).await;
    order(&agent, "gone", &[remove("a")]).await;
    agent.pass(HOUR).await;
    assert_eq!(numbers(&agent.world, "a"), [1, 4, 3, 2], "the REMOVE waits");
    // As by a clock that was out of all calendars.
    agent.world.windows.set("a", vec![window(&agent, Duration::ZERO)]);
    agent.until("it is gone", MINUTE, |_, listed| listed.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_plugin_whose_actor_panicked_learns_that_its_windows_opened_meanwhile() {
    let agent = agent_with("a", "1").await;
    // The actor dies while a crashed process is started again, and nothing of the windows changes later.
    agent.world.launcher.launches("a", &[Answer::Panic]);
    agent.world.windows.set("a", Vec::new());
    reload(&agent).await;
    order(&agent, "gone", &[remove("a")]).await;
    agent.pass(MINUTE).await;
    assert_eq!(numbers(&agent.world, "a"), [1, 4, 3, 2], "the REMOVE waits");
    agent.world.storage.set_unreadable(true);
    agent.world.launcher.exit("a", ExitCause::Signaled(11));
    agent.pass(SOON).await;
    agent.world.windows.clear();
    reload(&agent).await;
    agent.world.storage.set_unreadable(false);
    agent.until("it is gone", MINUTE, |_, listed| listed.is_empty()).await;
    assert_eq!(numbers(&agent.world, "a").last(), Some(&5));
}

#[tokio::test(start_paused = true)]
async fn windows_that_move_while_a_plugin_goes_bring_no_record_back() {
    // The manager looks between any two steps of the plugin's end.
    let agent = agent_with("a", "1").await;
    order(&agent, "gone", &[remove("a")]).await;
    let windows = agent.settings.windows.clone();
    let (world, mut is_open) = (&agent.world, true);
    agent
        .run(|system| {
            let manager = system.manager.clone();
            async move {
                for _ in 0..20_000 {
                    is_open = !is_open;
                    if is_open {
                        world.windows.clear()
                    } else {
                        world.windows.set("a", Vec::new())
                    }
                    manager.do_send(UseWindows(windows.clone()));
                    tokio::task::yield_now().await;
                }
            }
        })
        .await;
    agent.until("it is gone", MINUTE, |_, listed| listed.is_empty()).await;
    agent.pass(MINUTE).await;
    assert_eq!(agent.world.storage.keys(Table::Plugins), Vec::<Vec<u8>>::new());
}

#[tokio::test(start_paused = true)]
async fn a_fleet_hears_when_the_next_window_opens() {
    let mut agent = Harness::asleep();
    agent.wake().await;
    agent.connect_to(ServerKind::Fleet).await;
    order(&agent, "one", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
    let windows = vec![window(&agent, HOUR)];
    agent.world.windows.set("a", windows.clone());
    reload(&agent).await;
    agent.pass(MINUTE).await;
    let outside = |agent: &Harness| {
        let is_report = |kind: &String| kind == "guest_agent.fleet.v1.AgentReport";
        let heard = agent.world.link.heard();
        let report =
            heard.iter().rfind(|it| it.message.labels.get("message_type").is_some_and(is_report));
        let report = AgentReport::decode(&*report.unwrap().message.body).unwrap();
        report.plugins[0].outside_window
    };
    let opens = outside(&agent).expect("it is outside").opens;
    assert_eq!(opens, Some(windows[0].0.into()));
    agent.pass(HOUR).await;
    assert_eq!(outside(&agent), None);
}
