//! The promises of `Plugin`, one test each, on paused time.

use std::future::pending;
use std::sync::atomic::AtomicU32;

use async_trait::async_trait;
use tokio::sync::Notify;

use super::*;
use crate::Cleanup;

/// Counts its calls and does in each what the test set.
#[derive(Default)]
struct Probe {
    starts: AtomicU32,
    stops: AtomicU32,
    start: Behaviour,
    stop: Behaviour,
    entered: Notify,
    release: Notify,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Behaviour {
    #[default]
    Succeeds,
    FailsOnce,
    Panics,
    Hangs,
    WaitsForRelease,
}

impl Probe {
    async fn behave(&self, behaviour: Behaviour, calls: &AtomicU32) -> Result<(), PluginError> {
        let call = calls.fetch_add(1, Ordering::SeqCst);
        self.entered.notify_one();
        match behaviour {
            Behaviour::Succeeds => Ok(()),
            Behaviour::FailsOnce if call == 0 => Err("not today".into()),
            Behaviour::FailsOnce => Ok(()),
            Behaviour::Panics => panic!("call {call} went wrong"),
            Behaviour::Hangs => pending().await,
            Behaviour::WaitsForRelease => {
                self.release.notified().await;
                Ok(())
            }
        }
    }
}

#[async_trait]
impl Plugin for Arc<Probe> {
    async fn start(&self, _context: StartContext) -> Result<(), PluginError> {
        self.behave(self.start, &self.starts).await
    }

    async fn stop(&self, _context: StopContext) -> Result<(), PluginError> {
        self.behave(self.stop, &self.stops).await
    }
}

fn life(probe: Probe) -> (Arc<Probe>, Arc<Life<Arc<Probe>>>) {
    let probe = Arc::new(probe);
    (Arc::clone(&probe), Life::new(probe))
}

fn begin() -> StartContext {
    StartContext { state_directory: "/nowhere".into(), config: None }
}

fn end_within(seconds: u64) -> StopContext {
    StopContext { cleanup: Cleanup::Keep, deadline: Duration::from_secs(seconds) }
}

/// Fails instead of waiting for ever; paused time makes the patience free.
async fn end_of(life: &Life<Arc<Probe>>) -> Instant {
    tokio::time::timeout(LONGEST_STOP, life.ended()).await.expect("the life ends")
}

#[tokio::test(start_paused = true)]
async fn a_start_that_succeeded_is_not_repeated() {
    let (probe, life) = life(Probe::default());
    life.start(begin()).await.expect("started");
    life.start(begin()).await.expect("still started");
    assert_eq!(probe.starts.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_failed_is_tried_again_when_asked() {
    let (probe, life) = life(Probe { start: Behaviour::FailsOnce, ..Probe::default() });
    assert!(matches!(life.start(begin()).await, Err(CallError::Failed(_))));
    assert!(matches!(life.apply(None).await, Err(CallError::NotStarted)));
    life.start(begin()).await.expect("the second one succeeds");
    assert_eq!(probe.starts.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_panicking_start_fails_and_counts_as_not_started() {
    let (_probe, life) = life(Probe { start: Behaviour::Panics, ..Probe::default() });
    let error = life.start(begin()).await.expect_err("it panics");
    assert_eq!(error.to_string(), "start panicked: call 0 went wrong");
    assert!(matches!(life.apply(None).await, Err(CallError::NotStarted)));
}

#[tokio::test(start_paused = true)]
async fn a_start_goes_on_when_its_caller_leaves_and_is_not_run_twice_at_once() {
    let (probe, life) = life(Probe { start: Behaviour::WaitsForRelease, ..Probe::default() });
    let caller = tokio::spawn({
        let life = Arc::clone(&life);
        async move { life.start(begin()).await }
    });
    probe.entered.notified().await;
    caller.abort();
    assert!(caller.await.expect_err("aborted").is_cancelled());

    let again = life.start(begin());
    tokio::pin!(again);
    let early = tokio::time::timeout(Duration::from_secs(60), &mut again).await;
    assert!(early.is_err(), "the second start waits for the first");
    probe.release.notify_one();
    again.await.expect("the first one succeeded");
    assert_eq!(probe.starts.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_hangs_is_over_at_its_deadline() {
    let (_probe, life) = life(Probe { stop: Behaviour::Hangs, ..Probe::default() });
    let before = Instant::now();
    let error = life.stop(end_within(7)).await.expect_err("it hangs");
    assert_eq!(error.to_string(), "stop did not end within 7000 ms");
    assert_eq!(before.elapsed().as_secs(), 7);
    assert_eq!(end_of(&life).await.duration_since(before).as_secs(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_a_start_that_hangs() {
    let (probe, life) = life(Probe { start: Behaviour::Hangs, ..Probe::default() });
    let _starting = tokio::spawn({
        let life = Arc::clone(&life);
        async move { life.start(begin()).await }
    });
    probe.entered.notified().await;
    life.stop(end_within(7)).await.expect("stopped");
    end_of(&life).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_started_or_applied_after_a_stop() {
    let (probe, life) = life(Probe::default());
    life.start(begin()).await.expect("started");
    life.stop(end_within(7)).await.expect("stopped");
    assert!(matches!(life.start(begin()).await, Err(CallError::Stopping)));
    assert!(matches!(life.apply(None).await, Err(CallError::Stopping)));
    assert_eq!(probe.starts.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn stop_is_called_once_and_a_second_call_gets_the_result_of_the_first() {
    let (probe, life) = life(Probe { stop: Behaviour::FailsOnce, ..Probe::default() });
    for _ in 0..2 {
        let error = life.stop(end_within(7)).await.expect_err("the one stop failed");
        assert_eq!(error.to_string(), "not today");
    }
    assert_eq!(probe.stops.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_panicking_stop_ends_the_life_all_the_same() {
    let (_probe, life) = life(Probe { stop: Behaviour::Panics, ..Probe::default() });
    let error = life.stop(end_within(7)).await.expect_err("it panics");
    assert_eq!(error.to_string(), "stop panicked: call 0 went wrong");
    end_of(&life).await;
}

#[tokio::test(start_paused = true)]
async fn an_absurd_deadline_is_no_overflow() {
    let (_probe, life) = life(Probe::default());
    life.stop(end_within(u64::MAX)).await.expect("stopped");
}
