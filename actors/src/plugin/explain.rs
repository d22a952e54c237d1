//! Why a plugin is in the state it is in, as `explain` shows it.
//!
//! Made by the plugin's actor for each question; nothing here decides anything.

use std::time::SystemTime;

use crate::model::facts::FactSet;
use crate::model::spec::{Rule, Rules};
use crate::model::view::PluginView;
use crate::plugin::transition_log::{Move, TransitionLog, Trouble};
use crate::scheduler::rules::{RuleVerdict, Weighed, evaluate, weigh};

/// Why a plugin is in the state it is in.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// What it looks like.
    pub view: PluginView,
    /// What it is doing, in words.
    pub doing: String,
    /// The time of the last change, where it is remembered.
    pub since: Option<SystemTime>,
    /// What happened to it lately, oldest first.
    pub moves: Vec<Move>,
    /// What it waits for, the nearest first.
    pub waits: Vec<Waiting>,
    /// The last failure.
    pub trouble: Option<Trouble>,
    /// The result of its rules; `None` where rules decide nothing.
    pub rules: Option<Weighing>,
}

/// Something that a plugin waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// What, in words.
    pub what: &'static str,
    /// Until when at most.
    pub until: SystemTime,
}

/// The result of a plugin's rules, and the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weighing {
    /// All together.
    pub verdict: RuleVerdict,
    /// Each rule, with the value that it finds.
    pub rules: Vec<(Rule, Weighed)>,
}

// === impl Explanation ===

impl Explanation {
    pub(super) fn new(
        view: PluginView,
        doing: String,
        story: &TransitionLog,
        mut waits: Vec<Waiting>,
        facts: &FactSet,
    ) -> Self {
        waits.sort_by_key(|wait| wait.until);
        let rules = &view.spec.execution.rules;
        Self {
            doing,
            since: story.moves.back().map(|step| step.at),
            moves: story.moves.iter().cloned().collect(),
            waits,
            trouble: story.trouble.clone(),
            rules: (**rules != Rules::default()).then(|| Weighing {
                verdict: evaluate(rules, facts),
                rules: rules.all.iter().map(|rule| (rule.clone(), weigh(rule, facts))).collect(),
            }),
            view,
        }
    }
}
