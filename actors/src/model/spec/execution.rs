//! When a plugin runs: all the time or by triggers, on every machine or where rules say so.
//!
//! `wire` makes these from an `ExecutionModel` and checks every field. What rules mean is in
//! `scheduler/rules.rs`, what triggers do to a plugin in `plugin/runs.rs`.

use std::sync::Arc;
use std::time::Duration;

use crate::model::facts::{Scope, Value};

/// How long a one-shot plugin may run where its order does not say.
pub const EXECUTION_TIMEOUT: Duration = Duration::from_secs(3600);

/// The execution model of one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Execution {
    /// All the time, or by triggers.
    pub kind: Kind,
    /// On which machines.
    pub rules: Arc<Rules>,
    /// Whether the agent counts as ready only with it.
    pub boot: Boot,
}

/// How a plugin runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// All the time.
    #[default]
    Daemon,
    /// To completion, when it is triggered.
    OneShot(OneShot),
}

/// How a one-shot plugin runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OneShot {
    /// What makes it run, beside its installation.
    pub triggers: Triggers,
    /// Longest that one run may take.
    pub timeout: Duration,
}

/// What makes a one-shot plugin run again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Triggers {
    /// Every boot of the machine.
    pub startup: bool,
    /// The first boot of an instance.
    pub firstboot: bool,
    /// Every so often, counted from the start of the instance.
    pub interval: Option<Duration>,
}

/// Whether a plugin is needed for the machine to count as started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Boot {
    /// No.
    #[default]
    Ordinary,
    /// Yes: it is started first, and readiness waits for it.
    Critical,
}

/// Whether a plugin may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Enablement {
    /// It runs.
    #[default]
    Enabled,
    /// It is installed, and does not run.
    Disabled,
}

/// Conditions on the machine. Without any, `on_default` holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rules {
    /// What holds where the rules do not match.
    pub on_default: Enablement,
    /// What holds where they do.
    pub on_match: Enablement,
    /// How many of them have to hold for a match.
    pub policy: MatchPolicy,
    /// The conditions.
    pub all: Vec<Rule>,
}

/// How many rules have to hold for a match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MatchPolicy {
    /// Every one.
    #[default]
    All,
    /// One.
    Any,
}

/// One condition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Where the attribute is looked up.
    pub scope: Scope,
    /// Its name.
    pub attribute: Arc<str>,
    /// How it is compared.
    pub operator: Operator,
    /// With what.
    pub value: Value,
}

/// How a rule compares what it finds with its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Operator {
    /// They are the same.
    #[default]
    Equal,
    /// They are not.
    NotEqual,
    /// The value is a part of what is found: of a text, a list, or the keys of a struct.
    Contains,
}

// === impl Execution ===

impl Execution {
    /// How it runs to completion, if that is what it does.
    #[must_use]
    pub const fn one_shot(&self) -> Option<&OneShot> {
        match &self.kind {
            Kind::Daemon => None,
            Kind::OneShot(one_shot) => Some(one_shot),
        }
    }

    /// Longest that one run may take.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.one_shot().map_or(EXECUTION_TIMEOUT, |one_shot| one_shot.timeout)
    }
}

// === impl OneShot ===

impl Default for OneShot {
    fn default() -> Self {
        Self { triggers: Triggers::default(), timeout: EXECUTION_TIMEOUT }
    }
}

// === impl Rules ===

impl Rules {
    /// Whether what is known of the machine can make any difference.
    #[must_use]
    pub fn depend_on_facts(&self) -> bool {
        !self.all.is_empty() && self.on_default != self.on_match
    }
}

// === impl Operator ===

impl Operator {
    /// The wire's name of it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Equal => "EQUAL",
            Self::NotEqual => "NOT_EQUAL",
            Self::Contains => "CONTAINS",
        }
    }
}
