//! Why a plugin is in the state it is in, in sentences.

use guest_agent_proto::local::{
    ExitKind, ExplainResponse, PluginWait, RuleResult, RuleVerdict, RulesDecision, RulesVerdict,
    TriggerPlan,
};
use jiff::Timestamp;

use super::{Tone, age, not_enforced, one_line, outside_window, ran_for, timestamp, values};

/// One reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sentence {
    /// What it begins with, to be marked; empty for most.
    pub(crate) label: &'static str,
    /// What the label means.
    pub(crate) tone: Tone,
    /// The sentence, or what comes after the label.
    pub(crate) text: String,
}

/// The activity of the plugin, and for how long.
pub(crate) fn doing(answer: &ExplainResponse, now: Timestamp) -> String {
    let since = timestamp(answer.since.as_ref()).map(|since| format!(" for {}", age(since, now)));
    format!("{}{}", one_line(&answer.doing), since.unwrap_or_default())
}

/// The reasons for its state and its waits, the most important first.
pub(crate) fn reasons(answer: &ExplainResponse, now: Timestamp) -> Vec<Sentence> {
    let mut all = Vec::new();
    let mut say = |text: String| all.push(Sentence { label: "", tone: Tone::Plain, text });
    let status = answer.status.as_ref();
    if let Some(reason) = status.map(|status| &status.reason).filter(|it| !it.is_empty()) {
        say(format!("because {}", one_line(reason)));
    }
    if let Some(outside) = status.and_then(|status| status.outside_window.as_ref()) {
        say(format!("outside of its maintenance windows: {}", outside_window(outside, now)));
    }
    let progress = status.and_then(|status| status.progress.as_ref());
    if let Some(progress) = progress.filter(|it| !it.held_up.is_empty()) {
        say(format!("held up: {}", one_line(&progress.held_up)));
    }
    for wait in &answer.waits {
        say(format!("waits for {}", wait_line(wait, now)));
    }
    if let Some(why) = status.and_then(ran_for) {
        say(format!("its last run was for {}", one_line(&why)));
    }
    if let Some(exit) = status.and_then(|status| status.last_exit.as_ref()) {
        let how = match (exit.code, exit.signal) {
            (Some(code), _) => format!("exited with code {code}"),
            (None, Some(signal)) => format!("was ended by signal {signal}"),
            (None, None) => match values::exit_kind(exit) {
                ExitKind::OutOfMemory if exit.detail.is_empty() => {
                    "was ended because memory ran out".to_owned()
                }
                ExitKind::OutOfMemory => format!("was {}", one_line(&exit.detail)),
                ExitKind::Exited
                | ExitKind::Signaled
                | ExitKind::Unknown
                | ExitKind::Unspecified => "ended, with an unknown cause".to_owned(),
            },
        };
        say(format!("its last process {how}{}", ago(exit.at.as_ref(), now)));
    }
    if let Some(trouble) = &answer.trouble {
        let when = ago(trouble.at.as_ref(), now);
        let (kind, why) = (one_line(&trouble.r#type), one_line(&trouble.why));
        say(format!("last failure{when}: {kind}: {why}"));
    }
    let shortfalls = status.map(|status| status.not_enforced.as_slice()).unwrap_or_default();
    all.extend(shortfalls.iter().map(|shortfall| Sentence {
        label: "not enforced",
        tone: Tone::Bad,
        text: one_line(&not_enforced(shortfall)),
    }));
    all
}

/// A wait, and how long it lasts at most.
pub(crate) fn wait_line(wait: &PluginWait, now: Timestamp) -> String {
    let until = timestamp(wait.until.as_ref()).map(|until| age(now, until));
    let until = until.unwrap_or_else(|| "an unknown time".to_owned());
    format!("{}, {until} at most", one_line(&wait.what))
}

/// The verdict of all rules with its reason, and the policy that combined them.
pub(crate) fn rules_heads(rules: &RulesVerdict) -> (Sentence, String) {
    let (label, tone) = match values::decision(rules) {
        RulesDecision::Enabled => ("enabled", Tone::Good),
        RulesDecision::Disabled => ("disabled", Tone::Bad),
        RulesDecision::Unknown | RulesDecision::Unspecified => ("not decided", Tone::Busy),
    };
    let policy = format!(
        "{} if {} of them hold, else {}",
        one_line(&rules.on_match),
        one_line(&rules.match_policy),
        one_line(&rules.on_default)
    );
    (Sentence { label, tone, text: one_line(&rules.because) }, policy)
}

/// The result of one rule.
pub(crate) fn rule_line(rule: &RuleVerdict) -> String {
    let holds = values::holds(rule);
    let found = match &rule.found {
        Some(found) => format!("found {}", one_line(found)),
        None if holds == RuleResult::Unknown => one_line(&rule.why),
        None => "found nothing".to_owned(),
    };
    let mark = match holds {
        RuleResult::Yes => "holds",
        RuleResult::No => "does not hold",
        RuleResult::Unknown | RuleResult::Unspecified => "cannot be decided",
    };
    let (scope, attribute) = (one_line(&rule.scope), one_line(&rule.attribute));
    let (operator, value) = (one_line(&rule.operator), one_line(&rule.value));
    format!("{scope} {attribute} {operator} {value}: {mark}, {found}")
}

/// The last result of one trigger, and when it fires next.
pub(crate) fn trigger_line(plan: &TriggerPlan, now: Timestamp) -> String {
    let next = timestamp(plan.next.as_ref()).map(|next| format!(", next in {}", age(now, next)));
    let (trigger, last) = (one_line(&plan.trigger), one_line(&plan.last));
    format!("{trigger}: {last}{}", next.unwrap_or_default())
}

fn ago(at: Option<&prost_types::Timestamp>, now: Timestamp) -> String {
    timestamp(at).map(|at| format!(" {} ago", age(at, now))).unwrap_or_default()
}
