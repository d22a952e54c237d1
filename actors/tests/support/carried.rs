//! Which orders were carried out, and when, in a life in which a person or a window may make orders wait.
//!
//! Shared by the laws. The file that includes it has the module `world`.

use guest_agent_actors::model::act::{Act, HeldOrder};
use guest_agent_actors::model::spec::PluginSpec;
use guest_agent_actors::plugin::event::{Event, Order};
use guest_agent_actors::plugin::state::{Phase, Then};

use crate::world::Step;

/// What a step carries out.
#[derive(Debug)]
pub(crate) enum Carried<'a> {
    Install(&'a PluginSpec),
    Remove,
    Rollback,
    /// An INSTALL that was being carried out waits from now on: what is there stays.
    TakenBack,
}

/// The order that a step carries out, if that has to do with which revision is wanted.
pub(crate) fn carried(step: &Step) -> Option<Carried<'_>> {
    let (before, after) = (&step.before.person, &step.after.next.person);
    if step.before.is_held() && !step.after.next.is_held() {
        match &before.held_order {
            Some(HeldOrder::Install(spec)) => return Some(Carried::Install(spec)),
            Some(HeldOrder::Remove { .. }) => return Some(Carried::Remove),
            Some(HeldOrder::Apply { .. }) => return None,
            // It may have been a REMOVE of before the hold that ended it.
            None => {}
        }
    }
    if let Event::WindowMoved(Some(_)) = &step.event {
        let is_new = before.held_order.is_none() && after.held_order.is_some();
        return is_new.then_some(Carried::TakenBack);
    }
    let Event::Ordered { generation, order } = &step.event else { return None };
    if *generation <= step.before.generation {
        return None;
    }
    match (order, &after.held_order) {
        (Order::Install(spec), Some(HeldOrder::Install(held))) if spec == held => None,
        (Order::Remove, Some(HeldOrder::Remove { .. })) => None,
        (Order::Install(spec), _) => Some(Carried::Install(spec)),
        (Order::Remove, _) => Some(Carried::Remove),
        (Order::Asked(Act::Rollback(_)), _) => Some(Carried::Rollback),
        (Order::Asked(Act::Hold(_)), Some(_)) if before.held_order.is_none() => {
            Some(Carried::TakenBack)
        }
        (Order::Apply(_) | Order::Restart | Order::Asked(_), _) => None,
    }
}

/// The revision that stays where an INSTALL was taken back; none where nothing is there, or will be.
pub(crate) fn stays(step: &Step) -> Option<&PluginSpec> {
    let state = &step.after.next;
    let leaves = matches!(
        state.phase,
        Phase::Held
            | Phase::Removing { .. }
            | Phase::Gone
            | Phase::Stopping { then: Then::Remove, .. }
    );
    (!leaves).then_some(&*state.spec)
}
