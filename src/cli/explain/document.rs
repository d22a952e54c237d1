//! What `explain` prints for scripts. Field names never change.

use guest_agent_proto::agent_controlplane::PluginType;
use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::local::{
    self, ExitKind, ExplainResponse, PluginStatus, RuleResult, RulesDecision, VerdictLevel,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::super::format::rfc3339;
use super::super::json::{NameOf, NotEnforced, Time, present};
use crate::display;
use crate::display::values::Named;

/// Why a plugin is in the state it is in.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Explanation<'a> {
    /// What the agent does with it now, in words.
    doing: &'a str,
    /// Why an installation waits, in words.
    held_up: Option<&'a str>,
    /// The command that helps.
    help: Option<&'a str>,
    /// Whether it runs until it is stopped.
    #[schemars(with = "NameOf<PluginType>")]
    kind: &'a str,
    /// How its last process ended.
    last_exit: Option<LastExit<'a>>,
    /// What its last run wrote; empty where nothing did, and for who may not see it.
    last_output: &'a str,
    /// Its last states, the oldest first.
    moves: Vec<Move<'a>>,
    /// Its name.
    name: &'a str,
    /// Restrictions that this machine does not enforce.
    not_enforced: Vec<NotEnforced<'a>>,
    /// Why it is in this state; empty where the state explains itself.
    reason: &'a str,
    /// How often it was started again since it was installed.
    restarts: u32,
    /// The revision that runs; empty where none does.
    revision: &'a str,
    /// What its rules say; null without rules.
    rules: Option<Rules<'a>>,
    /// Since when it does that.
    #[schemars(with = "Option<Time>")]
    since: Option<String>,
    /// Its state.
    #[schemars(with = "NameOf<StatusValue>")]
    state: &'a str,
    /// Why the last run of a one-shot plugin began.
    trigger: Option<&'a str>,
    /// What starts it next, of a plugin that runs at times.
    triggers: Vec<Trigger<'a>>,
    /// The last thing that went wrong.
    trouble: Option<Trouble<'a>>,
    /// How much attention it needs; null from an agent that does not judge.
    #[schemars(with = "Option<NameOf<VerdictLevel>>")]
    verdict: Option<&'static str>,
    /// Why, as a sentence.
    verdict_reason: Option<&'a str>,
    /// Since when.
    #[schemars(with = "Option<Time>")]
    verdict_since: Option<String>,
    /// What the agent waits for.
    waits: Vec<Wait<'a>>,
}

/// How a process ended.
#[derive(Debug, Serialize, JsonSchema)]
struct LastExit<'a> {
    /// When it ended.
    #[schemars(with = "Option<Time>")]
    at: Option<String>,
    /// The exit code, of a process that exited.
    code: Option<i32>,
    /// How it ended, in words.
    detail: &'a str,
    /// How it ended.
    #[schemars(with = "NameOf<ExitKind>")]
    kind: &'a str,
    /// The most memory that the plugin had, in bytes, where memory ended it; null where that is not known.
    memory_peak_bytes: Option<u64>,
    /// The memory limit that the agent proposes, in bytes, where the limit ended it.
    proposed_memory_bytes: Option<u64>,
    /// The number of the signal, of a process that a signal ended.
    signal: Option<i32>,
}

/// A change of the state.
#[derive(Debug, Serialize, JsonSchema)]
struct Move<'a> {
    /// When it was.
    #[schemars(with = "Option<Time>")]
    at: Option<String>,
    /// The new state, in words.
    state: &'a str,
    /// What caused it, in words.
    why: &'a str,
}

/// Something that the agent waits for.
#[derive(Debug, Serialize, JsonSchema)]
struct Wait<'a> {
    /// Until when.
    #[schemars(with = "Option<Time>")]
    until: Option<String>,
    /// For what.
    what: &'a str,
}

/// What starts a plugin that runs at times.
#[derive(Debug, Serialize, JsonSchema)]
struct Trigger<'a> {
    /// What became of the last run, in words; empty before the first.
    last: &'a str,
    /// When it comes next; null where that is not known.
    #[schemars(with = "Option<Time>")]
    next: Option<String>,
    /// startup, firstboot or an interval.
    trigger: &'a str,
}

/// Something that went wrong.
#[derive(Debug, Serialize, JsonSchema)]
struct Trouble<'a> {
    /// When it was.
    #[schemars(with = "Option<Time>")]
    at: Option<String>,
    /// The type of the event that reported it, or what failed.
    #[serde(rename = "type")]
    kind: &'a str,
    /// Why it was.
    why: &'a str,
}

/// What the rules of a plugin say.
#[derive(Debug, Serialize, JsonSchema)]
struct Rules<'a> {
    /// The reason of the verdict.
    because: &'a str,
    /// Whether all rules have to hold, or any.
    match_policy: &'a str,
    /// What a plugin is whose rules do not hold.
    on_default: &'a str,
    /// What a plugin is whose rules hold.
    on_match: &'a str,
    /// Each rule.
    rules: Vec<Rule<'a>>,
    /// Whether the plugin may run.
    #[schemars(with = "NameOf<RulesDecision>")]
    verdict: &'a str,
}

/// One rule, and what it found.
#[derive(Debug, Serialize, JsonSchema)]
struct Rule<'a> {
    /// The attribute that it looks at.
    attribute: &'a str,
    /// The value of the attribute; null where it has none.
    found: Option<&'a str>,
    /// Whether the rule holds.
    #[schemars(with = "NameOf<RuleResult>")]
    holds: &'a str,
    /// How the values are compared.
    operator: &'a str,
    /// Where the attribute is looked up.
    scope: &'a str,
    /// The value that it is compared with.
    value: &'a str,
    /// Why it is not known whether the rule holds; empty where it is.
    why: &'a str,
}

// === impl Explanation ===

impl<'a> Explanation<'a> {
    pub(super) fn of(name: &'a str, answer: &'a ExplainResponse) -> Self {
        static NOTHING: std::sync::OnceLock<PluginStatus> = std::sync::OnceLock::new();
        let status =
            answer.status.as_ref().unwrap_or_else(|| NOTHING.get_or_init(PluginStatus::default));
        let progress = status.progress.as_ref();
        let verdict = status.verdict.as_ref();
        Self {
            doing: &answer.doing,
            held_up: progress.and_then(|progress| present(&progress.held_up)),
            help: verdict.and_then(|verdict| present(&verdict.help)),
            kind: &status.kind,
            last_exit: status.last_exit.as_ref().map(LastExit::from),
            last_output: &answer.last_output,
            moves: answer.moves.iter().map(Move::from).collect(),
            name,
            not_enforced: status.not_enforced.iter().map(NotEnforced::from).collect(),
            reason: &status.reason,
            restarts: status.restarts,
            revision: &status.revision,
            rules: answer.rules.as_ref().map(Rules::from),
            since: rfc3339(answer.since.as_ref()),
            state: &status.state,
            trigger: present(&status.trigger),
            triggers: answer.triggers.iter().map(Trigger::from).collect(),
            trouble: answer.trouble.as_ref().map(Trouble::from),
            verdict: Some(display::level(status).name()).filter(|level| !level.is_empty()),
            verdict_reason: verdict.map(|verdict| &*verdict.reason),
            verdict_since: rfc3339(verdict.and_then(|verdict| verdict.since.as_ref())),
            waits: answer.waits.iter().map(Wait::from).collect(),
        }
    }
}

impl<'a> From<&'a local::LastExit> for LastExit<'a> {
    fn from(exit: &'a local::LastExit) -> Self {
        Self {
            at: rfc3339(exit.at.as_ref()),
            code: exit.code,
            detail: &exit.detail,
            kind: &exit.kind,
            memory_peak_bytes: exit.memory_peak_bytes,
            proposed_memory_bytes: exit.proposed_memory_bytes,
            signal: exit.signal,
        }
    }
}

impl<'a> From<&'a local::PluginMove> for Move<'a> {
    fn from(step: &'a local::PluginMove) -> Self {
        Self { at: rfc3339(step.at.as_ref()), state: &step.state, why: &step.why }
    }
}

impl<'a> From<&'a local::PluginWait> for Wait<'a> {
    fn from(wait: &'a local::PluginWait) -> Self {
        Self { until: rfc3339(wait.until.as_ref()), what: &wait.what }
    }
}

impl<'a> From<&'a local::TriggerPlan> for Trigger<'a> {
    fn from(plan: &'a local::TriggerPlan) -> Self {
        Self { last: &plan.last, next: rfc3339(plan.next.as_ref()), trigger: &plan.trigger }
    }
}

impl<'a> From<&'a local::PluginTrouble> for Trouble<'a> {
    fn from(trouble: &'a local::PluginTrouble) -> Self {
        Self { at: rfc3339(trouble.at.as_ref()), kind: &trouble.r#type, why: &trouble.why }
    }
}

// === impl Rules ===

impl<'a> From<&'a local::RulesVerdict> for Rules<'a> {
    fn from(rules: &'a local::RulesVerdict) -> Self {
        Self {
            because: &rules.because,
            match_policy: &rules.match_policy,
            on_default: &rules.on_default,
            on_match: &rules.on_match,
            rules: rules.rules.iter().map(Rule::from).collect(),
            verdict: &rules.verdict,
        }
    }
}

impl<'a> From<&'a local::RuleVerdict> for Rule<'a> {
    fn from(rule: &'a local::RuleVerdict) -> Self {
        Self {
            attribute: &rule.attribute,
            found: rule.found.as_deref(),
            holds: &rule.holds,
            operator: &rule.operator,
            scope: &rule.scope,
            value: &rule.value,
            why: &rule.why,
        }
    }
}
