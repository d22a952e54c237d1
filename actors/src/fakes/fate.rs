//! Decides the behaviour of fakes without a script, and receives the events of their world.
//!
//! A test that derives a whole run from one number puts a [`Fate`] behind all fakes
//! ([`super::World::set_fate`]). Fakes ask it in the order of the calls that they receive, so a
//! fate that always answers alike makes runs alike.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::fakes::answers::{Answer, Delivery, Reply};
use crate::model::exit::ExitCause;
use crate::model::id::{Endpoint, Process};
use crate::model::spec::{Config, Limits, PluginSpec};
use crate::ports::{Durability, OutboundMessage, Receipt, Write};

/// Decides the behaviour of fakes without a script. By default, everything succeeds.
pub trait Fate: Send + Sync {
    /// The outcome of an operation: `download`, `unpack`, `activate`, `discard`, `remove` of the
    /// installer, `spawn` (a launch that has a process and has not reported it yet), `launch`,
    /// `launch revision`, `stop`, `find` of the launcher, `sample` of the meter, `acknowledge` of
    /// the link.
    ///
    /// `name` is the plugin, for `unpack` and `launch revision` with a space and the revision
    /// behind it.
    fn answer(&self, what: &'static str, name: &str) -> Answer {
        let _nobody = (what, name);
        Answer::Succeed
    }

    /// The answer of a process to `health` or `apply`.
    fn reply(&self, what: &'static str, endpoint: &Endpoint, config: Option<&Config>) -> Reply {
        let _nobody = (what, endpoint, config);
        Reply::Good
    }

    /// The fate of a message to the control plane.
    fn delivery(&self, message: &OutboundMessage) -> Delivery {
        let _nobody = message;
        Delivery::Acknowledge
    }

    /// The outcome of a commit.
    fn commit(&self, writes: &[Write]) -> Committing {
        let _nobody = writes;
        Committing::Succeed
    }

    /// A fake reports that something happened to it.
    fn happened(&self, fact: Fact<'_>) {
        let _nobody = fact;
    }
}

/// The outcome of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committing {
    /// It is written.
    Succeed,
    /// It is written after this long.
    Late(Duration),
    /// There is no space.
    Fail,
    /// The agent dies: nothing of it was written.
    DieBefore,
    /// The agent dies: all of it was written, and the caller got no answer.
    DieAfter,
}

/// Something that happened in a world of fakes.
#[derive(Clone, Copy, Debug)]
pub enum Fact<'a> {
    /// A revision is on the disk.
    Installed(&'a PluginSpec),
    /// A revision of a plugin was taken from the disk; without one, everything of it.
    Deleted(&'a str, Option<&'a str>),
    /// A process came to be.
    Spawned(&'a PluginSpec, &'a Process),
    /// A process answered Start.
    Started(&'a PluginSpec, &'a Process),
    /// A launch failed.
    LaunchFailed(&'a PluginSpec),
    /// A process of a plugin ended; asked to by the agent or not.
    Ended(&'a str, &'a Process, ExitCause, Asked),
    /// The limits of a process that runs were set.
    Limited(&'a str, &'a Process, Limits),
    /// A process took a configuration.
    Applied(&'a Endpoint, Option<&'a Config>),
    /// A commit was carried out.
    Committed(&'a [Write], Durability),
    /// A message arrived at the control plane.
    Heard(&'a OutboundMessage),
    /// The agent knows that a message arrived.
    Confirmed(&'a OutboundMessage),
    /// The agent acknowledged a message, and the control plane knows.
    Acknowledged(&'a Receipt),
}

/// Whether the agent ordered the end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Yes.
    Yes,
    /// No.
    No,
}

/// The place where a fake keeps its fate.
#[derive(Clone, Default)]
pub(crate) struct Decider(Arc<Mutex<Option<Arc<dyn Fate>>>>);

// === impl Decider ===

impl Decider {
    pub(crate) fn set(&self, fate: Arc<dyn Fate>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(fate);
    }

    /// The fate, if there is one.
    pub(crate) fn get(&self) -> Option<Arc<dyn Fate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn happened(&self, fact: Fact<'_>) {
        if let Some(fate) = self.get() {
            fate.happened(fact);
        }
    }
}
