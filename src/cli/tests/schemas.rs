//! That each JSON document has a schema.

use super::super::schemas::{DOCUMENTS, Form};
use super::*;

mod contract;
mod published;

/// Verbs that print no JSON: one is the service, one a walk for people, one a script of a shell.
const WITHOUT: [&str; 2] = ["dev", "completions"];

#[test]
fn every_verb_prints_documents_that_have_a_schema() {
    let commands: Vec<&str> = DOCUMENTS.iter().flat_map(|it| it.commands.iter().copied()).collect();
    for verb in Arguments::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
        let below: Vec<_> = verb.get_subcommands().map(clap::Command::get_name).collect();
        let names = match &*below {
            [] => vec![verb.get_name().to_owned()],
            below => below.iter().map(|name| format!("{} {name}", verb.get_name())).collect(),
        };
        for name in names.iter().filter(|name| !WITHOUT.contains(&name.as_str())) {
            assert!(commands.contains(&name.as_str()), "{name} --json has no schema");
        }
    }
    for command in commands {
        let words = command.split(' ').take_while(|word| !word.starts_with("--"));
        let mut verb = Arguments::command();
        for word in words {
            verb = verb.find_subcommand(word).unwrap_or_else(|| panic!("{command}")).clone();
        }
    }
}

#[test]
fn what_is_no_file_is_printed_by_a_verb() {
    for document in DOCUMENTS {
        assert_eq!(document.form == Form::File, document.commands.is_empty(), "{}", document.name);
    }
}
