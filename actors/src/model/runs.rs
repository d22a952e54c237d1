//! The runs of a one-shot plugin so far, and the occurrences of its triggers. Pure.

use std::sync::Arc;

use crate::model::id::BootId;

/// What is known of the runs of a one-shot plugin. A daemon has the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Runs {
    /// The occurrences that it last ran for.
    pub marks: Marks,
    /// Runs that were started so far.
    pub total: u64,
    /// Whether a run was announced as started and has no outcome yet.
    pub unfinished: Due,
    /// The outcome of the last run.
    pub last: Outcome,
    /// Why the last run began, or the one begins that was decided on; `None` before the first.
    pub trigger: Option<Trigger>,
}

/// Why a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// A revision or a setting of it was ordered.
    Install,
    /// The machine booted.
    Startup,
    /// There is a new instance.
    FirstBoot,
    /// A beat of its interval began.
    Interval,
    /// Its rules began to allow it.
    Rule,
    /// A person asked for it.
    Person,
}

/// The occurrences that a one-shot plugin last ran for, trigger by trigger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Marks {
    /// The boot.
    pub startup: Mark<BootId>,
    /// The instance.
    pub firstboot: Mark<Arc<str>>,
    /// The beat of its interval, counted from the start of the instance.
    pub interval: Mark<u64>,
}

/// The occurrence of a trigger for which the plugin last ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mark<T> {
    /// Nothing yet: the next one makes it run.
    #[default]
    Never,
    /// A run that came with the installation counts for whichever is current; its name is learned
    /// from the trigger.
    Counted,
    /// This one.
    Of(T),
}

/// The outcome of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// There was none yet.
    #[default]
    None,
    /// It exited with code 0.
    Completed,
    /// Anything else.
    Failed {
        /// Why, in words.
        reason: Arc<str>,
    },
}

/// An occurrence of a trigger. A plugin runs for the triggers in its spec.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Firing {
    /// The machine booted.
    Startup(BootId),
    /// There is a new instance.
    FirstBoot(Arc<str>),
    /// A beat of the interval began.
    Interval(u64),
}

/// Whether a trigger makes a plugin run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heeded {
    Run,
    Counted,
}

/// Whether an outcome is owed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Due {
    /// No.
    #[default]
    No,
    /// Yes.
    Yes,
}

// === impl Due ===

impl Due {
    /// Whether this or the other is due.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        match self {
            Self::Yes => Self::Yes,
            Self::No => other,
        }
    }
}

// === impl Trigger ===

impl Trigger {
    /// Every trigger.
    pub const ALL: [Self; 6] =
        [Self::Install, Self::Startup, Self::FirstBoot, Self::Interval, Self::Rule, Self::Person];

    /// Its name, for plugins, documents and records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Install => "install",
            Self::Startup => "startup",
            Self::FirstBoot => "firstboot",
            Self::Interval => "interval",
            Self::Rule => "rule",
            Self::Person => "run",
        }
    }

    /// The trigger with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|trigger| trigger.name() == name)
    }
}

// === impl Firing ===

impl Firing {
    /// Why a run begins for which this is the reason.
    pub(crate) const fn trigger(&self) -> Trigger {
        match self {
            Self::Startup(_) => Trigger::Startup,
            Self::FirstBoot(_) => Trigger::FirstBoot,
            Self::Interval(_) => Trigger::Interval,
        }
    }
}

// === impl Marks ===

impl Marks {
    /// A run that comes with an installation counts for everything that is current.
    pub(crate) fn counted() -> Self {
        Self { startup: Mark::Counted, firstboot: Mark::Counted, interval: Mark::Counted }
    }
}

// === impl Mark ===

impl<T: PartialEq> Mark<T> {
    /// Heeds a trigger that runs once for each name.
    pub(crate) fn heed(&mut self, name: T) -> Heeded {
        let heeded = match self {
            Self::Of(of) if *of == name => Heeded::Counted,
            Self::Counted => Heeded::Counted,
            Self::Never | Self::Of(_) => Heeded::Run,
        };
        *self = Self::Of(name);
        heeded
    }
}

impl Mark<u64> {
    /// Takes the number of a beat. Counting begins at the first beat; a beat with a lower number
    /// means that the clock was set back, and counting begins anew.
    pub(crate) fn heed_beat(&mut self, beat: u64) -> Heeded {
        let heeded = match self {
            Self::Of(of) if beat > *of => Heeded::Run,
            Self::Never | Self::Counted | Self::Of(_) => Heeded::Counted,
        };
        *self = Self::Of(beat);
        heeded
    }
}
