//! Records of the ledger as inputs of the fold. What cannot be read counts as absent and is logged.

use std::collections::BTreeMap;

use guest_agent_proto::agent_controlplane::PluginEventMessage;
use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_agent_proto::escape::unescaped;
use guest_fleet_core::drift::Repairs;
use guest_fleet_core::fold::{
    AgentFacts, BEGUN_STEP, Crash, Input, LastEvent, OrderFacts, PLUGINS, ReportFacts,
    ReportedFacts, Step, bounded, bounded_labels,
};
use guest_fleet_core::health::{Fault, crash_count, crash_reason};
use guest_fleet_core::journal::{Order, OrderState};
use guest_fleet_core::labels::Labels;
use guest_fleet_core::presence::Session;
use guest_fleet_core::target::Ordered;
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::records::agent::AgentRecord;
use guest_fleet_ledger::records::event::{self, EventRecord};
use guest_fleet_ledger::records::journal::JournalRecord;
use guest_fleet_ledger::records::report::{FaultPart, ReportRecord, ReportedPlugin};
use guest_fleet_ledger::records::{self, RecordError};
use guest_fleet_ledger::{Bucket, Entry};
use prost::Message;
use prost_types::Timestamp;

/// A record of a bucket as an input; `value` is `None` where it was deleted.
#[must_use]
pub fn of_record(bucket: Bucket, key: &str, value: Option<&[u8]>) -> Option<Input> {
    let read = match (bucket, value) {
        (Bucket::Agents, None) => Ok(Input::Agent(None)),
        (Bucket::Agents, Some(value)) => {
            records::decode(key, value).map(|record| Input::Agent(Some(agent(&record))))
        }
        (Bucket::Journal, None) => Ok(Input::Journal(BTreeMap::new(), None)),
        (Bucket::Journal, Some(value)) => {
            records::decode(key, value).and_then(|record| journal(key, &record))
        }
        (Bucket::Reports, None) => Ok(Input::Report(None)),
        (Bucket::Reports, Some(value)) => {
            records::decode(key, value).map(|record| Input::Report(Some(report(&record))))
        }
        (Bucket::Configuration | Bucket::Index, _) => return None,
    };
    match read {
        Ok(input) => Some(input),
        Err(error) => {
            tracing::error!(key, %error, "a record is left out of the index");
            of_record(bucket, key, None)
        }
    }
}

/// The agent that an entry of the log is about, and the input. A notice has no input.
#[must_use]
pub fn of_entry(entry: &Entry) -> Option<(String, Input)> {
    if event::is_of_notices(&entry.subject) {
        return None;
    }
    let (agent, plugin) = entry.subject.split_once('/')?;
    let (agent, plugin) = (unescaped(agent)?, unescaped(plugin)?);
    let record: EventRecord = records::decode(&entry.subject, &entry.value).ok()?;
    let event = PluginEventMessage::decode(record.event.as_slice()).ok()?;
    let at = record.received.as_ref().map_or(Seconds(0), seconds);
    let crash = (event.event_type() == PluginEventType::PluginCrashed).then(|| {
        let details = String::from_utf8_lossy(event.event_details());
        let happened = event.event_timestamp.as_ref().map_or(at, seconds);
        Crash {
            at,
            happened,
            count: crash_count(&details),
            revision: bounded(&event.revision_id),
            reason: bounded(crash_reason(&details)),
        }
    });
    let last = LastEvent {
        position: entry.position,
        number: entry.number,
        kind: event.event_type,
        at,
        ..LastEvent::default()
    };
    Some((agent, Input::Event { plugin: bounded(&plugin), event: last, crash }))
}

/// What the fold keeps of an agent's record.
#[must_use]
pub fn agent(record: &AgentRecord) -> AgentFacts {
    let some = |text: &str| (!text.is_empty()).then(|| bounded(text));
    // Who took it out of the archive gave it as much time as if it had been there then.
    let unarchived = record.unarchived.as_ref().map(seconds);
    let since = record.since.as_ref().map(seconds).max(unarchived);
    let seen = record.seen.as_ref().map(|seen| seconds(seen).max(unarchived.unwrap_or_default()));
    let facts = AgentFacts {
        labels: Labels {
            operator: bounded_labels(&record.operator_labels),
            token: bounded_labels(&record.token_labels),
            own: bounded_labels(&record.own_labels),
        },
        quarantine: some(&record.quarantine),
        archived: record.archived.as_ref().map(seconds),
        is_ephemeral: record.is_ephemeral,
        since,
        seen: None,
        revoked: record.revoked.as_ref().map(seconds),
    };
    facts.seen_at(seen)
}

/// A journal, as the fold keeps it.
///
/// # Errors
/// An entry of it cannot be read.
pub fn journal(key: &str, record: &JournalRecord) -> Result<Input, RecordError> {
    let mut orders = BTreeMap::new();
    for (plugin, entry) in record.plugins.iter().take(PLUGINS) {
        let entry = entry.entry(key)?;
        if let Some(order) = &entry.order {
            orders.insert(bounded(plugin), order_facts(order, entry.repairs));
        }
    }
    let session = record.session().map(|session| Session {
        gateway: bounded(&session.gateway),
        begun: Seconds(session.begun.0 - session.begun.0 % BEGUN_STEP),
        ..session
    });
    Ok(Input::Journal(orders, session))
}

fn order_facts(order: &Order, repairs: Repairs) -> OrderFacts {
    let (step, reason) = match &order.state {
        OrderState::Sent => (Step::Sent, ""),
        OrderState::Acknowledged => (Step::Acknowledged, ""),
        OrderState::Begun => (Step::Begun, ""),
        OrderState::Done { adopted: false } => (Step::Done, ""),
        OrderState::Done { adopted: true } => (Step::Adopted, ""),
        OrderState::Failed { reason } => (Step::Failed, reason.as_str()),
        OrderState::TakenBack { reason } => (Step::TakenBack, reason.as_str()),
    };
    OrderFacts {
        ordered: Ordered {
            assignment: bounded(&order.assignment),
            rollout: bounded(&order.rollout),
            ..order.ordered()
        },
        attempt: order.attempt,
        step,
        made: order.made,
        since: order.since,
        reason: bounded(reason),
        generation: order.generation,
        drift: order.drift.clone(),
        repairs,
    }
}

/// A report as the fold keeps it.
#[must_use]
pub fn report(record: &ReportRecord) -> ReportFacts {
    let some = |text: &str| (!text.is_empty()).then(|| bounded(text));
    let mut plugins: BTreeMap<String, ReportedFacts> = BTreeMap::new();
    // Those that are gone are named for their generations alone, and make room.
    let is_gone = |plugin: &&ReportedPlugin| {
        plugin.revision.is_empty() && plugin.pending_revision.is_empty() && plugin.fault.is_none()
    };
    let mut all: Vec<&ReportedPlugin> = record.plugins.iter().collect();
    all.sort_by_key(|plugin| (is_gone(plugin), plugin.name.as_str()));
    for plugin in all {
        let facts = ReportedFacts {
            revision: some(&plugin.revision),
            pending: some(&plugin.pending_revision),
            is_held: plugin.hold.is_some(),
            is_local: plugin.is_local,
            generation: plugin.generation,
            fault: plugin.fault.as_ref().and_then(fault),
        };
        if plugins.len() < PLUGINS {
            plugins.insert(bounded(&plugin.name), facts);
        }
    }
    let left_out = record.plugins.len().saturating_sub(plugins.len());
    ReportFacts {
        architecture: bounded(&record.architecture),
        os: bounded(&record.os),
        hostname: bounded(&record.hostname),
        version: bounded(&record.agent_version),
        plugins,
        left_out: u64::try_from(left_out)
            .unwrap_or(u64::MAX)
            .saturating_add(record.plugins_left_out.into()),
        tells_faults: record.tells_faults,
    }
}

fn fault(part: &FaultPart) -> Option<Fault> {
    let fault = part.fault()?;
    Some(Fault { reason: bounded(&fault.reason), ..fault })
}

fn seconds(at: &Timestamp) -> Seconds {
    Seconds(u64::try_from(at.seconds).unwrap_or(0))
}
