//! The registry of what plugins offer each other: durable entries, and the order of their changes.
//!
//! ```text
//!   host socket ── Register, Deregister ─► RegistryActor ─► store (durable) ─► catalogue, events
//!   launcher: a process has ended ─────────────┘                                  │
//!   prober: somebody answers ──────────────────┘      RegistryView ◄──────────────┘
//!                                             list, find, wait, watch: nobody asks the actor
//! ```
//!
//! This actor is the only one that changes the [`catalogue::Catalogue`], one change after the
//! other: decide, save, then show. An entry is removed with the process that registered it. After a
//! restart of the agent entries are there at once, unverified; those whose process has ended are
//! removed, and the others count as verified again when a process answers on their socket
//! (`docs/decisions/0019-the-plugin-registry.md`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tokio::sync::{broadcast, watch};
use tracing::{debug, info, warn};

use crate::error::Chain;
use crate::messages::{Deregister, NotRegistered, Register, Save, SaveFailed, SaveOrForget};
use crate::model::id::{PluginName, Process};
use crate::plugin::restart::RestartPolicy;
use crate::ports::{Clock, Launcher, Ports, ProbeError, Prober, Write};

pub mod catalogue;
pub mod entry;
pub mod record;
pub mod view;

use catalogue::{Catalogue, Change, Event, Filter, ProcessRun, Registration};
use entry::{Entry, Key, Kind, Standing};
use view::{EVENTS_KEPT, RegistryView};

/// Pauses between two probes of a socket on which no process answered.
const PROBE_PAUSES: RestartPolicy = RestartPolicy {
    initial: Duration::from_millis(100),
    max: Duration::from_secs(30),
    calm: Duration::ZERO,
};

/// The registry's actor.
pub struct RegistryActor {
    catalogue: watch::Sender<Catalogue>,
    events: broadcast::Sender<Event>,
    handles: RegistryHandles,
    launcher: Arc<dyn Launcher>,
    prober: Arc<dyn Prober>,
    clock: Arc<dyn Clock>,
    /// The processes whose end the registry waits for.
    watched: BTreeMap<PluginName, (Process, SpawnHandle)>,
}

/// How the registry makes changes durable.
pub struct RegistryHandles {
    /// A change that happens whether or not the disk takes it now.
    pub store: Recipient<Save>,
    /// A change that is refused when the disk does not take it.
    pub or_forget: Recipient<SaveOrForget>,
}

// === impl RegistryActor ===

impl RegistryActor {
    /// A registry that starts with the entries which the agent stored before its last restart.
    #[must_use]
    pub fn new(
        ports: &Ports,
        catalogue: Catalogue,
        handles: RegistryHandles,
    ) -> (Self, RegistryView) {
        let (catalogue, seen) = watch::channel(catalogue);
        let (events, heard) = broadcast::channel(EVENTS_KEPT);
        let this = Self {
            catalogue,
            events,
            handles,
            launcher: ports.launcher.clone(),
            prober: ports.prober.clone(),
            clock: ports.clock.clone(),
            watched: BTreeMap::new(),
        };
        (this, RegistryView::new(seen, heard))
    }

    /// What makes changes durable, all or none.
    fn writes(&self, events: &[Event]) -> Vec<Write> {
        let catalogue = self.catalogue.borrow();
        let mut writes = Vec::new();
        for event in events {
            let entry = event.change.entry();
            match &event.change {
                Change::Registered(_) | Change::Updated(_) => writes.push(record::put_entry(entry)),
                Change::Deregistered(..) => writes.push(record::delete_entry(entry.key())),
            }
            if matches!(event.change, Change::Registered(_)) {
                let (process, epoch) = (entry.registrant.process.clone(), entry.epoch);
                let (plugin, life) = (&entry.registrant.plugin, ProcessRun { process, epoch });
                if catalogue.lives().get(plugin) != Some(&life) {
                    writes.push(record::put_life(plugin, &life));
                }
                writes.push(record::put_kind(&entry.key().kind));
            }
        }
        writes.extend(events.last().map(|event| record::put_sequence(event.sequence)));
        writes
    }

    /// Shows the changes that are durable by now.
    fn show(&self, events: Vec<Event>, forgotten: Option<&Kind>) {
        self.catalogue.send_modify(|catalogue| {
            if let Some(kind) = forgotten {
                catalogue.forget_kind(kind);
            }
            for event in &events {
                catalogue.apply(event);
            }
        });
        for event in events {
            let entry = event.change.entry();
            let (key, plugin, epoch) = (entry.key(), &entry.registrant.plugin, entry.epoch.0);
            match &event.change {
                Change::Registered(_) => info!(%key, %plugin, epoch, "registered"),
                Change::Updated(_) => debug!(%key, %plugin, epoch, "registration updated"),
                Change::Deregistered(_, why) => info!(%key, %plugin, epoch, ?why, "deregistered"),
            }
            // There may be no watcher.
            drop(self.events.send(event));
        }
    }

    /// Waits for the end of every process that registered an entry.
    fn watch_lives(&mut self, ctx: &mut Context<Self>) {
        let lives = self.catalogue.borrow().lives().clone();
        for (plugin, ProcessRun { process, .. }) in lives {
            if self.watched.get(&plugin).is_some_and(|(watched, _)| *watched == process) {
                continue;
            }
            let (launcher, name, of) = (self.launcher.clone(), plugin.clone(), process.clone());
            let end = async move { launcher.ended(&name, &of).await };
            let (name, of) = (plugin.clone(), process.clone());
            let handle = ctx.spawn(end.into_actor(self).map(move |(), this, ctx| {
                this.ended(name, of, ctx);
            }));
            if let Some((_, former)) = self.watched.insert(plugin, (process, handle)) {
                ctx.cancel_future(former);
            }
        }
    }

    fn ended(&mut self, plugin: PluginName, process: Process, ctx: &mut Context<Self>) {
        if self.watched.get(&plugin).is_some_and(|(watched, _)| *watched == process) {
            self.watched.remove(&plugin);
        }
        let is_newest = |catalogue: &Catalogue| {
            catalogue.lives().get(&plugin).is_some_and(|life| life.process == process)
        };
        let is_newest = is_newest(&self.catalogue.borrow());
        let events = self.catalogue.borrow().ended(&plugin, &process);
        let mut writes = self.writes(&events);
        if is_newest {
            writes.push(record::delete_life(&plugin));
        }
        self.save_and_show(writes, events, ctx, move |this| {
            this.catalogue.send_modify(|catalogue| catalogue.forget_life(&plugin, &process));
        });
    }

    /// Makes facts durable and shows them, even when they cannot be made durable now: the store
    /// tries again, and an agent that starts before that finds out the same.
    fn save_and_show(
        &self,
        writes: Vec<Write>,
        events: Vec<Event>,
        ctx: &mut Context<Self>,
        then: impl FnOnce(&mut Self) + 'static,
    ) {
        let save = self.handles.store.send(Save { writes, ..Save::default() });
        ctx.wait(save.into_actor(self).map(move |result, this, _| {
            if let Ok(Err(error)) = result {
                warn!(%error, "shows a change of the registry that is not durable yet");
            }
            this.show(events, None);
            then(this);
        }));
    }

    /// Probes the socket again and again while the entry does not change.
    fn probe(&self, key: Key, order: u64, tries: u32, ctx: &mut Context<Self>) {
        let entry =
            self.catalogue.borrow().find(&key.kind, &key.name, Some(&key.instance)).cloned();
        let wanted =
            |entry: &Arc<Entry>| entry.order == order && entry.standing == Standing::Unverified;
        let Some(entry) = entry.ok().filter(wanted) else { return };
        let prober = self.prober.clone();
        let probe = async move {
            let (socket, wanted) = (entry.offer.socket(), entry.registrant.uid);
            match prober.probe(socket).await? {
                found if found == wanted => Ok(()),
                found => Err(ProbeError::Foreign { socket: socket.to_owned(), found, wanted }),
            }
        };
        ctx.spawn(probe.into_actor(self).map(move |result, this, ctx| match result {
            Ok(()) => {
                let events = this.catalogue.borrow().answered(&key, order);
                let writes = this.writes(&events);
                this.save_and_show(writes, events, ctx, |_| {});
            }
            Err(error) => {
                let tries = tries.saturating_add(1);
                if tries == 1 {
                    warn!(%key, error = %Chain(&error), "a registration is not verified yet");
                }
                let pause = PROBE_PAUSES.pause(tries, 2, key.name.as_str());
                ctx.run_later(pause, move |this, ctx| this.probe(key, order, tries, ctx));
            }
        }));
    }
}

impl Actor for RegistryActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        // Every sender waits for its answer, so the senders are the bound.
        ctx.set_mailbox_capacity(256);
        self.watch_lives(ctx);
        let entries: Vec<(Key, u64)> = self
            .catalogue
            .borrow()
            .entries(&Filter::default())
            .map(|entry| (entry.key().clone(), entry.order))
            .collect();
        for (key, order) in entries {
            self.probe(key, order, 0, ctx);
        }
    }
}

impl Handler<Register> for RegistryActor {
    type Result = AtomicResponse<Self, Result<Arc<Entry>, NotRegistered>>;

    fn handle(&mut self, Register { by, offer }: Register, _: &mut Self::Context) -> Self::Result {
        let decided = self.catalogue.borrow().register(&by, offer, self.clock.now());
        let Registration { events, entry, forgotten } = match decided {
            Ok(registration) if registration.events.is_empty() => {
                return answer(Ok(registration.entry));
            }
            Ok(registration) => registration,
            Err(refusal) => return answer(Err(refusal.into())),
        };
        let mut writes = self.writes(&events);
        writes.extend(forgotten.as_ref().map(record::delete_kind));
        let saving = self.save(writes);
        AtomicResponse::new(Box::pin(saving.into_actor(self).map(move |saved, this, ctx| {
            saved?;
            this.show(events, forgotten.as_ref());
            this.watch_lives(ctx);
            Ok(entry)
        })))
    }
}

impl Handler<Deregister> for RegistryActor {
    type Result = AtomicResponse<Self, Result<(), NotRegistered>>;

    fn handle(
        &mut self,
        Deregister { by, key }: Deregister,
        _: &mut Self::Context,
    ) -> Self::Result {
        let decided = self.catalogue.borrow().deregister(&by, &key);
        let events = match decided {
            Ok(events) if events.is_empty() => return answer(Ok(())),
            Ok(events) => events,
            Err(refusal) => return answer(Err(refusal.into())),
        };
        let saving = self.save(self.writes(&events));
        AtomicResponse::new(Box::pin(saving.into_actor(self).map(move |saved, this, _| {
            saved?;
            this.show(events, None);
            Ok(())
        })))
    }
}

impl RegistryActor {
    /// Makes a change durable, which is refused otherwise.
    fn save(&self, writes: Vec<Write>) -> impl Future<Output = Result<(), NotRegistered>> + use<> {
        let save = SaveOrForget(Save { writes, ..Save::default() });
        let saving = self.handles.or_forget.send(save);
        async move {
            let gone = |_| SaveFailed("the store is gone".into());
            let saved = saving.await.map_err(gone).and_then(|saved| saved);
            saved.map(drop).map_err(NotRegistered::NotSaved)
        }
    }
}

fn answer<T: 'static>(
    result: Result<T, NotRegistered>,
) -> AtomicResponse<RegistryActor, Result<T, NotRegistered>> {
    AtomicResponse::new(Box::pin(actix::fut::ready(result)))
}
