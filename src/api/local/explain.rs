//! An explanation as the local API shows it. Nothing is decided here.

use std::path::Path;

use guest_agent_actors::messages::{Explained, Listed, Planned, TriggerKind};
use guest_agent_actors::model::spec::{Enablement, MatchPolicy, PluginSpec, Rule, Rules, Source};
use guest_agent_actors::plugin::explain::{Explanation, Weighing};
use guest_agent_actors::scheduler::rules::{RuleVerdict, Weighed};
use guest_agent_proto::local;

use super::{show, values};
use crate::display::masked;
use crate::display::values::Named;
use crate::install::signer::signer;
use crate::process::launch::once::text_of;

/// Longest value that is shown.
const VALUE_MAX: usize = 200;

/// Why a plugin is in the state it is in.
pub(super) fn explanation(
    explained: Explained,
    plan: Vec<Planned>,
    (plugins_dir, with_config): (&Path, bool),
) -> local::ExplainResponse {
    let Explained { explanation, newest, refusal } = explained;
    let Explanation { view, doing, since, moves, waits, trouble, rules } = explanation;
    let last_output = view.last_output.to_string();
    let rules = rules.map(|weighing| verdict(weighing, &view.spec.execution.rules));
    let order = order(&view.spec, plugins_dir, with_config);
    let listed = Listed { view: view.into(), points: Vec::new(), sampled: 0, newest, refusal };
    local::ExplainResponse {
        status: Some(show::plugin(&listed, plugins_dir, 0)),
        doing,
        since: since.map(Into::into),
        moves: moves
            .into_iter()
            .map(|step| local::PluginMove {
                at: Some(step.at.into()),
                state: step.state.to_string(),
                why: step.why.to_string(),
            })
            .collect(),
        waits: waits
            .into_iter()
            .map(|wait| local::PluginWait {
                what: wait.what.to_owned(),
                until: Some(wait.until.into()),
            })
            .collect(),
        trouble: trouble.map(|trouble| local::PluginTrouble {
            at: Some(trouble.at.into()),
            r#type: trouble.kind.to_string(),
            why: trouble.why.to_string(),
        }),
        rules,
        triggers: plan.into_iter().map(trigger).collect(),
        last_output,
        order: Some(order),
    }
}

fn order(spec: &PluginSpec, plugins_dir: &Path, with_config: bool) -> local::PluginOrder {
    let source = match &spec.source {
        Source::Archive(artifact) => artifact.url.to_string(),
        Source::Local(files) => files.folder.to_string(),
    };
    let config = spec.config.as_ref().filter(|_| with_config);
    local::PluginOrder {
        source,
        signed_by: signer(plugins_dir, &spec.name, &spec.revision).unwrap_or_default(),
        config: config
            .map(|config| masked(&text_of(config).map(|(_, text)| text).unwrap_or_default())),
        entry_point: spec.entry_point.as_str().to_owned(),
        arguments: spec.arguments.clone(),
        sha256: spec.source.sha256().to_string(),
        memory_limit_bytes: spec.limits.memory_bytes,
        cpu_limit_percent: spec.limits.cpu_percent,
    }
}

fn verdict(weighing: Weighing, rules: &Rules) -> local::RulesVerdict {
    let decision = values::decision(&weighing.verdict);
    let because = match weighing.verdict {
        RuleVerdict::Enabled { because } | RuleVerdict::Disabled { because } => because,
        RuleVerdict::Unknown { why } => why,
    };
    local::RulesVerdict {
        verdict: decision.name().to_owned(),
        verdict_value: decision.into(),
        because: because.to_string(),
        match_policy: match rules.policy {
            MatchPolicy::All => "all",
            MatchPolicy::Any => "any",
        }
        .to_owned(),
        on_match: word(rules.on_match),
        on_default: word(rules.on_default),
        rules: weighing
            .rules
            .into_iter()
            .map(|(rule, weighed)| rule_verdict(&rule, weighed))
            .collect(),
    }
}

fn rule_verdict(rule: &Rule, weighed: Weighed) -> local::RuleVerdict {
    let holds = values::holds(&weighed);
    let (found, why) = match weighed {
        Weighed::Decided { holds: _, found } => (found, String::new()),
        Weighed::Undecided { why } => (None, why.to_string()),
    };
    local::RuleVerdict {
        scope: rule.scope.as_str().to_owned(),
        attribute: rule.attribute.to_string(),
        operator: rule.operator.as_str().to_owned(),
        value: shortened(&rule.value.to_string()),
        found: found.map(|found| shortened(&found.to_string())),
        holds: holds.name().to_owned(),
        why,
        holds_value: holds.into(),
    }
}

fn trigger(planned: Planned) -> local::TriggerPlan {
    let trigger = match planned.kind {
        TriggerKind::Startup => "startup".to_owned(),
        TriggerKind::FirstBoot => "firstboot".to_owned(),
        TriggerKind::Interval(every) => format!("interval of {}s", every.as_secs_f64()),
    };
    local::TriggerPlan { trigger, last: planned.last, next: planned.next.map(Into::into) }
}

fn word(enablement: Enablement) -> String {
    match enablement {
        Enablement::Enabled => "enabled",
        Enablement::Disabled => "disabled",
    }
    .to_owned()
}

fn shortened(value: &str) -> String {
    let short: String = value.chars().take(VALUE_MAX).collect();
    if short.len() < value.len() { short + "…" } else { short }
}
