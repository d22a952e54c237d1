//! The operation that a plugin carries out: an order, or the restart after its process ended.
//!
//! Durable beside the state, so that a restarted agent continues with the same trace, and
//! never part of any decision. Begun and ended by `PluginActor::carry_out` alone.

use std::sync::Arc;

use tracing::Span;

use super::event::{PluginEvent, Whose};
use super::state::{Next, Phase, State};
use crate::model::event::EventClass;
use crate::model::id::{Generation, PluginName};
use crate::text::shortened;
use crate::trace::{Outcome, Trace};

/// Longest reason that is remembered, in bytes.
const WHY_MAX: usize = 512;

/// Longest name of a revision; those of this agent are shorter.
const REVISION_MAX: usize = 256;

/// An operation of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its trace.
    pub trace: Arc<Trace>,
    /// The order; `None` for a restart after a crash.
    pub order: Option<Generation>,
    /// The revision that it is about.
    pub revision: Arc<str>,
    /// A failure on the way that was not made good since.
    pub trouble: Option<Trouble>,
}

/// A failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The revision that failed.
    pub revision: Arc<str>,
    /// Why, shortened.
    pub why: Arc<str>,
}

/// The revision that an order which made this the next state is about.
#[must_use]
pub fn revision(next: &State) -> &str {
    match &next.next {
        Next::Preparing { spec, .. } | Next::Ready { spec } | Next::AfterRemoval { spec } => {
            spec.revision.as_str()
        }
        Next::Nothing | Next::Failed { .. } => next.spec.revision.as_str(),
    }
}

// === impl Operation ===

impl Operation {
    /// Begins something for this trace.
    #[must_use]
    pub fn new(trace: Arc<Trace>, order: Option<Generation>, revision: &str) -> Self {
        Self { trace, order, revision: shortened(revision, REVISION_MAX).into(), trouble: None }
    }

    /// The span around all that is done for it.
    #[must_use]
    pub fn span(&self, plugin: &PluginName) -> Span {
        match self.order {
            Some(order) => self.trace.order(plugin.as_str(), &self.revision, order),
            None => self.trace.restart(plugin.as_str(), &self.revision),
        }
    }

    /// Remembers the failure that an event reports while the operation is under way.
    pub(super) fn heard(&mut self, told: &PluginEvent) {
        match told.kind.class() {
            EventClass::Failed if told.whose == Whose::Superseded => {}
            EventClass::Failed => self.failed(told.revision.as_str(), &told.details),
            EventClass::Succeeded => {
                // A success of another revision makes nothing good for this one.
                let is_same = |trouble: &Trouble| *trouble.revision == *told.revision.as_str();
                self.trouble = self.trouble.take().filter(|trouble| !is_same(trouble));
            }
            EventClass::Requested
            | EventClass::Stopped
            | EventClass::Crashed
            | EventClass::Health => {}
        }
    }

    /// Something went wrong with this revision.
    pub(super) fn failed(&mut self, revision: &str, why: &str) {
        let revision = shortened(revision, REVISION_MAX).into();
        self.trouble = Some(Trouble { revision, why: shortened(why, WHY_MAX).into() });
    }

    /// The outcome, if the operation has ended, with the plugin in this state.
    #[must_use]
    pub fn outcome<'a>(&'a self, state: &'a State) -> Option<Outcome<'a>> {
        // An order that waits for the end of a hold is not over.
        if !state.is_settled() || state.person.held_order.is_some() {
            return None;
        }
        if let Some(trouble) = &self.trouble {
            return Some(Outcome::Failed(&trouble.why));
        }
        Some(match &state.phase {
            Phase::InstallFailed { reason } | Phase::Crashed { reason } => Outcome::Failed(reason),
            Phase::Running { .. }
            | Phase::Idle
            | Phase::Disabled { .. }
            | Phase::Gone
            | Phase::Installing { .. }
            | Phase::Starting { .. }
            | Phase::Pausing { .. }
            | Phase::Executing { .. }
            | Phase::BackingOff { .. }
            | Phase::Stopping { .. }
            | Phase::Stopped { .. }
            | Phase::Held
            | Phase::Removing { .. } => Outcome::Ok,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::model::event::PluginEventKind;

    #[test]
    fn an_order_does_not_fail_because_the_one_before_it_is_cancelled() {
        let trace = Arc::new(Trace::of_message("m-2", None, SystemTime::UNIX_EPOCH));
        let mut operation = Operation::new(trace, Some(Generation(2)), "2");
        let failed = |whose| PluginEvent {
            kind: PluginEventKind::InstallFailed,
            revision: "1".parse().expect("a revision"),
            details: "superseded by an order for revision 2".into(),
            whose,
        };
        operation.heard(&failed(Whose::Superseded));
        assert_eq!(operation.trouble, None);
        operation.heard(&failed(Whose::Newest));
        assert!(operation.trouble.is_some());
    }
}
