//! Keeps the numbers of a fleet's orders for the control-plane actor: weighs an order before it is
//! taken, records its number with it, and shows others which numbers are durable.
//!
//! What a number means is decided in [`generations`](super::generations).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::watch;
use tracing::{debug, warn};

use super::generations::{Age, Generations, Undo};
use crate::model::id::{FleetGeneration, Generation, PluginName};
use crate::ports::Write;
use crate::records::{delete_generation, put_generation};
use crate::wire::{self, FleetOrder};

/// The number of the newest order of each plugin, those that are gone included.
pub type FleetGenerations = BTreeMap<PluginName, FleetGeneration>;

/// What the actor knows of a fleet's orders.
pub struct FleetOrders {
    generations: Generations,
    /// The plugins that there are; `None` while nobody knows.
    there: watch::Receiver<Option<BTreeSet<PluginName>>>,
    /// The numbers that are durable.
    durable: watch::Sender<FleetGenerations>,
    /// The newest order of each plugin that an older one was found to be behind. One of them is
    /// recorded, so that a server which repeats itself does not fill the record.
    behind: FleetGenerations,
}

/// What is to be done with a message of orders.
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
        there: watch::Receiver<Option<BTreeSet<PluginName>>>,
    ) -> Self {
        let all = generations.all().map(|(name, generation)| (name.clone(), generation));
        let durable = watch::Sender::new(all.collect());
        Self { generations, there, durable, behind: FleetGenerations::new() }
    }

    /// The numbers that are durable.
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

    /// Keeps the number of an order that is taken as order `number`, and gives the writes that
    /// belong in the order's commit.
    pub(super) fn keep(&mut self, order: &FleetOrder, number: Generation) -> (Vec<Write>, Undo) {
        let undo = self.generations.keep(order, number);
        let mut writes = vec![put_generation(&undo.name, &undo.kept)];
        let gone = self.generations.forget_gone(self.there.borrow().as_ref());
        for name in &gone {
            self.behind.remove(name);
            writes.push(delete_generation(name));
        }
        if !gone.is_empty() {
            self.durable.send_modify(|durable| durable.retain(|name, _| !gone.contains(name)));
        }
        (writes, undo)
    }

    /// The commit of an order is durable, or is not and never will be.
    pub(super) fn settle(&mut self, undo: Undo, is_durable: bool) {
        if !is_durable {
            self.generations.undo(undo);
            return;
        }
        let Undo { name, kept, .. } = undo;
        self.durable.send_modify(|durable| {
            let shown = durable.entry(name).or_insert(kept.generation);
            *shown = kept.generation.max(*shown);
        });
    }
}
