//! The description of the HTTP form is what the table of calls and the messages say, and takes no promise back.
//! `UPDATE_GENERATED=1` writes it; `WRITE_BASELINE=1` writes that of a release, which later ones are held to.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto};
use serde_json::{Map, Value, json};

use super::super::calls::{CALLS, Call, Method, Reach};
use super::super::{http, wire};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The `.proto` file, with its words.
fn file() -> FileDescriptorProto {
    let mut compiler = protox::Compiler::new([root().join("proto/proto")]).expect("the folder");
    compiler.include_source_info(true).include_imports(true);
    compiler.open_file("fleet_api.proto").expect("a valid file");
    let mut files = compiler.file_descriptor_set().file.into_iter();
    files.find(|file| file.name() == "fleet_api.proto").expect("the file")
}

/// Words by the path of what they are about.
fn words(file: &FileDescriptorProto) -> BTreeMap<Vec<i32>, String> {
    let locations = file.source_code_info.iter().flat_map(|info| &info.location);
    let told = locations.filter(|location| location.leading_comments.is_some());
    told.map(|location| {
        let lines = location.leading_comments().lines().map(str::trim).collect::<Vec<_>>();
        (location.path.clone(), lines.join(" ").trim().to_owned())
    })
    .collect()
}

fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or_default()
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{}", short(name)) })
}

/// The schema of one value of a field in protobuf JSON.
fn value(field: &FieldDescriptorProto) -> Value {
    match field.r#type() {
        Type::String => json!({ "type": "string" }),
        Type::Bool => json!({ "type": "boolean" }),
        Type::Double => json!({ "type": "number" }),
        Type::Int32 => json!({ "type": "integer", "format": "int32" }),
        Type::Uint32 => json!({ "type": "integer", "format": "uint32" }),
        // Protobuf JSON writes numbers of 64 bits as strings.
        Type::Uint64 => json!({ "type": "string", "format": "uint64" }),
        Type::Message if field.type_name() == ".google.protobuf.Timestamp" => {
            json!({ "type": "string", "format": "date-time" })
        }
        Type::Message | Type::Enum => reference(field.type_name()),
        other => panic!("{}: {other:?} stands for nothing", field.name()),
    }
}

fn schema(field: &FieldDescriptorProto, of: &DescriptorProto, words: Option<&String>) -> Value {
    let entry = of.nested_type.iter().find(|it| it.name() == short(field.type_name()));
    let mut schema = match (entry, field.label()) {
        (Some(entry), _) => {
            let of = entry.field.iter().find(|it| it.name() == "value").expect("a value");
            json!({ "type": "object", "additionalProperties": value(of) })
        }
        (None, Label::Repeated) => json!({ "type": "array", "items": value(field) }),
        (None, _) => value(field),
    };
    schema["description"] = words.cloned().unwrap_or_default().into();
    schema
}

fn operation(call: &Call, description: &str, file: &FileDescriptorProto) -> Value {
    let request = file.message_type.iter().find(|it| it.name() == call.request);
    let request = request.expect("a message");
    let at = file.message_type.iter().position(|it| it.name() == call.request);
    let at = i32::try_from(at.expect("a message")).expect("few messages");
    let words = words(file);
    let in_path: Vec<&str> = http::fields(call.path).collect();
    let mut parameters = Vec::new();
    for (number, field) in request.field.iter().zip(0..).map(|(field, number)| (number, field)) {
        let place = if in_path.contains(&field.name()) {
            "path"
        } else if call.method == Method::Get {
            "query"
        } else {
            continue;
        };
        let mut schema = schema(field, request, words.get(&vec![4, at, 2, number]));
        let description = schema.as_object_mut().and_then(|it| it.remove("description"));
        let name = if place == "path" { field.name() } else { field.json_name() };
        parameters.push(json!({
            "name": name, "in": place, "required": place == "path",
            "description": description, "schema": schema,
        }));
    }
    let reach = match call.reach {
        Reach::Caller => "anybody with a token".to_owned(),
        Reach::Scope => format!("the role {}, within its scope", call.role),
        Reach::Fleet => format!("the role {} for the whole fleet", call.role),
    };
    let content = |name: &str| json!({ "application/json": { "schema": reference(name) } });
    let mut operation = json!({
        "operationId": call.name,
        "summary": description,
        "description": format!("Takes {reach}."),
        "parameters": parameters,
        "responses": {
            "200": { "description": "The answer.", "content": content(call.answer) },
            "default": { "description": "Why it did nothing.", "content": content("Error") },
        },
    });
    if call.method == Method::Post {
        operation["requestBody"] = json!({ "content": content(call.request) });
    }
    operation
}

fn document() -> Value {
    let file = file();
    let words = words(&file);
    let about = |path: &[i32]| words.get(path).cloned().unwrap_or_default();
    let mut schemas = Map::new();
    for (message, at) in file.message_type.iter().zip(0..) {
        let fields = message.field.iter().zip(0..).map(|(field, number)| {
            let schema = schema(field, message, words.get(&vec![4, at, 2, number]));
            (field.json_name().to_owned(), schema)
        });
        let properties: Map<String, Value> = fields.collect();
        let schema = json!({
            "type": "object", "description": about(&[4, at]), "properties": properties,
        });
        schemas.insert(message.name().to_owned(), schema);
    }
    for (of, at) in file.enum_type.iter().zip(0..) {
        let values = of.value.iter().zip(0..);
        let values: Vec<String> = values
            .clone()
            .map(|(value, number)| format!("{}: {}", value.name(), about(&[5, at, 2, number])))
            .collect();
        let names: Vec<&str> = of.value.iter().map(|value| value.name()).collect();
        let text = format!("{} {}", about(&[5, at]), values.join(" "));
        let schema = json!({ "type": "string", "enum": names, "description": text });
        schemas.insert(of.name().to_owned(), schema);
    }
    let methods = file.service.first().expect("a service").method.iter().zip(0..);
    let mut paths: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for (method, number) in methods {
        let Some(call) = CALLS.iter().find(|call| call.name == method.name()) else { continue };
        let verb = if call.method == Method::Get { "get" } else { "post" };
        let operation = operation(call, &about(&[6, 0, 2, number]), &file);
        paths.entry(call.path.to_owned()).or_default().insert(verb.to_owned(), operation);
    }
    let watch = json!({ "get": {
        "operationId": "Watch",
        "summary": "Tells what changes, as server-sent events: `change` with a WatchEvent, and `error` with an Error.",
        "parameters": [
            { "name": "cursor", "in": "query", "schema": { "type": "string" },
              "description": "The cursor of the last event; the header `last-event-id` has the same meaning." },
            { "name": "parts", "in": "query", "description": "Only these.",
              "schema": { "type": "array", "items": reference("Part") } },
        ],
        "responses": { "200": { "description": "Events.", "content": {
            "text/event-stream": { "schema": { "type": "string" } } } } },
    }});
    let mut paths = serde_json::to_value(paths).expect("plain values");
    paths["/v1/watch"] = watch;
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "The API of a fleet",
            "version": "v1",
            "description": "Protobuf JSON of guest_agent.fleet.api.v1: see docs/fleet-api.md.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "security": [{ "bearer": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer" } },
        },
    })
}

#[test]
fn the_description_is_what_the_calls_and_messages_say() {
    let fresh = serde_json::to_string_pretty(&document()).expect("plain values") + "\n";
    let path = root().join("docs/reference/fleet-openapi.json");
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::write(&path, &fresh).expect("it is written");
        return;
    }
    assert!(
        super::super::DOCUMENT == fresh,
        "{} is not what the calls say; run this test with UPDATE_GENERATED=1",
        path.display()
    );
}

#[test]
fn each_part_of_the_description_has_words() {
    let document = document();
    let schemas = document["components"]["schemas"].as_object().expect("schemas");
    for (name, schema) in schemas {
        let is_request =
            name.starts_with("List") || name.starts_with("Get") || name.ends_with("Request");
        let has_words = schema["description"].as_str().is_some_and(|it| !it.trim().is_empty());
        assert!(has_words || is_request || name.ends_with("Response"), "{name} has no words");
        for (field, property) in schema["properties"].as_object().into_iter().flatten() {
            let has_words = property["description"].as_str().is_some_and(|it| !it.is_empty());
            assert!(has_words, "{name}.{field} has no words");
        }
    }
    for call in CALLS {
        let verb = if call.method == Method::Get { "get" } else { "post" };
        let summary = &document["paths"][call.path][verb]["summary"];
        assert!(summary.as_str().is_some_and(|it| !it.is_empty()), "{} has no words", call.name);
    }
}

#[test]
fn nothing_that_was_promised_is_taken_back() {
    let path = root().join("fleet/src/api/tests/baseline/0.1.json");
    if std::env::var_os("WRITE_BASELINE").is_some() {
        let text = serde_json::to_string_pretty(&document()).expect("plain values") + "\n";
        std::fs::write(&path, text).expect("it is written");
    }
    let text = std::fs::read_to_string(&path).expect("the baseline");
    let promised: Value = serde_json::from_str(&text).expect("JSON");
    let mut broken = Vec::new();
    contains(&document(), &promised, "", &mut broken);
    assert!(broken.is_empty(), "{broken:#?}");
    // And it is seen when something is.
    let mut less = document();
    let gone = less["components"]["schemas"]["Agent"]["properties"].as_object_mut();
    gone.expect("fields").remove("seen");
    less["components"]["schemas"]["Order"]["properties"]["generation"]["type"] = json!("number");
    less["paths"].as_object_mut().expect("paths").remove("/v1/status");
    let mut broken = Vec::new();
    contains(&less, &promised, "", &mut broken);
    assert_eq!(broken.len(), 3, "{broken:#?}");
}

/// Collects what is promised and not there. Words may change.
fn contains(now: &Value, promised: &Value, place: &str, broken: &mut Vec<String>) {
    match (now, promised) {
        (Value::Object(now), Value::Object(promised)) => {
            let is_words = |name: &str, value: &Value| {
                ["description", "summary"].contains(&name) && value.is_string()
            };
            for (name, value) in promised.iter().filter(|(name, value)| !is_words(name, value)) {
                let place = format!("{place}/{name}");
                match now.get(name) {
                    Some(now) => contains(now, value, &place, broken),
                    None => broken.push(format!("{place} is gone")),
                }
            }
        }
        (Value::Array(now), Value::Array(promised)) => {
            for (at, one) in promised.iter().enumerate() {
                let is_there = now.iter().any(|now| {
                    let mut broken = Vec::new();
                    contains(now, one, "", &mut broken);
                    broken.is_empty()
                });
                if !is_there {
                    broken.push(format!("{place}/{at} is gone"));
                }
            }
        }
        (now, promised) if now != promised => broken.push(format!("{place} is {now}")),
        _ => {}
    }
}

#[test]
fn the_messages_of_the_document_are_those_of_the_descriptors() {
    for call in CALLS {
        wire::descriptor(call.request).expect("a message");
        wire::descriptor(call.answer).expect("a message");
    }
}
