//! A snapshot as samples of the metrics in the catalogue, for the page and for the export. Pure.

use std::fmt;
use std::time::SystemTime;

use guest_agent_actors::messages::Listed;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::spec::Kind as PluginKind;
use guest_agent_actors::model::verdict::{Cause, Level, is_recovered};
use guest_agent_actors::model::view::{Pending, Reported};
use guest_agent_actors::ports::{OrderKind, Outcome};
use guest_agent_actors::wire;
pub(crate) use guest_agent_observe_kit::figures::{Sink, Value, Values, Writer};

use super::catalogue as of;
use super::counters::{ByOutcome, CrashCause};
use super::snapshot::{SetAside, Snapshot};
use crate::observe::forwarding::Figures;

/// Most plugins that have samples.
pub(crate) const PLUGINS_MAX: usize = 2000;

/// Most folders of refused manifests that have a verdict.
const REFUSED_MAX: usize = 256;

/// All states, so that a state without a plugin is a 0.
const STATES: [Reported; 9] = [
    Reported::Installing,
    Reported::InstallFailed,
    Reported::Starting,
    Reported::Running,
    Reported::Stopping,
    Reported::Stopped,
    Reported::Crashed,
    Reported::ExecutionCompleted,
    Reported::ExecutionFailed,
];

/// Writes all metrics of a snapshot.
///
/// # Errors
/// The sink cannot write.
pub(crate) fn write(snapshot: &Snapshot, sink: &mut impl Sink) -> fmt::Result {
    let mut writer = Writer(sink);
    agent(snapshot, &mut writer)?;
    work(snapshot, &mut writer)?;
    forwarding(snapshot, &mut writer)?;
    listeners(snapshot, &mut writer)?;
    if let Some(plugins) = &snapshot.plugins {
        all_plugins(plugins, snapshot.refused.len(), &mut writer)?;
        each_plugin(plugins, snapshot, &mut writer)?;
    }
    machine(snapshot, &mut writer)
}

/// The agent's version and its connection.
fn agent<S: Sink>(snapshot: &Snapshot, writer: &mut Writer<'_, S>) -> fmt::Result {
    writer.infos(&of::BUILD, [vec![env!("CARGO_PKG_VERSION")]])?;
    writer.gauge(&of::READY, Some(truth(snapshot.is_ready)))?;
    writer.gauge(&of::LINK_UP, snapshot.link_is_up.map(truth))?;
    writer.counter(&of::LINK_CONNECTIONS, snapshot.connections)?;
    if let Some(backlog) = snapshot.backlog {
        let lag = backlog.oldest.map(|at| snapshot.now.duration_since(at).unwrap_or_default());
        writer.gauge(&of::OUTBOX_EVENTS, Some(number(backlog.events)))?;
        writer.gauge(&of::OUTBOX_BYTES, Some(number(backlog.bytes)))?;
        writer.gauge(&of::OUTBOX_LAG, Some(lag.unwrap_or_default().as_secs_f64()))?;
    }
    writer.gauge(&of::INBOX_ORDERS, snapshot.inbox.map(number))?;
    let ends = snapshot.token_expiries.iter();
    writer.gauges(&of::TOKEN_EXPIRY, ends.map(|(name, at)| (vec![&**name], moment(*at))))
}

/// What the agent has done.
fn work<S: Sink>(snapshot: &Snapshot, writer: &mut Writer<'_, S>) -> fmt::Result {
    let counted = &snapshot.counted;
    let kinds = [
        OrderKind::Install,
        OrderKind::Remove,
        OrderKind::Apply,
        OrderKind::Restart,
        OrderKind::Stop,
        OrderKind::Start,
        OrderKind::Rollback,
        OrderKind::Hold,
        OrderKind::Release,
        OrderKind::Dismiss,
        OrderKind::Limit,
    ];
    let orders = kinds.into_iter().flat_map(|kind| {
        [(Outcome::Succeeded, "taken"), (Outcome::Failed, "refused")].map(|(outcome, word)| {
            let count = counted.orders.get(&(kind, outcome)).copied().unwrap_or_default();
            (vec![kind_name(kind), word], count)
        })
    });
    writer.counters(&of::ORDERS, orders)?;
    writer.counter(&of::OUTDATED_ORDERS, counted.outdated)?;
    writer.gauge(&of::STORE_UP, Some(truth(snapshot.store_works)))?;
    let SetAside { stores, records } = snapshot.set_aside;
    let set_aside = [(vec!["store"], number(stores)), (vec!["record"], number(records))];
    writer.gauges(&of::STORE_SET_ASIDE, set_aside)?;
    writer.counters(&of::SAVES, outcomes(counted.saves, ["saved", "failed"]))?;
    writer.histogram(&of::SAVE_DURATION, &counted.save_time)?;
    writer.counter(&of::AUDIT_FAILURES, counted.not_audited)?;
    writer.counters(&of::ADMISSIONS, outcomes(counted.judged, ["admitted", "denied"]))?;
    writer.counters(&of::INSTALLS, outcomes(counted.installs, ["installed", "failed"]))?;
    writer.histogram(&of::INSTALL_DURATION, &counted.install_time)?;
    writer.gauge(&of::REGISTRY_ENTRIES, Some(number(snapshot.offers)))?;
    writer.counter(&of::SWEEPS, counted.sweeps)?;
    writer.counters(&of::SWEPT, outcomes(counted.swept, ["deleted", "failed"]))
}

/// What became of the lines of plugins' logs.
fn forwarding<S: Sink>(snapshot: &Snapshot, writer: &mut Writer<'_, S>) -> fmt::Result {
    let of = |count: fn(&Figures) -> u64| {
        snapshot.forwarding.iter().map(move |(to, figures)| (vec![to.name()], count(figures)))
    };
    writer.counters(&of::LOG_LINES, of(|it| it.lines))?;
    writer.counters(&of::LOG_BYTES, of(|it| it.bytes))?;
    writer.counters(&of::LOG_MISSING, of(|it| it.missing_bytes))?;
    writer.counters(&of::LOG_REFUSED, of(|it| it.refused))?;
    writer.counters(&of::LOG_FAILURES, of(|it| it.failures))
}

/// The connections of listeners, and the certificates.
fn listeners<S: Sink>(snapshot: &Snapshot, writer: &mut Writer<'_, S>) -> fmt::Result {
    let each =
        || snapshot.listeners.iter().map(|it| (vec![it.label.listener, it.label.places], it));
    writer.gauges(&of::CONNECTIONS, each().map(|(of, it)| (of, number(it.open))))?;
    writer.gauges(&of::CONNECTIONS_LIMIT, each().map(|(of, it)| (of, number(it.limit))))?;
    writer.counters(&of::CONNECTIONS_REFUSED, each().map(|(of, it)| (of, it.refused)))?;
    writer.counters(&of::CONNECTIONS_SHED, each().map(|(of, it)| (of, it.shed)))?;
    let ends = snapshot.certificates.iter().map(|(of, at)| (vec![of.as_str()], moment(*at)));
    writer.gauges(&of::CERTIFICATE_EXPIRY, ends)
}

/// A folder whose manifest is refused counts as a plugin that could not be installed, as it does in
/// the status.
fn all_plugins<S: Sink>(
    plugins: &[Listed],
    refused: usize,
    writer: &mut Writer<'_, S>,
) -> fmt::Result {
    let in_state = |state| {
        let others = if state == Reported::InstallFailed { refused } else { 0 };
        plugins.iter().filter(|listed| listed.view.state == state).count() + others
    };
    let states = STATES.map(|state| (vec![wire::state_name(state)], number(in_state(state))));
    writer.gauges(&of::PLUGINS, states)?;
    let not_shown = plugins.len().saturating_sub(PLUGINS_MAX) + refused.saturating_sub(REFUSED_MAX);
    writer.gauge(&of::PLUGINS_NOT_SHOWN, Some(number(not_shown)))
}

fn each_plugin<S: Sink>(
    plugins: &[Listed],
    all: &Snapshot,
    writer: &mut Writer<'_, S>,
) -> fmt::Result {
    let shown = || plugins.iter().take(PLUGINS_MAX).map(|listed| (&*listed.view, listed));
    let name = |listed: &'_ Listed| listed.view.name.as_str().to_owned();
    writer.infos(
        &of::PLUGIN,
        shown().map(|(view, _)| {
            let kind = match view.spec.execution.kind {
                PluginKind::Daemon => "daemon",
                PluginKind::OneShot(_) => "one_shot",
            };
            let installation = if view.spec.is_local() { "local" } else { "dynamic" };
            vec![view.name.as_str(), view.revision.as_str(), kind, installation]
        }),
    )?;
    writer.gauges(
        &of::PLUGIN_STATE,
        shown().map(|(view, _)| (vec![view.name.as_str(), wire::state_name(view.state)], 1.0)),
    )?;
    let verdicts = shown().map(|(view, listed)| {
        let verdict = listed.verdict(all.now);
        (view.name.as_str(), verdict.level, verdict.cause)
    });
    let refused = all.refused.iter().take(REFUSED_MAX);
    let refused = refused.map(|name| (name.as_str(), Level::Failing, Cause::ManifestRefused));
    writer.gauges(
        &of::PLUGIN_VERDICT,
        verdicts
            .chain(refused)
            .map(|(name, level, cause)| (vec![name, level.name(), cause.name()], 1.0)),
    )?;
    writer.gauges(
        &of::PLUGIN_HELD,
        shown().flat_map(|(view, _)| {
            let ways = [
                (view.stopped.is_some(), "stopped"),
                (view.held.is_some(), "held"),
                (view.left.is_some(), "rolled_back"),
            ];
            let ways = ways.into_iter().filter(|(is_so, _)| *is_so);
            ways.map(|(_, how)| (vec![view.name.as_str(), how], 1.0))
        }),
    )?;
    writer.gauges(
        &of::PLUGIN_RECOVERED,
        shown()
            .filter(|(view, _)| is_recovered(view, all.now))
            .map(|(view, _)| (vec![view.name.as_str()], 1.0)),
    )?;
    writer.gauges(
        &of::PLUGIN_PENDING,
        shown().filter_map(|(view, _)| {
            // A failure that a person dismissed, or that came before a rollback, alarms nobody.
            let is_known = view.left.is_some() || view.history.dismissed.is_some();
            let counts = |it: &&Pending| !it.has_failed() || !is_known;
            let pending = view.pending.as_ref().filter(counts)?;
            let state = wire::state_name(pending.state);
            Some((vec![view.name.as_str(), pending.revision.as_str(), state], 1.0))
        }),
    )?;
    writer.counters(
        &of::PLUGIN_RESTARTS,
        shown().map(|(view, _)| (vec![view.name.as_str()], u64::from(view.restarts))),
    )?;
    // With a 0 for each cause from the beginning on, so that the first crash is an increase.
    writer.counters(
        &of::PLUGIN_CRASHES,
        shown().flat_map(|(view, _)| {
            let counts = all.counted.crashes.get(&view.name).copied().unwrap_or_default();
            let causes = CrashCause::ALL.into_iter().zip(counts);
            causes.map(|(cause, count)| (vec![view.name.as_str(), cause.name()], count))
        }),
    )?;
    writer.gauges(
        &of::PLUGIN_START_TIME,
        shown().filter_map(|(view, _)| Some((vec![view.name.as_str()], moment(view.started_at?)))),
    )?;
    let exits = shown().filter_map(|(view, listed)| {
        let (cause, at) = view.last_exit?;
        let (cause, detail) = exit(cause);
        Some((name(listed), cause, detail, moment(at?)))
    });
    let exits: Vec<(String, &str, String, f64)> = exits.collect();
    writer.gauges(
        &of::PLUGIN_LAST_EXIT,
        exits.iter().map(|(name, cause, detail, at)| (vec![name.as_str(), cause, detail], *at)),
    )?;
    writer.seconds_counters(
        &of::PLUGIN_CPU,
        shown().filter_map(|(view, listed)| {
            Some((vec![view.name.as_str()], listed.newest?.cpu_time.as_secs_f64()))
        }),
    )?;
    writer.gauges(
        &of::PLUGIN_CPU_LIMIT,
        shown().filter_map(|(view, _)| {
            let percent = view.limits.cpu_percent?;
            Some((vec![view.name.as_str()], f64::from(percent) / 100.0))
        }),
    )?;
    writer.gauges(
        &of::PLUGIN_MEMORY_LIMIT,
        shown().filter_map(|(view, _)| {
            Some((vec![view.name.as_str()], whole(view.limits.memory_bytes?)))
        }),
    )?;
    writer.gauges(
        &of::PLUGIN_MEMORY,
        shown().filter_map(|(view, listed)| {
            Some((vec![view.name.as_str()], whole(listed.usage()?.memory.bytes)))
        }),
    )?;
    writer.gauges(
        &of::PLUGIN_RESIDENT,
        shown().filter_map(|(view, listed)| {
            Some((vec![view.name.as_str()], whole(listed.usage()?.memory.resident)))
        }),
    )?;
    let health = || {
        shown().filter_map(|(view, _)| {
            let (health, at) = view.health.as_ref()?;
            Some((view.name.as_str(), f64::from(health.code), moment(*at)))
        })
    };
    writer.gauges(&of::PLUGIN_HEALTH_CODE, health().map(|(name, code, _)| (vec![name], code)))?;
    writer.gauges(&of::PLUGIN_HEALTH_TIME, health().map(|(name, _, at)| (vec![name], at)))?;
    writer.gauges(
        &of::PLUGIN_LAST_INSTALL,
        shown().filter_map(|(view, _)| {
            let took = all.counted.last_install.get(&view.name)?;
            Some((vec![view.name.as_str()], took.as_secs_f64()))
        }),
    )?;
    let lags = all.forwarding.iter().flat_map(|(to, figures)| {
        shown().filter_map(|(view, _)| {
            let lag = *figures.lag.get(&view.name)?;
            Some((vec![view.name.as_str(), to.name()], whole(lag)))
        })
    });
    writer.gauges(&of::PLUGIN_LOG_LAG, lags)
}

/// The agent's own process, and the machine.
fn machine<S: Sink>(snapshot: &Snapshot, writer: &mut Writer<'_, S>) -> fmt::Result {
    let own = &snapshot.own;
    if let Some(process) = own.process {
        let cpu = process.cpu_time.as_secs_f64();
        writer.seconds_counters(&of::PROCESS_CPU, [(Vec::new(), cpu)])?;
        writer.gauge(&of::PROCESS_MEMORY, Some(whole(process.memory_bytes)))?;
        writer.gauge(&of::PROCESS_FDS, process.descriptors.map(number))?;
        writer.gauge(&of::PROCESS_MAX_FDS, process.descriptors_max.map(number))?;
    }
    writer.gauge(&of::PROCESS_START_TIME, Some(moment(snapshot.started_at)))?;
    if let Some(machine) = own.machine {
        writer.gauge(&of::MACHINE_MEMORY, Some(whole(machine.memory)))?;
        writer.gauge(&of::MACHINE_MEMORY_AVAILABLE, Some(whole(machine.available)))?;
    }
    writer.gauge(&of::MACHINE_LOAD, own.load)
}

fn kind_name(kind: OrderKind) -> &'static str {
    match kind {
        OrderKind::Install => "install",
        OrderKind::Remove => "remove",
        OrderKind::Apply => "apply",
        OrderKind::Restart => "restart",
        OrderKind::Stop => "stop",
        OrderKind::Start => "start",
        OrderKind::Rollback => "rollback",
        OrderKind::Hold => "hold",
        OrderKind::Release => "release",
        OrderKind::Dismiss => "dismiss",
        OrderKind::Limit => "limit",
    }
}

fn outcomes(counts: ByOutcome, [good, bad]: [&str; 2]) -> [(Values<'_>, u64); 2] {
    [(vec![good], counts.succeeded), (vec![bad], counts.failed)]
}

fn exit(cause: ExitCause) -> (&'static str, String) {
    let detail = match cause {
        ExitCause::Exited(code) => code.to_string(),
        ExitCause::Signaled(signal) => signal.to_string(),
        ExitCause::OutOfMemory { .. } | ExitCause::OverMemoryLimit { .. } | ExitCause::Unknown => {
            String::new()
        }
    };
    (CrashCause::of(cause).name(), detail)
}

fn truth(is_so: bool) -> f64 {
    if is_so { 1.0 } else { 0.0 }
}

fn number(count: usize) -> f64 {
    whole(u64::try_from(count).unwrap_or(u64::MAX))
}

/// Above 2^53 the number is not exact, and need not be.
#[expect(clippy::cast_precision_loss, reason = "numbers of metrics are floating-point numbers")]
fn whole(count: u64) -> f64 {
    count as f64
}

/// Seconds since 1970; a clock before that is wrong.
fn moment(at: SystemTime) -> f64 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
