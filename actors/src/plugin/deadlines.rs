//! The deadlines of a plugin's state, as timers of its actor.

use std::time::SystemTime;

use actix::prelude::*;

use super::PluginActor;
use super::event::Event;

impl PluginActor {
    /// Gives up the deadlines that the state does not have any more.
    pub(super) fn disarm(&mut self, ctx: &mut Context<Self>) {
        let wanted = self.state.deadlines(&self.policy);
        self.armed.retain(|_, (deadline, handle, _)| {
            let keep = wanted.contains(deadline);
            if !keep {
                ctx.cancel_future(*handle);
            }
            keep
        });
    }

    /// Arms the deadlines of the state. Those that did not change go on undisturbed.
    pub(super) fn arm(&mut self, now: SystemTime, ctx: &mut Context<Self>) {
        self.disarm(ctx);
        for deadline in self.state.deadlines(&self.policy) {
            if self.armed.contains_key(&deadline.wait) {
                continue;
            }
            let (wait, of) = (deadline.wait, deadline.clone());
            let handle = ctx.run_later(deadline.after, move |this, ctx| {
                // A timer that came due while the state that disarmed it was saved fires all the
                // same.
                if this.armed.get(&wait).is_some_and(|(armed, _, _)| *armed == of) {
                    this.armed.remove(&wait);
                    this.step(Event::DeadlinePassed(wait), ctx);
                }
            });
            let until = now.checked_add(deadline.after).unwrap_or(now);
            self.armed.insert(wait, (deadline, handle, until));
        }
    }
}
