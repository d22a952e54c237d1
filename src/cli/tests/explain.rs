use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::local::{
    ExplainResponse, PluginMove, PluginTrouble, PluginWait, RuleResult, RuleVerdict, RulesDecision,
    RulesVerdict, TriggerPlan,
};

use super::*;

fn at(ago: i64) -> Option<prost_types::Timestamp> {
    time(ago)
}

/// Everything there is to explain.
fn explained() -> ExplainResponse {
    let rule = RuleVerdict {
        scope: "METADATA".to_owned(),
        attribute: "role".to_owned(),
        operator: "EQUAL".to_owned(),
        value: "\"web\"".to_owned(),
        found: Some("\"db\"".to_owned()),
        holds: "no".to_owned(),
        holds_value: RuleResult::No.into(),
        why: String::new(),
    };
    let undecided = RuleVerdict {
        scope: "INSTANCE".to_owned(),
        attribute: "zone".to_owned(),
        found: None,
        holds: "unknown".to_owned(),
        holds_value: RuleResult::Unknown.into(),
        why: "the metadata server\x1b has not answered".to_owned(),
        ..rule.clone()
    };
    let step = |ago, state: &str, why: &str| PluginMove {
        at: at(ago),
        state: state.to_owned(),
        why: why.to_owned(),
    };
    ExplainResponse {
        status: Some(PluginStatus {
            state: "STOPPED".to_owned(),
            state_value: StatusValue::Stopped.into(),
            kind: "one_shot".to_owned(),
            reason: "rule 1 (METADATA role EQUAL) does not hold".to_owned(),
            ..running("a")
        }),
        doing: "disabled by its rules 1".to_owned(),
        since: at(300),
        moves: vec![
            step(400, "executing 1", "trigger: startup"),
            step(300, "disabled by its rules 1", "process 7 exited with code 3"),
        ],
        waits: vec![PluginWait { what: "the stop".to_owned(), until: at(-20) }],
        trouble: Some(PluginTrouble {
            at: at(300),
            r#type: "PLUGIN_EXECUTION_FAILED".to_owned(),
            why: "exited with code 3".to_owned(),
        }),
        rules: Some(RulesVerdict {
            verdict: "disabled".to_owned(),
            verdict_value: RulesDecision::Disabled.into(),
            because: "rule 1 (METADATA role EQUAL) does not hold".to_owned(),
            match_policy: "all".to_owned(),
            on_match: "enabled".to_owned(),
            on_default: "disabled".to_owned(),
            rules: vec![rule, undecided],
        }),
        triggers: vec![TriggerPlan {
            trigger: "interval of 600s".to_owned(),
            last: "tick 7 of the instance: used".to_owned(),
            next: at(-300),
        }],
        last_output: "one\x1b[31m line\nanother".to_owned(),
        ..ExplainResponse::default()
    }
}

fn agent() -> FakeAgent {
    FakeAgent::start(Script {
        status: vec![plugins([running("a")])],
        explain: Some(explained()),
        ..Script::default()
    })
}

#[test]
fn an_explanation_is_told_to_people() {
    let ran = ran_on(&agent(), &["explain", "a"]);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    assert!(!ran.out.contains('\x1b'));
    assert_snapshot!(ran.out);
}

#[test]
fn an_explanation_is_told_to_scripts() {
    let ran = ran_on(&agent(), &["explain", "a", "--json"]);
    assert_snapshot!(ran.out);
}

#[test]
fn a_plugin_that_is_not_there_cannot_be_explained() {
    let ran = ran_on(&agent(), &["explain", "b"]);
    assert_eq!(ran.exit, Exit::Failed);
}
