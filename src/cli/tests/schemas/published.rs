//! The JSON Schemas of what is printed and read: `docs/schemas/`, and the page that lists them.
//! `UPDATE_GENERATED=1` writes them; `WRITE_BASELINE=1` writes those of a release, which later ones are
//! held to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use guest_agent_cli_kit::schemas::undescribed;
use serde_json::Value;

use super::contract::{Direction, breaks};
use crate::cli::schemas::{DOCUMENTS, Document, Form};

/// Where the schemas of this version are.
const SCHEMAS: &str = "docs/schemas";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn path_of(document: &Document) -> String {
    format!("{SCHEMAS}/{}.json", document.name)
}

fn direction_of(document: &Document) -> Direction {
    if document.name == "configuration" { Direction::Read } else { Direction::Printed }
}

/// The folders with the schemas of released versions.
fn baselines() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join(SCHEMAS).join("baseline"));
    entries.into_iter().flatten().map(|entry| entry.expect("an entry").path()).collect()
}

/// The version whose promises are being made: its first two numbers.
fn release() -> String {
    env!("CARGO_PKG_VERSION").split('.').take(2).collect::<Vec<_>>().join(".")
}

fn page() -> String {
    let mut page = String::from(
        "# JSON documents\n\n\
         What verbs print with `--json`, and what the configuration file holds, each with its\n\
         [JSON Schema](https://json-schema.org/draft/2020-12) (draft 2020-12). The schemas are made from the code, and every JSON document\n\
         that a verb prints in the tests of the agent is checked against them.\n\n\
         | schema | printed by | how | meaning |\n|---|---|---|---|\n",
    );
    for document in DOCUMENTS {
        let commands = document.commands.iter().map(|command| format!("`{command}`"));
        let how = match document.form {
            Form::Whole => "once",
            Form::WholeOrLines => "once; a line after every change with `--watch`",
            Form::Lines => "a line each",
            Form::File => "a file",
        };
        let name = format!("[{0}](../schemas/{0}.json)", document.name);
        let commands = commands.collect::<Vec<_>>().join(", ");
        let row = [&*name, &*commands, how, document.about].map(|cell| cell.replace('|', "\\|"));
        page.push_str(&["| ", &row.join(" | "), " |\n"].concat());
    }
    page.push_str(
        "\n## What is promised\n\n\
         A later version may add documents, properties and values of an enumeration. It takes no property away, changes no type, removes no\n\
         value, and what is always there stays so: a test compares the schemas with those of released versions, which are in `docs/schemas/baseline/`.\n\
         So a reader has to pass over properties that it does not know, and has to do something sensible with a value that it does not know.\n\
         The schemas are open for the same reason; that of the configuration is not, because the agent refuses keys that it does not know.\n\
         The schema of the configuration promises the other direction: what was accepted stays accepted.\n\n\
         A property without a value is null, not missing, but for those of [registry-watch](../schemas/registry-watch.json) and\n\
         [log](../schemas/log.json), whose lines are of several kinds. Times are RFC 3339 in UTC. Texts for people (`reason`, `why`, `details`, `doing`, `link`) may be\n\
         worded anew at any time; where a program needs one, there is a value beside it.\n\n\
         ## How to use them\n\n\
         Check what a script gets, with any validator:\n\n\
         ```sh\n\
         guest-agent status --json >status.json\n\
         check-jsonschema --schemafile /usr/share/doc/guest-agent/docs/schemas/status.json status.json\n\
         ```\n\n\
         Generate types from one, for example with `quicktype --src-lang schema`. Have an editor complete and check the configuration, with a comment at its top that\n\
         [Taplo](https://taplo.tamasfe.dev/) and its editor plugins read:\n\n\
         ```toml\n\
         #:schema /usr/share/doc/guest-agent/docs/schemas/configuration.json\n\
         ```\n\n\
         The schema checks keys, types and the values of enumerations; `guest-agent config check` also checks bounds, and what one value demands of another.\n",
    );
    page
}

#[track_caller]
fn is_up_to_date(path: &str, fresh: &str) {
    let file = root().join(path);
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::write(&file, fresh).expect("it is written");
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    let hint = "UPDATE_GENERATED=1 cargo test --workspace --lib schemas::published writes it";
    assert!(committed == fresh, "{path} is not what the code says; {hint}");
}

#[test]
fn the_schemas_and_their_page_are_up_to_date() {
    for document in DOCUMENTS {
        is_up_to_date(&path_of(document), &document.text());
    }
    is_up_to_date("docs/reference/json.md", &page());
}

#[test]
fn each_schema_has_a_document_and_each_property_a_meaning() {
    let known: BTreeSet<_> = DOCUMENTS.iter().map(path_of).collect();
    assert_eq!(known.len(), DOCUMENTS.len(), "each name is there once");
    for entry in std::fs::read_dir(root().join(SCHEMAS)).expect("it is there") {
        let path = entry.expect("an entry").path();
        let relative = path.strip_prefix(root()).expect("below the root").display();
        assert!(path.is_dir() || known.contains(&relative.to_string()), "{relative} has no type");
    }
    for document in DOCUMENTS {
        // Limits are named as the kernel names them.
        let is_named = |property: &String| !property.contains(".rlimits.");
        let silent: Vec<_> = undescribed(document).into_iter().filter(is_named).collect();
        assert!(silent.is_empty(), "without a meaning: {silent:?}");
    }
}

#[test]
fn no_promise_of_a_released_version_is_broken() {
    if std::env::var_os("WRITE_BASELINE").is_some() {
        for document in DOCUMENTS {
            let folder = root().join(SCHEMAS).join("baseline").join(release());
            std::fs::create_dir_all(&folder).expect("the folder is made");
            std::fs::write(folder.join(format!("{}.json", document.name)), document.text())
                .expect("the schema is written");
        }
    }
    let mut compared = 0;
    for folder in baselines() {
        for entry in std::fs::read_dir(&folder).expect("it can be listed") {
            let path = entry.expect("an entry").path();
            let name = path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
            let document = DOCUMENTS.iter().find(|document| document.name == name);
            let document = document.unwrap_or_else(|| panic!("{name} was promised and is gone"));
            let text = std::fs::read_to_string(&path).expect("it can be read");
            let before: Value = serde_json::from_str(&text).expect("a schema");
            let broken = breaks(&before, &document.schema(), direction_of(document));
            assert!(broken.is_empty(), "{}: {broken:#?}", path.display());
            compared += 1;
        }
    }
    assert!(compared >= 20, "the promises of a version are there: {compared}");
}
