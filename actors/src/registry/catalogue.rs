//! The entries at one moment, and their changes. Pure: no clock, no socket, no actor.
//!
//! Every request for a change is answered with events; [`Catalogue::apply`] carries one out. So a
//! watcher that has a catalogue and all events after it has the newest catalogue, and a watcher
//! that missed an event takes a newer catalogue instead.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use super::entry::{Entry, Epoch, Instance, Key, Kind, Name, Offer, Registrant, Standing};
use crate::model::id::{PluginName, Process};

/// Most entries of one plugin.
pub const PLUGIN_ENTRIES_MAX: usize = 64;

/// Most entries of all plugins together.
pub const ENTRIES_MAX: usize = 4096;

/// Most types that are known at a time.
pub const KINDS_MAX: usize = 256;

/// The entries. For each type and name an ordered list of instances, the newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalogue {
    kinds: BTreeMap<Kind, BTreeMap<Name, Vec<Arc<Entry>>>>,
    lives: BTreeMap<PluginName, ProcessRun>,
    sequence: u64,
}

/// A process of a plugin that registered an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessRun {
    /// Its process.
    pub process: Process,
    /// Its number.
    pub epoch: Epoch,
}

/// A change under its number. Numbers have no gaps.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its number.
    pub sequence: u64,
    /// The change.
    pub change: Change,
}

/// A change of the catalogue.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A new entry.
    Registered(Arc<Entry>),
    /// An entry with new content, or one that is verified now.
    Updated(Arc<Entry>),
    /// An entry is removed; this was its last state.
    Deregistered(Arc<Entry>, Reason),
}

/// Why an entry is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The plugin deregistered it.
    Asked,
    /// The process that registered it has ended.
    PluginEnded,
}

/// The result of a registration.
#[derive(Clone, Debug, PartialEq)]
pub struct Registration {
    /// The changes; none, when the entry is the same already.
    pub events: Vec<Event>,
    /// The entry.
    pub entry: Arc<Entry>,
    /// A type without entries that is forgotten in favour of a new one.
    pub forgotten: Option<Kind>,
}

/// Why a request changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The instance belongs to another plugin.
    #[error("the instance {key} is registered by the plugin {plugin}; choose another instance id")]
    Taken {
        /// The instance.
        key: Key,
        /// Its owner.
        plugin: PluginName,
    },
    /// A plugin deregisters an instance of another plugin.
    #[error(
        "the instance {key} belongs to the plugin {plugin}, and only that plugin may deregister it"
    )]
    NotYours {
        /// The instance.
        key: Key,
        /// Its owner.
        plugin: PluginName,
    },
    /// No plugin ever registered an instance of this type.
    #[error("the type {0} is unknown: no instance of it was ever registered")]
    UnknownKind(Kind),
    /// No entry has this name.
    #[error("no {kind} has the name {name}")]
    UnknownName {
        /// The type.
        kind: Kind,
        /// The name.
        name: Name,
    },
    /// There is no such instance of that name.
    #[error("there is no instance {0}")]
    UnknownInstance(Key),
    /// The plugin has as many entries as it may have.
    #[error("the plugin {0} has {PLUGIN_ENTRIES_MAX} entries already; deregister some first")]
    TooManyOfPlugin(PluginName),
    /// All plugins together have as many entries as they may have.
    #[error("there are {ENTRIES_MAX} entries already; no plugin can register more")]
    Full,
    /// There are too many types.
    #[error("there are {KINDS_MAX} types already; use one of them")]
    TooManyKinds,
    /// A newer process of the plugin has registered since.
    #[error("a newer process of the plugin {0} is registered; this one has ended")]
    Superseded(PluginName),
}

/// A filter for entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only entries of this type.
    pub kind: Option<Kind>,
    /// Only entries with this name.
    pub name: Option<Name>,
}

// === impl Catalogue: coming back ===

impl Catalogue {
    /// The entries that an earlier agent process stored. None is verified.
    #[must_use]
    pub fn restore(
        entries: Vec<Entry>,
        lives: BTreeMap<PluginName, ProcessRun>,
        kinds: Vec<Kind>,
        sequence: u64,
    ) -> Self {
        let mut this = Self { lives, sequence, ..Self::default() };
        for kind in kinds.into_iter().take(KINDS_MAX) {
            this.kinds.entry(kind).or_default();
        }
        for entry in entries.into_iter().take(ENTRIES_MAX) {
            this.sequence = this.sequence.max(entry.order).max(entry.epoch.0);
            let Registrant { plugin, process, .. } = &entry.registrant;
            let (process, epoch) = (process.clone(), entry.epoch);
            this.lives.entry(plugin.clone()).or_insert(ProcessRun { process, epoch });
            this.put(&Arc::new(Entry { standing: Standing::Unverified, ..entry }));
        }
        this
    }
}

// === impl Catalogue: questions ===

impl Catalogue {
    /// Number of the newest change.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The processes that registered an entry and have not ended, as far as is known.
    #[must_use]
    pub const fn lives(&self) -> &BTreeMap<PluginName, ProcessRun> {
        &self.lives
    }

    /// All entries that match a filter, sorted by type and name, the newest of each name first.
    pub fn entries<'a>(&'a self, filter: &'a Filter) -> impl Iterator<Item = &'a Arc<Entry>> {
        self.names(filter).flatten()
    }

    /// The current entry of each name that matches a filter.
    pub fn current<'a>(&'a self, filter: &'a Filter) -> impl Iterator<Item = &'a Arc<Entry>> {
        self.names(filter).filter_map(|instances| instances.first())
    }

    fn names<'a>(&'a self, filter: &'a Filter) -> impl Iterator<Item = &'a Vec<Arc<Entry>>> {
        let wanted = |kind: &Kind| filter.kind.as_ref().is_none_or(|wanted| wanted == kind);
        let kinds = self.kinds.iter().filter(move |(kind, _)| wanted(kind));
        let names = kinds.flat_map(|(_, names)| names);
        let wanted = |name: &Name| filter.name.as_ref().is_none_or(|wanted| wanted == name);
        names.filter(move |(name, _)| wanted(name)).map(|(_, instances)| instances)
    }

    /// One entry: an instance exactly, or the current one.
    ///
    /// # Errors
    /// Says what is unknown: the type before the name, the name before the instance.
    pub fn find(
        &self,
        kind: &Kind,
        name: &Name,
        instance: Option<&Instance>,
    ) -> Result<&Arc<Entry>, Refusal> {
        let names = self.kinds.get(kind).ok_or_else(|| Refusal::UnknownKind(kind.clone()))?;
        let instances = names.get(name).map(Vec::as_slice).unwrap_or_default();
        let unknown = || Refusal::UnknownName { kind: kind.clone(), name: name.clone() };
        let newest = instances.first().ok_or_else(unknown)?;
        let Some(instance) = instance else { return Ok(newest) };
        let found = instances.iter().find(|entry| entry.key().instance == *instance);
        found.ok_or_else(|| {
            let (kind, name, instance) = (kind.clone(), name.clone(), instance.clone());
            Refusal::UnknownInstance(Key { kind, name, instance })
        })
    }

    fn at(&self, key: &Key) -> Option<&Arc<Entry>> {
        self.find(&key.kind, &key.name, Some(&key.instance)).ok()
    }
}

// === impl Catalogue: changes ===

impl Catalogue {
    /// The changes of a registration. A known instance is updated and keeps its place. Entries of a
    /// former process of the plugin are removed first: the registry only has not learned of its end
    /// yet.
    ///
    /// # Errors
    /// Why nothing is registered.
    pub fn register(
        &self,
        by: &Registrant,
        offer: Offer,
        now: SystemTime,
    ) -> Result<Registration, Refusal> {
        let life = self.lives.get(&by.plugin);
        if life.is_some_and(|life| is_older(&by.process, &life.process)) {
            return Err(Refusal::Superseded(by.plugin.clone()));
        }
        let same_life = life.filter(|life| life.process == by.process);
        let stale = |entry: &&Arc<Entry>| {
            entry.registrant.plugin == by.plugin && entry.registrant.process != by.process
        };
        let gone = |entry: &Arc<Entry>| Change::Deregistered(entry.clone(), Reason::PluginEnded);
        let mut changes: Vec<Change> = self.all().filter(stale).map(gone).collect();

        let key = offer.key().clone();
        let mut known = self.at(&key);
        if let Some(entry) = known.filter(|entry| entry.registrant.plugin != by.plugin) {
            return Err(Refusal::Taken { key, plugin: entry.registrant.plugin.clone() });
        }
        known = known.filter(|entry| entry.registrant.process == by.process);
        if let Some(entry) = known {
            let standing = Standing::Verified;
            let next = Entry { offer, registrant: by.clone(), standing, ..(**entry).clone() };
            let same = next == **entry;
            let entry = Arc::new(next);
            if !same {
                changes.push(Change::Updated(entry.clone()));
            }
            return Ok(Registration { events: self.number(changes), entry, forgotten: None });
        }

        let mine = self.all().filter(|entry| entry.is_of(&by.plugin, &by.process)).count();
        if mine >= PLUGIN_ENTRIES_MAX {
            return Err(Refusal::TooManyOfPlugin(by.plugin.clone()));
        }
        if self.all().count() - changes.len() >= ENTRIES_MAX {
            return Err(Refusal::Full);
        }
        let mut forgotten = None;
        if !self.kinds.contains_key(&key.kind) && self.kinds.len() >= KINDS_MAX {
            let empty = self.kinds.iter().find(|(_, names)| names.is_empty());
            forgotten = Some(empty.ok_or(Refusal::TooManyKinds)?.0.clone());
        }
        let order = self.sequence + u64::try_from(changes.len()).unwrap_or(u64::MAX) + 1;
        let entry = Arc::new(Entry {
            offer,
            registrant: by.clone(),
            epoch: same_life.map_or(Epoch(order), |life| life.epoch),
            order,
            registered_at: now,
            standing: Standing::Verified,
        });
        changes.push(Change::Registered(entry.clone()));
        Ok(Registration { events: self.number(changes), entry, forgotten })
    }

    /// The changes of a deregistration; none when the instance does not exist.
    ///
    /// # Errors
    /// The type is unknown, or the instance belongs to another plugin.
    pub fn deregister(&self, by: &Registrant, key: &Key) -> Result<Vec<Event>, Refusal> {
        if !self.kinds.contains_key(&key.kind) {
            return Err(Refusal::UnknownKind(key.kind.clone()));
        }
        let Some(entry) = self.at(key) else { return Ok(Vec::new()) };
        let Registrant { plugin, process, .. } = &entry.registrant;
        if *plugin != by.plugin {
            return Err(Refusal::NotYours { key: key.clone(), plugin: plugin.clone() });
        }
        // The caller's own entry is gone; this one belongs to a newer process.
        if is_older(&by.process, process) {
            return Ok(Vec::new());
        }
        Ok(self.number(vec![Change::Deregistered(entry.clone(), Reason::Asked)]))
    }

    /// The changes at the end of a process: everything that it registered is removed.
    #[must_use]
    pub fn ended(&self, plugin: &PluginName, process: &Process) -> Vec<Event> {
        let entries = self.all().filter(|entry| entry.is_of(plugin, process));
        let gone = |entry: &Arc<Entry>| Change::Deregistered(entry.clone(), Reason::PluginEnded);
        self.number(entries.map(gone).collect())
    }

    /// The changes after a process answered on the socket of an entry that had this `order`.
    #[must_use]
    pub fn answered(&self, key: &Key, order: u64) -> Vec<Event> {
        let entry = self
            .at(key)
            .filter(|entry| entry.order == order && entry.standing == Standing::Unverified);
        let verified = entry.map(|entry| {
            let standing = Standing::Verified;
            Change::Updated(Arc::new(Entry { standing, ..(**entry).clone() }))
        });
        self.number(verified.into_iter().collect())
    }

    /// Carries an event out.
    pub fn apply(&mut self, event: &Event) {
        self.sequence = event.sequence;
        match &event.change {
            Change::Registered(entry) | Change::Updated(entry) => {
                let Registrant { plugin, process, .. } = &entry.registrant;
                let life = ProcessRun { process: process.clone(), epoch: entry.epoch };
                self.lives.insert(plugin.clone(), life);
                self.put(entry);
            }
            Change::Deregistered(entry, _) => {
                let Key { kind, name, instance } = entry.key();
                // The type stays known, so that deregistering an unknown instance is no error.
                let Some(names) = self.kinds.get_mut(kind) else { return };
                let Some(instances) = names.get_mut(name) else { return };
                instances.retain(|entry| entry.key().instance != *instance);
                if instances.is_empty() {
                    names.remove(name);
                }
            }
        }
    }

    /// The process has ended: its number is not used again.
    pub fn forget_life(&mut self, plugin: &PluginName, process: &Process) {
        if self.lives.get(plugin).is_some_and(|life| life.process == *process) {
            self.lives.remove(plugin);
        }
    }

    /// Makes room for another type.
    pub fn forget_kind(&mut self, kind: &Kind) {
        if self.kinds.get(kind).is_some_and(BTreeMap::is_empty) {
            self.kinds.remove(kind);
        }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.kinds.values().flat_map(BTreeMap::values).flatten()
    }

    fn number(&self, changes: Vec<Change>) -> Vec<Event> {
        let numbers = self.sequence + 1..;
        numbers.zip(changes).map(|(sequence, change)| Event { sequence, change }).collect()
    }

    /// Puts an entry into its place, or into that of the same instance if there is one.
    fn put(&mut self, entry: &Arc<Entry>) {
        let Key { kind, name, instance } = entry.key();
        let names = self.kinds.entry(kind.clone()).or_default();
        let instances = names.entry(name.clone()).or_default();
        instances.retain(|other| other.key().instance != *instance);
        let place = instances.partition_point(|other| other.order > entry.order);
        instances.insert(place, entry.clone());
    }
}

/// Whether a process was started before another one of its plugin, as far as the registry can tell.
fn is_older(process: &Process, than: &Process) -> bool {
    process.boot == than.boot && process.start_ticks < than.start_ticks
}

// === impl Change ===

impl Change {
    /// The entry that changed, in its present or last state.
    #[must_use]
    pub const fn entry(&self) -> &Arc<Entry> {
        match self {
            Self::Registered(entry) | Self::Updated(entry) | Self::Deregistered(entry, _) => entry,
        }
    }
}

// === impl Filter ===

impl Filter {
    /// Whether an entry matches.
    #[must_use]
    pub fn matches(&self, entry: &Entry) -> bool {
        let Key { kind, name, .. } = entry.key();
        self.kind.as_ref().is_none_or(|wanted| wanted == kind)
            && self.name.as_ref().is_none_or(|wanted| wanted == name)
    }
}

#[cfg(test)]
mod tests;
