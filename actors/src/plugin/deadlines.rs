//! The deadlines of a plugin's state, as timers of its actor.

use std::time::{Duration, SystemTime};

use actix::prelude::*;
use tokio::time::Instant;

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
        match deadline.ends {
            Ends::After(after) => self.arm_for(deadline, after, now, ctx),
            // The wall clock may be set, and a machine may sleep: the timer looks again.
            Ends::At(at) => {
                let after = at.duration_since(now).unwrap_or_default().min(LOOK_AGAIN);
                self.arm_until(deadline, after, at, ctx);
            }
        }
    }

    fn arm_for(
        &mut self,
        deadline: Deadline,
        after: Duration,
        now: SystemTime,
        ctx: &mut Context<Self>,
    ) {
        let until = now.checked_add(after).unwrap_or(now);
        self.arm_until(deadline, after, until, ctx);
    }

    fn arm_until(
        &mut self,
        deadline: Deadline,
        after: Duration,
        until: SystemTime,
        ctx: &mut Context<Self>,
    ) {
        let (wait, of) = (deadline.wait, deadline.clone());
        let (began, lost_before) = (Instant::now(), self.ports.pauses.lost());
        let handle = ctx.run_later(after, move |this, ctx| {
            // A timer that came due while the state that disarmed it was saved fires all the same.
            if this.armed.get(&wait).is_none_or(|(armed, _, _)| *armed != of) {
                return;
            }
            this.armed.remove(&wait);
            let now = this.ports.clock.now();
            // Nothing could be done in a pause, so it does not count.
            let lost = this.ports.pauses.lost().saturating_sub(lost_before);
            let left = after.saturating_sub(began.elapsed().saturating_sub(lost));
            match of.ends {
                Ends::At(at) if at > now => this.arm_one(of, now, ctx),
                Ends::After(_) if !lost.is_zero() && !left.is_zero() => {
                    this.arm_for(of, left, now, ctx);
                }
                Ends::At(_) | Ends::After(_) => this.step(Event::DeadlinePassed(wait), ctx),
            }
        });
        self.armed.insert(wait, (deadline, handle, until));
    }
}
