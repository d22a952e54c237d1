//! Holds what verbs print with `--json` to the schemas that are published, `docs/schemas/`.

use boon::{Compiler, SchemaIndex, Schemas};
use guest_agent::cli::schemas::{DOCUMENTS, Document};
use serde_json::{Value, json};

/// Checks what `guest-agent` printed for these arguments, if it was to be JSON: each document has to
/// be as its schema says, without a property that the schema does not have. Nothing is right where a
/// verb fails.
#[track_caller]
pub(crate) fn check(arguments: &[&str], printed: &str) {
    if !arguments.iter().any(|word| *word == "--json" || word.starts_with("--json=")) {
        return;
    }
    let Some(document) = document_of(arguments) else {
        panic!("`guest-agent {}` prints JSON without a schema", arguments.join(" "))
    };
    for value in serde_json::Deserializer::from_str(printed).into_iter::<Value>() {
        let value = value.unwrap_or_else(|error| panic!("{arguments:?}: {error}: {printed}"));
        if let Err(wrong) = verdict(document.name, &value) {
            panic!("`guest-agent {}`: {wrong}\n{value:#}", arguments.join(" "));
        }
    }
}

/// Whether a value is as the published schema of this name says.
pub(crate) fn verdict(name: &str, value: &Value) -> Result<(), String> {
    let (schemas, index) = compiled(name);
    schemas.validate(value, index).map_err(|error| format!("not as {name}.json says: {error:#}"))
}

/// The document that a command line prints: of those whose words are all there, the one with the most.
fn document_of(arguments: &[&str]) -> Option<&'static Document> {
    let words = |document: &'static Document| {
        let fitting = document.commands.iter().filter_map(|command| {
            let words: Vec<&str> = command.split(' ').collect();
            words.iter().all(|word| arguments.contains(word)).then_some(words.len())
        });
        fitting.max()
    };
    let fitting = DOCUMENTS.iter().filter_map(|document| Some((words(document)?, document)));
    fitting.max_by_key(|(count, _)| *count).map(|(_, document)| document)
}

/// The schema of this name, made from the code: the tests of the documentation hold `docs/schemas/` to
/// it, and a virtual machine, in which some of these tests run again, does not have that folder.
fn compiled(name: &str) -> (Schemas, SchemaIndex) {
    let document = DOCUMENTS.iter().find(|document| document.name == name);
    let Some(document) = document else { panic!("no document is called {name}") };
    let mut schema = document.schema();
    close(&mut schema);
    let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
    compiler.enable_format_assertions();
    let url = format!("file:///{name}.json");
    compiler.add_resource(&url, schema).unwrap();
    let index = compiler.compile(&url, &mut schemas).unwrap();
    (schemas, index)
}

/// Makes a schema refuse properties that it does not have. Published schemas are open, because a later
/// version may print more; this version may not.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            members.values_mut().for_each(close);
            if members.get("properties").is_some_and(Value::is_object)
                && members.get("type") == Some(&json!("object"))
            {
                members.entry("additionalProperties").or_insert(json!(false));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn what_is_not_as_the_schema_says_is_found() {
    let good = json!({ "generation": 7, "name": "web", "revision": null, "state": "RUNNING" });
    check(&["stop", "web", "--json"], &good.to_string());
    check(&["stop", "web"], "web: STOPPED");
    let mut missing = good.clone();
    missing.as_object_mut().unwrap().remove("state");
    let mut more = good.clone();
    more["more"] = json!(1);
    let mut other = good.clone();
    other["generation"] = json!("7");
    for wrong in [missing, more, other] {
        verdict("act", &wrong).expect_err("it is not as the schema says");
    }
}

#[test]
fn each_command_line_has_its_own_document() {
    let name = |arguments: &[&str]| document_of(arguments).map(|document| document.name);
    assert_eq!(name(&["status", "web", "--json"]), Some("status"));
    assert_eq!(name(&["status", "--json=array"]), Some("status-array"));
    assert_eq!(name(&["doctor", "--sweep", "--json"]), Some("doctor-sweep"));
    assert_eq!(name(&["registry", "get", "x", "--json"]), Some("registry-entry"));
    assert_eq!(name(&["nothing", "--json"]), None);
}
