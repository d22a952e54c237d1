//! Measures what plugins use: one sweep for all that are due, never one per plugin.
//!
//! A sample is for two things, each at its own pace: the points of a plugin's report, and its
//! memory limit ([`memory_guard`]), which it compares as often as that needs, whatever the report
//! asks for.
//!
//! A process is looked at as soon as it is known, which gives its memory, and once more a moment
//! later, which gives its use of the CPU: who looks at a plugin after a start of it or of the agent
//! need not wait for the interval of its reports. These two looks are no points.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tokio::time::Instant;

use crate::messages::{Happened, Measure, Point, Reading, Sampled, Unmeasure};
use crate::metrics::memory_guard::{BEAT_MAX, MemoryGuard};
use crate::model::id::{PluginName, Process};
use crate::plugin::event::{Event, HealthVerdict};
use crate::ports::{Clock, Meter, Usage};

pub mod history;
pub mod memory_guard;

/// Plugins that are due within this time of each other share a sweep.
const TOGETHER: Duration = Duration::from_millis(500);

/// No process is measured more often.
const INTERVAL_MIN: Duration = Duration::from_secs(1);

/// From the first look at a process to the second.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// A sweep that takes longer is given up, and the next one begins in time.
const SWEEP_WAIT: Duration = Duration::from_secs(10);

/// The metrics actor.
pub struct MetricsActor {
    meter: Arc<dyn Meter>,
    clock: Arc<dyn Clock>,
    sampled: Recipient<Sampled>,
    measured: BTreeMap<PluginName, Measured>,
    timer: Option<SpawnHandle>,
}

/// One process that is measured.
struct Measured {
    process: Process,
    /// Between two points.
    interval: Duration,
    /// When the next sample is taken, for whatever it is needed.
    due: Instant,
    /// When the next point is.
    point_due: Instant,
    /// When the second look is, from the first one on until then.
    second_look: Option<Instant>,
    /// The sample that the next point begins at.
    last: Option<(Instant, Usage)>,
    /// Where there is a memory limit.
    guard: Option<MemoryGuard>,
    happened: Recipient<Happened>,
}

/// What a sample is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sample {
    /// For the report, and the guard where there is one.
    OfReport,
    /// For those who look at the plugin, and the guard where there is one.
    Second,
    /// Only for the guard.
    OfGuard,
}

// === impl Measured ===

impl Measured {
    /// Time between two samples.
    fn beat(&self) -> Duration {
        if self.guard.is_some() { self.interval.min(BEAT_MAX) } else { self.interval }
    }

    /// Takes what is due at this time and sets when the next is. The next sweep is counted from
    /// now: after a suspend there is no catching up.
    fn take(&mut self, now: Instant) -> Sample {
        let is_due = |at: &mut Instant| *at <= now + TOGETHER;
        let sample = if is_due(&mut self.point_due) {
            self.point_due = now + self.interval;
            self.second_look = (self.last.is_none()).then_some(now + SECOND_LOOK);
            Sample::OfReport
        } else if self.second_look.take_if(is_due).is_some() {
            Sample::Second
        } else {
            Sample::OfGuard
        };
        let next = now + self.beat();
        self.due = self.second_look.map_or(next, |second| next.min(second));
        sample
    }
}

// === impl MetricsActor ===

impl MetricsActor {
    /// A metrics actor that measures nothing yet.
    #[must_use]
    pub fn new(meter: Arc<dyn Meter>, clock: Arc<dyn Clock>, sampled: Recipient<Sampled>) -> Self {
        Self { meter, clock, sampled, measured: BTreeMap::new(), timer: None }
    }

    fn arm(&mut self, ctx: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        let Some(next) = self.measured.values().map(|measured| measured.due).min() else { return };
        let wait = next.saturating_duration_since(Instant::now());
        self.timer = Some(ctx.run_later(wait, Self::sweep));
    }

    fn sweep(&mut self, ctx: &mut Context<Self>) {
        self.timer = None;
        let now = Instant::now();
        let mut due = Vec::new();
        for (name, measured) in &mut self.measured {
            if measured.due <= now + TOGETHER {
                let sample = measured.take(now);
                due.push((name.clone(), measured.process.clone(), sample));
            }
        }
        let meter = self.meter.clone();
        let asked = due.iter().map(|(name, process, _)| (name.clone(), process.clone())).collect();
        let sample = async move {
            let sample = tokio::time::timeout(SWEEP_WAIT, meter.sample(asked));
            sample.await.unwrap_or_default()
        };
        ctx.spawn(sample.into_actor(self).map(move |usages, this, ctx| {
            this.sampled(due, &usages);
            this.arm(ctx);
        }));
    }

    fn sampled(
        &mut self,
        due: Vec<(PluginName, Process, Sample)>,
        usages: &BTreeMap<PluginName, Usage>,
    ) {
        let (now, at) = (Instant::now(), self.clock.now());
        let (mut readings, mut points) = (Vec::with_capacity(due.len()), Vec::new());
        for (name, process, is_for) in due {
            let Some(measured) = self.measured.get_mut(&name) else { continue };
            let Some(usage) = usages.get(&name).filter(|_| measured.process == process) else {
                continue;
            };
            if let Some((reason, peak)) =
                measured.guard.as_mut().and_then(|guard| guard.look(usage.memory.bytes))
            {
                let verdict = HealthVerdict::OverMemory { reason, peak };
                measured.happened.do_send(Happened(Event::HealthReported { process, verdict }));
            }
            if is_for == Sample::OfGuard {
                continue;
            }
            let Usage { cpu_time, memory } = *usage;
            // The first sample of a process only says where its CPU time began to be counted.
            let cpu_percent =
                measured.last.map(|(then, before)| percent(before.cpu_time, cpu_time, now - then));
            if is_for == Sample::OfReport {
                measured.last = Some((now, *usage));
                points.extend(cpu_percent.map(|cpu_percent| {
                    let memory_bytes = memory.bytes;
                    (name.clone(), Point { at, cpu_percent, memory_bytes, cpu_time })
                }));
            }
            readings.push((name, Reading { at, cpu_percent, memory, cpu_time }));
        }
        if !readings.is_empty() {
            self.sampled.do_send(Sampled { readings, points });
        }
    }
}

/// CPU time spent between two samples, in percent of one core.
fn percent(before: Duration, after: Duration, elapsed: Duration) -> f32 {
    if elapsed.is_zero() {
        return 0.0;
    }
    after.saturating_sub(before).as_secs_f32() / elapsed.as_secs_f32() * 100.0
}

impl Actor for MetricsActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(4096);
    }
}

impl Handler<Measure> for MetricsActor {
    type Result = ();

    fn handle(&mut self, measure: Measure, ctx: &mut Self::Context) {
        let Measure { name, process, policy, memory_limit, happened } = measure;
        let due = Instant::now();
        let interval = policy.interval.max(INTERVAL_MIN);
        let mut measured = Measured {
            process,
            interval,
            due,
            point_due: due,
            second_look: None,
            last: None,
            guard: memory_limit.map(MemoryGuard::new),
            happened,
        };
        if let Some(before) = self.measured.remove(&name)
            && before.process == measured.process
        {
            // The same process, to be measured in another way.
            measured.point_due = before.point_due.min(due + interval);
            measured.last = before.last;
            measured.second_look = before.second_look;
            let guard = before.guard.zip(memory_limit);
            measured.guard = guard.map_or(measured.guard, |(g, limit)| Some(g.with_limit(limit)));
        }
        self.measured.insert(name, measured);
        self.arm(ctx);
    }
}

impl Handler<Unmeasure> for MetricsActor {
    type Result = ();

    fn handle(&mut self, Unmeasure(name): Unmeasure, ctx: &mut Self::Context) {
        self.measured.remove(&name);
        self.arm(ctx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_is_of_one_core_over_the_interval() {
        let s = Duration::from_secs;
        assert_eq!(percent(s(10), s(15), s(10)), 50.0);
        assert_eq!(percent(s(10), s(30), s(10)), 200.0);
    }

    #[test]
    fn time_that_ran_backwards_is_no_usage() {
        let s = Duration::from_secs;
        assert_eq!(percent(s(10), s(5), s(10)), 0.0);
        assert_eq!(percent(s(10), s(15), s(0)), 0.0);
    }
}
