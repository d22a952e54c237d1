//! The deadlines of a plugin's state, as timers of its actor.

use std::time::{Duration, SystemTime};

use actix::prelude::*;

use super::PluginActor;
use super::event::Event;
use super::state::{Deadline, Ends};

/// Longest time without a look at the wall clock.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

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
            self.arm_one(deadline, now, ctx);
        }
    }

    fn arm_one(&mut self, deadline: Deadline, now: SystemTime, ctx: &mut Context<Self>) {
        let (after, until) = match deadline.ends {
            Ends::After(after) => (after, now.checked_add(after).unwrap_or(now)),
            // The wall clock may be set, and a machine may sleep: the timer looks again.
            Ends::At(at) => (at.duration_since(now).unwrap_or_default().min(LOOK_AGAIN), at),
        };
        let (wait, of) = (deadline.wait, deadline.clone());
        let handle = ctx.run_later(after, move |this, ctx| {
            // A timer that came due while the state that disarmed it was saved fires all the same.
            if this.armed.get(&wait).is_none_or(|(armed, _, _)| *armed != of) {
                return;
            }
            this.armed.remove(&wait);
            let now = this.ports.clock.now();
            match of.ends {
                Ends::At(at) if at > now => this.arm_one(of, now, ctx),
                Ends::At(_) | Ends::After(_) => this.step(Event::DeadlinePassed(wait), ctx),
            }
        });
        self.armed.insert(wait, (deadline, handle, until));
    }
}
