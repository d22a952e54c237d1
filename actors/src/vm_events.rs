//! Finds out what happened to the machine while the agent was away, and lets the manager begin.

use std::sync::Arc;

use actix::prelude::*;
use tracing::{error, info};

use crate::crash_point;
use crate::error::Chain;
use crate::messages::{Begin, Save};
use crate::plugin::machine::Boot;
use crate::ports::{Machine, Storage, Table, Write};

/// Key of the boot that the agent last ran in, among the facts.
const BOOT: &[u8] = b"boot_id";

/// The VM-event actor.
pub struct VmEventActor {
    machine: Arc<dyn Machine>,
    storage: Arc<dyn Storage>,
    store: Recipient<Save>,
    begin: Recipient<Begin>,
}

/// To be written when the agent ends and its plugins with it: the next life finds none of their
/// processes, as after a restart of the machine, and starts them without taking that for crashes.
#[must_use]
pub fn forget_boot() -> Write {
    Write::Delete { table: Table::Facts, key: BOOT.to_vec() }
}

// === impl VmEventActor ===

impl VmEventActor {
    /// An actor that looks at the machine when it is started.
    #[must_use]
    pub fn new(
        machine: Arc<dyn Machine>,
        storage: Arc<dyn Storage>,
        store: Recipient<Save>,
        begin: Recipient<Begin>,
    ) -> Self {
        Self { machine, storage, store, begin }
    }

    fn compared(&self, last: Option<&[u8]>, ctx: &mut Context<Self>) {
        let current = self.machine.boot_id();
        let boot = match last {
            Some(last) if last == current.0.as_bytes() => Boot::Same,
            Some(_) | None => Boot::New,
        };
        info!(?boot, boot_id = %current.0, "knows which boot this is");
        crash_point::reach("before", "begin", "boot");
        self.begin.do_send(Begin(boot));
        if boot == Boot::New {
            let fact = Write::Put {
                table: Table::Facts,
                key: BOOT.to_vec(),
                value: current.0.as_bytes().to_vec(),
            };
            let saving = self.store.send(Save { writes: vec![fact], events: Vec::new() });
            ctx.spawn(saving.into_actor(self).map(|result, _, _| {
                // The next life takes this boot for a new one: no crash is reported, no more.
                if let Ok(Err(error)) = result {
                    error!(%error, "cannot remember this boot");
                }
            }));
        }
    }
}

impl Actor for VmEventActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let storage = self.storage.clone();
        let load = async move { storage.load(Table::Facts).await };
        ctx.wait(load.into_actor(self).map(|facts, this, ctx| {
            let facts = facts.unwrap_or_else(|error| {
                error!(error = %Chain(&error), "cannot read what is known of this machine");
                Vec::new()
            });
            let last = facts.iter().find(|(key, _)| key == BOOT).map(|(_, value)| value);
            this.compared(last.map(Vec::as_slice), ctx);
        }));
    }
}
