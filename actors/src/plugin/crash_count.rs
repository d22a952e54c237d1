//! Counts the crashes of a plugin by how its process ended, for the metrics.
//!
//! Neither the events nor the number of restarts in the state will do: of very many crashes not each
//! has an event, and one while on probation is no restart of the revision that comes back.

use super::PluginActor;
use super::event::{Boot, Effect, Event, Found, Transition};
use super::state::{Phase, Then};
use crate::model::event::PluginEventKind;
use crate::model::exit::ExitCause;
use crate::ports::Count;

impl PluginActor {
    /// Counts the crash, if what the present state makes of the event is one.
    pub(super) fn count_crash(&self, event: &Event, transition: &Transition) {
        if self.is_crash(event, transition) {
            let cause = transition.next.last_exit.unwrap_or(ExitCause::Unknown);
            let plugin = self.state.name.clone();
            self.ports.counters.note(Count::Crashed { plugin, cause });
        }
    }

    fn is_crash(&self, event: &Event, Transition { next, effects }: &Transition) -> bool {
        // What a reboot of the machine ended did not crash.
        if matches!(event, Event::Recovered(Found { boot: Boot::New, .. })) {
            return false;
        }
        let announces = |kind| {
            let is_it =
                |effect: &Effect| matches!(effect, Effect::Announce(told) if told.kind == kind);
            effects.iter().any(is_it)
        };
        // One that could not begin, or that an order stopped, is not among them.
        let was_run = matches!(
            self.state.phase,
            Phase::Executing { .. } | Phase::Stopping { then: Then::Fail { .. }, .. }
        );
        next.restarts.total > self.state.restarts.total
            || announces(PluginEventKind::Crashed)
            || was_run && announces(PluginEventKind::ExecutionFailed)
    }
}
