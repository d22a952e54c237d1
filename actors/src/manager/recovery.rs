//! Brings back what an earlier agent process left: plugins from their snapshots, orders from the
//! inbox, and, when a plugin's actor panicked, that one plugin.
//!
//! An invalid record is set aside and reported; the others are used.

use std::collections::BTreeMap;
use std::time::Duration;

use actix::prelude::*;
use futures_util::future::join_all;
use tokio::time::error::Elapsed;
use tracing::{error, info, warn};

use super::plan::assign;
use super::{Lists, ManagerActor, number_orders};
use crate::crash_point;
use crate::error::Chain;
use crate::keys::key_number;
use crate::messages::{Configure, LoadSnapshot, NumberedOrder, RescanLocal, Save};
use crate::model::act::Act;
use crate::model::event;
use crate::model::event::PluginEventKind;
use crate::model::id::{Generation, PluginName};
use crate::model::spec;
use crate::plugin::Beginning;
use crate::plugin::event::{Boot, Order};
use crate::plugin::snapshot::{Snapshot, SnapshotError};
use crate::ports::{
    Cleanup, Known, Losses, StopError, StopManner, StopOrder, Stopped, StorageError, Table, Write,
};
use crate::records::{InboxContent, InboxEntry};
use crate::wire::{self, DecodedOrder, NamedOrder};

/// Pause before a snapshot that could not be read is read again.
const REREAD: Duration = Duration::from_secs(5);

/// How long the start waits for the end of processes whose plugin's record is unreadable.
const STRAY_WAIT: Duration = Duration::from_secs(10);

/// What came of ending such processes.
type Stray = Result<Result<Stopped, StopError>, Elapsed>;

// === impl ManagerActor: coming back ===

impl ManagerActor {
    pub(super) fn begin(&mut self, boot: Boot, ctx: &mut Context<Self>) {
        let storage = self.ports.storage.clone();
        let load = async move {
            let plugins = storage.load(Table::Plugins).await;
            let inbox = storage.load(Table::Inbox).await;
            // After the loads: the store sets aside what it cannot read itself.
            let losses = storage.losses().await;
            (plugins, inbox, losses)
        };
        ctx.wait(load.into_actor(self).map(move |(plugins, inbox, losses), this, ctx| {
            crash_point::reach("end", "load", "manager");
            let mut strays = Vec::new();
            if plugins.is_err() {
                this.known = Known::Some;
            }
            let plugins = plugins.unwrap_or_else(|error| unreadable("plugins", &error));
            let mut plugins: Vec<_> =
                plugins.into_iter().map(|(key, bytes)| (key, Snapshot::decode(&bytes))).collect();
            // What the machine needs comes first.
            plugins.sort_by_key(|(_, snapshot)| !snapshot.as_ref().is_ok_and(is_critical));
            for (key, snapshot) in plugins {
                strays.extend(this.bring_back(key, snapshot, boot, ctx));
            }
            strays.extend(this.lost_earlier(losses));
            let inbox = inbox.unwrap_or_else(|error| unreadable("inbox", &error));
            this.end_strays(strays, inbox, ctx);
        }));
    }

    /// A plugin whose record is unreadable may still have a process, which no actor would watch and
    /// beside which a new one must not be started.
    fn end_strays(
        &self,
        strays: Vec<PluginName>,
        inbox: Vec<(Vec<u8>, Vec<u8>)>,
        ctx: &mut Context<Self>,
    ) {
        let stops = join_all(strays.into_iter().map(|name| {
            let end = self.end_all(&name);
            async move { (name, end.await) }
        }));
        ctx.wait(stops.into_actor(self).map(move |stops, this, ctx| {
            for (name, ended) in stops {
                this.end_again(name, 1, ended, ctx);
            }
            for (key, bytes) in inbox {
                this.replay(key, &bytes, ctx);
            }
            crash_point::reach("before", "ready", "manager");
            this.ready(ctx);
        }));
    }

    /// Plugins whose record is in quarantine and that were not ordered anew since.
    fn lost_earlier(&mut self, losses: Result<Losses, StorageError>) -> Vec<PluginName> {
        let losses = losses.unwrap_or_else(|error| {
            error!(error = %Chain(&error), "cannot tell which records were lost");
            self.known = Known::Some;
            Losses::default()
        });
        let records = losses.records.into_iter().filter(|record| record.table == Table::Plugins);
        let names = records.filter_map(|record| name_of_key(&record.key));
        names.filter(|name| !self.roster.contains_key(name)).collect()
    }

    /// Brings one plugin back. Gives the name of a plugin that cannot be, where that is known.
    fn bring_back(
        &mut self,
        key: Vec<u8>,
        snapshot: Result<Snapshot, SnapshotError>,
        boot: Boot,
        ctx: &mut Context<Self>,
    ) -> Option<PluginName> {
        let reason = match snapshot {
            Ok(snapshot) if snapshot.state.name.as_str().as_bytes() == key => {
                let name = snapshot.state.name.clone();
                info!(plugin = %name, "brings back");
                let generation = snapshot.state.generation;
                let beginning = Beginning::Recovered { snapshot: Box::new(snapshot), boot };
                self.reconciling.insert(name.clone());
                self.start(name, generation, beginning, ctx);
                return None;
            }
            Ok(_) => "it is under another name's key".to_owned(),
            Err(error) => Chain(&error).to_string(),
        };
        let name = name_of_key(&key);
        if name.is_none() {
            self.known = Known::Some;
        }
        if let Some(name) = &name {
            self.give_up(name, &reason, ctx);
        }
        self.set_aside(Table::Plugins, key, &reason, ctx);
        name
    }

    /// Orders that were durable but not taken by every plugin are given again. A plugin that took
    /// its order knows it by the number.
    fn replay(&mut self, key: Vec<u8>, bytes: &[u8], ctx: &mut Context<Self>) {
        let read = match (key_number(&key), InboxEntry::decode(bytes)) {
            (Some(inbox), Ok(entry)) => {
                decode_orders(&entry).map(|decoded| (inbox, entry, decoded))
            }
            (None, _) => Err("its key is not a number".to_owned()),
            (_, Err(error)) => Err(Chain(&error).to_string()),
        };
        let (inbox, entry, decoded) = match read {
            Ok(read) => read,
            Err(reason) => return self.set_aside(Table::Inbox, key, &reason, ctx),
        };
        let numbered = number(inbox, &entry, &decoded);
        self.refuse(&key, entry, &decoded, ctx);
        match numbered {
            Ok(configure) => {
                self.replayed.insert(configure.inbox);
                self.configure(configure, ctx);
            }
            Err(reason) => self.set_aside(Table::Inbox, key, &reason, ctx),
        }
    }

    /// Reports the orders of an inbox record that this agent refuses and that the agent which took
    /// them did not refuse: its rules were others. Agents that did not record what they refused
    /// have those orders reported once more; that is better than never.
    fn refuse(
        &mut self,
        key: &[u8],
        mut entry: InboxEntry,
        decoded: &[DecodedOrder],
        ctx: &mut Context<Self>,
    ) {
        let refusals = decoded.iter().zip(0u32..);
        let refusals = refusals.filter_map(|(order, index)| Some((index, order.as_ref().err()?)));
        let unreported: Vec<_> =
            refusals.filter(|(index, _)| !entry.refused.contains(index)).collect();
        if unreported.is_empty() {
            return;
        }
        let now = self.ports.clock.now();
        let mut events = Vec::with_capacity(unreported.len());
        for (index, refusal) in unreported {
            let (name, revision, reason) = (&refusal.name, &refusal.revision, &refusal.reason);
            warn!(plugin = name, reason, "refuses an order that an earlier agent took");
            if let Some(trace) = &entry.trace {
                let number = Generation(entry.first.0.saturating_add(index.into()));
                trace.refuse(name, revision, number, reason);
            }
            events.push(event::NewEvent::new(refusal.notice, name, revision, now, reason));
            entry.refused.push(index);
        }
        // A record without any order that is taken is set aside as it is.
        let is_kept = decoded.iter().any(Result::is_ok);
        let key = key.to_owned();
        let put = || Write::Put { table: Table::Inbox, key, value: entry.encode() };
        self.save(
            Save { writes: is_kept.then(put).into_iter().collect(), events, ..Save::default() },
            ctx,
        );
    }

    fn set_aside(&self, table: Table, key: Vec<u8>, reason: &str, ctx: &mut Context<Self>) {
        error!(?table, key = %String::from_utf8_lossy(&key), reason, "sets a bad record aside");
        let (storage, reason) = (self.ports.storage.clone(), reason.to_owned());
        let aside = async move { storage.set_aside(table, key, reason).await };
        ctx.spawn(aside.into_actor(self).map(|result, _, _| {
            if let Err(error) = result {
                error!(error = %Chain(&error), "could not set a bad record aside");
            }
        }));
    }

    fn ready(&mut self, ctx: &mut Context<Self>) {
        let held = std::mem::replace(&mut self.lists, Lists::Answered);
        self.show_all();
        if let Lists::Held { lists, orders } = held {
            for orders in orders {
                self.configure_once(orders, ctx);
            }
            self.begin_to_answer(lists, ctx);
        }
        self.look_at_windows(ctx);
        self.await_critical(ctx);
        self.moved();
        ctx.notify(RescanLocal);
    }

    /// Brings a plugin back whose actor is gone, and gives it the orders that it had not made
    /// durable.
    pub(super) fn rebuild(&mut self, name: PluginName, ctx: &mut Context<Self>) {
        let load = self.handles.snapshots.send(LoadSnapshot(name.clone()));
        ctx.spawn(load.into_actor(self).map(move |record, this, ctx| {
            if matches!(this.lists, Lists::Held { .. }) {
                return;
            }
            let snapshot = match record {
                Ok(Ok(record)) => record.map(|bytes| Snapshot::decode(&bytes)),
                // The store is in trouble, not the plugin: it must not vanish for that.
                Ok(Err(error)) => {
                    warn!(plugin = %name, %error, "cannot build the plugin's actor again yet");
                    ctx.run_later(REREAD, move |this, ctx| this.rebuild(name, ctx));
                    return;
                }
                Err(_) => None,
            };
            match snapshot {
                Some(Ok(snapshot)) => {
                    let delivered = snapshot.state.generation;
                    let snapshot = Box::new(snapshot);
                    let beginning = Beginning::Recovered { snapshot, boot: Boot::Same };
                    this.start(name.clone(), delivered, beginning, ctx);
                    // Its record may be older than the windows that the actor before it knew.
                    this.tell_window(&name, ctx);
                    this.give_again(&name, ctx);
                }
                Some(Err(error)) => {
                    let reason = Chain(&error).to_string();
                    this.give_up(&name, &reason, ctx);
                    this.set_aside(Table::Plugins, name.as_str().into(), &reason, ctx);
                    this.end_and_forget(name, ctx);
                }
                // It died before anything of it was durable, or when nothing was left.
                None => this.end_and_forget(name, ctx),
            }
        }));
    }

    /// A plugin that cannot be brought back leaves the roster when its processes have ended, and
    /// its orders go on without it.
    fn end_and_forget(&mut self, name: PluginName, ctx: &mut Context<Self>) {
        self.lost.insert(name.clone());
        let end = self.end_all(&name);
        ctx.spawn(end.into_actor(self).map(move |ended, this, ctx| {
            this.roster.remove(&name);
            this.show_gone(&name);
            this.reconciled(&name);
            this.give_again(&name, ctx);
            this.end_again(name, 1, ended, ctx);
        }));
    }

    /// Ends all processes of a plugin. The future holds nothing of the manager.
    fn end_all(&self, name: &PluginName) -> impl Future<Output = Stray> + use<> {
        let (launcher, order) = (self.ports.launcher.clone(), everything_of(name.clone()));
        async move { tokio::time::timeout(STRAY_WAIT, launcher.stop(order)).await }
    }

    /// Nobody else looks for processes of a lost plugin, so those that did not end are tried again,
    /// ever more slowly, until they have or the plugin is there again and looks after them itself.
    fn end_again(&self, name: PluginName, tries: u32, ended: Stray, ctx: &mut Context<Self>) {
        let reason = match ended {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => Chain(&error).to_string(),
            Err(_) => "it took too long".to_owned(),
        };
        error!(plugin = %name, reason, "left processes of a lost plugin behind; tries again");
        let pause = self.policy.restart.pause(tries, 2, name.as_str());
        ctx.run_later(pause, move |this, ctx| {
            if this.roster.contains_key(&name) {
                return;
            }
            let end = this.end_all(&name);
            ctx.spawn(end.into_actor(this).map(move |ended, this, ctx| {
                this.end_again(name, tries.saturating_add(1), ended, ctx);
            }));
        });
    }

    /// Gives a plugin the orders that it had not made durable when its actor died.
    fn give_again(&mut self, name: &PluginName, ctx: &mut Context<Self>) {
        let lost: Vec<NumberedOrder> = self
            .open
            .values()
            .flat_map(BTreeMap::values)
            .filter(|order| order.name == *name)
            .cloned()
            .collect();
        let known = self.roster.keys().cloned().collect();
        let numbers: Vec<_> = lost.iter().map(|order| order.generation).collect();
        for (generation, assignment) in numbers.into_iter().zip(assign(&known, lost)) {
            // No actor is left that could report that the order was taken.
            if let Some(refusal) = self.carry_out(assignment, ctx) {
                self.taken((name.clone(), generation), vec![refusal], ctx);
            }
        }
        self.follow_machine(ctx);
        self.moved();
    }

    /// Reports that the record of a plugin is lost.
    fn give_up(&mut self, name: &PluginName, reason: &str, ctx: &mut Context<Self>) {
        self.lost.insert(name.clone());
        let details = format!(
            "the record of this plugin is unreadable and was set aside ({reason}); its processes are \
             ended; install it again"
        );
        let now = self.ports.clock.now();
        let lost =
            event::NewEvent::new(PluginEventKind::InstallFailed, name.as_str(), "", now, &details);
        self.save(Save { events: vec![lost], ..Save::default() }, ctx);
    }
}

fn is_critical(snapshot: &Snapshot) -> bool {
    snapshot.state.spec.execution.boot == spec::Boot::Critical
}

/// The plugin that a key of the plugins' table names.
pub(crate) fn name_of_key(key: &[u8]) -> Option<PluginName> {
    std::str::from_utf8(key).ok()?.parse().ok()
}

/// Reads the orders of an inbox record. An order that is refused is left out; a record without any
/// other order makes no sense, because none such is written.
///
/// # Errors
/// Says why the record makes no sense, and which message brought it where that is known.
pub fn decode_inbox(inbox: u64, entry: &InboxEntry) -> Result<Configure, String> {
    number(inbox, entry, &decode_orders(entry)?)
}

fn decode_orders(entry: &InboxEntry) -> Result<Vec<DecodedOrder>, String> {
    match &entry.content {
        InboxContent::Restart(name) => Ok(vec![Ok(restart_of(name))]),
        InboxContent::Asked(name, act) => Ok(vec![Ok(asked_of(name, act))]),
        // It names no plugin: the manager asks those that are there.
        InboxContent::AskedOfAll(_) => Ok(Vec::new()),
        InboxContent::Configure(bytes) => wire::decode_orders(bytes, entry.origin)
            .map_err(|error| because(entry, &Chain(&error).to_string())),
    }
}

fn number(inbox: u64, entry: &InboxEntry, decoded: &[DecodedOrder]) -> Result<Configure, String> {
    let trace = entry.trace.as_ref();
    let configure = number_orders(entry.first, &entry.content, decoded, trace);
    if configure.is_empty() {
        let refusal = decoded.iter().find_map(|order| order.as_ref().err());
        return Err(because(entry, refusal.map_or("it has no orders", |refusal| &refusal.reason)));
    }
    Ok(Configure { inbox, ..configure })
}

/// A reason, with the message that brought an inbox record where that is known.
fn because(entry: &InboxEntry, reason: &str) -> String {
    match entry.trace.as_ref().map(|trace| &*trace.message_id) {
        None | Some("") => reason.to_owned(),
        Some(id) => format!("message {id:?}: {reason}"),
    }
}

/// The order to start a plugin afresh.
pub(crate) fn restart_of(name: &PluginName) -> NamedOrder {
    NamedOrder { name: name.clone(), revision: "".into(), order: Order::Restart }
}

/// The order that a person gave.
pub(crate) fn asked_of(name: &PluginName, act: &Act) -> NamedOrder {
    NamedOrder { name: name.clone(), revision: "".into(), order: Order::Asked(act.clone()) }
}

/// The order to end whatever runs under a name.
fn everything_of(name: PluginName) -> StopOrder {
    let (cleanup, manner) = (Cleanup::Keep, StopManner::AtOnce);
    StopOrder { name, process: None, endpoint: None, cleanup, manner }
}

fn unreadable<T>(what: &str, error: &crate::ports::StorageError) -> Vec<T> {
    error!(what, error = %Chain(error), "a record cannot be read; continues without it");
    Vec::new()
}
