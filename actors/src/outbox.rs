//! Events on their way to the control plane: in order per plugin, one at a time, until each is
//! acknowledged.
//!
//! An event is recorded before it comes here and is sent under the same id every time, so a server
//! that receives it twice can recognize it. It leaves only when the server acknowledged it. When
//! more events wait than are kept, repeated reports are dropped first and outcomes of orders last,
//! and the gap is itself an event: `backlog` decides which events are dropped, `gap` writes the
//! event that reports them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tokio::sync::broadcast;
use tracing::{debug, warn};

use crate::crash_point;
use crate::keys::number_key;
use crate::messages::{Enqueue, LinkChanged, Save, SaveLazily};
use crate::model::event::{SettledEvent, Settlement, StoredEvent};
use crate::ports::{ControlLink, DeliveryError, Ids, ServerKind, Table, Write};
use crate::wire;

pub use backlog::Waiting;
pub use gap::{Gap, Priority, worth};

use backlog::Backlog;

mod backlog;
mod gap;

pub use backlog::{Bounds, Weight};

/// Events sent at once, each of another plugin.
const IN_FLIGHT_MAX: usize = 32;

/// Followers that are further behind than this read the store instead.
const FOLLOW_MAX: usize = 1024;

/// Longest a marker waits for its record to be durable before it is sent all the same.
const SAVE_WAIT: Duration = Duration::from_secs(10);

/// Whether there is a control plane to send to at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Events wait for it.
    ControlPlane,
    /// None is configured or known: events are settled at once, until there is a connection after
    /// all.
    Nobody,
}

/// The outbox's actor.
pub struct OutboxActor {
    link: Arc<dyn ControlLink>,
    destination: Destination,
    bounds: Bounds,
    store: Option<UseStore>,
    connection: Connection,
    backlog: Backlog,
    /// Plugins with an event under way.
    in_flight: BTreeSet<Arc<str>>,
    /// How many of those wait because the server refused their event. They delay no other plugin: a
    /// server may refuse the events of some plugins for ever.
    refused: usize,
    history: VecDeque<u64>,
    followers: broadcast::Sender<StoredEvent>,
    settled: broadcast::Sender<SettledEvent>,
    depth: tokio::sync::watch::Sender<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Connection {
    Down,
    Up(ServerKind),
}

/// The fate of the first events of the plugins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Firsts {
    /// Each that there is room for is under way.
    AreUnderWay,
    /// Some were settled, and others are the first now.
    SomeAreSettled,
}

/// Where an outbox's contents can be watched.
#[derive(Clone)]
pub struct OutboxView {
    /// New events, as they are recorded.
    pub events: broadcast::Sender<StoredEvent>,
    /// Events that wait no longer, and whether the control plane acknowledged them.
    pub settled: broadcast::Sender<SettledEvent>,
    /// How many wait for the control plane.
    pub depth: tokio::sync::watch::Receiver<usize>,
}

/// From the wiring, once: the store that receives the settled events.
#[derive(Message)]
#[rtype(result = "()")]
pub struct UseStore {
    /// For records that may be lost.
    pub lazily: Recipient<SaveLazily>,
    /// For records that must be durable before the outbox sends them.
    pub durably: Recipient<Save>,
}

/// From the actors and commands that show it: how much waits for the control plane.
#[derive(Message, Clone, Copy, Debug)]
#[rtype(result = "Weight")]
pub struct WeighBacklog;

/// Whether a server has a type for an event.
const fn takes(server: ServerKind, recorded: &StoredEvent) -> bool {
    match server {
        ServerKind::Fleet => true,
        ServerKind::Public => recorded.event.kind.is_public(),
    }
}

// === impl Bounds ===

impl Default for Bounds {
    fn default() -> Self {
        Self { events: 100_000, bytes: 64 * 1024 * 1024, history: 1000 }
    }
}

// === impl OutboxActor ===

impl OutboxActor {
    /// An outbox with what an earlier agent process left: events that wait, oldest first, and the
    /// numbers of those that are kept for people.
    #[must_use]
    pub fn new(
        (link, ids): (Arc<dyn ControlLink>, Arc<dyn Ids>),
        destination: Destination,
        bounds: Bounds,
        waiting: Vec<Waiting>,
        history: Vec<u64>,
    ) -> (Self, OutboxView) {
        let (followers, _) = broadcast::channel(FOLLOW_MAX);
        let (settled, _) = broadcast::channel(FOLLOW_MAX);
        let (depth, shown) = tokio::sync::watch::channel(0);
        let view = OutboxView { events: followers.clone(), settled: settled.clone(), depth: shown };
        let mut outbox = Self {
            link,
            destination,
            bounds,
            store: None,
            connection: Connection::Down,
            backlog: Backlog::new(ids),
            in_flight: BTreeSet::new(),
            refused: 0,
            history: history.into(),
            followers,
            settled,
            depth,
        };
        for event in waiting {
            outbox.backlog.push(event);
        }
        outbox.show_depth();
        (outbox, view)
    }

    fn show_depth(&self) {
        self.depth.send_replace(self.backlog.len());
    }

    /// Sends the first event of every plugin that has none under way. Events that the control plane has no
    /// type for are not sent: they are settled when their turn comes.
    fn send_what_can_be_sent(&mut self, ctx: &mut Context<Self>) {
        while self.send_firsts(ctx) == Firsts::SomeAreSettled {}
    }

    fn send_firsts(&mut self, ctx: &mut Context<Self>) -> Firsts {
        let Connection::Up(server) = self.connection else { return Firsts::AreUnderWay };
        let mut firsts = Firsts::AreUnderWay;
        let under_way = self.in_flight.len().saturating_sub(self.refused);
        let free = IN_FLIGHT_MAX.saturating_sub(under_way);
        let next: Vec<(Arc<str>, u64)> = self
            .backlog
            .firsts()
            .filter(|(plugin, _)| !self.in_flight.contains(*plugin))
            .map(|(plugin, seq)| (plugin.clone(), seq))
            .take(free)
            .collect();
        for (plugin, seq) in next {
            let Some((recorded, record)) = self.backlog.begin_sending(&plugin, seq) else {
                continue;
            };
            if !takes(server, &recorded) {
                self.settle(recorded, Settlement::Unaddressed);
                firsts = Firsts::SomeAreSettled;
                continue;
            }
            self.in_flight.insert(plugin);
            match record {
                Some(record) => self.save_and_send(recorded, record, ctx),
                None => self.send(recorded, 1, ctx),
            }
        }
        firsts
    }

    /// Sends a marker when its record is durable. After a crash an older record would let it count
    /// on under the same id, and the events it counted could come back to be told themselves.
    fn save_and_send(&mut self, marker: StoredEvent, record: Write, ctx: &mut Context<Self>) {
        let Some(store) = &self.store else { return self.send(marker, 1, ctx) };
        let save = Save { writes: vec![record], ..Save::default() };
        let saved = tokio::time::timeout(SAVE_WAIT, store.durably.send(save));
        ctx.spawn(saved.into_actor(self).map(move |result, this, ctx| {
            if !matches!(result, Ok(Ok(Ok(())))) {
                warn!(event = %marker.id, "a gap event is sent before it is durable");
            }
            this.send(marker, 1, ctx);
        }));
    }

    fn send(&mut self, recorded: StoredEvent, attempt: u32, ctx: &mut Context<Self>) {
        crash_point::reach("before", "delivery", &recorded.event.plugin);
        let (link, message) = (self.link.clone(), wire::encode_event(&recorded));
        let delivery = async move { link.deliver(message).await };
        ctx.spawn(delivery.into_actor(self).map(move |result, this, ctx| {
            this.delivered(recorded, attempt, result, ctx);
        }));
    }

    fn delivered(
        &mut self,
        recorded: StoredEvent,
        attempt: u32,
        result: Result<(), DeliveryError>,
        ctx: &mut Context<Self>,
    ) {
        let is_refused = matches!(result, Err(DeliveryError::Refused(_)));
        let pause = match result {
            Ok(()) => {
                crash_point::reach("after", "delivery", &recorded.event.plugin);
                self.in_flight.remove(&recorded.event.plugin);
                self.settle(recorded, Settlement::Acknowledged);
                self.send_what_can_be_sent(ctx);
                return;
            }
            Err(DeliveryError::NotConnected) if self.connection == Connection::Down => {
                // The next registration sends it again.
                self.in_flight.remove(&recorded.event.plugin);
                return;
            }
            Err(error) => {
                if let DeliveryError::Refused(reason) = &error {
                    warn!(
                        event = %recorded.id, reason,
                        "the control plane refuses an event; sends it again"
                    );
                }
                error.pause(attempt, &recorded.id)
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
            let is_taken =
                matches!(this.connection, Connection::Up(server) if takes(server, &recorded));
            if this.backlog.is_first(&recorded) && is_taken {
                this.send(recorded, attempt.saturating_add(1), ctx);
            } else {
                this.in_flight.remove(&recorded.event.plugin);
                this.send_what_can_be_sent(ctx);
            }
        });
    }

    /// An event is settled: it leaves the queue and becomes history.
    fn settle(&mut self, recorded: StoredEvent, how: Settlement) {
        self.backlog.take(&recorded.event.plugin, recorded.seq);
        self.show_depth();
        let seq = recorded.seq;
        let key = number_key(seq);
        let settled = SettledEvent { recorded, how };
        let mut writes = vec![
            Write::Delete { table: Table::Outbox, key: key.clone() },
            Write::Put { table: Table::History, key, value: settled.encode() },
        ];
        // An error only means that no receiver follows.
        drop(self.settled.send(settled));
        self.history.push_back(seq);
        while self.history.len() > self.bounds.history {
            if let Some(old) = self.history.pop_front() {
                writes.push(Write::Delete { table: Table::History, key: number_key(old) });
            }
        }
        self.save(writes);
    }

    fn drop_overflow(&mut self) {
        let before = self.backlog.len();
        let writes = self.backlog.drop_overflow(&self.bounds, &self.in_flight);
        if !writes.is_empty() {
            let dropped = before - self.backlog.len();
            warn!(dropped, waiting = self.backlog.len(), "too many events wait; some are dropped");
            self.save(writes);
        }
    }

    fn save(&self, writes: Vec<Write>) {
        if let Some(store) = &self.store {
            store.lazily.do_send(SaveLazily(writes));
        }
    }
}

impl Actor for OutboxActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(4096);
    }
}

impl Handler<UseStore> for OutboxActor {
    type Result = ();

    fn handle(&mut self, store: UseStore, _: &mut Self::Context) {
        self.store = Some(store);
        if self.destination == Destination::Nobody {
            // An earlier agent process may have had a control plane.
            for waiting in self.backlog.take_all() {
                self.settle(waiting.told(), Settlement::Unaddressed);
            }
        }
    }
}

impl Handler<Enqueue> for OutboxActor {
    type Result = ();

    fn handle(&mut self, Enqueue(events): Enqueue, ctx: &mut Self::Context) {
        for recorded in events {
            // An error only means that no receiver follows.
            drop(self.followers.send(recorded.clone()));
            match self.destination {
                Destination::ControlPlane => self.backlog.push(Waiting::new(recorded)),
                Destination::Nobody => self.settle(recorded, Settlement::Unaddressed),
            }
        }
        self.drop_overflow();
        self.show_depth();
        self.send_what_can_be_sent(ctx);
    }
}

impl Handler<WeighBacklog> for OutboxActor {
    type Result = MessageResult<WeighBacklog>;

    fn handle(&mut self, _: WeighBacklog, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.backlog.weight())
    }
}

impl Handler<LinkChanged> for OutboxActor {
    type Result = ();

    fn handle(&mut self, change: LinkChanged, ctx: &mut Self::Context) {
        match change {
            LinkChanged::Connected { server, .. } => {
                self.connection = Connection::Up(server);
                // A control plane may appear later: the metadata server gives its address.
                self.destination = Destination::ControlPlane;
                self.send_what_can_be_sent(ctx);
            }
            LinkChanged::Disconnected { .. } => self.connection = Connection::Down,
        }
    }
}
