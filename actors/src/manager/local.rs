//! Plugins that came with the machine, as one more source of what is wanted.
//!
//! ```text
//! start, SIGHUP ──► scan (port) ──► plan ──► a new plugin, or LocalChanged to the one on the roster
//! ```
//!
//! Manifests are a level, not orders: they are read again and compared with what each plugin knows,
//! and reading them twice does nothing. Which version of a plugin runs is the plugin's own decision
//! (`plugin/local.rs`). What cannot be read changes nothing that runs.

use std::time::Duration;

use actix::prelude::*;
use tracing::{info, warn};

use super::local_plan::{LocalOrder, Reading, TOO_MANY, plan};
use super::{Lists, ManagerActor};
use crate::error::Chain;
use crate::messages::{Happened, RefusedManifests, RescanLocal, Save};
use crate::model::event;
use crate::model::event::PluginEventKind;
use crate::model::id::Generation;
use crate::model::refused_manifest::RefusedManifest;
use crate::plugin::Beginning;
use crate::plugin::event::Event;
use crate::plugin::machine;
use crate::ports::LocalScan;

/// Longest that reading all manifests may take. What is read later is left to the next time.
const SCAN_WAIT: Duration = Duration::from_secs(300);

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
        if matches!(self.lists, Lists::Held { .. }) {
            return;
        }
        let Some(scan) = &self.machine.scan else { return };
        let known =
            self.roster.iter().map(|(name, entry)| (name.clone(), entry.local.clone())).collect();
        let orders = plan(&known, scan);
        for order in orders {
            match order {
                LocalOrder::Begin(spec) => {
                    info!(plugin = %spec.name, revision = %spec.revision, "a local plugin is new");
                    let name = spec.name.clone();
                    let held = self.held_at_first(&name, ctx);
                    let first = machine::begin_local_under(held, spec);
                    let beginning = Beginning::Ordered(Box::new(first), None);
                    self.start(name, Generation(0), beginning, ctx);
                }
                LocalOrder::Tell(name, spec) => {
                    self.tell_window(&name, ctx);
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
        // A manifest that was mended is reported again if it is refused again.
        self.machine.told.retain(|name, RefusedManifest { reason, .. }| {
            scan.refused.get(name) == Some(reason)
                || reason == TOO_MANY && scan.plugins.keys().any(|known| known.as_str() == name)
        });
        for (name, reason) in &scan.refused {
            self.refuse_manifest(name, "", reason.clone());
        }
    }

    /// Says once that a manifest cannot be used.
    fn refuse_manifest(&mut self, name: &str, revision: &str, reason: String) {
        if self.machine.told.get(name).is_some_and(|told| told.reason == reason) {
            return;
        }
        warn!(plugin = name, reason, "refuses the manifest of a local plugin");
        let details = format!("the manifest of the local plugin is refused: {reason}");
        let now = self.ports.clock.now();
        let refused =
            event::NewEvent::new(PluginEventKind::InstallFailed, name, revision, now, &details);
        let refusal = RefusedManifest { revision: revision.to_owned(), reason, since: now };
        self.machine.told.insert(name.to_owned(), refusal);
        // The store keeps what it could not write and tries again.
        self.handles.store.do_send(Save { events: vec![refused], ..Save::default() });
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
