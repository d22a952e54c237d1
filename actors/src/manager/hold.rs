//! What a person asks of all plugins.
//!
//! It becomes an order for each plugin on the roster. A hold of all is remembered as well, for the
//! plugins that come later: their first order waits.

use actix::prelude::*;
use tracing::error;

use super::ManagerActor;
use crate::error::Chain;
use crate::messages::{AskedOfAll, HoldOfAll, NumberedOrder};
use crate::model::act::{Act, Hold};
use crate::model::id::PluginName;
use crate::plugin::event::Order;
use crate::ports::{Storage, StorageError, Table};
use crate::records::{self, HOLD_OF_ALL};

/// Reads the hold of all plugins from the facts.
pub(super) async fn load(storage: &dyn Storage) -> Result<Option<Hold>, StorageError> {
    let facts = storage.load(Table::Facts).await?;
    let found = facts.into_iter().find(|(key, _)| key == HOLD_OF_ALL);
    let Some((key, bytes)) = found else { return Ok(None) };
    match records::hold_of_all(&bytes) {
        Ok(hold) => Ok(Some(hold)),
        Err(error) => {
            let reason = Chain(&error).to_string();
            error!(reason, "sets the record of a hold of all plugins aside");
            storage.set_aside(Table::Facts, key, reason).await?;
            Ok(None)
        }
    }
}

// === impl ManagerActor: all plugins ===

impl ManagerActor {
    /// The orders that make each plugin do what is asked of all.
    pub(super) fn ask_all(&mut self, asked: AskedOfAll) -> Vec<NumberedOrder> {
        let AskedOfAll { generation, act, trace } = asked;
        match &act {
            Act::Hold(hold) => self.hold = Some(hold.clone()),
            Act::Release => self.hold = None,
            Act::Stop(_) | Act::Start | Act::Rollback(_) => {}
        }
        let present = self.roster.iter().filter(|(_, entry)| entry.retired.is_none());
        let order = |name: &PluginName| NumberedOrder {
            generation,
            name: name.clone(),
            revision: "".into(),
            order: Order::Asked(act.clone()),
            trace: trace.clone(),
        };
        present.map(|(name, _)| order(name)).collect()
    }

    /// The hold that a plugin begins under, if there is one and it has not ended.
    pub(super) fn hold_of_all(&self) -> Option<Hold> {
        let now = self.ports.clock.now();
        self.hold.clone().filter(|hold| hold.lasts_at(now))
    }
}

impl Handler<HoldOfAll> for ManagerActor {
    type Result = MessageResult<HoldOfAll>;

    fn handle(&mut self, _: HoldOfAll, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.hold_of_all())
    }
}
