//! What a person asks of all plugins.
//!
//! It becomes an order for each plugin on the roster. A hold of all is remembered as well, for the
//! plugins that come later: their first order waits.

use actix::prelude::*;

use super::ManagerActor;
use crate::messages::{AskedOfAll, HoldOfAll, NumberedOrder};
use crate::model::act::Hold;
use crate::model::id::PluginName;
use crate::plugin::event::Order;

// === impl ManagerActor: all plugins ===

impl ManagerActor {
    /// The orders that make each plugin do what is asked of all.
    pub(super) fn ask_all(&mut self, asked: AskedOfAll) -> Vec<NumberedOrder> {
        let AskedOfAll { generation, act, trace } = asked;
        if let Some(hold) = act.hold_after() {
            self.hold = hold.cloned();
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
