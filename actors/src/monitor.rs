//! Hears when processes exit and how they fare until then, and tells their plugins.
//!
//! Every process is checked once per interval, each at its own moment within it, so that two hundred
//! plugins are not asked at once. One slow answer is no judgement: only so many failures in a row
//! make a living process hung, and so many bad answers in a row make it unhealthy.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tracing::debug;

use crate::id::{Endpoint, PluginName, Process};
use crate::messages::{Happened, HealthHeard, Unwatch, UseHealthPolicy, Watch};
use crate::plugin::machine::{Event, Verdict};
use crate::ports::{Health, Launcher, PluginRpc, RpcError};
use crate::text::shortened;

/// The adapter keeps the deadline of a check; this much later the monitor does, for one that does not.
const SLACK: Duration = Duration::from_secs(1);

/// Most bytes of what a plugin says of itself that are kept.
const HEALTH_MAX: usize = 8 * 1024;

/// When a living process is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthPolicy {
    /// Time between two checks of one plugin.
    pub interval: Duration,
    /// Longest wait for an answer.
    pub timeout: Duration,
    /// Failures in a row that make a judgement.
    pub failures: u32,
}

/// The monitor's actor.
pub struct MonitorActor {
    policy: HealthPolicy,
    launcher: Arc<dyn Launcher>,
    rpc: Arc<dyn PluginRpc>,
    watched: BTreeMap<PluginName, Watched>,
}

/// One process that is watched.
struct Watched {
    process: Process,
    endpoint: Option<Endpoint>,
    happened: Recipient<Happened>,
    heard: Recipient<HealthHeard>,
    record: Record,
    exit: SpawnHandle,
    beat: SpawnHandle,
    check: Option<SpawnHandle>,
}

/// What was seen of a process lately. Pure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Record {
    silent: u32,
    unhealthy: u32,
}

// === impl Record ===

impl Record {
    /// Takes one more answer in, and says whether it makes a judgement.
    fn judge(&mut self, answer: &Result<Health, RpcError>, failures: u32) -> Option<Verdict> {
        match answer {
            Ok(health) if health.code == 0 => {
                let was_bad = self.unhealthy >= failures;
                *self = Self::default();
                was_bad.then_some(Verdict::Healthy)
            }
            Ok(health) => {
                self.silent = 0;
                self.unhealthy = self.unhealthy.saturating_add(1);
                (self.unhealthy == failures).then(|| {
                    let said = bounded(health).results.join("; ");
                    Verdict::Unhealthy(
                        format!("unhealthy with code {}: {said}", health.code).into(),
                    )
                })
            }
            // A plugin that has no health check has no bad health either.
            Err(RpcError::Unimplemented) => {
                *self = Self::default();
                None
            }
            Err(error) => {
                self.silent = self.silent.saturating_add(1);
                (self.silent == failures).then(|| {
                    let error = error.to_string();
                    let error = shortened(&error, HEALTH_MAX);
                    Verdict::Hung(
                        format!("hung: {failures} health checks in a row failed: {error}").into(),
                    )
                })
            }
        }
    }
}

// === impl MonitorActor ===

impl MonitorActor {
    /// A monitor that watches nothing yet.
    #[must_use]
    pub fn new(policy: HealthPolicy, launcher: Arc<dyn Launcher>, rpc: Arc<dyn PluginRpc>) -> Self {
        Self { policy, launcher, rpc, watched: BTreeMap::new() }
    }

    fn forget(&mut self, name: &PluginName, ctx: &mut Context<Self>) {
        if let Some(watched) = self.watched.remove(name) {
            ctx.cancel_future(watched.exit);
            ctx.cancel_future(watched.beat);
            if let Some(check) = watched.check {
                ctx.cancel_future(check);
            }
        }
    }

    fn beat(&mut self, name: &PluginName, ctx: &mut Context<Self>) {
        let again = name.clone();
        let beat = ctx.run_later(self.policy.interval, move |this, ctx| this.beat(&again, ctx));
        let Some(watched) = self.watched.get_mut(name) else {
            ctx.cancel_future(beat);
            return;
        };
        watched.beat = beat;
        // Checks of one plugin do not pile up: the one under way ends by its own deadline.
        if watched.check.is_some() {
            return;
        }
        // One that does not answer is not asked.
        let Some(endpoint) = watched.endpoint.clone() else { return };
        let (rpc, timeout) = (self.rpc.clone(), self.policy.timeout);
        let check = async move {
            let answer = tokio::time::timeout(timeout + SLACK, rpc.health(&endpoint, timeout));
            answer.await.unwrap_or(Err(RpcError::TimedOut(timeout)))
        };
        let (asked, process) = (name.clone(), watched.process.clone());
        let check = ctx.spawn(check.into_actor(self).map(move |answer, this: &mut Self, _| {
            this.heard(&asked, process, &answer);
        }));
        if let Some(watched) = self.watched.get_mut(name) {
            watched.check = Some(check);
        }
    }

    fn heard(&mut self, name: &PluginName, process: Process, answer: &Result<Health, RpcError>) {
        let Some(watched) = self.watched.get_mut(name) else { return };
        // A cancelled check may still answer once; it says nothing about the process that followed.
        if watched.process != process {
            return;
        }
        watched.check = None;
        match answer {
            Ok(health) => {
                let health = bounded(health);
                watched.heard.do_send(HealthHeard { process: process.clone(), health });
            }
            Err(error) => debug!(plugin = %name, %error, "health check failed"),
        }
        if let Some(verdict) = watched.record.judge(answer, self.policy.failures.max(1)) {
            watched.happened.do_send(Happened(Event::HealthReported { process, verdict }));
        }
    }
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
        self.forget(&name, ctx);
        let (launcher, exiting) = (self.launcher.clone(), process.clone());
        let (whose, tell) = (name.clone(), happened.clone());
        let exit = async move {
            let cause = launcher.exited(&whose, &exiting).await;
            (whose, exiting, cause)
        };
        let exit = ctx.spawn(exit.into_actor(self).map(
            move |(name, process, cause), this: &mut Self, ctx| {
                if this.watched.get(&name).is_some_and(|watched| watched.process == process) {
                    this.forget(&name, ctx);
                }
                tell.do_send(Happened(Event::Exited { process, cause }));
            },
        ));
        let again = name.clone();
        let first = moment_of(&name, self.policy.interval);
        let beat = ctx.run_later(first, move |this, ctx| this.beat(&again, ctx));
        let record = Record::default();
        let watched =
            Watched { process, endpoint, happened, heard, record, exit, beat, check: None };
        self.watched.insert(name, watched);
    }
}

impl Handler<UseHealthPolicy> for MonitorActor {
    type Result = ();

    fn handle(&mut self, UseHealthPolicy(policy): UseHealthPolicy, ctx: &mut Self::Context) {
        self.policy = policy;
        for (name, watched) in &mut self.watched {
            // Counted anew: a count that is past the new limit would never meet it.
            watched.record = Record::default();
            // The next check may have been a long time away.
            ctx.cancel_future(watched.beat);
            let again = name.clone();
            let first = moment_of(name, policy.interval);
            watched.beat = ctx.run_later(first, move |this, ctx| this.beat(&again, ctx));
        }
    }
}

impl Handler<Unwatch> for MonitorActor {
    type Result = ();

    fn handle(&mut self, Unwatch(name): Unwatch, ctx: &mut Self::Context) {
        self.forget(&name, ctx);
    }
}

/// What a plugin says is kept and shown, so it is cut to a bound.
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

/// The moment within the interval at which a plugin is checked: spread by its name, and never
/// right at the start, when the plugin has other things to do.
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

    #[test]
    fn one_slow_answer_is_no_judgement() {
        let mut record = Record::default();
        assert_eq!(record.judge(&silence(), 3), None);
        assert_eq!(record.judge(&answer(0), 3), None);
        assert_eq!(record.judge(&silence(), 3), None);
        assert_eq!(record.judge(&silence(), 3), None);
        assert!(matches!(record.judge(&silence(), 3), Some(Verdict::Hung(_))));
    }

    #[test]
    fn bad_health_is_told_once_and_so_is_recovery() {
        let mut record = Record::default();
        let verdicts: Vec<_> =
            [1, 1, 1, 1, 0, 0].map(|code| record.judge(&answer(code), 3)).into_iter().collect();
        assert!(matches!(verdicts[2], Some(Verdict::Unhealthy(_))), "{verdicts:?}");
        assert_eq!(verdicts[3], None);
        assert_eq!(verdicts[4], Some(Verdict::Healthy));
        assert_eq!(verdicts[5], None);
    }

    #[test]
    fn what_a_plugin_says_is_bounded() {
        let long = Health { code: 1, results: vec!["é".repeat(1000); 1000] };
        assert!(bounded(&long).results.iter().map(String::len).sum::<usize>() <= HEALTH_MAX);
        let many = Health { code: 1, results: vec![String::new(); 1_000_000] };
        assert!(bounded(&many).results.len() <= HEALTH_MAX);
        let Some(Verdict::Unhealthy(reason)) = Record::default().judge(&Ok(long), 1) else {
            panic!("one bad answer was enough");
        };
        assert!(reason.len() <= HEALTH_MAX + 100);
    }

    #[test]
    fn a_plugin_without_a_health_check_is_not_hung() {
        let mut record = Record::default();
        for _ in 0..10 {
            assert_eq!(record.judge(&Err(RpcError::Unimplemented), 3), None);
        }
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
