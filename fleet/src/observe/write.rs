//! A snapshot as samples of the metrics in the catalogue. Pure.

use std::fmt;
use std::time::SystemTime;

use guest_agent_observe_kit::figures::{Sink, Values, Writer};
use guest_agent_observe_kit::metric::Metric;
use guest_agent_observe_kit::page::Figures;
use guest_fleet_ledger::Verb;

use super::catalogue as of;
use super::fleet::{AgentCounts, FleetCounts, ProgressCounts, RolloutCounts};
use super::snapshot::Snapshot;
use crate::telemetry::figures::{Asked, Listener, OrderStep};

/// Steps that settle an order.
const OUTCOMES: [OrderStep; 3] = [OrderStep::Done, OrderStep::Failed, OrderStep::TakenBack];

impl Figures for Snapshot {
    fn write(&self, sink: &mut impl Sink) -> fmt::Result {
        let mut writer = Writer(sink);
        gateway(self, &mut writer)?;
        if let Some(fleet) = &self.fleet {
            counts(fleet, &mut writer)?;
            rollouts(fleet, &mut writer)?;
        }
        ledger(self, &mut writer)?;
        others(self, &mut writer)?;
        webhooks(self, &mut writer)?;
        process(self, &mut writer)
    }
}

fn gateway<S: Sink>(snapshot: &Snapshot, writer: &mut Writer<'_, S>) -> fmt::Result {
    let counted = &snapshot.counted;
    writer.infos(&of::BUILD, [vec![env!("CARGO_PKG_VERSION")]])?;
    let checks = snapshot.checks.iter();
    writer.gauges(&of::READY, checks.map(|it| (vec![it.name], truth(it.problem.is_none()))))?;
    writer.gauge(&of::STREAMS, Some(number(counted.streams)))?;
    writer.counter(&of::STREAMS_OPENED, counted.streams_opened)?;
    writer.counters(&of::REFUSED, counted.refused.iter().map(|(code, it)| (vec![*code], *it)))?;
    writer.counter(&of::SESSIONS_REPLACED, counted.sessions_replaced)?;
    writer.gauge(&of::VIEW_AGE, snapshot.view_age.map(|age| age.as_secs_f64()))?;
    let orders = OrderStep::ALL
        .into_iter()
        .map(|step| (vec![step.name()], counted.orders.get(&step).copied().unwrap_or_default()));
    writer.counters(&of::ORDERS, orders)?;
    let settled = OUTCOMES.into_iter().filter_map(|step| {
        counted.settled.get(&step).map(|histogram| (vec![step.name()], histogram))
    });
    writer.histograms(&of::ORDER_DURATION, settled)?;
    writer.counter(&of::SPANS_DROPPED, snapshot.spans_dropped)?;
    writer.counter(&of::ORDER_FRAMES, counted.order_frames)?;
    writer.counter(&of::JOURNAL_CONFLICTS, counted.journal_conflicts)?;
    let events = [("stored", counted.events), ("known", counted.events_known)];
    writer.counters(&of::EVENTS, events.map(|(kind, count)| (vec![kind], count)))
}

/// The whole fleet, without the rollouts one by one.
fn counts<S: Sink>(fleet: &FleetCounts, writer: &mut Writer<'_, S>) -> fmt::Result {
    if let Some(AgentCounts { age, presences, standings }) = &fleet.agents {
        let of_each = presences.iter().map(|(one, agents)| (vec![one.name()], number(*agents)));
        writer.gauges(&of::AGENTS, of_each)?;
        let of_each = standings.iter().map(|(word, agents)| (vec![word.name()], number(*agents)));
        writer.gauges(&of::STANDINGS, of_each)?;
        writer.gauge(&of::INDEX_AGE, Some(age.as_secs_f64()))?;
    }
    let gateways = fleet.gateways.iter().map(|(one, count)| (vec![one.name()], number(*count)));
    writer.gauges(&of::GATEWAYS, gateways)?;
    let stops = fleet.stops.iter().map(|(cause, count)| (vec![*cause], number(*count)));
    writer.gauges(&of::STOPS, stops)?;
    let states: Vec<_> =
        fleet.rollouts.iter().map(|(name, count)| (label(name), number(*count))).collect();
    let rollouts = states.iter().map(|(name, count)| (vec![name.as_str()], *count));
    writer.gauges(&of::ROLLOUTS, rollouts)
}

/// Takes a count of agents out of those of a rollout.
type OfProgress = fn(&ProgressCounts) -> u32;

/// The rollouts that have not ended.
fn rollouts<S: Sink>(fleet: &FleetCounts, writer: &mut Writer<'_, S>) -> fmt::Result {
    let live = &fleet.live;
    let states: Vec<String> = live.iter().map(|it| label(it.state)).collect();
    let of_each = live.iter().zip(&states);
    let of_each = of_each.map(|(it, state)| (vec![it.assignment.as_str(), state.as_str()], 1.0));
    writer.gauges(&of::ROLLOUT_STATE, of_each)?;
    writer.gauges(&of::ROLLOUT_WAVE, live.iter().map(|it| (named(it), count(it.wave))))?;
    writer.gauges(&of::ROLLOUT_WAVES, live.iter().map(|it| (named(it), count(it.waves))))?;
    let counted: [(&'static Metric, OfProgress); 4] = [
        (&of::ROLLOUT_TARGETS, |it| it.targets),
        (&of::ROLLOUT_GIVEN, |it| it.given),
        (&of::ROLLOUT_FAILED, |it| it.failed),
        (&of::ROLLOUT_SILENT, |it| it.silent),
    ];
    for (metric, agents) in counted {
        let known = live.iter().filter_map(|it| Some((it, it.progress.as_ref()?)));
        let known = known.map(|(it, progress)| (named(it), f64::from(agents(progress))));
        writer.gauges(metric, known)?;
    }
    Ok(())
}

fn named(rollout: &RolloutCounts) -> Values<'_> {
    vec![rollout.assignment.as_str()]
}

/// The name of a state as a label has it.
fn label(name: &str) -> String {
    name.replace(' ', "_")
}

fn ledger<S: Sink>(snapshot: &Snapshot, writer: &mut Writer<'_, S>) -> fmt::Result {
    let engine = snapshot.engine;
    let operations = || {
        Verb::ALL.into_iter().filter_map(|verb| {
            snapshot.counted.ledger.get(&verb).map(|operations| (verb.name(), operations))
        })
    };
    let took = operations().map(|(verb, it)| (vec![engine, verb], &it.took));
    writer.histograms(&of::LEDGER_DURATION, took)?;
    let failures = operations().flat_map(|(verb, it)| {
        it.failed.iter().map(move |(failure, count)| (vec![engine, verb, failure.name()], *count))
    });
    writer.counters(&of::LEDGER_FAILURES, failures)
}

/// Artifacts, enrolment, connections and certificates.
fn others<S: Sink>(snapshot: &Snapshot, writer: &mut Writer<'_, S>) -> fmt::Result {
    let counted = &snapshot.counted;
    writer.counter(&of::ARTIFACT_READ, counted.artifact_bytes_read)?;
    writer.counter(&of::ARTIFACT_WRITTEN, counted.artifact_bytes_written)?;
    let certificates = Asked::ALL.into_iter().map(|asked| {
        (vec![asked.name()], counted.certificates.get(&asked).copied().unwrap_or_default())
    });
    writer.counters(&of::CERTIFICATES, certificates)?;
    let refused = counted.certificates_refused.iter();
    let refused = refused.map(|((asked, code), count)| (vec![asked.name(), *code], *count));
    writer.counters(&of::CERTIFICATES_REFUSED, refused)?;
    let closed = Listener::ALL.into_iter().map(|listener| {
        let count = counted.connections_closed.get(&listener).copied();
        (vec![listener.name()], count.unwrap_or_default())
    });
    writer.counters(&of::CONNECTIONS_CLOSED, closed)?;
    let certificates = || snapshot.certificates.iter();
    let ends = certificates().map(|it| (vec![it.of], moment(it.ends)));
    writer.gauges(&of::CERTIFICATE_EXPIRY, ends)?;
    writer
        .gauges(&of::CERTIFICATE_STUCK, certificates().map(|it| (vec![it.of], truth(it.is_stuck))))
}

fn webhooks<S: Sink>(snapshot: &Snapshot, writer: &mut Writer<'_, S>) -> fmt::Result {
    let all = || snapshot.counted.webhooks.iter().map(|(name, it)| (vec![name.as_str()], it));
    writer.counters(&of::WEBHOOK_DELIVERED, all().map(|(name, it)| (name, it.delivered)))?;
    writer.counters(&of::WEBHOOK_FAILURES, all().map(|(name, it)| (name, it.failures)))?;
    writer.counters(&of::WEBHOOK_LOST, all().map(|(name, it)| (name, it.lost)))?;
    let lag = all().filter(|(_, it)| it.is_ours).map(|(name, it)| {
        let waited = it.waiting_since.map(|at| snapshot.now.duration_since(at).unwrap_or_default());
        (name, waited.unwrap_or_default().as_secs_f64())
    });
    writer.gauges(&of::WEBHOOK_LAG, lag)
}

fn process<S: Sink>(snapshot: &Snapshot, writer: &mut Writer<'_, S>) -> fmt::Result {
    let process = &snapshot.process;
    let cpu = process.cpu_time.map(|time| (Vec::new(), time.as_secs_f64()));
    writer.seconds_counters(&of::PROCESS_CPU, cpu)?;
    writer.gauge(&of::PROCESS_MEMORY, process.memory_bytes.map(number))?;
    let open = process.descriptors.map(count);
    writer.gauge(&of::PROCESS_FDS, open)?;
    writer.gauge(&of::PROCESS_MAX_FDS, process.descriptors_max.map(number))?;
    writer.gauge(&of::PROCESS_START_TIME, Some(moment(snapshot.started_at)))
}

fn truth(is_so: bool) -> f64 {
    if is_so { 1.0 } else { 0.0 }
}

fn count(of: usize) -> f64 {
    number(u64::try_from(of).unwrap_or(u64::MAX))
}

/// A number as Prometheus has them: exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn number(value: u64) -> f64 {
    value as f64
}

/// Seconds since 1970; a clock before that is wrong.
fn moment(at: SystemTime) -> f64 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
