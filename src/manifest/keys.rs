//! Finds keys that a manifest must not have, and where keys are.

use serde_json::Value;
use toml_edit::{ImDocument, Item, TableLike};

use super::problem::Problem;

/// How alike two words are at least, for one to be meant by the other.
const ALIKE: f64 = 0.7;

/// Finds the lines of a manifest.
pub(super) struct Places<'a> {
    text: &'a str,
}

// === impl Places ===

impl<'a> Places<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        Self { text }
    }

    /// The line of a byte.
    pub(super) fn line(&self, offset: usize) -> usize {
        1 + self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
    }

    /// The line of a key, such as `limits.memory_bytes`; of the nearest one above it that is there, or the
    /// first.
    pub(super) fn line_of(&self, path: &str) -> usize {
        let Ok(parsed) = ImDocument::parse(self.text) else { return 1 };
        let mut table: &dyn TableLike = parsed.as_table();
        let mut line = 1;
        for key in path.split('.') {
            let Some(found) = table.key(key).and_then(|key| key.span()) else { return line };
            line = self.line(found.start);
            match table.get(key).and_then(Item::as_table_like) {
                Some(below) => table = below,
                None => return line,
            }
        }
        line
    }
}

/// The keys of a table that its schema does not have, the first ones first.
pub(super) fn unknown(table: &dyn TableLike, schema: &Value, places: &Places<'_>) -> Vec<Problem> {
    let mut found = Vec::new();
    look(table, schema, "", places, &mut found);
    found.sort_by_key(|problem| problem.line);
    found
}

fn look(
    table: &dyn TableLike,
    schema: &Value,
    path: &str,
    places: &Places<'_>,
    found: &mut Vec<Problem>,
) {
    let Some(known) = closed(schema).and_then(|schema| schema["properties"].as_object()) else {
        return;
    };
    for (key, item) in table.iter() {
        let line = table.key(key).and_then(|key| key.span()).map_or(1, |it| places.line(it.start));
        let whole = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        let Some(below) = known.get(key) else {
            let nearest = nearest(key, known.keys());
            let reason = format!("the key {whole:?} is not known; {nearest}");
            found.push(Problem { line, reason });
            continue;
        };
        if let Some(table) = item.as_table_like() {
            look(table, below, &whole, places, found);
        }
        if let Some(tables) = item.as_array_of_tables() {
            tables.iter().for_each(|table| look(table, &below["items"], &whole, places, found));
        }
    }
}

/// The schema of a table that takes no other keys: itself, or one of its alternatives.
fn closed(schema: &Value) -> Option<&Value> {
    let is_closed = |schema: &Value| schema["additionalProperties"] == Value::Bool(false);
    if is_closed(schema) {
        return Some(schema);
    }
    schema["anyOf"].as_array()?.iter().find(|one| is_closed(one))
}

fn nearest<'k>(key: &str, known: impl Iterator<Item = &'k String> + Clone) -> String {
    let nearest = known
        .clone()
        .map(|name| (strsim::jaro_winkler(key, name), name))
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .filter(|(score, _)| *score > ALIKE);
    match nearest {
        Some((_, name)) => format!("did you mean {name:?}?"),
        None => {
            let all: Vec<&str> = known.map(String::as_str).collect();
            format!("known here are {}", all.join(", "))
        }
    }
}
