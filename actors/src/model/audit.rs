//! What people asked of this agent, as the audit record keeps it. The control plane's orders are no
//! part of it, because events report them; but for those that came too late, which no event reports.

use std::sync::Arc;
use std::time::SystemTime;

use crate::model::id::Generation;
use crate::text::echoed;

/// Most entries that are kept; one more deletes the oldest.
pub const AUDIT_MAX: usize = 1000;

/// Longest text of who asked, in bytes.
pub const WHO_MAX: usize = 256;

/// Longest name of what was asked of, in bytes.
const TARGET_MAX: usize = 256;

/// Longest detail and longest reason of a refusal, in bytes.
pub const DETAIL_MAX: usize = 512;

/// What a person asked, and whether it was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// When, by the wall clock.
    pub at: SystemTime,
    /// Who asked: a user, or the name of a token.
    pub who: Arc<str>,
    /// The way that the request came.
    pub via: Via,
    /// What was asked.
    pub what: AuditAct,
    /// What it was asked of.
    pub target: Target,
    /// A reason, a revision or another word about it; may be empty.
    pub detail: Arc<str>,
    /// Whether it was accepted.
    pub verdict: AuditVerdict,
}

/// Somebody who asks for something on this machine, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asker {
    /// Who: a user, or the name of a token.
    pub who: Arc<str>,
    /// The way that the request came.
    pub via: Via,
    /// A reason or another word about it; may be empty.
    pub detail: Arc<str>,
}

/// The way that a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The agent's own socket.
    AgentSocket,
    /// HTTP, which is the web console.
    Http,
    /// The JSON command socket.
    CommandSocket,
    /// The stream of the control plane.
    ControlPlane,
}

/// What a person asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditAct {
    /// Install a revision.
    Install,
    /// Remove a plugin.
    Remove,
    /// Hand over a configuration.
    Apply,
    /// Start afresh.
    Restart,
    /// Stop for good.
    Stop,
    /// End a stop.
    Start,
    /// Return to the revision before.
    Rollback,
    /// Make orders wait.
    Hold,
    /// End a hold or a rollback.
    Release,
    /// Dismiss the failure of a revision.
    Dismiss,
    /// Give limits over the limits of orders, or take them back.
    Limit,
    /// Run a one-shot plugin now.
    Run,
    /// Send an event of the machine to the plugins.
    VmEvent,
    /// A message with orders, or the rest of one with many.
    Orders,
    /// Delete what nothing refers to.
    Sweep,
    /// Delete what is left of a plugin that the agent does not know.
    Forget,
    /// Forget the records in quarantine.
    ClearQuarantine,
}

/// What something was asked of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The plugin of this name, if there is one.
    Plugin(Arc<str>),
    /// All plugins.
    AllPlugins,
    /// The agent itself.
    Agent,
}

/// Whether a request was accepted. What became of it then is in the events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditVerdict {
    /// It was; with the number of the order that it became, if it became one.
    Accepted(Option<Generation>),
    /// It was refused, for this reason.
    Refused(Arc<str>),
}

// === impl AuditEntry ===

impl AuditEntry {
    /// An entry whose texts are cut to their bounds and have no control characters.
    #[must_use]
    pub fn new(
        at: SystemTime,
        asker: &Asker,
        what: AuditAct,
        target: Target,
        verdict: AuditVerdict,
    ) -> Self {
        let Asker { who, via, detail } = asker;
        let target = match target {
            Target::Plugin(name) => Target::Plugin(echoed(&name, TARGET_MAX).into()),
            other @ (Target::AllPlugins | Target::Agent) => other,
        };
        let verdict = match verdict {
            AuditVerdict::Refused(why) => AuditVerdict::Refused(echoed(&why, DETAIL_MAX).into()),
            accepted @ AuditVerdict::Accepted(_) => accepted,
        };
        let (who, detail) = (echoed(who, WHO_MAX).into(), echoed(detail, DETAIL_MAX).into());
        Self { at, who, via: *via, what, target, detail, verdict }
    }

    /// Whether it was asked of this plugin, or of all.
    #[must_use]
    pub fn concerns(&self, plugin: &str) -> bool {
        match &self.target {
            Target::Plugin(name) => **name == *plugin,
            Target::AllPlugins => true,
            Target::Agent => false,
        }
    }
}
