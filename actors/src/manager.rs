//! The roster of plugins: takes orders, starts and retires plugin actors, answers lists.
//!
//! Orders reach it when they are durable in the inbox. [`plan::assign`] decides which plugin gets
//! which order; each plugin reports when an order is part of its own durable state, and when all
//! orders of an inbox record are, the record is deleted. The roster has the answers to lists; the
//! manager asks no plugin for them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tracing::{error, warn};

use crate::keys::number_key;
use crate::messages::{
    AskedOfAll, Begin, Changed, Configure, Deliver, Died, Dismiss, FactsMoved, Fire, Happened,
    Leave, Listed, LoadSnapshot, MetricsDelivered, NumberedOrder, Point, Reading, Retired, Sampled,
    Save, Seen, ShutdownBegins, Taken, Unseen, UsePolicy,
};
use crate::metrics::history::History;
use crate::model::act::Hold;
use crate::model::event;
use crate::model::id::{Generation, PluginName};
use crate::model::spec::PluginSpec;
use crate::model::view::PluginView;
use crate::plugin::event::Event;
use crate::plugin::state::Policy;
use crate::plugin::{Beginning, PluginActor, PluginHandles, machine};
use crate::ports::{Count, Known, Ports, Table, Write};
use crate::records::{self, InboxContent};
use crate::trace::Trace;
use crate::wire::{DecodedOrder, NamedOrder};

mod answers;
mod forget;
mod hold;
pub mod local;
pub mod local_plan;
pub mod plan;
pub mod readiness;
pub mod recovery;

use plan::{Assignment, assign};
use readiness::{Gate, Heard, Readiness};
pub(crate) use recovery::{asked_of, name_of_key, restart_of};

/// The other actors that the manager talks to.
pub struct ManagerHandles {
    /// Makes states durable.
    pub store: Recipient<Save>,
    /// Reads snapshots back.
    pub snapshots: Recipient<LoadSnapshot>,
    /// Learns what one-shot plugins look like.
    pub seen: Recipient<Seen>,
    /// Learns that a plugin is no one-shot plugin any more.
    pub unseen: Recipient<Unseen>,
    /// What every plugin gets.
    pub plugins: Arc<PluginHandles>,
}

/// The manager's actor.
pub struct ManagerActor {
    ports: Ports,
    policy: Arc<Policy>,
    handles: ManagerHandles,
    roster: BTreeMap<PluginName, Entry>,
    /// Orders per inbox record that their plugins have not made durable yet.
    open: BTreeMap<u64, BTreeMap<(PluginName, Generation), NumberedOrder>>,
    /// Inbox records that were read back at the start. The control-plane actor also hands over the
    /// records that it made since, and the manager must not carry one out twice.
    replayed: BTreeSet<u64>,
    /// When plugin actors died, so that one which panics at its start is not rebuilt for ever.
    deaths: BTreeMap<PluginName, Deaths>,
    lists: Lists,
    /// State that the local API shows.
    history: History,
    /// Plugins whose record this agent process found to be unreadable.
    lost: BTreeSet<PluginName>,
    /// Whether every plugin that existed is on the roster or among the lost.
    known: Known,
    /// Plugins of an earlier agent process that do not know yet whether their process still lives.
    reconciling: BTreeSet<PluginName>,
    lives: u64,
    /// The manifests of the machine's own plugins.
    machine: local_plan::LocalManifests,
    /// The hold that plugins begin under that come later.
    hold: Option<Hold>,
    version: watch::Sender<u64>,
    /// The same, for the report to a fleet alone: a watch wakes its receivers in no fixed order, and a
    /// simulated life has to follow from its seed.
    version_for_report: watch::Sender<u64>,
    /// The names on the roster, for others; `None` while the plugins of an earlier agent process are
    /// not all back.
    there: watch::Sender<Option<BTreeSet<PluginName>>>,
    gate: Gate,
    readiness: watch::Sender<Readiness>,
}

/// One plugin on the roster.
struct Entry {
    address: Addr<PluginActor>,
    life: u64,
    delivered: Generation,
    /// Set when only the record of the plugin is left, with the newest order it knew.
    retired: Option<Generation>,
    view: Arc<PluginView>,
    heard: Heard,
    points: VecDeque<Point>,
    /// How many samples there have been, the last of `points` included.
    sampled: u64,
    newest: Option<Reading>,
    /// The local version that the plugin knows.
    local: Option<Arc<PluginSpec>>,
}

/// How often a plugin's actor died lately.
struct Deaths {
    in_a_row: u32,
    last: Instant,
}

/// Whether lists can be answered yet.
enum Lists {
    /// Not before the plugins of an earlier agent process are back.
    Held { lists: Vec<oneshot::Sender<Vec<Listed>>>, orders: Vec<Configure> },
    /// They are back and orders go on; not all of them know yet whether their process still lives.
    Reconciling { lists: Vec<oneshot::Sender<Vec<Listed>>> },
    /// Yes.
    Answered,
}

/// At most this many messages with orders wait for the start; more stay in the inbox until the
/// next. Lists are bounded by their senders.
const HELD_MAX: usize = 1024;

// === impl ManagerActor ===

impl ManagerActor {
    /// A manager under this hold of all plugins, that moves `version` on whenever its roster moves, and says in `readiness` when
    /// the plugins that count for it are up.
    #[must_use]
    pub fn new(
        ports: Ports,
        policy: Arc<Policy>,
        handles: ManagerHandles,
        hold: Option<Hold>,
        version: watch::Sender<u64>,
        readiness: watch::Sender<Readiness>,
    ) -> Self {
        Self {
            ports,
            policy,
            handles,
            roster: BTreeMap::new(),
            open: BTreeMap::new(),
            replayed: BTreeSet::new(),
            deaths: BTreeMap::new(),
            lists: Lists::Held { lists: Vec::new(), orders: Vec::new() },
            history: History::default(),
            lost: BTreeSet::new(),
            known: Known::All,
            reconciling: BTreeSet::new(),
            lives: 0,
            machine: local_plan::LocalManifests::default(),
            hold,
            version,
            version_for_report: watch::Sender::new(0),
            there: watch::Sender::new(None),
            gate: Gate::default(),
            readiness,
        }
    }

    /// Carries orders out, unless the start found them in the inbox already.
    fn configure_once(&mut self, configure: Configure, ctx: &mut Context<Self>) {
        if !self.replayed.remove(&configure.inbox) {
            self.configure(configure, ctx);
        }
    }

    fn configure(&mut self, configure: Configure, ctx: &mut Context<Self>) {
        let Configure { inbox, orders, of_all } = configure;
        let orders = of_all.map_or(orders, |asked| self.ask_all(asked));
        let known: BTreeSet<PluginName> = self.roster.keys().cloned().collect();
        let assignments = assign(&known, orders);
        let open: BTreeMap<_, _> = assignments
            .iter()
            .filter_map(Assignment::awaited)
            .map(|order| ((order.name.clone(), order.generation), order))
            .collect();
        let refused: Vec<event::NewEvent> = assignments
            .into_iter()
            .filter_map(|assignment| self.carry_out(assignment, ctx))
            .collect();
        let done = open.is_empty();
        if !done {
            self.open.insert(inbox, open);
        }
        if done || !refused.is_empty() {
            let writes = if done { vec![forget(inbox)] } else { Vec::new() };
            self.save(Save { writes, events: refused, ..Save::default() }, ctx);
        }
    }

    /// Carries one assignment out, or returns the event that reports its refusal.
    fn carry_out(
        &mut self,
        assignment: Assignment,
        ctx: &mut Context<Self>,
    ) -> Option<event::NewEvent> {
        match assignment {
            Assignment::Begin { generation, spec, trace } => {
                let name = spec.name.clone();
                let first = Box::new(machine::begin_under(self.hold_of_all(), generation, spec));
                self.start(name, generation, Beginning::Ordered(first, trace), ctx);
                None
            }
            Assignment::Deliver(NumberedOrder { generation, name, order, trace, .. }) => {
                if let Some(entry) = self.roster.get_mut(&name) {
                    entry.delivered = entry.delivered.max(generation);
                    entry.retired = entry.retired.filter(|known| generation <= *known);
                    entry.address.do_send(Deliver { generation, order, trace });
                }
                None
            }
            Assignment::Refuse { generation, name, revision, notice, reason, trace } => {
                if let Some(trace) = trace {
                    trace.refuse(name.as_str(), &revision, generation, &reason);
                }
                let now = self.ports.clock.now();
                Some(event::NewEvent::new(notice, name.as_str(), &revision, now, &reason))
            }
        }
    }

    fn start(
        &mut self,
        name: PluginName,
        delivered: Generation,
        beginning: Beginning,
        ctx: &mut Context<Self>,
    ) {
        self.lives += 1;
        let life = self.lives;
        let (guard, gone) = oneshot::channel();
        let (policy, ports) = (self.policy.clone(), self.ports.clone());
        let handles = self.handles.plugins.clone();
        let local = beginning.local().cloned();
        let plugin = PluginActor::new(beginning, policy, ports, handles, guard);
        let view = Arc::new(plugin.view());
        let plugin = plugin.start();
        let died = Died { name: name.clone(), life };
        // Not in the context, which looks at all it has whenever one of them moves.
        let manager = ctx.address().downgrade();
        actix::spawn(async move {
            drop(gone.await);
            if let Some(manager) = manager.upgrade() {
                manager.do_send(died);
            }
        });
        let before = self.roster.remove(&name);
        self.show_there(&name);
        let newest = before.as_ref().and_then(|before| before.newest);
        let sampled = before.as_ref().map(|before| before.sampled).unwrap_or_default();
        let points = before.map(|before| before.points).unwrap_or_default();
        self.roster.insert(
            name,
            Entry {
                address: plugin,
                life,
                delivered,
                retired: None,
                view,
                heard: Heard::NotYet,
                points,
                sampled,
                newest,
                local,
            },
        );
    }

    /// An order does not need the inbox any longer; with it `events` become durable.
    fn taken(
        &mut self,
        order: (PluginName, Generation),
        events: Vec<event::NewEvent>,
        ctx: &mut Context<Self>,
    ) {
        let mut writes = Vec::new();
        self.open.retain(|inbox, open| {
            let done = open.remove(&order).is_some() && open.is_empty();
            if done {
                writes.push(forget(*inbox));
            }
            !done
        });
        if !writes.is_empty() || !events.is_empty() {
            self.save(Save { writes, events, ..Save::default() }, ctx);
        }
        self.bury(ctx);
    }

    fn save(&self, save: Save, ctx: &mut Context<Self>) {
        let saving = self.handles.store.send(save);
        ctx.spawn(saving.into_actor(self).map(|result, _, _| {
            // The store keeps what it could not write and tries again.
            if let Ok(Err(error)) = result {
                warn!(%error, "the inbox could not be saved; continues with its older content");
            }
        }));
    }

    /// Forgets plugins of which only the record is left. While an inbox record from before their
    /// removal exists, their own records stay: after a crash that record is read again, and without
    /// the numbers of its orders a removed plugin would be installed again.
    fn bury(&mut self, ctx: &mut Context<Self>) {
        let oldest_open = self.open.keys().next().copied().unwrap_or(u64::MAX);
        let gone: Vec<PluginName> = self
            .roster
            .iter()
            .filter(|(_, entry)| entry.retired.is_some_and(|known| known.0 < oldest_open))
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            if let Some(entry) = self.roster.remove(&name) {
                self.show_gone(&name);
                entry.address.do_send(Leave);
                self.deaths.remove(&name);
                self.history.forget(&name);
                self.ports.counters.note(Count::Gone(name.clone()));
                self.handles.unseen.do_send(Unseen(name.clone()));
                self.gate.gone(&name);
                self.show_readiness();
                let writes = vec![records::delete_snapshot(&name)];
                self.save(Save { writes, ..Save::default() }, ctx);
                self.reconciled(&name);
            }
        }
    }

    /// From now on readiness is a matter of the plugins that are needed for it.
    fn await_critical(&mut self, ctx: &mut Context<Self>) {
        let boot = self.ports.machine.boot_id();
        self.gate = Gate::of(self.roster.values().map(|entry| (&*entry.view, entry.heard)), &boot);
        for (name, patience) in self.gate.awaited() {
            let name = name.clone();
            ctx.run_later(patience, move |this, _| {
                this.gate.give_up(&name);
                this.show_readiness();
            });
        }
        self.show_readiness();
    }

    fn show_readiness(&self) {
        // Held lists mean that the plugins are not known yet.
        if !matches!(self.lists, Lists::Held { .. }) && !self.readiness.borrow().is_ready() {
            self.readiness.send_replace(self.gate.readiness());
        }
    }

    fn moved(&self) {
        for version in [&self.version, &self.version_for_report] {
            version.send_modify(|version| *version = version.wrapping_add(1));
        }
    }
}

/// Numbers the orders that were understood. A refused order keeps its number to itself.
pub fn number_orders(
    first: Generation,
    content: &InboxContent,
    decoded: &[DecodedOrder],
    trace: Option<&Arc<Trace>>,
) -> Configure {
    let of_all = match content {
        InboxContent::AskedOfAll(act) => {
            Some(AskedOfAll { generation: first, act: act.clone(), trace: trace.cloned() })
        }
        InboxContent::Configure(_) | InboxContent::Restart(_) | InboxContent::Asked(..) => None,
    };
    let orders = decoded.iter().zip(0u64..).filter_map(|(order, index)| {
        let NamedOrder { name, revision, order } = order.as_ref().ok()?.clone();
        let generation = Generation(first.0.saturating_add(index));
        Some(NumberedOrder { generation, name, revision, order, trace: trace.cloned() })
    });
    Configure { inbox: first.0, orders: orders.collect(), of_all }
}

fn forget(inbox: u64) -> Write {
    Write::Delete { table: Table::Inbox, key: number_key(inbox) }
}

impl Actor for ManagerActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(4096);
    }
}

impl Handler<Begin> for ManagerActor {
    type Result = ();

    fn handle(&mut self, Begin(boot): Begin, ctx: &mut Self::Context) {
        self.begin(boot, ctx);
    }
}

impl Handler<Configure> for ManagerActor {
    type Result = ();

    fn handle(&mut self, configure: Configure, ctx: &mut Self::Context) {
        match &mut self.lists {
            // Orders of this life must not be carried out before those of an earlier one.
            Lists::Held { orders, .. } if orders.len() < HELD_MAX => orders.push(configure),
            Lists::Held { .. } => warn!("too many orders before the start; they stay in the inbox"),
            Lists::Reconciling { .. } | Lists::Answered => self.configure_once(configure, ctx),
        }
    }
}

impl Handler<Dismiss> for ManagerActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Dismiss, _: &mut Self::Context) -> Self::Result {
        // No plugin is left that a list could wait for.
        self.answer_lists();
        // Orders that come from now on stay in the inbox.
        self.lists = Lists::Held { lists: Vec::new(), orders: Vec::new() };
        let plugins = std::mem::take(&mut self.roster).into_values().map(|entry| async move {
            // A plugin that cannot be notified has ended already.
            let _told = entry.address.send(Leave).await;
            // It ends a moment after it agreed to.
            while entry.address.connected() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let ends = futures_util::future::join_all(plugins);
        Box::pin(async move { drop(ends.await) })
    }
}

impl Handler<UsePolicy> for ManagerActor {
    type Result = ();

    fn handle(&mut self, UsePolicy(policy): UsePolicy, _: &mut Self::Context) {
        self.policy = policy.clone();
        for entry in self.roster.values() {
            entry.address.do_send(UsePolicy(policy.clone()));
        }
    }
}

impl Handler<ShutdownBegins> for ManagerActor {
    type Result = ();

    fn handle(&mut self, begins: ShutdownBegins, _: &mut Self::Context) {
        for entry in self.roster.values() {
            entry.address.do_send(begins.clone());
        }
    }
}

impl Handler<Changed> for ManagerActor {
    type Result = ();

    fn handle(&mut self, changed: Changed, _: &mut Self::Context) {
        let view = match changed {
            Changed::Plugin(view) => view,
            Changed::Health { name, heard, condition } => {
                if let Some(entry) = self.roster.get_mut(&name) {
                    let view = Arc::make_mut(&mut entry.view);
                    view.health = Some(heard);
                    view.history.condition = condition;
                    self.moved();
                }
                return;
            }
        };
        let Some(entry) = self.roster.get_mut(&view.name) else { return };
        let runs_once = |view: &PluginView| view.spec.execution.one_shot().is_some();
        let before = std::mem::replace(&mut entry.view, Arc::new(*view));
        entry.heard = Heard::Yes;
        let view = entry.view.clone();
        if runs_once(&view) {
            self.handles.seen.do_send(Seen(view.clone()));
        } else if runs_once(&before) {
            self.handles.unseen.do_send(Unseen(view.name.clone()));
        }
        self.moved();
        self.reconciled(&view.name);
        self.gate.changed(&view, &self.ports.machine.boot_id());
        self.show_readiness();
    }
}

impl Handler<Taken> for ManagerActor {
    type Result = ();

    fn handle(&mut self, Taken { name, generation }: Taken, ctx: &mut Self::Context) {
        self.taken((name, generation), Vec::new(), ctx);
    }
}

impl Handler<Retired> for ManagerActor {
    type Result = ();

    fn handle(&mut self, Retired { name, generation }: Retired, ctx: &mut Self::Context) {
        if let Some(entry) = self.roster.get_mut(&name)
            // An order that was on its way to it begins a new installation, so it stays.
            && entry.delivered <= generation
            // It also stays if a manifest for it has come since.
            && entry.local.is_none()
        {
            entry.retired = Some(generation);
            self.moved();
            self.bury(ctx);
        }
    }
}

impl Handler<Died> for ManagerActor {
    type Result = ();

    fn handle(&mut self, Died { name, life }: Died, ctx: &mut Self::Context) {
        if self.roster.get(&name).is_none_or(|entry| entry.life != life) {
            return;
        }
        let now = Instant::now();
        let deaths = self.deaths.entry(name.clone()).or_insert(Deaths { in_a_row: 0, last: now });
        if now - deaths.last >= self.policy.restart.calm {
            deaths.in_a_row = 0;
        }
        *deaths = Deaths { in_a_row: deaths.in_a_row.saturating_add(1), last: now };
        let pause = self.policy.restart.pause(deaths.in_a_row, 2, name.as_str());
        error!(
            plugin = %name,
            ?pause,
            "the actor of a plugin panicked; builds it again from its snapshot"
        );
        ctx.run_later(pause, move |this, ctx| this.rebuild(name, ctx));
    }
}

impl Handler<Sampled> for ManagerActor {
    type Result = ();

    fn handle(&mut self, Sampled { readings, points }: Sampled, _: &mut Self::Context) {
        for (name, reading) in readings {
            if let Some(entry) = self.roster.get_mut(&name) {
                entry.newest = Some(reading);
            }
        }
        for (name, point) in points {
            let Some(entry) = self.roster.get_mut(&name) else { continue };
            let kept = entry.view.metrics.points.max(1);
            while entry.points.len() >= kept {
                entry.points.pop_front();
            }
            entry.points.push_back(point);
            entry.sampled = entry.sampled.saturating_add(1);
            self.history.add(&name, point);
        }
    }
}

impl Handler<MetricsDelivered> for ManagerActor {
    type Result = ();

    fn handle(&mut self, MetricsDelivered(until): MetricsDelivered, _: &mut Self::Context) {
        for (name, delivered) in until {
            let Some(entry) = self.roster.get_mut(&name) else { continue };
            // Fewer are another plugin of this name, which was ordered after the report.
            let Some(newer) = entry.sampled.checked_sub(delivered) else { continue };
            while u64::try_from(entry.points.len()).is_ok_and(|left| left > newer) {
                entry.points.pop_front();
            }
        }
    }
}

impl Handler<Fire> for ManagerActor {
    type Result = ();

    fn handle(&mut self, Fire { name, firing }: Fire, _: &mut Self::Context) {
        if let Some(entry) = self.roster.get(&name) {
            entry.address.do_send(Happened(Event::Triggered(firing)));
        }
    }
}

impl Handler<FactsMoved> for ManagerActor {
    type Result = ();

    fn handle(&mut self, _: FactsMoved, _: &mut Self::Context) {
        // A revision that is being prepared looks at its rules when it is started.
        let concerned =
            self.roster.values().filter(|entry| entry.view.spec.execution.rules.depend_on_facts());
        for entry in concerned {
            entry.address.do_send(Happened(Event::FactsChanged));
        }
    }
}
