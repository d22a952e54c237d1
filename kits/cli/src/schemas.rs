//! The JSON documents that verbs print, each with its JSON Schema: a contract with scripts.
//!
//! Schemas are open: a later version may print further properties.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// A kind of JSON document.
#[derive(Clone, Copy, Debug)]
pub struct Document {
    /// Its name, which is that of its file.
    pub name: &'static str,
    /// The command lines that print it, without the program and `--json`. Empty for one that no verb
    /// prints.
    pub commands: &'static [&'static str],
    /// How it is printed.
    pub form: Form,
    /// What it says, as a sentence without a full stop.
    pub about: &'static str,
    /// Makes its schema, without name and meaning: [`printed`] of the type that is printed.
    pub schema: fn() -> Value,
}

/// How a document is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Once.
    Whole,
    /// Once, or as a line of its own after every change where a flag follows.
    WholeOrLines,
    /// Any number of times, a line each.
    Lines,
    /// It is a file.
    File,
}

// === impl Document ===

impl Document {
    /// The JSON Schema (draft 2020-12).
    #[must_use]
    pub fn schema(&self) -> Value {
        let mut schema = (self.schema)();
        put_descriptions_on_a_line(&mut schema);
        if let Some(schema) = schema.as_object_mut() {
            schema.insert("title".to_owned(), self.name.into());
            schema.insert("description".to_owned(), self.about.into());
        }
        schema
    }

    /// The JSON Schema as its file has it.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{:#}\n", self.schema())
    }
}

/// The schema of what is written of a type.
#[must_use]
pub fn printed<T: JsonSchema>() -> Value {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    generator.into_root_schema_for::<T>().to_value()
}

/// The properties of a schema that have no description, as paths from its name.
#[must_use]
pub fn undescribed(document: &Document) -> Vec<String> {
    let mut found = Vec::new();
    look_for_undescribed(&document.schema(), document.name, &mut found);
    found
}

/// The lines of comments end where source code has no more room.
fn put_descriptions_on_a_line(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if let Some(Value::String(text)) = members.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            members.values_mut().for_each(put_descriptions_on_a_line);
        }
        Value::Array(items) => items.iter_mut().for_each(put_descriptions_on_a_line),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn look_for_undescribed(schema: &Value, place: &str, found: &mut Vec<String>) {
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        if property.get("description").is_none() {
            found.push(format!("{place}.{name}"));
        }
        look_for_undescribed(property, &format!("{place}.{name}"), found);
    }
    for keyword in ["$defs", "additionalProperties", "items", "anyOf", "oneOf"] {
        match schema.get(keyword) {
            Some(Value::Object(members)) if keyword == "$defs" => {
                members.iter().for_each(|(name, member)| look_for_undescribed(member, name, found));
            }
            Some(Value::Array(all)) => {
                all.iter().for_each(|one| look_for_undescribed(one, place, found));
            }
            Some(one) => look_for_undescribed(one, place, found),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;

    /// What was
    /// done.
    #[derive(Serialize, JsonSchema)]
    struct DoneJson {
        /// How
        /// often.
        times: u32,
        by: Option<PersonJson>,
    }

    #[derive(Serialize, JsonSchema)]
    struct PersonJson {
        name: String,
    }

    const DONE: Document = Document {
        name: "done",
        commands: &["do"],
        form: Form::Whole,
        about: "What was done",
        schema: printed::<DoneJson>,
    };

    #[test]
    fn a_schema_has_the_name_of_its_document_and_descriptions_on_one_line() {
        let schema = DONE.schema();
        assert_eq!(schema["title"], "done");
        assert_eq!(schema["description"], "What was done");
        assert_eq!(schema["properties"]["times"]["description"], "How often.");
        assert!(DONE.text().ends_with("}\n"));
    }

    #[test]
    fn a_property_without_a_meaning_is_found_wherever_it_is() {
        assert_eq!(undescribed(&DONE), ["done.by", "PersonJson.name"]);
    }
}
