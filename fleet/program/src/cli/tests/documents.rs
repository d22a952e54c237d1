//! Every document that is printed has a schema, and the schemas are in `docs/schemas/fleet/`.

use std::path::Path;

use clap::CommandFactory;
use guest_agent_cli_kit::schemas::undescribed;
use serde_json::Value;

use super::super::schemas::schemas;
use super::super::{AgentOptions, Verb, audit, rollout, token};
use super::Arguments;

/// The names of the documents that a verb may print.
fn names(verb: &Verb) -> &'static [&'static str] {
    match verb {
        Verb::Apply(_) | Verb::Diff(_) => &["change", "problems"],
        Verb::Hold(_) | Verb::Release(_) | Verb::Retry(_) | Verb::Resume(_) => &["change"],
        Verb::Export(_) => &["export"],
        Verb::Releases => &["releases"],
        Verb::Assignments => &["assignments"],
        Verb::Holds => &["holds"],
        Verb::Windows => &["windows"],
        Verb::Rollout(rollout::Verb::List(_)) => &["rollouts"],
        Verb::Rollout(rollout::Verb::Show(_) | rollout::Verb::Watch(_)) => &["rollout"],
        Verb::Rollout(rollout::Verb::Preview(_)) => &["preview"],
        Verb::Rollout(rollout::Verb::History(_)) => &["audit"],
        Verb::Rollout(_) => &["change"],
        Verb::Status => &["status"],
        Verb::Agents(_) => &["agents"],
        Verb::Agent(AgentOptions { verb: Some(_), .. }) => &["change"],
        Verb::Gateways => &["gateways"],
        Verb::Secret(_) => &["secrets"],
        Verb::Token(token::Verb::Create(_)) => &["token"],
        Verb::Token(token::Verb::List) => &["tokens"],
        Verb::Token(token::Verb::Revoke(_)) => &["change"],
        Verb::Agent(AgentOptions { verb: None, .. }) => &["agent"],
        Verb::Explain(_) => &["explain"],
        Verb::Events(_) => &["events"],
        Verb::Audit(audit::Options { verb: Some(audit::Verb::Verify(_)), .. }) => &["audit-verify"],
        Verb::Audit(_) => &["audit"],
    }
}

/// Refuses properties that the schema does not have.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            members.values_mut().for_each(close);
            if members.contains_key("properties") {
                members.insert("additionalProperties".to_owned(), false.into());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// Checks what a verb printed with `--json`.
#[track_caller]
pub(super) fn check(verb: &Verb, out: &str) {
    for document in serde_json::Deserializer::from_str(out).into_iter::<Value>() {
        let document = document.expect("JSON");
        let fits = names(verb).iter().any(|name| {
            let found = schemas().iter().find(|schema| schema.name == *name);
            let mut schema = found.expect("a schema").schema();
            close(&mut schema);
            let mut compiler = boon::Compiler::new();
            compiler.add_resource("schema.json", schema).expect("a schema");
            let mut schemas = boon::Schemas::new();
            let index = compiler.compile("schema.json", &mut schemas).expect("a schema");
            schemas.validate(&document, index).is_ok()
        });
        assert!(fits, "no schema of {verb:?} fits {document:#}");
    }
}

#[test]
fn the_schemas_in_the_documentation_are_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schemas/fleet");
    for document in schemas() {
        let fresh = document.text();
        let path = folder.join(format!("{}.json", document.name));
        if std::env::var_os("UPDATE_GENERATED").is_some() {
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::write(&path, &fresh).expect("it can be written");
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(found, fresh, "{}: UPDATE_GENERATED=1 writes it", path.display());
    }
    for entry in std::fs::read_dir(&folder).expect("the folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        assert!(schemas().iter().any(|schema| schema.name == name), "{name} has no type");
    }
}

#[test]
fn every_verb_has_a_schema_and_every_command_of_a_schema_exists() {
    let commands: Vec<&str> = schemas().iter().flat_map(|it| it.commands.iter().copied()).collect();
    for verb in Arguments::command().get_subcommands() {
        let name = verb.get_name();
        let is_told = |command: &&str| command.split(' ').next() == Some(name);
        assert!(commands.iter().any(is_told), "{name}");
    }
    for command in commands {
        let mut verb = Arguments::command();
        for word in command.split(' ') {
            verb = verb.find_subcommand(word).unwrap_or_else(|| panic!("{command}")).clone();
        }
    }
}

#[test]
fn every_property_has_a_meaning() {
    let found: Vec<_> = schemas().iter().flat_map(undescribed).collect();
    assert!(found.is_empty(), "{found:?}");
}
