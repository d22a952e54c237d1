//! Keeps the numbers of a fleet's orders for the control-plane actor, and what people changed about
//! the plugins: weighs an order before it is taken, records its number with it, and shows others
//! what is durable.
//!
//! [`generations`](super::generations) decides what a number means, [`super::deeds`] what a deed of a
//! person does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::watch;
use tracing::{debug, warn};

use super::deeds::{self, Giver, Target};
use super::generations::{Age, Asks, Generations, Newest, Undo};
use crate::model::deed::{Deeds, Numbered};
use crate::model::id::{FleetGeneration, Generation, PluginName};
use crate::ports::Write;
use crate::records::{delete_generation, put_deeds, put_generation};
use crate::wire::{self, DecodedOrder, FleetOrder, NamedOrder};

/// The plugins for which a fleet gave orders, those that are gone included.
pub type FleetGenerations = BTreeMap<PluginName, Numbered>;

/// The numbers of a fleet's orders, and the deeds of people, as the actor keeps them.
pub struct FleetOrders {
    generations: Generations,
    /// The deeds, by plugins that have a number. Plugins without deeds are left out.
    deeds: BTreeMap<PluginName, Deeds>,
    /// The plugins that there are; `None` while nobody knows.
    there: watch::Receiver<Option<BTreeSet<PluginName>>>,
    /// The numbers and deeds that are durable.
    durable: watch::Sender<FleetGenerations>,
    /// The newest order of each plugin that an older one was found to be behind. One of them is
    /// recorded, so that a server which repeats itself does not fill the record.
    behind: BTreeMap<PluginName, FleetGeneration>,
}

/// Undoes [`FleetOrders::keep`], for orders that could not be made durable.
#[must_use = "what is not durable must not outlive the orders"]
pub(super) struct Kept {
    number: Option<Undo>,
    /// The deeds about each plugin before its order, and after it.
    deeds: Vec<(PluginName, Deeds, Deeds)>,
}

/// The way a message of orders goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Weighed {
    /// They are taken; if they are one that a fleet numbered and that is new, with its number.
    Taken(Option<FleetOrder>),
    /// They are refused, for this reason.
    Wrong(String),
    /// Nothing: the order is older than the newest one of its plugin.
    Outdated(Outdated),
}

/// An order that came after a newer one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outdated {
    /// The plugin that it was for.
    pub(super) name: PluginName,
    /// Why nothing is done, in words.
    pub(super) why: Arc<str>,
    /// Whether it is the first one that is behind this newest order.
    pub(super) is_first: bool,
}

// === impl FleetOrders ===

impl FleetOrders {
    /// Begins with what an earlier agent process recorded; `there` are the plugins that there are.
    #[must_use]
    pub fn new(
        generations: Generations,
        deeds: BTreeMap<PluginName, Deeds>,
        there: watch::Receiver<Option<BTreeSet<PluginName>>>,
    ) -> Self {
        let all = generations.all().map(|(name, generation)| {
            let deeds = deeds.get(name).cloned().unwrap_or_default();
            (name.clone(), Numbered { generation, deeds })
        });
        let durable = watch::Sender::new(all.collect());
        Self { generations, deeds, there, durable, behind: BTreeMap::new() }
    }

    /// The numbers and deeds that are durable.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<FleetGenerations> {
        self.durable.subscribe()
    }

    /// Weighs the orders of a message by their number, if they have one.
    pub(super) fn weigh(&mut self, labels: &BTreeMap<String, String>, bytes: &[u8]) -> Weighed {
        let order = match wire::fleet_order(labels, bytes) {
            Ok(Some(order)) => order,
            Ok(None) => return Weighed::Taken(None),
            Err(why) => return Weighed::Wrong(why),
        };
        let FleetOrder { name, generation, .. } = &order;
        match self.generations.age(&order) {
            Age::Newer => Weighed::Taken(Some(order)),
            Age::Again => {
                debug!(plugin = %name, %generation, "takes the newest order once more");
                Weighed::Taken(None)
            }
            Age::Clash => {
                warn!(plugin = %name, %generation, "two orders have the same fleet-generation");
                Weighed::Wrong(format!(
                    "another order for this plugin had the fleet-generation {generation} before; \
                     give this one a higher number"
                ))
            }
            Age::Older(newest) => {
                debug!(plugin = %name, %generation, %newest, "ignores an order that is outdated");
                let is_first = self.behind.insert(name.clone(), newest) != Some(newest);
                let why = format!(
                    "ignored: its fleet-generation {generation} is below {newest}, which a later \
                     order for this plugin has"
                );
                Weighed::Outdated(Outdated { name: order.name, why: why.into(), is_first })
            }
        }
    }

    /// Keeps what orders mean that are taken, the first of them as order `first`: the number of one
    /// that a fleet `numbered`, and what people change or a control plane replaces. Gives the writes
    /// that belong in the orders' commit.
    pub(super) fn keep(
        &mut self,
        numbered: Option<&FleetOrder>,
        first: Generation,
        decoded: &[DecodedOrder],
        giver: &Giver,
    ) -> (Vec<Write>, Kept) {
        let mut writes = Vec::new();
        let number = numbered.map(|order| {
            let taken = decoded.first().and_then(|order| order.as_ref().ok());
            let asks = taken.and_then(|taken| Asks::of(&taken.order));
            self.keep_number(order, first, asks, &mut writes)
        });
        let mut changed = Vec::new();
        for NamedOrder { name, order, .. } in decoded.iter().flatten() {
            let Some(newest) = self.generations.newest(name) else { continue };
            let is_there = self.there.borrow().as_ref().is_none_or(|there| there.contains(name));
            let before = self.deeds.get(name).cloned().unwrap_or_default();
            let target = Target { asks: newest.asks, is_there };
            let after = deeds::after(before.clone(), giver, order, target);
            if after != before {
                writes.push(put_deeds(name, &after));
                self.remember(name, after.clone());
                changed.push((name.clone(), before, after));
            }
        }
        (writes, Kept { number, deeds: changed })
    }

    fn keep_number(
        &mut self,
        order: &FleetOrder,
        number: Generation,
        asks: Option<Asks>,
        writes: &mut Vec<Write>,
    ) -> Undo {
        let undo = self.generations.keep(order, number, asks);
        writes.push(put_generation(&undo.name, &undo.kept));
        let gone = self.generations.forget_gone(self.there.borrow().as_ref());
        for name in &gone {
            self.behind.remove(name);
            writes.push(delete_generation(name));
            if self.deeds.remove(name).is_some() {
                writes.push(put_deeds(name, &Deeds::default()));
            }
        }
        if !gone.is_empty() {
            self.durable.send_modify(|durable| durable.retain(|name, _| !gone.contains(name)));
        }
        undo
    }

    fn remember(&mut self, name: &PluginName, deeds: Deeds) {
        if deeds.is_empty() {
            self.deeds.remove(name);
        } else {
            self.deeds.insert(name.clone(), deeds);
        }
    }

    /// The commit of orders is durable, or is not and never will be.
    pub(super) fn settle(&mut self, Kept { number, deeds }: Kept, is_durable: bool) {
        let mut moved: Vec<PluginName> = deeds.iter().map(|(name, ..)| name.clone()).collect();
        if !is_durable {
            if let Some(number) = number {
                self.generations.undo(number);
            }
            // Two orders of one message may be for one plugin.
            for (name, before, after) in deeds.into_iter().rev() {
                // What came later stays.
                if self.deeds.get(&name).cloned().unwrap_or_default() == after {
                    self.remember(&name, before);
                }
            }
        } else if let Some(Undo { name, kept: Newest { generation, .. }, .. }) = number {
            self.durable.send_modify(|durable| {
                let first = Numbered { generation, deeds: Deeds::default() };
                let shown = durable.entry(name.clone()).or_insert(first);
                shown.generation = generation.max(shown.generation);
            });
            moved.push(name);
        }
        self.show_deeds(&moved);
    }

    /// Shows the deeds about these plugins. One whose commit is still under way may be among them: its
    /// order is not carried out before, so nothing of it is in force.
    fn show_deeds(&self, of: &[PluginName]) {
        self.durable.send_if_modified(|durable| {
            let mut has_changed = false;
            for name in of {
                let deeds = self.deeds.get(name).cloned().unwrap_or_default();
                if let Some(shown) = durable.get_mut(name).filter(|it| it.deeds != deeds) {
                    shown.deeds = deeds;
                    has_changed = true;
                }
            }
            has_changed
        });
    }
}

#[cfg(test)]
mod tests;
