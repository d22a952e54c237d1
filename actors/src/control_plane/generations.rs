//! The highest number of each plugin among the orders of a fleet. Pure.
//!
//! A fleet numbers its orders, because messages of two of its gateways, or of two streams, can come
//! in any order: an order that is older than the newest one is acknowledged and not carried out. The
//! number is recorded in the commit that makes the order durable, so that the two cannot disagree
//! after a crash, and it stays when the plugin is removed: an older INSTALL may still be on its way.

use std::collections::{BTreeMap, BTreeSet};

use crate::manager::plan::PLUGINS_MAX;
use crate::model::id::{FleetGeneration, Generation, PluginName, Sha256Digest};
use crate::model::spec::Config;
use crate::plugin::event::Order;
use crate::wire::FleetOrder;

/// Most plugins that are gone and whose number is remembered. One more, and the one is forgotten
/// whose last numbered order is the oldest.
pub const GONE_MAX: usize = 1000;

/// Most plugins whose number is remembered while it is not known which of them are gone.
pub const REMEMBERED_MAX: usize = PLUGINS_MAX + GONE_MAX;

/// The newest numbered order of each plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generations {
    newest: BTreeMap<PluginName, Newest>,
}

/// The newest numbered order of one plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newest {
    /// Its number among the fleet's orders for the plugin.
    pub generation: FleetGeneration,
    /// SHA-256 of the body of its message.
    pub body: Sha256Digest,
    /// Its number among all orders that this agent took.
    pub order: Generation,
    /// The part of it that people can change; of an order that this agent refused, the part of the
    /// newest one before. Older agents did not record it.
    pub asks: Option<Asks>,
}

/// The part of a fleet's order that people can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// Nothing of the plugin is to be left.
    Removal,
    /// The plugin is to have the configuration with this digest; `None`: none.
    Config(Option<Sha256Digest>),
}

/// How a numbered order stands to the newest one of its plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// It is newer than every order before.
    Newer,
    /// It is the newest one, once more.
    Again,
    /// It is older than the newest one, which has this number: nothing is to be done.
    Older(FleetGeneration),
    /// It has the number of the newest one, and another body: one of the two is a mistake.
    Clash,
}

/// Undoes [`Generations::keep`], for an order that could not be made durable.
#[derive(Clone, Debug)]
#[must_use = "a number that is not durable must not outlive the order"]
pub struct Undo {
    /// The plugin.
    pub name: PluginName,
    /// Its newest order since then, to be recorded.
    pub kept: Newest,
    before: Option<Newest>,
}

// === impl Asks ===

impl Asks {
    /// The part of this order; `None` for one that no fleet gives.
    #[must_use]
    pub fn of(order: &Order) -> Option<Self> {
        match order {
            Order::Install(spec) => Some(Self::Config(spec.config.as_ref().map(Config::digest))),
            Order::Apply(config) => Some(Self::Config(config.as_ref().map(Config::digest))),
            Order::Remove => Some(Self::Removal),
            Order::Restart | Order::Asked(_) => None,
        }
    }
}

// === impl Generations ===

impl Generations {
    /// The numbers that an earlier agent process recorded.
    #[must_use]
    pub fn from_facts(facts: Vec<(PluginName, Newest)>) -> Self {
        Self { newest: facts.into_iter().collect() }
    }

    /// The highest number of each plugin, also of plugins that are gone.
    pub fn all(&self) -> impl Iterator<Item = (&PluginName, FleetGeneration)> {
        self.newest.iter().map(|(name, newest)| (name, newest.generation))
    }

    /// The newest numbered order of a plugin.
    #[must_use]
    pub fn newest(&self, name: &PluginName) -> Option<&Newest> {
        self.newest.get(name)
    }

    /// How an order stands to the newest one of its plugin.
    #[must_use]
    pub fn age(&self, order: &FleetOrder) -> Age {
        let Some(newest) = self.newest.get(&order.name) else { return Age::Newer };
        match order.generation.cmp(&newest.generation) {
            std::cmp::Ordering::Greater => Age::Newer,
            std::cmp::Ordering::Less => Age::Older(newest.generation),
            std::cmp::Ordering::Equal if order.body == newest.body => Age::Again,
            std::cmp::Ordering::Equal => Age::Clash,
        }
    }

    /// Keeps the number of an order that is newer, and that this agent takes as its order `number`;
    /// `asks` is `None` where it refuses the order. Its record belongs in the commit that makes the
    /// order durable.
    pub fn keep(&mut self, order: &FleetOrder, number: Generation, asks: Option<Asks>) -> Undo {
        let FleetOrder { name, generation, body } = order;
        let before = self.newest.get(name).copied();
        let asks = asks.or(before.and_then(|before| before.asks));
        let kept = Newest { generation: *generation, body: *body, order: number, asks };
        self.newest.insert(name.clone(), kept);
        Undo { name: name.clone(), kept, before }
    }

    /// The order could not be made durable, and so was not taken. A newer one stays.
    pub fn undo(&mut self, Undo { name, kept, before }: Undo) {
        if self.newest.get(&name) == Some(&kept) {
            match before {
                Some(before) => self.newest.insert(name, before),
                None => self.newest.remove(&name),
            };
        }
    }

    /// Forgets plugins that are gone where there are too many of them, and returns them: their
    /// records are to be deleted. `there` is `None` while nobody knows which plugins there are.
    pub fn forget_gone(&mut self, there: Option<&BTreeSet<PluginName>>) -> Vec<PluginName> {
        let most = if there.is_some() { GONE_MAX } else { REMEMBERED_MAX };
        // So most agents never look for plugins that are gone.
        if self.newest.len() <= most {
            return Vec::new();
        }
        let is_gone = |name: &PluginName| !there.is_some_and(|there| there.contains(name));
        let gone = self.newest.iter().filter(|(name, _)| is_gone(name));
        let mut gone: Vec<_> = gone.map(|(name, newest)| (newest.order, name.clone())).collect();
        gone.sort();
        gone.truncate(gone.len().saturating_sub(most));
        let gone: Vec<_> = gone.into_iter().map(|(_, name)| name).collect();
        for name in &gone {
            self.newest.remove(name);
        }
        gone
    }
}

#[cfg(test)]
mod tests;
