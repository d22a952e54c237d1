//! What a person on the machine asks of one plugin, or of all.

use std::sync::Arc;
use std::time::SystemTime;

use crate::model::id::RevisionId;
use crate::model::spec::{Config, Limits, PluginSpec};

/// Longest text of who asks for something and why, in bytes.
pub const BY_MAX: usize = 512;

/// What the details of the event of an order begin with when the order waits.
pub const HELD: &str = "held: ";

/// What a person asks of a plugin, besides a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// It is to stay stopped; who wants that, and why.
    Stop(Arc<str>),
    /// A stop ends.
    Start,
    /// The revision before is to run again; who wants that, and why.
    Rollback(Arc<str>),
    /// Orders wait from now on.
    Hold(Hold),
    /// A hold ends, and the revision that was rolled back may be ordered again.
    Release,
    /// The failure of a revision counts no more.
    Dismiss {
        /// Who wants that, and why.
        by: Arc<str>,
        /// The revision that failed.
        revision: RevisionId,
    },
    /// These limits count over the limits of orders; `None`: those of orders count again.
    Limit(Option<LimitOverride>),
}

/// What people keep a plugin at, until they take it back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Person {
    /// Who stopped it, and why.
    pub stopped: Option<Arc<str>>,
    /// The revision that was rolled back.
    pub left: Option<Left>,
    /// Limits over the limits of orders.
    pub limits: Option<LimitOverride>,
    /// Set while orders wait.
    pub hold: Option<Hold>,
    /// The order that waits for the end of the hold. Only beside `hold`.
    pub held_order: Option<HeldOrder>,
}

/// A revision that a person rolled back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Left {
    /// The revision.
    pub revision: RevisionId,
    /// Who rolled it back, and why.
    pub by: Arc<str>,
}

/// Limits that a person gives a plugin. They count over orders and revisions, until a person takes them
/// back or the plugin is removed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LimitOverride {
    /// The limits; `None` is the limit of the order.
    pub limits: Limits,
    /// Who wants that, and why.
    pub by: Arc<str>,
    /// Since when.
    pub since: SystemTime,
}

/// A person keeps a plugin as it is: orders wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    /// Who wants that, and why.
    pub by: Arc<str>,
    /// Since when.
    pub since: SystemTime,
    /// When it ends by itself; `None`: when a person releases it.
    pub until: Option<SystemTime>,
}

/// An order that waits for the end of a hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HeldOrder {
    /// This revision is to run.
    Install(Arc<PluginSpec>),
    /// Nothing of the plugin is to be left.
    Remove {
        /// The revision that it was announced for.
        of: RevisionId,
    },
    /// The plugin is to have this configuration; `None` clears it.
    Apply {
        /// The configuration.
        config: Option<Config>,
        /// The revision that it was announced for.
        of: RevisionId,
    },
}

/// Why a plugin that `by` stopped does not run.
#[must_use]
pub fn stopped_by(by: &str) -> Arc<str> {
    format!("stopped by {by}").into()
}

// === impl Act ===

impl Act {
    /// The hold that is in force once this is asked of all plugins: `Some(None)` for none; `None` where
    /// it leaves holds as they are.
    #[must_use]
    pub const fn hold_after(&self) -> Option<Option<&Hold>> {
        match self {
            Self::Hold(hold) => Some(Some(hold)),
            Self::Release => Some(None),
            Self::Stop(_)
            | Self::Start
            | Self::Rollback(_)
            | Self::Dismiss { .. }
            | Self::Limit(_) => None,
        }
    }
}

// === impl Hold ===

impl Hold {
    /// Why an order waits, as its events and the control plane's lists have it: begins with [`HELD`],
    /// which is what readers look for.
    #[must_use]
    pub fn reason(&self) -> Arc<str> {
        format!("{HELD}{}", self.by).into()
    }

    /// Whether it has not ended by itself.
    #[must_use]
    pub fn lasts_at(&self, now: SystemTime) -> bool {
        self.until.is_none_or(|until| until > now)
    }
}

// === impl HeldOrder ===

impl HeldOrder {
    /// The order in words.
    #[must_use]
    pub fn in_words(&self) -> String {
        match self {
            Self::Install(spec) => format!("an INSTALL of revision {}", spec.revision),
            Self::Remove { .. } => "a REMOVE".to_owned(),
            Self::Apply { .. } => "an APPLY".to_owned(),
        }
    }
}
