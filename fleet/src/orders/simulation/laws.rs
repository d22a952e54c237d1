//! What must be true of every order, held against what was configured and what is in the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use guest_agent_proto::agent_communication::{
    StreamAgentMessagesResponse, stream_agent_messages_response,
};
use guest_agent_serve_kit::lock::lock;
use guest_fleet_core::desired::{Agent, decide};
use guest_fleet_core::drift::Lack;
use guest_fleet_core::journal::{Entry, Order, OrderState};
use guest_fleet_core::time::{Seconds, UtcOnly};
use guest_fleet_core::view::{Ordered, Target, View};
use guest_fleet_ledger::records::journal::JournalRecord;
use guest_fleet_ledger::{Bucket, MemoryLedger};
use guest_fleet_sessions::messages;
use prost::Message;
use tokio::time::Instant;

use super::trace::trace;
use crate::orders::AGE_MAX;

/// What the laws remember of a run.
pub(crate) struct Laws {
    ledger: MemoryLedger,
    begun: Instant,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// What was configured, with the time until which it may have counted.
    history: Vec<Configured>,
    /// Every order that a gateway tried to record, by the id of its message.
    orders: BTreeMap<String, Recorded>,
    /// Ids of those that were in the ledger.
    durable: BTreeSet<String>,
    /// The journals as they were last in the ledger.
    journals: BTreeMap<String, JournalRecord>,
    /// Agents and plugins for which an installation was recorded.
    installed: BTreeSet<(String, String)>,
    /// When the newest session of each agent had fenced the one before, and its stream.
    fenced: BTreeMap<String, (u64, Instant)>,
    /// The newest order of a plugin that was handed to a stream.
    sent: BTreeMap<(u64, String), u64>,
    /// The newest order that an agent took of a plugin, and when.
    taken: BTreeMap<(String, String), (u64, Instant)>,
    /// When a machine lost everything last.
    forgot: BTreeMap<String, Instant>,
    /// The journals were lost, and no person has accepted that.
    is_lost: bool,
    /// Agents and orders that were let be given again.
    leaves: BTreeSet<(String, u64)>,
    /// What it asked for.
    took: BTreeMap<(String, String), Target>,
    broken: Option<String>,
}

/// A view, until it certainly was not the newest any more.
struct Configured {
    view: View,
    until: Option<Instant>,
}

/// An order, when a gateway first tried to record it.
#[derive(Clone)]
struct Recorded {
    agent: String,
    plugin: String,
    target: Target,
    generation: u64,
    at: Instant,
}

/// An agent as decisions see it in a run.
pub(crate) fn agent_of(id: &str) -> Agent {
    Agent { id: id.to_owned(), architecture: "amd64".to_owned(), ..Agent::default() }
}

/// What a view lets an agent have of a plugin now.
pub(crate) fn wants(view: &View, agent: &Agent, plugin: &str) -> Option<Target> {
    let decision = decide(view, agent, plugin, Seconds(0), &UtcOnly)?;
    decision.permission.is_go().then_some(decision.target)
}

/// Whether a frame carries an order.
pub(crate) fn is_order(frame: &StreamAgentMessagesResponse) -> bool {
    matches!(&frame.r#type, Some(stream_agent_messages_response::Type::MessageBody(body))
        if messages::message_type(body) == messages::CONFIGURE_PLUGIN_STATES)
}

// === impl Laws ===

impl Laws {
    pub(crate) fn new(ledger: MemoryLedger) -> Self {
        Self { ledger, begun: Instant::now(), seen: Mutex::default() }
    }

    pub(crate) fn trace(&self, what: impl FnOnce() -> String) {
        trace(self.begun, what);
    }

    /// The first law that was broken.
    pub(crate) fn broken(&self) -> Option<String> {
        lock(&self.seen).broken.clone()
    }

    pub(crate) fn breaks(&self, law: String) {
        self.trace(|| format!("BROKEN: {law}"));
        lock(&self.seen).broken.get_or_insert(law);
    }

    /// The configuration that is written now.
    pub(crate) fn configures(&self, view: &View) {
        lock(&self.seen).history.push(Configured { view: view.clone(), until: None });
    }

    /// It is certain that it is written, so that the one before does not count any more.
    pub(crate) fn configured(&self) {
        let history = &mut lock(&self.seen).history;
        let newest = history.len().saturating_sub(1);
        for configured in &mut history[..newest] {
            configured.until.get_or_insert_with(Instant::now);
        }
    }

    /// The newest configuration.
    pub(crate) fn newest(&self) -> View {
        lock(&self.seen).history.last().map(|last| last.view.clone()).unwrap_or_default()
    }

    /// A gateway sends a write of this journal, for the first time or once more. Nothing is recorded
    /// that no view of the last seconds wants: a write that lands late is judged by when it was sent.
    pub(crate) fn recording(&self, agent: &str, value: &[u8]) {
        let ordered = self.look_at_journal(agent);
        let Ok(journal) = JournalRecord::decode(value) else { return };
        for (plugin, entry) in journal.plugins {
            let Some(order) = entry.order else { continue };
            if lock(&self.seen).durable.contains(&order.message_id) {
                // It is written along.
                continue;
            }
            let target = match order.revision.as_str() {
                "" => Target::Absent,
                revision => Target::Revision(revision.to_owned()),
            };
            self.trace(|| {
                let (id, generation) = (&order.message_id, order.generation);
                format!("{agent} {plugin} {target:?} is recorded as {id}, {generation}")
            });
            self.wanted(agent, &plugin, &target, ordered.get(&plugin), "recorded");
            if lock(&self.seen).orders.contains_key(&order.message_id) {
                // An earlier write failed.
                continue;
            }
            let recorded = Recorded {
                agent: agent.to_owned(),
                plugin: plugin.clone(),
                target: target.clone(),
                generation: order.generation,
                at: Instant::now(),
            };
            let seen = &mut *lock(&self.seen);
            if target != Target::Absent {
                seen.installed.insert((agent.to_owned(), plugin));
            }
            seen.orders.insert(order.message_id, recorded);
        }
    }

    /// An agent is not ordered again what it has: a done order is given again only where the machine lost
    /// something since, and with leave. And nothing is ordered to an agent that told of an order which the
    /// journals do not know. `former` is what the journal had before.
    fn follows(&self, agent: &str, plugin: &str, former: &Entry, order: &Order) {
        if order.state == (OrderState::Done { adopted: true }) {
            return;
        }
        let broken = {
            let seen = lock(&self.seen);
            let taken = seen.taken.get(&(agent.to_owned(), plugin.to_owned()));
            let began = seen.fenced.get(agent).map(|(_, at)| *at);
            let is_told = taken.is_some_and(|(newest, at)| {
                *newest > former.generation && began.is_some_and(|began| *at < began)
            });
            let same = former.order.as_ref().filter(|former| {
                former.state == (OrderState::Done { adopted: false })
                    && former.target == order.target
                    && former.generation < order.generation
                    // It took another one since, which the journal does not know.
                    && taken.is_none_or(|(newest, _)| *newest <= former.generation)
            });
            match same {
                _ if seen.is_lost && is_told => {
                    Some(format!("{agent} was ordered {plugin} on journals that went back"))
                }
                Some(same) if !seen.leaves.contains(&(agent.to_owned(), same.generation)) => {
                    Some(format!("{agent} was ordered {plugin} again without leave"))
                }
                Some(_) if taken.is_some() && !seen.forgot.contains_key(agent) => {
                    Some(format!("{agent} was ordered {plugin} again, which it has"))
                }
                Some(_) | None => None,
            }
        };
        if let Some(broken) = broken {
            self.breaks(broken);
        }
    }

    /// Only where a machine lost something its agent lacks what an order brought.
    fn lacks(&self, agent: &str, plugin: &str, order: Option<&Order>) {
        let drift = order.and_then(|order| order.drift.as_ref());
        let is_lost = drift.is_some_and(|drift| !matches!(drift.lack, Lack::ByOwner(_)));
        let is_wrong = {
            let seen = lock(&self.seen);
            let has_taken = seen.taken.contains_key(&(agent.to_owned(), plugin.to_owned()));
            is_lost && has_taken && !seen.forgot.contains_key(agent)
        };
        if is_wrong {
            self.breaks(format!("{agent} was said to lack {plugin}, which it has"));
        }
    }

    /// The generation of the newest order of a plugin, where the agent drifted; it is let be given again.
    pub(crate) fn drifted(&self, agent: &str, plugin: &str) -> Option<u64> {
        let journal = self.journal(agent)?;
        let order = journal.plugins.get(plugin)?.entry(agent).ok()?.order?;
        let is_mended = order.drift.is_some_and(|drift| !matches!(drift.lack, Lack::ByOwner(_)));
        is_mended.then(|| {
            self.lets(agent, order.generation);
            order.generation
        })
    }

    /// An order may be given again.
    pub(crate) fn lets(&self, agent: &str, generation: u64) {
        lock(&self.seen).leaves.insert((agent.to_owned(), generation));
    }

    /// A machine lost everything, and with it what its agent took.
    pub(crate) fn forgets(&self, agent: &str) {
        let seen = &mut *lock(&self.seen);
        seen.forgot.insert(agent.to_owned(), Instant::now());
        seen.taken.retain(|(of, _), _| of != agent);
        seen.took.retain(|(of, _), _| of != agent);
    }

    /// The highest generation of all orders.
    pub(crate) fn highest_recorded(&self) -> u64 {
        let seen = lock(&self.seen);
        let recorded = seen.orders.values().map(|order| order.generation);
        recorded.max().unwrap_or_default()
    }

    /// The journals were lost.
    pub(crate) fn loses(&self) {
        let seen = &mut *lock(&self.seen);
        seen.is_lost = true;
        seen.journals.clear();
    }

    /// A person accepts that.
    pub(crate) fn resumes(&self) {
        lock(&self.seen).is_lost = false;
    }

    /// Notes which orders are in the ledger now; returns what they ask for, by plugin.
    pub(crate) fn look_at_journal(&self, agent: &str) -> BTreeMap<String, Target> {
        let Some(journal) = self.journal(agent) else { return BTreeMap::new() };
        let mut ordered = BTreeMap::new();
        let former = lock(&self.seen).journals.insert(agent.to_owned(), journal.clone());
        let former = former.unwrap_or_default();
        for (plugin, entry) in journal.plugins {
            let Some(record) = &entry.order else { continue };
            let is_new = lock(&self.seen).durable.insert(record.message_id.clone());
            let order = entry.entry(agent).ok().and_then(|entry| entry.order);
            self.lacks(agent, &plugin, order.as_ref());
            if let Some(order) = order.filter(|_| is_new) {
                let former = former.plugins.get(&plugin).and_then(|it| it.entry(agent).ok());
                self.follows(agent, &plugin, &former.unwrap_or_default(), &order);
            }
            ordered.insert(plugin, record.target());
        }
        ordered
    }

    /// The journal of an agent as it is in the ledger.
    fn journal(&self, agent: &str) -> Option<JournalRecord> {
        JournalRecord::decode(self.ledger.peek(Bucket::Journal, agent)?).ok()
    }

    /// A frame waits for room in the transport. Nothing waits there that no view of the last seconds
    /// wants.
    pub(crate) fn queued(&self, agent: &str, frame: &StreamAgentMessagesResponse) {
        if is_order(frame)
            && let Some(order) = self.order(&frame.message_id)
        {
            self.wanted(agent, &order.plugin, &order.target, Some(&order.target), "queued");
        }
    }

    /// A session of an agent is there, and the one before is fenced.
    pub(crate) fn fenced(&self, agent: &str, stream: u64) {
        lock(&self.seen).fenced.insert(agent.to_owned(), (stream, Instant::now()));
    }

    /// A frame was handed to the transport of a stream.
    pub(crate) fn handed_over(
        &self,
        agent: &str,
        stream: u64,
        frame: &StreamAgentMessagesResponse,
    ) {
        if !is_order(frame) {
            return;
        }
        let id = &frame.message_id;
        let Some(order) = self.order(id) else {
            return self.breaks(format!("{agent} was sent {id}, which nobody tried to record"));
        };
        let Recorded { plugin, target, .. } = &order;
        self.trace(|| format!("{agent} {plugin} {target:?} leaves as {id} on {stream}"));
        self.wanted(agent, plugin, target, Some(target), "sent");
        self.look_at_journal(agent);
        let mut seen = lock(&self.seen);
        let sent = seen.sent.entry((stream, plugin.clone())).or_insert(0);
        let newest = std::mem::replace(sent, order.generation.max(*sent));
        let broken = if order.agent != agent {
            Some(format!("{agent} was sent {id}, an order of {}", order.agent))
        } else if !seen.durable.contains(id) {
            Some(format!("{agent} was sent {id}, which is in no journal"))
        } else if *target == Target::Absent
            && !seen.installed.contains(&(agent.to_owned(), plugin.clone()))
        {
            Some(format!("an order told {agent} to remove {plugin}, which it never had"))
        } else if let Some((stream_now, at)) = seen.fenced.get(agent)
            && *stream_now > stream
            && order.at > *at
        {
            Some(format!("{agent} was sent {id}, a new order of a session that was replaced"))
        } else if order.generation < newest {
            let generation = order.generation;
            Some(format!("{agent} was sent {generation} of {plugin} after {newest}, on one stream"))
        } else {
            None
        };
        drop(seen);
        if let Some(broken) = broken {
            self.breaks(broken);
        }
    }

    /// An agent that keeps generations took an order. None is older than one before.
    pub(crate) fn taken(&self, agent: &str, id: &str) {
        let Some(order) = self.order(id) else {
            return self.breaks(format!("{agent} took {id}, which no gateway recorded"));
        };
        self.trace(|| format!("{agent} takes {id}"));
        let place = (agent.to_owned(), order.plugin.clone());
        let newest = {
            let seen = &mut *lock(&self.seen);
            seen.took.insert(place.clone(), order.target.clone());
            let now = Instant::now();
            let (newest, at) = seen.taken.entry(place).or_insert((0, now));
            if order.generation > *newest {
                *at = now;
            }
            std::mem::replace(newest, order.generation.max(*newest))
        };
        if order.generation < newest {
            let (plugin, generation) = (order.plugin, order.generation);
            self.breaks(format!("{agent} took order {generation} of {plugin} after {newest}"));
        }
    }

    /// What the newest order of a plugin asked for that an agent took.
    pub(crate) fn took(&self, agent: &str, plugin: &str) -> Option<Target> {
        lock(&self.seen).took.get(&(agent.to_owned(), plugin.to_owned())).cloned()
    }

    fn order(&self, id: &str) -> Option<Recorded> {
        lock(&self.seen).orders.get(id).cloned()
    }

    /// Whether a view that is new enough wants this of an agent that was ordered something before, or
    /// this.
    fn wanted(
        &self,
        agent: &str,
        plugin: &str,
        target: &Target,
        ordered: Option<&Target>,
        what: &str,
    ) {
        let mut facts = agent_of(agent);
        facts
            .ordered
            .extend(ordered.map(|target| (plugin.to_owned(), Ordered::found(target.clone()))));
        let oldest = Instant::now().checked_sub(AGE_MAX).unwrap_or(self.begun);
        let is_wanted = lock(&self.seen).history.iter().rev().any(|configured| {
            configured.until.is_none_or(|until| until >= oldest)
                && wants(&configured.view, &facts, plugin).as_ref() == Some(target)
        });
        if !is_wanted {
            self.breaks(format!(
                "{:?}: {agent}: {plugin} {target:?} was {what}, and no view of {AGE_MAX:?} wants it",
                self.begun.elapsed()
            ));
        }
    }
}
