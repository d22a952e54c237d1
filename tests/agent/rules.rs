//! Plugins that run only where rules say so, on the machine the tests run on.

use std::net::Ipv4Addr;

use guest_agent_lab::metadata::MetadataServer;
use guest_agent_proto::agent_controlplane as pb;
use guest_agent_proto::agent_controlplane::execution_model as em;
use prost_types::value::Kind;

use crate::harness::{Bed, orders};

fn rule(scope: pb::rules::Scope, attribute: &str, value: &str) -> pb::Rules {
    pb::Rules {
        scope: scope.into(),
        attribute: attribute.to_owned(),
        comparison_operator: pb::rules::ComparisonOperator::Equal.into(),
        value: Some(prost_types::Value { kind: Some(Kind::StringValue(value.to_owned())) }),
    }
}

/// Runs where all of these hold.
fn where_all(rules: Vec<pb::Rules>) -> pb::ExecutionModel {
    pb::ExecutionModel {
        on_default: em::State::Disabled.into(),
        on_match: em::State::Enabled.into(),
        rules,
        ..Default::default()
    }
}

#[tokio::test]
async fn rules_about_the_operating_system_decide_whether_a_plugin_runs() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    let only = |model: pb::ExecutionModel| {
        orders::install("echo", "1", &echo).manifest(|m| m.execution_model = Some(model)).order()
    };
    let elsewhere = rule(pb::rules::Scope::Os, "ID", "an operating system of nobody");
    bed.configure(vec![only(where_all(vec![elsewhere]))]).await;
    bed.expect_events("echo", &[1, 3]).await;
    let status = bed.in_state("echo", "STOPPED").await;
    assert!(status.reason.contains("rule 1 (OS ID EQUAL) does not hold"), "{status:?}");
    assert!(bed.processes("echo").is_empty());
    let explained = bed.cli(&["explain", "echo"]).await.ok();
    assert!(explained.contains("rules: disabled"), "{explained}");

    // The same revision with rules that hold here.
    let mut here = rule(pb::rules::Scope::Os, "ID", "an operating system of nobody");
    here.comparison_operator = pb::rules::ComparisonOperator::NotEqual.into();
    bed.configure(vec![only(where_all(vec![here]))]).await;
    bed.running("echo", "1").await;
    bed.expect_events("echo", &[1, 3, 1, 4, 3]).await;

    // And with rules that the agent cannot decide: the running plugin keeps running.
    let undecided = rule(pb::rules::Scope::Metadata, "role", "web");
    bed.configure(vec![only(where_all(vec![undecided]))]).await;
    bed.expect_events("echo", &[1, 3, 1, 4, 3, 1, 3]).await;
    bed.running("echo", "1").await;
    let explained = bed.cli(&["explain", "echo", "--json"]).await.ok();
    let explained: serde_json::Value = serde_json::from_str(&explained).unwrap();
    assert_eq!(explained["rules"]["verdict"], "unknown", "{explained}");
    bed.finish().await;
}

#[tokio::test]
async fn hostile_models_are_refused_by_name_and_spoil_no_other_order() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    let install = |name: &str, model: pb::ExecutionModel| {
        orders::install(name, "1", &echo).manifest(|m| m.execution_model = Some(model)).order()
    };
    let mut deep = prost_types::Value { kind: Some(Kind::BoolValue(true)) };
    for _ in 0..300 {
        let list = prost_types::ListValue { values: vec![deep] };
        deep = prost_types::Value { kind: Some(Kind::ListValue(list)) };
    }
    let os = || rule(pb::rules::Scope::Os, "ID", "x");
    let deep = pb::Rules { value: Some(deep), ..os() };
    let number = prost_types::Value { kind: Some(Kind::NumberValue(f64::NAN)) };
    let number = pb::Rules { value: Some(number), ..os() };
    let interval = Some(prost_types::Duration { seconds: -1, nanos: 0 });
    let triggers = Some(em::Triggers { interval, ..Default::default() });
    let backwards = em::OneShot { triggers, ..Default::default() };
    let backwards =
        pb::ExecutionModel { r#type: Some(em::Type::OneShot(backwards)), ..Default::default() };
    bed.order_by_hand(vec![
        install("deep", where_all(vec![deep])),
        install("many", where_all(vec![os(); 20_000])),
        install("nan", where_all(vec![number])),
        install("backwards", backwards),
        orders::install("good", "1", &echo).order(),
    ])
    .await;
    for name in ["deep", "many", "nan", "backwards"] {
        bed.expect_events(name, &[8]).await;
    }
    bed.running("good", "1").await;
    bed.finish().await;
}

#[tokio::test]
async fn a_plugin_starts_and_stops_as_the_metadata_of_its_machine_changes() {
    let server = MetadataServer::start((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
    server.set_machine("1", "test", "test");
    server.set("instance/attributes/role", "web");
    let bed = Bed::builder().set(format!("instance.metadata_url={}", server.url())).start().await;
    let echo = bed.trouble().await;
    let databases_only = where_all(vec![
        rule(pb::rules::Scope::Metadata, "role", "db"),
        rule(pb::rules::Scope::Instance, "v1/instance/id", "test"),
    ]);
    let order = orders::install("echo", "1", &echo);
    bed.configure(vec![order.manifest(|m| m.execution_model = Some(databases_only)).order()]).await;
    bed.expect_events("echo", &[1, 3]).await;
    bed.in_state("echo", "STOPPED").await;

    server.set("instance/attributes/role", "db");
    bed.running("echo", "1").await;
    bed.expect_events("echo", &[1, 3, 4]).await;
    server.set("instance/attributes/role", "web");
    let status = bed.in_state("echo", "STOPPED").await;
    assert!(status.reason.contains("METADATA role"), "{status:?}");
    bed.expect_events("echo", &[1, 3, 4, 6]).await;

    // A metadata server that is away says nothing, so nothing changes.
    server.set("instance/attributes/role", "db");
    bed.running("echo", "1").await;
    server.shutdown().await;
    bed.tell("echo", "exit 3").await;
    bed.expect_events("echo", &[1, 3, 4, 6, 4, 7, 4]).await;
    bed.running("echo", "1").await;
    bed.finish().await;
}
