//! Takes orders from the control plane on the stream, and from users of this machine through the
//! local API.
//!
//! The actor decodes an order, makes it durable in the inbox, acknowledges it, and only then hands
//! it to the manager. It answers questions at once; they never wait behind orders. It logs and
//! acknowledges a message that it cannot decode, and the stream continues.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{Span, debug, info, warn};

use crate::crash_point;
use crate::error::Chain;
use crate::keys::number_key;
use crate::manager::{asked_of, number_orders, restart_of};
use crate::messages::{
    Configure, ListPlugins, Listed, MetricsDelivered, OrderOutcome, Received, Save, SaveFailed,
    SaveOrForget, Submission, Submit, SubmitError, Submitted,
};
use crate::model::audit::{AuditAct, AuditEntry};
use crate::model::event;
use crate::model::id::Generation;
use crate::model::origin::Origin;
use crate::ports::{
    ControlLink, Count, InboundMessage, OutboundMessage, Outcome, Ports, Receipt, Table, Write,
};
use crate::records::{InboxContent, InboxEntry, put_hold_of_all};
use crate::trace::Trace;
use crate::wire::{self, AgentFacts, DecodedOrder, Request, WireError};

mod audited;
pub mod deeds;
pub mod fleet;
pub mod generations;
mod kinds;
pub mod remembered;

use audited::{Audited, not_saved, outdated};
use deeds::Giver;
use fleet::{FleetOrders, Weighed};
use kinds::{kind_of, kind_of_act, kind_of_refused};
use remembered::{MessageKey, Remembered};

/// A question of this age is not answered any more: its sender has asked again long ago.
const QUESTION_MAX: Duration = Duration::from_secs(60);

/// Longest wait until an acknowledgement is sent. The orders are carried out in any case.
const ACKNOWLEDGE_WAIT: Duration = Duration::from_secs(2);

/// The link reads the next message after this time, even when an order is not durable yet: a slow
/// disk delays no question.
const TAKE_WAIT: Duration = Duration::from_millis(250);

/// Most messages with orders that are being made durable. With so many the link waits.
const TAKING_MAX: usize = 32;

/// Most repetitions of one message that are acknowledged together with it.
const REPEATED_MAX: usize = 16;

/// Most questions that are being answered. A further one gets no answer; its sender has to ask
/// again.
const ANSWERS_MAX: usize = 256;

/// The label, or the metadata key, that has the trace of a message.
pub const TRACEPARENT: &str = "traceparent";

/// Most orders of one message whose reception has a span each.
const FOLLOWED_MAX: usize = 64;

/// Key of the next order's number among the facts.
pub const NEXT_GENERATION: &[u8] = b"next_generation";

/// The control plane's actor.
pub struct ControlPlaneActor {
    ports: Ports,
    agent: AgentFacts,
    store: Recipient<SaveOrForget>,
    audit: Recipient<Save>,
    configure: Recipient<Configure>,
    list: Recipient<ListPlugins>,
    delivered: Recipient<MetricsDelivered>,
    next: Generation,
    remembered: Remembered,
    fleet: FleetOrders,
    /// Why orders are refused, if they are.
    refusing: Option<Arc<str>>,
    /// Messages whose orders are being made durable, each with the receipts of its repetitions.
    taking: BTreeMap<MessageKey, Vec<Receipt>>,
    /// Orders that are being made durable or wait to be carried out, by the number of the first.
    /// They are carried out in the sequence in which they were given, whichever the store confirms
    /// first.
    given: BTreeMap<Generation, Given>,
    answering: usize,
    /// How many questions were dropped since the last log line about them.
    unanswered: u64,
}

/// The state of orders that were given.
enum Given {
    /// They are being made durable.
    Saving,
    /// They are durable. `None` when all were refused, or could not be made durable.
    Saved(Option<Configure>),
}

/// The other actors this one talks to.
pub struct ControlPlaneHandles {
    /// Stores orders.
    pub store: Recipient<SaveOrForget>,
    /// Stores what people asked and did not get.
    pub audit: Recipient<Save>,
    /// Takes durable orders.
    pub configure: Recipient<Configure>,
    /// Lists plugins.
    pub list: Recipient<ListPlugins>,
    /// Learns which samples were reported.
    pub delivered: Recipient<MetricsDelivered>,
}

// === impl ControlPlaneActor ===

impl ControlPlaneActor {
    /// An actor whose next order gets the number `next`, and that remembers the messages that were
    /// taken before, and the numbers that a fleet gave its orders.
    #[must_use]
    pub fn new(
        ports: Ports,
        agent: AgentFacts,
        handles: ControlPlaneHandles,
        next: Generation,
        (remembered, fleet): (Remembered, FleetOrders),
    ) -> Self {
        let ControlPlaneHandles { store, audit, configure, list, delivered } = handles;
        Self {
            ports,
            agent,
            store,
            audit,
            configure,
            list,
            delivered,
            next,
            remembered,
            fleet,
            refusing: None,
            taking: BTreeMap::new(),
            given: BTreeMap::new(),
            answering: 0,
            unanswered: 0,
        }
    }

    /// Refuses all orders but restarts, where there is a reason.
    #[must_use]
    pub fn refusing(self, reason: Option<Arc<str>>) -> Self {
        Self { refusing: reason, ..self }
    }

    fn or_refused(&self, decoded: Vec<DecodedOrder>) -> Vec<DecodedOrder> {
        match &self.refusing {
            Some(reason) => wire::refuse_orders(decoded, reason),
            None => decoded,
        }
    }

    /// Makes orders durable. Refusals are recorded together with them, so that neither an order nor
    /// a refusal is lost or reported twice. When that fails no part of it remains: a local caller
    /// gets the error, the control plane gets no acknowledgement, and each has to send the orders
    /// again.
    fn take(
        &mut self,
        content: InboxContent,
        origin: Origin,
        decoded: &[DecodedOrder],
        trace: &Arc<Trace>,
    ) -> (Save, Option<Configure>) {
        let first = self.next;
        let count = u64::try_from(decoded.len()).unwrap_or(u64::MAX).max(1);
        self.next = Generation(first.0.saturating_add(count));
        let now = self.ports.clock.now();
        let events = decoded
            .iter()
            .zip(first.0..)
            .filter_map(|(order, number)| Some((order.as_ref().err()?, Generation(number))))
            .map(|(refusal, number)| {
                warn!(plugin = refusal.name, reason = refusal.reason, "refuses an order");
                let kind = kind_of_refused(refusal.notice);
                self.ports.counters.note(Count::Ordered { kind, outcome: Outcome::Failed });
                let (name, revision) = (&refusal.name, &refusal.revision);
                trace.refuse(name, revision, number, &refusal.reason);
                event::NewEvent::new(refusal.notice, name, revision, now, &refusal.reason)
            })
            .collect();
        self.given.insert(first, Given::Saving);
        let trace = Some(trace.clone());
        let configure = number_orders(first, &content, decoded, trace.as_ref());
        let configure = Some(configure).filter(|configure| !configure.is_empty());
        let refused = decoded.iter().zip(0u32..).filter(|(order, _)| order.is_err());
        let refused = refused.map(|(_, index)| index).collect();
        let of_all = configure.as_ref().and_then(|configure| configure.of_all.as_ref());
        // For plugins that come later.
        let hold = of_all.and_then(|asked| asked.act.hold_after()).map(put_hold_of_all);
        let entry = InboxEntry { first, content, origin, trace, refused };
        let mut writes = vec![Write::Put {
            table: Table::Facts,
            key: NEXT_GENERATION.to_vec(),
            value: number_key(self.next.0),
        }];
        if configure.is_some() {
            writes.push(Write::Put {
                table: Table::Inbox,
                key: number_key(first.0),
                value: entry.encode(),
            });
        }
        writes.extend(hold);
        (Save { writes, events, ..Save::default() }, configure)
    }

    /// The orders whose first has this number are durable, or will not be.
    fn carry_out(&mut self, first: Generation, configure: Option<Configure>) {
        self.given.insert(first, Given::Saved(configure));
        while let Some(first) = self.given.first_entry()
            && let Given::Saved(_) = first.get()
        {
            if let Given::Saved(Some(configure)) = first.remove() {
                let of_all = configure.of_all.iter().map(|asked| kind_of_act(&asked.act));
                for kind in configure.orders.iter().map(|order| kind_of(&order.order)).chain(of_all)
                {
                    self.ports.counters.note(Count::Ordered { kind, outcome: Outcome::Succeeded });
                }
                self.configure.do_send(configure);
            }
        }
    }

    fn received(
        &mut self,
        message: InboundMessage,
        ctx: &mut Context<Self>,
    ) -> ResponseActFuture<Self, ()> {
        match wire::decode_request(&message) {
            Ok(Request::Configure(bytes)) => return self.configure_received(message, bytes, ctx),
            // Answered in the background, so that sending a reply delays nothing.
            Ok(question) => self.answer(question, message.clone(), ctx),
            Err(error) => warn!(error = %Chain(&error), "ignores a message it cannot understand"),
        }
        self.acknowledge(message)
    }

    fn acknowledge(&self, message: InboundMessage) -> ResponseActFuture<Self, ()> {
        let link = self.ports.link.clone();
        Box::pin(async move { acknowledge(&*link, message.receipt).await }.into_actor(self))
    }

    fn refuse(&self, receipt: Receipt, reason: String) -> ResponseActFuture<Self, ()> {
        let link = self.ports.link.clone();
        let refused = async move { in_time(link.refuse(receipt, reason)).await };
        Box::pin(refused.into_actor(self))
    }

    fn configure_received(
        &mut self,
        message: InboundMessage,
        bytes: Vec<u8>,
        ctx: &mut Context<Self>,
    ) -> ResponseActFuture<Self, ()> {
        let receipt = message.receipt.clone();
        let key = MessageKey::of(&receipt.message_id, &bytes);
        if let Some(repeated) = self.taking.get_mut(&key) {
            // It is acknowledged together with the first, when that is durable.
            if repeated.len() < REPEATED_MAX {
                repeated.push(receipt);
            }
            return Box::pin(async {}.into_actor(self));
        }
        let (at, since) = (self.ports.clock.now(), Instant::now());
        if self.remembered.knows(key, receipt.stream, at) {
            info!(
                message = receipt.message_id,
                "this message was taken before; acknowledges it again"
            );
            return self.acknowledge(message);
        }
        let traceparent = message.labels.get(TRACEPARENT).map(String::as_str);
        let trace = Arc::new(Trace::of_message(&receipt.message_id, traceparent, at));
        let mut decoded = match wire::decode_orders(&bytes, Origin::ControlPlane) {
            Ok(decoded) => self.or_refused(decoded),
            Err(error @ WireError::TooManyOrders(_)) => {
                warn!(message_id = %trace.message_id, %error, "refuses orders");
                return self.refuse(message.receipt, error.to_string());
            }
            Err(error) => {
                warn!(message_id = %trace.message_id, error = %Chain(&error), "ignores orders it cannot understand");
                return self.acknowledge(message);
            }
        };
        let numbered = match self.fleet.weigh(&message.labels, &bytes) {
            Weighed::Taken(numbered) => numbered,
            Weighed::Wrong(why) => {
                warn!(message_id = %trace.message_id, why, "refuses orders");
                decoded = wire::refuse_orders(decoded, &why);
                None
            }
            Weighed::Outdated(order) => {
                self.ports.counters.note(Count::Outdated);
                if order.is_first {
                    let audit = vec![outdated(&order, &decoded, at)];
                    // The store keeps it until it can be written.
                    self.audit.do_send(Save { audit, ..Save::default() });
                }
                return self.acknowledge(message);
            }
        };
        let (message_id, orders) = (&*trace.message_id, decoded.len());
        info!(message_id, trace_id = %trace.id, orders, "takes orders");
        let first = self.next;
        let content = InboxContent::Configure(bytes);
        let (mut save, configure) = self.take(content, Origin::ControlPlane, &decoded, &trace);
        let receiving = receiving(configure.as_ref());
        save.writes.extend(self.remembered.forget_old(at));
        save.writes.push(key.put(at));
        let (writes, kept) =
            self.fleet.keep(numbered.as_ref(), first, &decoded, &Giver::ControlPlane);
        save.writes.extend(writes);
        let (store, link) = (self.store.clone(), self.ports.link.clone());
        let saved = async move {
            let saved = flatten(store.send(SaveOrForget(save)).await);
            if saved.is_ok() {
                crash_point::reach("before", "acknowledgement", "inbox");
                acknowledge(&*link, receipt.clone()).await;
            }
            // The reception that these spans are around has ended.
            drop(receiving);
            (saved, receipt)
        };
        let (done, taken) = oneshot::channel::<()>();
        self.taking.insert(key, Vec::new());
        ctx.spawn(saved.into_actor(self).map(move |(saved, receipt), this, ctx| {
            let repeated = this.taking.remove(&key).unwrap_or_default();
            this.fleet.settle(kept, saved.is_ok());
            match saved {
                Ok(_) => {
                    this.remembered.remember(key, receipt.stream, at, since.elapsed());
                    this.acknowledge_all(repeated, ctx);
                    crash_point::reach("after", "acknowledgement", "inbox");
                    this.carry_out(first, configure);
                }
                // Not acknowledged: the control plane sends it again.
                Err(error) => {
                    warn!(%error, "cannot take orders");
                    this.carry_out(first, None);
                }
            }
            drop(done);
        }));
        let is_full = self.taking.len() >= TAKING_MAX;
        let wait = async move {
            // It ends when the other end is dropped.
            if is_full {
                drop(taken.await);
            } else {
                drop(tokio::time::timeout(TAKE_WAIT, taken).await);
            }
        };
        Box::pin(wait.into_actor(self))
    }

    fn acknowledge_all(&self, receipts: Vec<Receipt>, ctx: &mut Context<Self>) {
        let link = self.ports.link.clone();
        let acknowledged = async move {
            for receipt in receipts {
                acknowledge(&*link, receipt).await;
            }
        };
        ctx.spawn(acknowledged.into_actor(self));
    }

    /// Records what people asked and did not get.
    fn record(&self, audit: Vec<AuditEntry>) -> impl Future<Output = ()> + use<> {
        let store = self.audit.clone();
        async move {
            // The store logs and counts what it cannot write, and tries again.
            if !audit.is_empty() {
                drop(store.send(Save { audit, ..Save::default() }).await);
            }
        }
    }

    fn answer(&mut self, question: Request, message: InboundMessage, ctx: &mut Context<Self>) {
        if self.answering >= ANSWERS_MAX {
            // One line per flood: a sender of many questions must not fill the log as well.
            if self.unanswered == 0 {
                warn!("too many requests at once; some get no answer");
            }
            self.unanswered = self.unanswered.saturating_add(1);
            return;
        }
        if self.answering == 0 && self.unanswered > 0 {
            info!(
                questions = self.unanswered,
                "the flood of requests is over; these got no answer"
            );
            self.unanswered = 0;
        }
        self.answering += 1;
        let asked = Instant::now();
        let ports = self.ports.clone();
        let (list, agent, delivered) =
            (self.list.clone(), self.agent.clone(), self.delivered.clone());
        let answer = async move {
            match question {
                Request::AgentInfo => {
                    send(&ports, wire::encode_agent_info(&message, &agent), asked).await;
                }
                Request::OsInfo => {
                    let os = ports.machine.os().await;
                    send(&ports, wire::encode_os_info(&message, os), asked).await;
                }
                Request::ListStates => {
                    let Ok(plugins) = list.send(ListPlugins).await else { return };
                    let reply = wire::encode_states(&message, &plugins);
                    if send(&ports, reply, asked).await == Sent::Acknowledged {
                        delivered.do_send(MetricsDelivered(reported(&plugins)));
                    }
                }
                Request::Configure(_) => {}
            }
        };
        ctx.spawn(answer.into_actor(self).map(|(), this, _| this.answering -= 1));
    }
}

async fn acknowledge(link: &dyn ControlLink, receipt: Receipt) {
    in_time(link.acknowledge(receipt)).await;
}

async fn in_time(acknowledgement: impl Future<Output = ()>) {
    if tokio::time::timeout(ACKNOWLEDGE_WAIT, acknowledgement).await.is_err() {
        debug!("an acknowledgement could not be sent in time");
    }
}

/// Whether a reply arrived.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    Acknowledged,
    GivenUp,
}

/// Sends a reply under one id until it is acknowledged, as events are sent, while its question is
/// young: some servers take replies for signs of life.
async fn send(ports: &Ports, reply: OutboundMessage, asked: Instant) -> Sent {
    let reply = OutboundMessage { id: ports.ids.message_id(), ..reply };
    let mut attempt = 0;
    loop {
        attempt += 1;
        let pause = match ports.link.deliver(reply.clone()).await {
            Ok(()) => return Sent::Acknowledged,
            Err(error) => error.pause(attempt, &reply.id),
        };
        if asked.elapsed() + pause >= QUESTION_MAX {
            debug!(attempt, "gives a reply up: its question is too old");
            return Sent::GivenUp;
        }
        tokio::time::sleep(pause).await;
    }
}

/// The spans of the reception of each order, until this is dropped. The span of an order itself
/// ends with the order.
fn receiving(configure: Option<&Configure>) -> Vec<Span> {
    let orders = configure.iter().flat_map(|configure| &configure.orders).take(FOLLOWED_MAX);
    let spans = orders.filter_map(|order| {
        let (trace, revision) = (order.trace.as_ref()?, order.order.revision());
        Some(trace.receive(&trace.order(order.name.as_str(), revision, order.generation)))
    });
    spans.collect()
}

/// How many samples of each plugin a report had or had before.
fn reported(plugins: &[Listed]) -> Vec<(crate::model::id::PluginName, u64)> {
    let with_points = plugins.iter().filter(|plugin| !plugin.points.is_empty());
    with_points.map(|plugin| (plugin.view.name.clone(), plugin.sampled)).collect()
}

fn flatten<T>(result: Result<Result<T, SaveFailed>, MailboxError>) -> Result<T, SaveFailed> {
    result.unwrap_or_else(|error| Err(SaveFailed(error.to_string().into())))
}

impl Actor for ControlPlaneActor {
    type Context = Context<Self>;
}

impl Handler<Received> for ControlPlaneActor {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, Received(message): Received, ctx: &mut Self::Context) -> Self::Result {
        self.received(message, ctx)
    }
}

impl Handler<Submit> for ControlPlaneActor {
    type Result = ResponseActFuture<Self, Result<Submitted, SubmitError>>;

    fn handle(&mut self, submit: Submit, _: &mut Self::Context) -> Self::Result {
        let Submit { submission, asker, traceparent } = submit;
        let at = self.ports.clock.now();
        let what = matches!(submission, Submission::Run(_)).then_some(AuditAct::Run);
        let giver = Giver::person(asker.as_ref(), at);
        let audited = asker.map(|asker| Audited { asker, at, what });
        let (content, decoded) = match decode_submission(submission) {
            Ok((content, decoded)) => (content, self.or_refused(decoded)),
            Err(error) => {
                let entries = audited.map(|audited| audited.of_none(&error.to_string()));
                let recorded = self.record(entries.into_iter().collect());
                return Box::pin(recorded.into_actor(self).map(|(), _, _| Err(error)));
            }
        };
        let given = self.next;
        let id = self.ports.ids.message_id();
        let trace = Arc::new(Trace::of_message(&id, traceparent.as_deref(), at));
        info!(
            message_id = id, trace_id = %trace.id, "takes orders that were given on this machine"
        );
        let (mut save, configure) = self.take(content, Origin::Local, &decoded, &trace);
        let (writes, kept) = self.fleet.keep(None, given, &decoded, &giver);
        save.writes.extend(writes);
        let receiving = receiving(configure.as_ref());
        let of_all = configure.as_ref().and_then(|configure| configure.of_all.as_ref());
        let outcomes = match of_all {
            Some(asked) => vec![OrderOutcome { name: String::new(), result: Ok(asked.generation) }],
            None => outcomes(&decoded, given),
        };
        save.audit = match (&audited, of_all) {
            (Some(audited), Some(asked)) => vec![audited.of_all(&asked.act, asked.generation)],
            (Some(audited), None) => audited.of_orders(&decoded, given),
            (None, _) => Vec::new(),
        };
        let (store, entries) = (self.store.clone(), save.audit.clone());
        let saved = async move {
            let saved = flatten(store.send(SaveOrForget(save)).await);
            drop(receiving);
            saved
        };
        Box::pin(saved.into_actor(self).map(move |saved, this, _| {
            this.fleet.settle(kept, saved.is_ok());
            match saved {
                Ok(last_event) => {
                    this.carry_out(given, configure);
                    Ok(Submitted { outcomes, last_event })
                }
                Err(error) => {
                    this.carry_out(given, None);
                    let audit = not_saved(entries, &error.to_string());
                    // The store keeps them until it can be written; the caller need not wait for that.
                    this.audit.do_send(Save { audit, ..Save::default() });
                    Err(SubmitError::NotSaved(error))
                }
            }
        }))
    }
}

/// Reads orders of a user of this machine.
fn decode_submission(
    submission: Submission,
) -> Result<(InboxContent, Vec<DecodedOrder>), SubmitError> {
    match submission {
        Submission::Restart(name) | Submission::Run(name) => {
            let order = restart_of(&name);
            Ok((InboxContent::Restart(name), vec![Ok(order)]))
        }
        Submission::Asked(name, act) => {
            let order = asked_of(&name, &act);
            Ok((InboxContent::Asked(name, act), vec![Ok(order)]))
        }
        Submission::AskedOfAll(act) => Ok((InboxContent::AskedOfAll(act), Vec::new())),
        Submission::Configure(bytes) => match wire::decode_orders(&bytes, Origin::Local) {
            Ok(decoded) => Ok((InboxContent::Configure(bytes), decoded)),
            Err(error) => Err(SubmitError::Malformed(Chain(&error).to_string().into())),
        },
    }
}

/// The answer to a submitter about each order, in the sequence given.
fn outcomes(decoded: &[DecodedOrder], first: Generation) -> Vec<OrderOutcome> {
    let outcome = |(order, number): (&DecodedOrder, u64)| match order {
        Ok(order) => OrderOutcome { name: order.name.to_string(), result: Ok(Generation(number)) },
        Err(refusal) => {
            OrderOutcome { name: refusal.name.clone(), result: Err(refusal.reason.clone()) }
        }
    };
    decoded.iter().zip(first.0..).map(outcome).collect()
}
