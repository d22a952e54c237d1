//! TOML as a tree.

use std::ops::Range;

use toml_edit::{ImDocument, Item, TableLike, Value as TomlValue};

use super::problem::Place;
use super::tree::{DEPTH, Entry, Lines, Node, SyntaxError, Value};

/// Reads a file.
pub(crate) fn read(text: &str) -> Result<Node, SyntaxError> {
    let lines = Lines::new(text);
    let document = ImDocument::parse(text).map_err(|error| SyntaxError {
        place: error.span().map(|span| lines.place(span.start)),
        reason: format!("it is not TOML: {}", error.message().replace('\n', ", ")),
        fix: "see https://toml.io for what a file may look like".to_owned(),
    })?;
    let reader = Reader { lines };
    let place = Place { line: 1, column: 1 };
    reader.table(document.as_table(), place, DEPTH)
}

struct Reader<'a> {
    lines: Lines<'a>,
}

// === impl Reader ===

impl Reader<'_> {
    fn place(&self, span: Option<Range<usize>>, otherwise: Place) -> Place {
        span.map_or(otherwise, |span| self.lines.place(span.start))
    }

    fn table(
        &self,
        table: &dyn TableLike,
        place: Place,
        depth: usize,
    ) -> Result<Node, SyntaxError> {
        let depth = depth.checked_sub(1).ok_or_else(|| SyntaxError::too_deep(place))?;
        let mut entries = Vec::new();
        for (key, item) in table.iter() {
            let at = self.place(table.key(key).and_then(|key| key.span()), place);
            let node = self.item(item, at, depth)?;
            entries.push(Entry { key: key.to_owned(), place: at, node });
        }
        Ok(Node { place, value: Value::Table(entries) })
    }

    fn item(&self, item: &Item, near: Place, depth: usize) -> Result<Node, SyntaxError> {
        let place = self.place(item.span(), near);
        match item {
            Item::None => Ok(Node { place, value: Value::Null }),
            Item::Value(value) => self.value(value, place, depth),
            Item::Table(table) => self.table(table, place, depth),
            Item::ArrayOfTables(tables) => {
                let depth = depth.checked_sub(1).ok_or_else(|| SyntaxError::too_deep(place))?;
                let nodes = tables
                    .iter()
                    .map(|table| self.table(table, self.place(table.span(), place), depth))
                    .collect::<Result<_, _>>()?;
                Ok(Node { place, value: Value::List(nodes) })
            }
        }
    }

    fn value(&self, value: &TomlValue, near: Place, depth: usize) -> Result<Node, SyntaxError> {
        let place = self.place(value.span(), near);
        let value = match value {
            TomlValue::String(text) => Value::Text(text.value().clone()),
            TomlValue::Integer(number) => Value::Integer(*number.value()),
            TomlValue::Float(number) => Value::Float(*number.value()),
            TomlValue::Boolean(is_so) => Value::Bool(*is_so.value()),
            TomlValue::Datetime(date) => Value::Date(date.value().to_string()),
            TomlValue::InlineTable(table) => return self.table(table, place, depth),
            TomlValue::Array(items) => {
                let depth = depth.checked_sub(1).ok_or_else(|| SyntaxError::too_deep(place))?;
                let nodes = items.iter().map(|item| self.value(item, place, depth));
                Value::List(nodes.collect::<Result<_, _>>()?)
            }
        };
        Ok(Node { place, value })
    }
}
