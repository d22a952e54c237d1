//! All calls by all roles in all scopes, made of the table of calls: a call that is new is tested without a word here.

use prost::Message;
use prost_reflect::{DynamicMessage, ReflectMessage, Value};
use tonic::Code;

use super::super::calls::{CALLS, Call, Reach};
use super::super::error::ApiError;
use super::super::{http, wire};
use super::{api, fleet, principal};
use crate::identity::{Principal, Role};

/// A request about things of these names.
fn request(call: &Call, agent: &str, name: &str) -> Vec<u8> {
    let mut request = DynamicMessage::new(wire::descriptor(call.request).expect("a message"));
    let said = [("id", agent), ("agent", agent), ("name", name), ("plugin", "testplugin")];
    for (field, value) in said {
        // Other calls have no such field. A join token for one agent is for that agent.
        let is_said = match call.request {
            "CreateTokenRequest" => field == "name",
            "ListAgentsRequest" => false,
            _ => true,
        };
        if is_said && request.descriptor().get_field_by_name(field).is_some() {
            request.set_field_by_name(field, Value::String(value.to_owned()));
        }
    }
    request.encode_to_vec()
}

/// The answer as JSON, or the error.
async fn ask(
    api: &super::Api,
    principal: &Principal,
    call: &Call,
    agent: &str,
    name: &str,
) -> Result<String, ApiError> {
    let answer = api.call(principal, call.rpc, request(call, agent, name).into()).await?;
    Ok(String::from_utf8(wire::json(&answer).expect("JSON")).expect("text"))
}

/// The name of a thing of the environment that the call is about.
fn name_of(call: &Call, env: &str) -> String {
    let kind = call.path.split('/').nth(2).unwrap_or_default();
    format!("{env}{}", kind.strip_suffix('s').unwrap_or(kind))
}

#[tokio::test(start_paused = true)]
async fn what_is_outside_of_a_scope_is_answered_as_what_does_not_exist() {
    let api = api(fleet::in_memory().await);
    for role in Role::ALL {
        let scoped = principal("token/scoped", &[(role, "env = test")]);
        for call in CALLS.iter().filter(|call| http::fields(call.path).next().is_some()) {
            let outside = ask(&api, &scoped, call, "prodagent", &name_of(call, "prod")).await;
            let nowhere = ask(&api, &scoped, call, "nonsense", &name_of(call, "none")).await;
            let outside = outside.map_err(|error| format!("{error:?}"));
            let outside = outside.map_err(|error| error.replace("prodagent", "nonsense"));
            let outside = outside.map_err(|error| error.replace("prod", "none"));
            let nowhere = nowhere.map_err(|error| format!("{error:?}"));
            assert!(outside.is_err(), "{} {role}: {outside:?}", call.name);
            assert_eq!(outside, nowhere, "{} {role}", call.name);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_answer_names_or_counts_what_is_outside_of_a_scope() {
    let api = api(fleet::in_memory().await);
    let (one, both) = (
        principal("token/scoped", &[(Role::Admin, "env = test")]),
        principal("token/all", &[(Role::Admin, "all")]),
    );
    let mut seen = 0;
    for call in CALLS.iter().filter(|call| http::fields(call.path).next().is_none()) {
        let Ok(answer) = ask(&api, &one, call, "testagent", "").await else { continue };
        assert!(!answer.contains("prod"), "{}: {answer}", call.name);
        let everything = ask(&api, &both, call, "testagent", "").await.expect("an admin may");
        seen += usize::from(everything.contains("prod"));
        if call.name == "GetStatus" {
            assert!(answer.contains(r#""present":"1""#), "{answer}");
            assert!(everything.contains(r#""present":"2""#), "{everything}");
        }
    }
    // The status, the agents, releases, assignments, holds, windows, rollouts.
    assert!(seen >= 7, "only {seen} calls would show more to others");
}

#[tokio::test(start_paused = true)]
async fn a_call_takes_its_role_and_its_reach_and_nothing_less() {
    let api = api(fleet::in_memory().await);
    let scopes = ["all", "env = test"];
    for call in CALLS {
        let nobody = principal("token/nobody", &[]);
        let refused = ask(&api, &nobody, call, "testagent", "none").await;
        let is_denied = matches!(&refused, Err(error) if error.code == Code::PermissionDenied);
        assert_eq!(is_denied, call.reach != Reach::Caller, "{}: {refused:?}", call.name);
        for (role, scope) in Role::ALL.iter().flat_map(|role| scopes.map(|scope| (*role, scope))) {
            let who = principal("token/one", &[(role, scope)]);
            let answer = ask(&api, &who, call, "testagent", "none").await;
            let is_denied = matches!(&answer, Err(error) if error.code == Code::PermissionDenied);
            let is_allowed = match call.reach {
                Reach::Caller => true,
                Reach::Scope => role >= call.role,
                Reach::Fleet => role >= call.role && scope == "all",
            };
            assert_eq!(is_denied, !is_allowed, "{} {role} {scope}: {answer:?}", call.name);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lesser_role_for_an_agent_that_is_seen_is_a_denial_and_no_lie() {
    let api = api(fleet::in_memory().await);
    let who = principal("token/two", &[(Role::Viewer, "all"), (Role::Operator, "env = test")]);
    let archive = CALLS.iter().find(|call| call.name == "ArchiveAgent").expect("it is there");
    let refused = ask(&api, &who, archive, "prodagent", "").await.expect_err("a viewer");
    assert_eq!(refused.code, Code::PermissionDenied, "{refused:?}");
    ask(&api, &who, archive, "testagent", "").await.expect("an operator");
    let pause = CALLS.iter().find(|call| call.name == "PauseRollout").expect("it is there");
    let refused = ask(&api, &who, pause, "", "prodrollout").await.expect_err("a viewer");
    assert_eq!(refused.code, Code::PermissionDenied, "{refused:?}");
    ask(&api, &who, pause, "", "testrollout").await.expect("an operator");
}

#[tokio::test(start_paused = true)]
async fn nobody_labels_an_agent_out_of_its_scope() {
    use guest_agent_proto::fleet_api as pb;

    let api = api(fleet::in_memory().await);
    let who = principal("token/one", &[(Role::Operator, "env = test")]);
    let rpc = super::super::calls::Rpc::LabelAgent;
    let wish = |key: &str, value: &str| pb::LabelAgentRequest {
        id: "testagent".to_owned(),
        set: [(key.to_owned(), value.to_owned())].into(),
        ..pb::LabelAgentRequest::default()
    };
    let refused = api.ask::<_, pb::Change>(&who, rpc, &wish("env", "prod")).await;
    assert_eq!(refused.expect_err("it would be lost").code, Code::PermissionDenied);
    let done = api.ask::<_, pb::Change>(&who, rpc, &wish("rack", "r7")).await.expect("it may");
    assert!(done.audit.is_some(), "{done:?}");
}

#[test]
fn calls_have_the_names_and_messages_of_the_service() {
    let service = wire::pool().get_service_by_name("guest_agent.fleet.api.v1.Fleet");
    let service = service.expect("the service");
    let methods = service.methods().filter(|method| !method.is_server_streaming());
    let methods: Vec<String> = methods
        .map(|it| format!("{} {} {}", it.name(), it.input().name(), it.output().name()))
        .collect();
    let calls: Vec<String> =
        CALLS.iter().map(|it| format!("{} {} {}", it.name, it.request, it.answer)).collect();
    assert_eq!(calls, methods);
    for call in CALLS {
        let request = wire::descriptor(call.request).expect("a message");
        for field in http::fields(call.path) {
            assert!(request.get_field_by_name(field).is_some(), "{} has no {field}", call.name);
        }
    }
}
