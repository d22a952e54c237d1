//! Maintenance windows: plugins learn when their windows open and close.
//!
//! ```text
//!  timer, order, reload ─► look ─► Windows (port) ─► Opening ─ moved? ─► Event::WindowMoved ─► plugin
//! ```
//!
//! The manager looks when a window is to open or close next, and at least every half minute: the wall clock
//! may be set, and a machine may sleep. It also looks before it hands an order on, so that no order slips
//! through between two looks. On a machine without windows no timer runs.

use std::time::{Duration, SystemTime};

use actix::prelude::*;

use super::ManagerActor;
use crate::messages::{Happened, UseWindows};
use crate::model::id::PluginName;
use crate::model::window::{Closed, Opening};
use crate::plugin::event::Event;
use crate::plugin::machine::Held;

/// Longest time without a look at the wall clock.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

// === impl ManagerActor: windows ===

impl ManagerActor {
    /// What makes the first order of a plugin wait, if anything does.
    pub(super) fn held_at_first(&mut self, name: &PluginName, ctx: &mut Context<Self>) -> Held {
        let opening = self.opening(name, ctx);
        Held { hold: self.hold_of_all(), closed: opening.closed() }
    }

    /// A plugin learns whether its windows are open, if it does not know.
    pub(super) fn tell_window(&mut self, name: &PluginName, ctx: &mut Context<Self>) {
        let closed = self.opening(name, ctx).closed();
        self.tell_closed(name, closed);
    }

    fn opening(&mut self, name: &PluginName, ctx: &mut Context<Self>) -> Opening {
        let now = self.ports.clock.now();
        let opening = self.watch.windows.opening(name, now);
        if let Some(next) = next_look(opening, now) {
            self.look_at(next, now, ctx);
        }
        opening
    }

    fn tell_closed(&mut self, name: &PluginName, closed: Option<Closed>) {
        let Some(entry) = self.roster.get_mut(name) else { return };
        if entry.closed != closed {
            entry.closed = closed;
            entry.address.do_send(Happened(Event::WindowMoved(closed)));
        }
    }

    /// All plugins learn whether their windows are open.
    pub(super) fn look_at_windows(&mut self, ctx: &mut Context<Self>) {
        if let Some((look, _)) = self.watch.look.take() {
            ctx.cancel_future(look);
        }
        let now = self.ports.clock.now();
        let present = self.roster.iter().filter(|(_, entry)| entry.retired.is_none());
        let openings: Vec<(PluginName, Opening)> = present
            .map(|(name, _)| (name.clone(), self.watch.windows.opening(name, now)))
            .collect();
        let next = openings.iter().filter_map(|(_, opening)| next_look(*opening, now)).min();
        for (name, opening) in openings {
            self.tell_closed(&name, opening.closed());
        }
        if let Some(next) = next {
            self.look_at(next, now, ctx);
        }
    }

    /// Looks again at `at`, or earlier.
    fn look_at(&mut self, at: SystemTime, now: SystemTime, ctx: &mut Context<Self>) {
        let after = at.duration_since(now).unwrap_or_default().min(LOOK_AGAIN);
        let at = now.checked_add(after).unwrap_or(now);
        match self.watch.look {
            Some((_, sooner)) if sooner <= at => return,
            Some((later, _)) => {
                ctx.cancel_future(later);
            }
            None => {}
        }
        let look = ctx.run_later(after, |this, ctx| {
            this.watch.look = None;
            this.look_at_windows(ctx);
        });
        self.watch.look = Some((look, at));
    }
}

/// When a plugin's windows are looked at next. Those of which no opening is known may have one by a clock that is
/// set: nobody else would look.
fn next_look(opening: Opening, now: SystemTime) -> Option<SystemTime> {
    match opening {
        Opening::Open { until } | Opening::Closed { until: until @ Some(_) } => until,
        Opening::Closed { until: None } => now.checked_add(LOOK_AGAIN),
    }
}

impl Handler<UseWindows> for ManagerActor {
    type Result = ();

    fn handle(&mut self, UseWindows(windows): UseWindows, ctx: &mut Self::Context) {
        self.watch.windows = windows;
        self.look_at_windows(ctx);
    }
}
