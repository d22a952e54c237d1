//! Plugins that came with the machine, as one more source of what is wanted.
//!
//! ```text
//! start, SIGHUP ──► scan (port) ──► plan ──► a new plugin, or LocalChanged to the one on the roster
//! ```
//!
//! Manifests are a level, not orders: they are read again and compared with what each plugin knows,
//! and reading them twice does nothing. Which version of a plugin runs is the plugin's own decision
//! (`plugin/local.rs`). What cannot be read changes nothing that runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tracing::{info, warn};

use super::plan::PLUGINS_MAX;
use super::{Lists, ManagerActor};
use crate::error::Chain;
use crate::messages::{Happened, RefusedManifests, RescanLocal, Save};
use crate::model::event;
use crate::model::id::{Generation, PluginName};
use crate::model::spec::PluginSpec;
use crate::plugin::Beginning;
use crate::plugin::event::{Event, PluginEventKind};
use crate::plugin::machine;
use crate::ports::LocalScan;

/// Longest that reading all manifests may take. What is read later is left to the next time.
const SCAN_WAIT: Duration = Duration::from_secs(300);

const TOO_MANY: &str =
    "there are as many plugins on this machine as there may be; remove another one first";

/// What the machine says of its own plugins, as far as it was read.
#[derive(Default)]
pub(super) struct Machine {
    /// The newest scan; `None` before the first.
    scan: Option<LocalScan>,
    /// Refusals that were told.
    told: BTreeMap<String, String>,
    reading: Reading,
}

/// Whether the manifests are being read.
#[derive(Default)]
enum Reading {
    #[default]
    No,
    Yes,
    /// Yes, and they may have changed since it began.
    AndAgain,
}

/// What one plugin is told of its local version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalOrder {
    /// A plugin that was never heard of begins its life.
    Begin(Arc<PluginSpec>),
    /// A plugin on the roster has another local version now, or none any more.
    Tell(PluginName, Option<Arc<PluginSpec>>),
    /// There are too many plugins for one more.
    Refuse(Arc<PluginSpec>),
}

/// What follows from a scan for the plugins on the roster, of each of which is known which local
/// version it knows. A plugin whose manifest is refused keeps what it has: trouble with a manifest
/// stops nothing that runs.
#[must_use]
pub fn plan(
    known: &BTreeMap<PluginName, Option<Arc<PluginSpec>>>,
    scan: &LocalScan,
) -> Vec<LocalOrder> {
    let mut orders = Vec::new();
    let mut count = known.len();
    for (name, spec) in &scan.plugins {
        match known.get(name) {
            Some(Some(same)) if same == spec => {}
            Some(_) => orders.push(LocalOrder::Tell(name.clone(), Some(spec.clone()))),
            None if count < PLUGINS_MAX => {
                count += 1;
                orders.push(LocalOrder::Begin(spec.clone()));
            }
            None => orders.push(LocalOrder::Refuse(spec.clone())),
        }
    }
    let has_manifest = |name: &PluginName| {
        scan.plugins.contains_key(name) || scan.refused.contains_key(name.as_str())
    };
    let gone = known.iter().filter(|(name, local)| local.is_some() && !has_manifest(name));
    orders.extend(gone.map(|(name, _)| LocalOrder::Tell(name.clone(), None)));
    orders
}

// === impl ManagerActor: local plugins ===

impl ManagerActor {
    fn rescan(&mut self, ctx: &mut Context<Self>) {
        match self.machine.reading {
            Reading::No => self.machine.reading = Reading::Yes,
            Reading::Yes | Reading::AndAgain => {
                self.machine.reading = Reading::AndAgain;
                return;
            }
        }
        let local = self.ports.local.clone();
        let scan = async move { tokio::time::timeout(SCAN_WAIT, local.scan()).await };
        ctx.spawn(scan.into_actor(self).map(|scan, this, ctx| {
            if let Reading::AndAgain = std::mem::take(&mut this.machine.reading) {
                ctx.notify(RescanLocal);
            }
            match scan {
                Ok(Ok(scan)) => {
                    this.tell_refusals(&scan);
                    this.machine.scan = Some(scan);
                    this.follow_machine(ctx);
                }
                Ok(Err(error)) => {
                    warn!(error = %Chain(&error), "local plugins stay as they are");
                }
                Err(_) => warn!("reading the local plugins took too long; they stay as they are"),
            }
        }));
    }

    /// Brings the roster in line with what the machine says.
    pub(super) fn follow_machine(&mut self, ctx: &mut Context<Self>) {
        let Lists::Answered = self.lists else { return };
        let Some(scan) = &self.machine.scan else { return };
        let known =
            self.roster.iter().map(|(name, entry)| (name.clone(), entry.local.clone())).collect();
        let orders = plan(&known, scan);
        for order in orders {
            match order {
                LocalOrder::Begin(spec) => {
                    info!(plugin = %spec.name, revision = %spec.revision, "came with the machine");
                    let name = spec.name.clone();
                    let beginning = Beginning::Ordered(Box::new(machine::begin_local(spec)), None);
                    self.start(name, Generation(0), beginning, ctx);
                }
                LocalOrder::Tell(name, spec) => {
                    let Some(entry) = self.roster.get_mut(&name) else { continue };
                    entry.local.clone_from(&spec);
                    if spec.is_some() {
                        entry.retired = None;
                    }
                    entry.address.do_send(Happened(Event::LocalChanged(spec)));
                }
                LocalOrder::Refuse(spec) => {
                    let (name, revision) = (spec.name.as_str(), spec.revision.as_str());
                    self.refuse_manifest(name, revision, TOO_MANY.to_owned());
                }
            }
        }
        self.moved();
    }

    fn tell_refusals(&mut self, scan: &LocalScan) {
        // One that was mended is told again if it breaks again.
        self.machine.told.retain(|name, reason| {
            scan.refused.get(name) == Some(reason)
                || reason == TOO_MANY && scan.plugins.keys().any(|known| known.as_str() == name)
        });
        for (name, reason) in &scan.refused {
            self.refuse_manifest(name, "", reason.clone());
        }
    }

    /// Says once that a manifest cannot be used.
    fn refuse_manifest(&mut self, name: &str, revision: &str, reason: String) {
        if self.machine.told.get(name) == Some(&reason) {
            return;
        }
        warn!(plugin = name, reason, "refuses the manifest of a local plugin");
        let details = format!("the manifest of the local plugin is refused: {reason}");
        let now = self.ports.clock.now();
        let refused =
            event::NewEvent::new(PluginEventKind::InstallFailed, name, revision, now, &details);
        self.machine.told.insert(name.to_owned(), reason);
        // The store keeps what it could not write and tries again.
        self.handles.store.do_send(Save { writes: Vec::new(), events: vec![refused] });
    }
}

impl Handler<RefusedManifests> for ManagerActor {
    type Result = MessageResult<RefusedManifests>;

    fn handle(&mut self, _: RefusedManifests, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.machine.told.clone())
    }
}

impl Handler<RescanLocal> for ManagerActor {
    type Result = ();

    fn handle(&mut self, _: RescanLocal, ctx: &mut Self::Context) {
        self.rescan(ctx);
    }
}

#[cfg(test)]
mod tests;
