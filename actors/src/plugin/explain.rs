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
    /// Since when, where that is remembered.
    pub since: Option<SystemTime>,
    /// What happened to it lately, oldest first.
    pub moves: Vec<Move>,
    /// What it waits for, the nearest first.
    pub waits: Vec<Waiting>,
    /// What went wrong last.
    pub trouble: Option<Trouble>,
    /// What its rules say; `None` where there is nothing that they decide.
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

/// What the rules of a plugin say, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weighing {
    /// All together.
    pub verdict: RuleVerdict,
    /// One by one, with what each finds.
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
