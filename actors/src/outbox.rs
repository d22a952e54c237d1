//! Events on their way to the control plane: in order per plugin, one at a time, until each is
//! acknowledged.
//!
//! An event is recorded before it comes here and is sent under the same id every time, so a server
//! that hears it twice can tell. It leaves only when the server acknowledged it. When more events
//! wait than are kept, the oldest go, and the gap is recorded as what it is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tokio::sync::broadcast;
use tracing::{debug, warn};

use crate::event::{Draft, Recorded};
use crate::messages::{Enqueue, LinkChanged, SaveLazily};
use crate::ports::{ControlLink, DeliveryError, Table, Write};
use crate::records::number_key;
use crate::wire;

/// How many events are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Most events that wait for the control plane.
    pub events: usize,
    /// Most bytes of events that wait for the control plane.
    pub bytes: usize,
    /// Settled events that are kept for people on this machine.
    pub history: usize,
}

/// Events sent at once, each of another plugin.
const IN_FLIGHT_MAX: usize = 32;

/// Followers that are further behind than this read the store instead.
const FOLLOW_MAX: usize = 1024;

/// Whether there is a control plane to send to at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Events wait for it.
    ControlPlane,
    /// None is configured: events are settled at once.
    Nobody,
}

/// The outbox's actor.
pub struct OutboxActor {
    link: Arc<dyn ControlLink>,
    destination: Destination,
    bounds: Bounds,
    store: Option<Recipient<SaveLazily>>,
    connection: Connection,
    /// Per plugin, oldest first.
    queues: BTreeMap<Arc<str>, VecDeque<Waiting>>,
    /// Plugins with an event under way.
    in_flight: BTreeSet<Arc<str>>,
    /// How many of those wait because the server refused their event. They hold nobody else up: a server
    /// may refuse the events of some plugins for ever.
    refused: usize,
    waiting: usize,
    waiting_bytes: usize,
    history: VecDeque<u64>,
    followers: broadcast::Sender<Recorded>,
    depth: tokio::sync::watch::Sender<usize>,
}

/// An event in a queue.
struct Waiting {
    recorded: Recorded,
    /// Events of the plugin that were dropped right before it.
    gap: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Connection {
    Down,
    Up,
}

/// Where an outbox's contents can be watched.
#[derive(Clone)]
pub struct OutboxView {
    /// New events, as they are recorded.
    pub events: broadcast::Sender<Recorded>,
    /// How many wait for the control plane.
    pub depth: tokio::sync::watch::Receiver<usize>,
}

/// From the wiring, once: the store that hears what is settled.
#[derive(Message)]
#[rtype(result = "()")]
pub struct UseStore(pub Recipient<SaveLazily>);

// === impl Bounds ===

impl Default for Bounds {
    fn default() -> Self {
        Self { events: 100_000, bytes: 64 * 1024 * 1024, history: 1000 }
    }
}

// === impl Waiting ===

impl Waiting {
    /// The event as it is told: with the gap before it, if there is one.
    fn told(&self) -> Recorded {
        if self.gap == 0 {
            return self.recorded.clone();
        }
        let Draft { kind, plugin, revision, at, details } = &self.recorded.event;
        let details = format!(
            "{} earlier events of this plugin were dropped because too many waited; {details}",
            self.gap
        );
        let event = Draft::new(*kind, plugin, revision, *at, &details);
        Recorded { event, ..self.recorded.clone() }
    }
}

// === impl OutboxActor ===

impl OutboxActor {
    /// An outbox with what an earlier life left: events that wait, oldest first, and the numbers of
    /// those that are kept for people.
    #[must_use]
    pub fn new(
        link: Arc<dyn ControlLink>,
        destination: Destination,
        bounds: Bounds,
        waiting: Vec<Recorded>,
        history: Vec<u64>,
    ) -> (Self, OutboxView) {
        let (followers, _) = broadcast::channel(FOLLOW_MAX);
        let (depth, shown) = tokio::sync::watch::channel(0);
        let view = OutboxView { events: followers.clone(), depth: shown };
        let mut outbox = Self {
            link,
            destination,
            bounds,
            store: None,
            connection: Connection::Down,
            queues: BTreeMap::new(),
            in_flight: BTreeSet::new(),
            refused: 0,
            waiting: 0,
            waiting_bytes: 0,
            history: history.into(),
            followers,
            depth,
        };
        for recorded in waiting {
            outbox.push(recorded);
        }
        (outbox, view)
    }

    fn push(&mut self, recorded: Recorded) {
        self.waiting += 1;
        self.waiting_bytes += size(&recorded);
        let plugin = recorded.event.plugin.clone();
        self.queues.entry(plugin).or_default().push_back(Waiting { recorded, gap: 0 });
        self.depth.send_replace(self.waiting);
    }

    /// Sends the first event of every plugin that has none under way.
    fn send_what_can_be_sent(&mut self, ctx: &mut Context<Self>) {
        if self.connection == Connection::Down {
            return;
        }
        let under_way = self.in_flight.len().saturating_sub(self.refused);
        let free = IN_FLIGHT_MAX.saturating_sub(under_way);
        let next: Vec<Recorded> = self
            .queues
            .iter()
            .filter(|(plugin, _)| !self.in_flight.contains(*plugin))
            .filter_map(|(_, queue)| queue.front().map(Waiting::told))
            .take(free)
            .collect();
        for recorded in next {
            self.in_flight.insert(recorded.event.plugin.clone());
            self.send(recorded, 1, ctx);
        }
    }

    fn send(&mut self, recorded: Recorded, attempt: u32, ctx: &mut Context<Self>) {
        let (link, message) = (self.link.clone(), wire::encode_event(&recorded));
        let delivery = async move { link.deliver(message).await };
        ctx.spawn(delivery.into_actor(self).map(move |result, this, ctx| {
            this.delivered(recorded, attempt, result, ctx);
        }));
    }

    fn delivered(
        &mut self,
        recorded: Recorded,
        attempt: u32,
        result: Result<(), DeliveryError>,
        ctx: &mut Context<Self>,
    ) {
        let is_refused = matches!(result, Err(DeliveryError::Refused(_)));
        let pause = match result {
            Ok(()) => {
                self.in_flight.remove(&recorded.event.plugin);
                self.settle(&recorded);
                self.send_what_can_be_sent(ctx);
                return;
            }
            Err(DeliveryError::NotConnected) if self.connection == Connection::Down => {
                // The next registration sends it again.
                self.in_flight.remove(&recorded.event.plugin);
                return;
            }
            // The stream it was sent on is gone, but another is registered already.
            Err(DeliveryError::NotConnected) => {
                Duration::from_millis(100).saturating_mul(attempt).min(Duration::from_secs(60))
            }
            // The wait for the acknowledgement was pause enough.
            Err(DeliveryError::TimedOut) => Duration::ZERO,
            Err(DeliveryError::Exhausted(_)) => {
                Duration::from_millis(250).saturating_mul(attempt).min(Duration::from_secs(60))
            }
            Err(DeliveryError::Refused(ref reason)) => {
                warn!(event = %recorded.id, reason, "the control plane refuses an event; tries again");
                Duration::from_secs(1).saturating_mul(attempt).min(Duration::from_secs(60))
            }
        };
        debug!(event = %recorded.id, attempt, ?pause, "sends an event again");
        if is_refused {
            self.refused += 1;
            self.send_what_can_be_sent(ctx);
        }
        ctx.run_later(pause, move |this, ctx| {
            if is_refused {
                this.refused = this.refused.saturating_sub(1);
            }
            let is_first = this
                .queues
                .get(&recorded.event.plugin)
                .and_then(VecDeque::front)
                .is_some_and(|first| first.recorded.seq == recorded.seq);
            if is_first && this.connection == Connection::Up {
                this.send(recorded, attempt.saturating_add(1), ctx);
            } else {
                this.in_flight.remove(&recorded.event.plugin);
                this.send_what_can_be_sent(ctx);
            }
        });
    }

    /// An event is done with: it leaves the queue and becomes history.
    fn settle(&mut self, recorded: &Recorded) {
        if let Some(queue) = self.queues.get_mut(&recorded.event.plugin) {
            if queue.front().is_some_and(|first| first.recorded.seq == recorded.seq)
                && let Some(settled) = queue.pop_front()
            {
                self.waiting -= 1;
                self.waiting_bytes = self.waiting_bytes.saturating_sub(size(&settled.recorded));
            }
            if queue.is_empty() {
                self.queues.remove(&recorded.event.plugin);
            }
        }
        self.depth.send_replace(self.waiting);
        let key = number_key(recorded.seq);
        let mut writes = vec![
            Write::Delete { table: Table::Outbox, key: key.clone() },
            Write::Put { table: Table::History, key, value: recorded.encode() },
        ];
        self.history.push_back(recorded.seq);
        while self.history.len() > self.bounds.history {
            if let Some(old) = self.history.pop_front() {
                writes.push(Write::Delete { table: Table::History, key: number_key(old) });
            }
        }
        self.save(writes);
    }

    /// Keeps the outbox within its bounds. The oldest event of the plugin with the most goes, and the
    /// one after it tells of the gap.
    fn drop_overflow(&mut self) {
        let mut writes = Vec::new();
        let Bounds { events, bytes, .. } = self.bounds;
        while self.waiting > events || self.waiting_bytes > bytes {
            let Some((plugin, queue)) = self.queues.iter_mut().max_by_key(|(_, q)| q.len()) else {
                break;
            };
            // The one under way is spared: it may be acknowledged any moment.
            let index = usize::from(self.in_flight.contains(plugin)).min(queue.len() - 1);
            let Some(dropped) = queue.remove(index) else { break };
            let Waiting { recorded: dropped, gap } = dropped;
            warn!(plugin = %plugin, seq = dropped.seq, "too many events wait; the oldest is dropped");
            if let Some(next) = queue.get_mut(index) {
                next.gap += gap + 1;
                let (key, value) = (number_key(next.recorded.seq), next.told().encode());
                writes.push(Write::Put { table: Table::Outbox, key, value });
            }
            self.waiting -= 1;
            self.waiting_bytes = self.waiting_bytes.saturating_sub(size(&dropped));
            writes.push(Write::Delete { table: Table::Outbox, key: number_key(dropped.seq) });
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        if !writes.is_empty() {
            self.depth.send_replace(self.waiting);
            self.save(writes);
        }
    }

    fn save(&self, writes: Vec<Write>) {
        if let Some(store) = &self.store {
            store.do_send(SaveLazily(writes));
        }
    }
}

/// What an event is counted as.
fn size(recorded: &Recorded) -> usize {
    let event = &recorded.event;
    128 + event.details.len() + event.plugin.len() + event.revision.len()
}

impl Actor for OutboxActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(4096);
    }
}

impl Handler<UseStore> for OutboxActor {
    type Result = ();

    fn handle(&mut self, UseStore(store): UseStore, _: &mut Self::Context) {
        self.store = Some(store);
        if self.destination == Destination::Nobody {
            // An earlier life may have had a control plane to tell.
            for waiting in std::mem::take(&mut self.queues).into_values().flatten() {
                self.settle(&waiting.told());
            }
            (self.waiting, self.waiting_bytes) = (0, 0);
            self.depth.send_replace(0);
        }
    }
}

impl Handler<Enqueue> for OutboxActor {
    type Result = ();

    fn handle(&mut self, Enqueue(events): Enqueue, ctx: &mut Self::Context) {
        for recorded in events {
            // An error only says that nobody follows.
            drop(self.followers.send(recorded.clone()));
            self.push(recorded.clone());
            if self.destination == Destination::Nobody {
                self.settle(&recorded);
            }
        }
        self.drop_overflow();
        self.send_what_can_be_sent(ctx);
    }
}

impl Handler<LinkChanged> for OutboxActor {
    type Result = ();

    fn handle(&mut self, change: LinkChanged, ctx: &mut Self::Context) {
        match change {
            LinkChanged::Connected { .. } => {
                self.connection = Connection::Up;
                self.send_what_can_be_sent(ctx);
            }
            LinkChanged::Disconnected { .. } => self.connection = Connection::Down,
        }
    }
}
