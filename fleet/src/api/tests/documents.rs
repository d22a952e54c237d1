//! Documents and messages say the same: each field under the same name, of the same type, and absent where it may be
//! null. So nothing that a verb prints is missing in the API, and nothing is lost on the way.

use std::collections::BTreeSet;

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::super::caller::CallerJson;
use super::super::events::EventsJson;
use super::super::{calls::CALLS, wire};
use crate::cli::agents::{AgentsJson, WholeAgentJson};
use crate::cli::audit::{EntriesJson, VerdictJson};
use crate::cli::document::ChangeJson;
use crate::cli::explain::ExplanationJson;
use crate::cli::gateways::GatewaysJson;
use crate::cli::lists::{AssignmentsJson, HoldsJson, ReleasesJson, WindowsJson};
use crate::cli::rollout::{PreviewJson, RolloutJson, RolloutsJson};
use crate::cli::status::StatusJson;
use crate::cli::token::{TokenJson, TokensJson};

fn schema<T: JsonSchema>() -> Value {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    generator.into_root_schema_for::<T>().to_value()
}

#[test]
fn each_message_has_the_fields_of_its_document() {
    let documents = [
        ("Caller", schema::<CallerJson>()),
        ("Status", schema::<StatusJson>()),
        ("ListAgentsResponse", schema::<AgentsJson>()),
        ("WholeAgent", schema::<WholeAgentJson>()),
        ("ListEventsResponse", schema::<EventsJson>()),
        ("Explanation", schema::<ExplanationJson>()),
        ("Change", schema::<ChangeJson>()),
        ("ListReleasesResponse", schema::<ReleasesJson>()),
        ("ListAssignmentsResponse", schema::<AssignmentsJson>()),
        ("ListHoldsResponse", schema::<HoldsJson>()),
        ("ListWindowsResponse", schema::<WindowsJson>()),
        ("ListGatewaysResponse", schema::<GatewaysJson>()),
        ("ListRolloutsResponse", schema::<RolloutsJson>()),
        ("Rollout", schema::<RolloutJson>()),
        ("ListRolloutHistoryResponse", schema::<EntriesJson>()),
        ("RolloutPreview", schema::<PreviewJson>()),
        ("ListTokensResponse", schema::<TokensJson>()),
        ("NewToken", schema::<TokenJson>()),
        ("ListAuditResponse", schema::<EntriesJson>()),
        ("AuditVerdict", schema::<VerdictJson>()),
    ];
    let checked: BTreeSet<&str> = documents.iter().map(|(name, _)| *name).collect();
    let answers: BTreeSet<&str> = CALLS.iter().map(|call| call.answer).collect();
    assert_eq!(checked, answers, "each answer has a document");
    for (name, schema) in documents {
        compare(&schema, &schema, &wire::descriptor(name).expect("a message"));
    }
}

/// What a schema refers to, and whether it may be null.
fn resolved<'a>(schema: &'a Value, root: &'a Value) -> (&'a Value, bool) {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap_or_default();
        return resolved(&root["$defs"][name], root);
    }
    if let Some(all) = schema["anyOf"].as_array() {
        let is_null = |one: &&Value| one["type"] == "null";
        let some = all.iter().find(|one| !is_null(one)).expect("not only null");
        return (resolved(some, root).0, all.iter().any(|one| is_null(&one)));
    }
    let types = schema["type"].as_array();
    (schema, types.is_some_and(|types| types.iter().any(|one| one == "null")))
}

fn compare(schema: &Value, root: &Value, message: &MessageDescriptor) {
    let (schema, _) = resolved(schema, root);
    let properties = schema["properties"].as_object().expect("an object");
    let names: BTreeSet<&str> = properties.keys().map(String::as_str).collect();
    let fields: BTreeSet<String> = message.fields().map(|it| it.name().to_owned()).collect();
    let fields: BTreeSet<&str> = fields.iter().map(String::as_str).collect();
    let missing: Vec<_> = names.symmetric_difference(&fields).collect();
    // An agent of a list has its plugins, another one has them beside it.
    let is_known = message.name() == "Agent" && missing == [&"plugins"];
    assert!(missing.is_empty() || is_known, "{}: {missing:?}", message.name());
    for (name, property) in properties {
        let field = message.get_field_by_name(name).expect("it is there");
        let place = format!("{}.{name}", message.name());
        let (property, is_nullable) = resolved(property, root);
        // What is empty and what is null is the same for these.
        let has_presence = field.supports_presence() || field.is_list();
        assert!(!is_nullable || has_presence, "{place} may be null");
        if field.is_list() {
            one(&property["items"], root, &field.kind(), &place);
        } else if field.is_map() {
            let value = entry(&field).get_field_by_name("value").expect("a value");
            one(&property["additionalProperties"], root, &value.kind(), &place);
        } else {
            one(property, root, &field.kind(), &place);
        }
    }
}

fn entry(field: &FieldDescriptor) -> MessageDescriptor {
    match field.kind() {
        Kind::Message(entry) => entry,
        kind => panic!("{kind:?} is no map"),
    }
}

fn one(schema: &Value, root: &Value, kind: &Kind, place: &str) {
    let (schema, _) = resolved(schema, root);
    let is = |name: &str| match &schema["type"] {
        Value::Array(types) => types.iter().any(|one| one == name),
        one => one == name,
    };
    match kind {
        Kind::Message(of) if of.full_name() == "google.protobuf.Timestamp" => {
            assert!(is("string"), "{place}: {schema}");
        }
        Kind::Message(of) => compare(schema, root, of),
        Kind::Enum(of) if schema["enum"].is_null() && schema["oneOf"].is_null() => {
            // The words of roles are made by hand.
            assert_eq!((of.name(), is("string")), ("Role", true), "{place}: {schema}");
        }
        Kind::Enum(of) => {
            let listed = schema["enum"].as_array().into_iter().flatten().cloned();
            let each = schema["oneOf"].as_array().into_iter().flatten();
            let words = listed.chain(each.map(|one| one["const"].clone()));
            let words = words.filter_map(|word| Some(word.as_str()?.to_uppercase()));
            let words: BTreeSet<String> = words.collect();
            let prefix = format!("{}_", wire::prefix(of.name()));
            let values = of.values().filter(|value| value.number() != 0);
            let values = values.filter_map(|it| it.name().strip_prefix(&prefix).map(str::to_owned));
            assert_eq!(words, values.collect(), "{place}");
        }
        Kind::String => assert!(is("string"), "{place}: {schema}"),
        Kind::Bool => assert!(is("boolean"), "{place}: {schema}"),
        Kind::Double => assert!(is("number"), "{place}: {schema}"),
        Kind::Uint32 | Kind::Uint64 | Kind::Int32 => assert!(is("integer"), "{place}: {schema}"),
        kind => panic!("{place}: {kind:?} stands for nothing in documents"),
    }
}
