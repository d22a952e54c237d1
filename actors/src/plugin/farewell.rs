//! What a plugin's actor does while its process gets the `shutdown` event of the machine.
//!
//! The VM-event actor makes the call. A plugin may exit as soon as it has answered, and its actor
//! may learn of the exit before it learns of the answer. So the actor learns first that the call is
//! about to be made, and an exit with code 0 is kept back until it is known how the call ended.

use actix::prelude::*;

use super::PluginActor;
use super::event::Event;
use super::state::{Phase, Shutdown};
use crate::messages::{Happened, ShutdownBegins};
use crate::model::exit::ExitCause;
use crate::model::id::PluginName;
use crate::model::vm_event::Notification;

// === impl PluginActor: the shutdown event ===

impl PluginActor {
    /// Keeps an exit with code 0 back while it is not known whether the process took the event.
    /// Gives back what is not kept.
    pub(super) fn keep_back(&mut self, event: Event) -> Option<Event> {
        let Event::Exited { process: exited, cause: ExitCause::Exited(0) } = &event else {
            return Some(event);
        };
        let is_running =
            matches!(&self.state.phase, Phase::Running { process, .. } if process == exited);
        let is_undecided =
            is_running && self.farewell.calls > 0 && self.state.shutdown == Shutdown::NotTaken;
        if !is_undecided {
            return Some(event);
        }
        self.farewell.exit = Some(event);
        None
    }
}

impl Handler<ShutdownBegins> for PluginActor {
    type Result = ();

    fn handle(&mut self, begins: ShutdownBegins, ctx: &mut Self::Context) {
        self.farewell.calls += 1;
        let taker = taker(self.state.name.clone(), begins);
        ctx.spawn(taker.into_actor(self).map(|pid, this, ctx| {
            this.farewell.calls = this.farewell.calls.saturating_sub(1);
            if let Phase::Running { process, .. } = &this.state.phase
                && pid == Some(process.pid)
            {
                let process = process.clone();
                this.step(Event::ShutdownTaken { process }, ctx);
            }
            // It is looked at again after what was begun above is saved.
            if let Some(exit) = this.farewell.exit.take() {
                ctx.notify(Happened(exit));
            }
        }));
    }
}

/// The pid of the process that answers the call with success, if one does. The plugin was not
/// called if the receiver closes without its answer.
async fn taker(name: PluginName, begins: ShutdownBegins) -> Option<u32> {
    let ShutdownBegins { answers, moved } = begins;
    loop {
        let next = moved.notified();
        tokio::pin!(next);
        // An answer while it is looked counts as well.
        next.as_mut().enable();
        if let Some(answer) = answers.borrow().get(&name) {
            return answer.pid.filter(|_| answer.outcome == Notification::Delivered);
        }
        if answers.has_changed().is_err() {
            return None;
        }
        next.await;
    }
}
