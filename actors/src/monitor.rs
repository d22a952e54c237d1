//! Watches the exit and the health of processes, and reports both to their plugins.
//!
//! Every process is checked once per interval, each at its own moment within it, so that two
//! hundred plugins are not asked at once; but a few together, because most of what a check costs is
//! waking up for it. One slow answer is no judgement: only so many failures in a row make a living
//! process hung, and so many bad answers in a row make it unhealthy.
//!
//! One more check comes at once, so that people and control planes see the health of a process
//! without waiting for its turn. It is shown and never judged: a plugin that was just started may
//! still be warming up. Nor is any judgement made within the first interval, nor of a check that fails
//! while the machine stands still.
//!
//! Each wait is in a task of its own. An actor polls every future of its context whenever one of
//! them wakes it, so with two of them for each plugin every check would cost time in proportion to
//! the number of plugins.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tokio::time::Instant;
use tracing::debug;

use crate::messages::{Happened, HealthHeard, Unwatch, UseHealthPolicy, Watch};
use crate::model::exit::ExitCause;
use crate::model::health::HealthPolicy;
use crate::model::id::{Endpoint, PluginName, Process};
use crate::plugin::event::{Event, HealthVerdict};
use crate::ports::{Health, Launcher, Pauses, PluginRpc, Ports, RpcError};
use crate::task::{Panicked, Task};
use crate::text::shortened;

/// The adapter keeps the deadline of a check; this much later the monitor does, for one that does
/// not.
const SLACK: Duration = Duration::from_secs(1);

/// No plugin is checked more often, whatever the policy says.
const LEAST_INTERVAL: Duration = Duration::from_millis(1);

/// Moments of an interval at which checks begin. With fewer, a check costs less, for what it needs
/// is in the processor's cache already; but more plugins would want the processors at once.
const MOMENTS: u32 = 10;

/// Most bytes of what a plugin says of itself that are kept.
const HEALTH_MAX: usize = 8 * 1024;

/// The monitor's actor.
pub struct MonitorActor {
    policy: HealthPolicy,
    launcher: Arc<dyn Launcher>,
    rpc: Arc<dyn PluginRpc>,
    pauses: Arc<dyn Pauses>,
    watched: BTreeMap<PluginName, Watched>,
    /// Moments are counted from here.
    began: Instant,
}

/// One process that is watched.
struct Watched {
    process: Process,
    endpoint: Option<Endpoint>,
    happened: Recipient<Happened>,
    heard: Recipient<HealthHeard>,
    record: Record,
    /// When watching it began.
    since: Instant,
    /// Waits for its end.
    _exit: Task,
    /// Asks for its health. A plugin that does not serve the call is not asked.
    checks: Option<Task>,
}

/// A process has ended.
#[derive(Message)]
#[rtype(result = "()")]
struct Ended {
    name: PluginName,
    process: Process,
    cause: ExitCause,
}

/// A health check of a process is under way.
#[derive(Message)]
#[rtype(result = "()")]
struct Answered {
    name: PluginName,
    process: Process,
    moment: Moment,
    answer: Result<Health, RpcError>,
    /// Whether the machine stood still meanwhile.
    paused: bool,
}

/// When a check began, counted from the start of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// At once, before its regular checks.
    AtOnce,
    /// At its turn, within the first interval.
    Early,
    /// At its turn, later.
    Later,
}

/// Whether the first check waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    AtOnce,
    InItsTurn,
}

/// The recent checks of a process. Pure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Record {
    silent: u32,
    unhealthy: u32,
}

// === impl Record ===

impl Record {
    /// Takes one more answer, and returns whether it makes a judgement.
    fn judge(
        &mut self,
        answer: &Result<Health, RpcError>,
        moment: Moment,
        failures: u32,
    ) -> Option<HealthVerdict> {
        if moment == Moment::AtOnce {
            return None;
        }
        match answer {
            Ok(health) if health.code == 0 => {
                let was_bad = self.unhealthy >= failures;
                *self = Self::default();
                was_bad.then_some(HealthVerdict::Healthy)
            }
            Ok(health) => {
                self.silent = 0;
                count(&mut self.unhealthy, moment, failures).then(|| {
                    let said = bounded(health).results.join("; ");
                    HealthVerdict::Unhealthy(
                        format!("unhealthy with code {}: {said}", health.code).into(),
                    )
                })
            }
            // A plugin without a health check has no bad health either.
            Err(RpcError::Unimplemented) => {
                *self = Self::default();
                None
            }
            Err(error) => count(&mut self.silent, moment, failures).then(|| {
                let error = error.to_string();
                let error = shortened(&error, HEALTH_MAX);
                HealthVerdict::Hung(
                    format!("hung: {failures} health checks in a row failed: {error}").into(),
                )
            }),
        }
    }
}

/// Counts one more failure in a row, and says whether it is the one that makes a judgement. An
/// early failure that would be the one is not counted.
fn count(seen: &mut u32, moment: Moment, failures: u32) -> bool {
    let counted = seen.saturating_add(1);
    if moment == Moment::Early && counted >= failures {
        return false;
    }
    *seen = counted;
    counted == failures
}

// === impl MonitorActor ===

impl MonitorActor {
    /// A monitor that watches nothing yet.
    #[must_use]
    pub fn new(policy: HealthPolicy, ports: &Ports) -> Self {
        let Ports { launcher, rpc, pauses, .. } = ports.clone();
        Self { policy, launcher, rpc, pauses, watched: BTreeMap::new(), began: Instant::now() }
    }

    /// Asks a process for its health, once per interval, beginning at its own moment; where that is
    /// wanted, once before at once. Checks do not pile up: one that takes longer than the interval
    /// ends by its own deadline, and the next comes in its turn.
    fn checks(
        &self,
        (name, process): (&PluginName, &Process),
        endpoint: Option<&Endpoint>,
        (since, first): (Instant, First),
        ctx: &Context<Self>,
    ) -> Option<Task> {
        let HealthPolicy { interval, timeout, .. } = self.policy;
        let (name, process, endpoint) = (name.clone(), process.clone(), endpoint?.clone());
        let (rpc, monitor) = (self.rpc.clone(), ctx.address().downgrade());
        let pauses = self.pauses.clone();
        let own = Instant::now() + moment_of(&name, interval);
        let mut next = next_after(self.began, interval / MOMENTS, own);
        Some(Task::spawn(&ctx.address(), async move {
            let ask = async |moment: Moment| {
                let lost = pauses.lost();
                let asked = tokio::time::timeout(timeout + SLACK, rpc.health(&endpoint, timeout));
                let answer = asked.await.unwrap_or(Err(RpcError::TimedOut(timeout)));
                let paused = pauses.lost() > lost;
                let (name, process) = (name.clone(), process.clone());
                monitor.upgrade()?.do_send(Answered { name, process, moment, answer, paused });
                Some(())
            };
            if first == First::AtOnce {
                ask(Moment::AtOnce).await;
            }
            loop {
                tokio::time::sleep_until(next).await;
                let age = Instant::now().duration_since(since);
                let moment = if age < interval { Moment::Early } else { Moment::Later };
                if ask(moment).await.is_none() {
                    return;
                }
                next = next_after(next, interval, Instant::now());
            }
        }))
    }
}

/// The next moment of a beat that is not over yet.
fn next_after(last: Instant, interval: Duration, now: Instant) -> Instant {
    let interval = interval.max(LEAST_INTERVAL);
    let late = now.saturating_duration_since(last);
    let beats = late.as_nanos() / interval.as_nanos() + 1;
    u32::try_from(beats).map_or(now + interval, |beats| last + interval * beats)
}

impl Actor for MonitorActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(4096);
    }
}

impl Handler<Watch> for MonitorActor {
    type Result = ();

    fn handle(&mut self, watch: Watch, ctx: &mut Self::Context) {
        let Watch { name, process, endpoint, happened, heard } = watch;
        let (launcher, monitor) = (self.launcher.clone(), ctx.address().downgrade());
        let (whose, exiting) = (name.clone(), process.clone());
        let exit = Task::spawn(&ctx.address(), async move {
            let cause = launcher.exited(&whose, &exiting).await;
            if let Some(monitor) = monitor.upgrade() {
                monitor.do_send(Ended { name: whose, process: exiting, cause });
            }
        });
        let (record, since) = (Record::default(), Instant::now());
        let first = (since, First::AtOnce);
        let checks = self.checks((&name, &process), endpoint.as_ref(), first, ctx);
        let watched =
            Watched { process, endpoint, happened, heard, record, since, _exit: exit, checks };
        self.watched.insert(name, watched);
    }
}

impl Handler<Ended> for MonitorActor {
    type Result = ();

    fn handle(&mut self, Ended { name, process, cause }: Ended, _: &mut Self::Context) {
        // Another process may be watched by now, and then no plugin waits for the end of this one.
        if self.watched.get(&name).is_some_and(|watched| watched.process == process)
            && let Some(watched) = self.watched.remove(&name)
        {
            watched.happened.do_send(Happened(Event::Exited { process, cause }));
        }
    }
}

impl Handler<Answered> for MonitorActor {
    type Result = ();

    fn handle(&mut self, answered: Answered, _: &mut Self::Context) {
        let Answered { name, process, moment, answer, paused } = answered;
        let Some(watched) = self.watched.get_mut(&name) else { return };
        // It is about an earlier process.
        if watched.process != process {
            return;
        }
        match &answer {
            Ok(health) => {
                let health = bounded(health);
                watched.heard.do_send(HealthHeard { process: process.clone(), health });
            }
            Err(error) => debug!(plugin = %name, %error, "health check failed"),
        }
        // The plugin could not answer while nothing went on.
        if paused && answer.is_err() {
            return;
        }
        let failures = self.policy.failures.max(1);
        if let Some(verdict) = watched.record.judge(&answer, moment, failures) {
            watched.happened.do_send(Happened(Event::HealthReported { process, verdict }));
        }
    }
}

impl Handler<Panicked> for MonitorActor {
    type Result = ();

    fn handle(&mut self, Panicked: Panicked, ctx: &mut Self::Context) {
        ctx.terminate();
    }
}

impl Handler<UseHealthPolicy> for MonitorActor {
    type Result = ();

    fn handle(&mut self, UseHealthPolicy(policy): UseHealthPolicy, ctx: &mut Self::Context) {
        self.policy = policy;
        let mut all = std::mem::take(&mut self.watched);
        for (name, watched) in &mut all {
            // Counted anew: a count that is past the new limit would never meet it.
            watched.record = Record::default();
            // The next check may have been a long time away.
            let (whose, endpoint) = ((name, &watched.process), watched.endpoint.as_ref());
            let first = (watched.since, First::InItsTurn);
            watched.checks = self.checks(whose, endpoint, first, ctx);
        }
        self.watched = all;
    }
}

impl Handler<Unwatch> for MonitorActor {
    type Result = ();

    fn handle(&mut self, Unwatch(name): Unwatch, _: &mut Self::Context) {
        self.watched.remove(&name);
    }
}

/// The text of a plugin's health is kept and shown, so it is cut.
fn bounded(health: &Health) -> Health {
    let mut left = HEALTH_MAX;
    let mut results = Vec::new();
    for line in &health.results {
        if left == 0 {
            break;
        }
        let line = shortened(line, left);
        // An empty line is counted too, or a million of them would be kept.
        left = left.saturating_sub(line.len().max(1));
        results.push(line.to_owned());
    }
    Health { code: health.code, results }
}

/// The moment within the interval at which a plugin is checked: spread by its name, and not right
/// after the check at once.
fn moment_of(name: &PluginName, interval: Duration) -> Duration {
    let mut hash = name
        .as_str()
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    // Names that differ in their last character only would otherwise fall close together.
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^= hash >> 16;
    let share = f64::from(hash % 1000) / 1000.0;
    interval.mul_f64(0.2 + 0.8 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: i32) -> Result<Health, RpcError> {
        Ok(Health { code, results: vec!["disk full".to_owned()] })
    }

    fn silence() -> Result<Health, RpcError> {
        Err(RpcError::TimedOut(Duration::from_secs(2)))
    }

    fn judge(record: &mut Record, answer: &Result<Health, RpcError>) -> Option<HealthVerdict> {
        record.judge(answer, Moment::Later, 3)
    }

    #[test]
    fn one_slow_answer_is_no_judgement() {
        let mut record = Record::default();
        assert_eq!(judge(&mut record, &silence()), None);
        assert_eq!(judge(&mut record, &answer(0)), None);
        assert_eq!(judge(&mut record, &silence()), None);
        assert_eq!(judge(&mut record, &silence()), None);
        assert!(matches!(judge(&mut record, &silence()), Some(HealthVerdict::Hung(_))));
    }

    #[test]
    fn the_check_at_once_is_never_judged() {
        for bad in [answer(1), silence()] {
            let mut record = Record::default();
            assert_eq!(record.judge(&bad, Moment::AtOnce, 1), None);
            assert_eq!(record, Record::default());
        }
    }

    #[test]
    fn nothing_is_judged_within_the_first_interval() {
        for bad in [answer(1), silence()] {
            let mut record = Record::default();
            assert_eq!(record.judge(&bad, Moment::Early, 1), None);
            assert!(record.judge(&bad, Moment::Later, 1).is_some(), "the next one is");
            // Of several that are needed it is the first, so that probation is long enough for all.
            let mut record = Record::default();
            assert_eq!(record.judge(&bad, Moment::Early, 2), None);
            assert!(record.judge(&bad, Moment::Later, 2).is_some());
        }
    }

    #[test]
    fn bad_health_is_told_once_and_so_is_recovery() {
        let mut record = Record::default();
        let verdicts: Vec<_> =
            [1, 1, 1, 1, 0, 0].map(|code| judge(&mut record, &answer(code))).into_iter().collect();
        assert!(matches!(verdicts[2], Some(HealthVerdict::Unhealthy(_))), "{verdicts:?}");
        assert_eq!(verdicts[3], None);
        assert_eq!(verdicts[4], Some(HealthVerdict::Healthy));
        assert_eq!(verdicts[5], None);
    }

    #[test]
    fn what_a_plugin_says_is_bounded() {
        let long = Health { code: 1, results: vec!["é".repeat(1000); 1000] };
        assert!(bounded(&long).results.iter().map(String::len).sum::<usize>() <= HEALTH_MAX);
        let many = Health { code: 1, results: vec![String::new(); 1_000_000] };
        assert!(bounded(&many).results.len() <= HEALTH_MAX);
        let Some(HealthVerdict::Unhealthy(reason)) =
            Record::default().judge(&Ok(long), Moment::Later, 1)
        else {
            panic!("one bad answer was enough");
        };
        assert!(reason.len() <= HEALTH_MAX + 100);
    }

    #[test]
    fn a_plugin_without_a_health_check_is_not_hung() {
        let mut record = Record::default();
        for _ in 0..10 {
            assert_eq!(judge(&mut record, &Err(RpcError::Unimplemented)), None);
        }
    }

    #[test]
    fn the_next_moment_of_a_beat_is_after_now_and_on_the_beat() {
        let (began, beat) = (Instant::now(), Duration::from_millis(500));
        let check = |now: u64, next: u64| {
            let now = began + Duration::from_millis(now);
            assert_eq!(next_after(began, beat, now), began + Duration::from_millis(next));
        };
        check(0, 500);
        check(499, 500);
        check(500, 1_000);
        check(86_400_001, 86_400_500);
        // A moment that is still to come is followed by the one after it.
        assert_eq!(next_after(began + beat, beat, began), began + beat * 2);
        assert!(next_after(began, Duration::ZERO, began + beat) > began + beat);
    }

    #[test]
    fn checks_are_spread_over_the_interval() {
        let interval = Duration::from_secs(10);
        let moments: std::collections::BTreeSet<u128> = (0..200)
            .map(|n| format!("plugin-{n}").parse().expect("a name"))
            .map(|name| moment_of(&name, interval).as_millis() / 1000)
            .collect();
        assert!(moments.len() >= 7, "checks fall into {} of 10 seconds", moments.len());
    }
}
