//! Whether a JSON Schema still promises what an earlier one did.
//!
//! Who reads a document may rely on every property, type and value that its schema names, and who
//! writes a configuration on being understood. So a schema of what is *printed* keeps its types and its
//! required properties, and one of what is *read* takes all that it took; both may gain properties and
//! values. [`breaks`] is pure and knows the keywords that our schemas use.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// Which way documents of a schema go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The program prints them.
    Printed,
    /// The program reads them.
    Read,
}

/// Deepest nesting that is compared.
const DEPTH_MAX: usize = 64;

/// The kind of a schema that takes anything.
const ANY: &str = "anything";

/// Every promise of `before` that `now` breaks, with its place; empty when it breaks none.
pub(crate) fn breaks(before: &Value, now: &Value, direction: Direction) -> Vec<String> {
    let comparison = Comparison { before, now, direction };
    comparison.schemas(before, now, "the document", 0)
}

struct Comparison<'a> {
    before: &'a Value,
    now: &'a Value,
    direction: Direction,
}

/// One of the things that a value may be.
#[derive(Clone, Debug)]
struct Shape {
    /// Its type, or [`ANY`].
    kind: String,
    /// The values that it may have, if they are listed.
    values: Option<BTreeSet<String>>,
    keywords: Map<String, Value>,
}

// === impl Comparison ===

impl Comparison<'_> {
    fn schemas(&self, before: &Value, now: &Value, place: &str, depth: usize) -> Vec<String> {
        if depth > DEPTH_MAX {
            return vec![format!("{place} is nested too deep to be compared")];
        }
        let (before, now) = (shapes(self.before, before), shapes(self.now, now));
        let kinds = |shapes: &[Shape]| -> BTreeSet<String> {
            shapes.iter().map(|shape| shape.kind.clone()).collect()
        };
        let (old_kinds, new_kinds) = (kinds(&before), kinds(&now));
        let is_kept = match self.direction {
            Direction::Printed => old_kinds == new_kinds,
            Direction::Read => old_kinds.iter().all(|kind| takes(&new_kinds, kind)),
        };
        if !is_kept {
            return vec![format!("{place} was {old_kinds:?} and is {new_kinds:?}")];
        }
        let mut found = Vec::new();
        for old in &before {
            let all =
                now.iter().filter(|new| takes(&BTreeSet::from([new.kind.clone()]), &old.kind));
            let fewest = all.map(|new| self.shapes(old, new, place, depth)).min_by_key(Vec::len);
            found.extend(fewest.unwrap_or_default());
        }
        found
    }

    fn shapes(&self, old: &Shape, new: &Shape, place: &str, depth: usize) -> Vec<String> {
        let mut found = self.values(old, new, place);
        found.extend(self.bounds(old, new, place));
        found.extend(self.properties(old, new, place, depth));
        found.extend(self.members(old, new, place, depth));
        found
    }

    fn values(&self, old: &Shape, new: &Shape, place: &str) -> Vec<String> {
        match (&old.values, &new.values) {
            (None, None) => Vec::new(),
            (None, Some(_)) => vec![format!("{place} may have listed values only")],
            (Some(_), None) if self.direction == Direction::Read => Vec::new(),
            (Some(_), None) => vec![format!("{place} may have any value")],
            (Some(old), Some(new)) => old
                .difference(new)
                .map(|value| format!("{place} may not be {value} any more"))
                .collect(),
        }
    }

    /// Formats, patterns and numeric bounds.
    fn bounds(&self, old: &Shape, new: &Shape, place: &str) -> Vec<String> {
        let keywords =
            ["format", "pattern", "minimum", "maximum", "minItems", "maxItems", "uniqueItems"];
        let changed = keywords.into_iter().filter(|keyword| {
            let (old, new) = (old.keywords.get(*keyword), new.keywords.get(*keyword));
            let is_looser = match (*keyword, old, new) {
                (_, _, None) => true,
                ("minimum" | "minItems", Some(old), Some(new)) => new.as_f64() <= old.as_f64(),
                ("maximum" | "maxItems", Some(old), Some(new)) => new.as_f64() >= old.as_f64(),
                _ => false,
            };
            old != new && !(self.direction == Direction::Read && is_looser)
        });
        changed.map(|keyword| format!("{place} has another {keyword}")).collect()
    }

    fn properties(&self, old: &Shape, new: &Shape, place: &str, depth: usize) -> Vec<String> {
        let of = |shape: &Shape| -> Map<String, Value> {
            shape.keywords.get("properties").and_then(Value::as_object).cloned().unwrap_or_default()
        };
        let required = |shape: &Shape| -> BTreeSet<String> {
            let list = shape.keywords.get("required").and_then(Value::as_array);
            let names = list.into_iter().flatten().filter_map(Value::as_str);
            names.map(str::to_owned).collect()
        };
        let (old_properties, new_properties) = (of(old), of(new));
        let mut found = Vec::new();
        for (name, before) in &old_properties {
            match new_properties.get(name) {
                Some(now) => {
                    let place = format!("{place}.{name}");
                    found.extend(self.schemas(before, now, &place, depth + 1));
                }
                None => found.push(format!("{place}.{name} is gone")),
            }
        }
        let (before, now) = (required(old), required(new));
        match self.direction {
            Direction::Printed => {
                let lost =
                    before.difference(&now).filter(|name| new_properties.contains_key(*name));
                found.extend(lost.map(|name| format!("{place}.{name} may be missing")));
            }
            Direction::Read => {
                let demanded = now.difference(&before);
                found.extend(demanded.map(|name| format!("{place}.{name} is demanded")));
            }
        }
        found
    }

    /// The items of a list, and the properties without a name of their own.
    fn members(&self, old: &Shape, new: &Shape, place: &str, depth: usize) -> Vec<String> {
        let mut found = Vec::new();
        for (keyword, end) in [("items", "[]"), ("additionalProperties", ".*")] {
            let place = format!("{place}{end}");
            let (old, new) = (old.keywords.get(keyword), new.keywords.get(keyword));
            // Without the keyword anything may be there.
            let (old, new) = (old.unwrap_or(&Value::Bool(true)), new.unwrap_or(&Value::Bool(true)));
            match (old, new) {
                // What was not there may come.
                (Value::Bool(false), _) | (Value::Bool(true), Value::Bool(true)) => {}
                // An open document promises nothing of what it does not name.
                (Value::Bool(true), _) if self.direction == Direction::Printed => {}
                (_, Value::Bool(false)) => found.push(format!("{place} may not be there any more")),
                (before, now) => found.extend(self.schemas(before, now, &place, depth + 1)),
            }
        }
        found
    }
}

/// Whether something of a kind fits one of these kinds.
fn takes(kinds: &BTreeSet<String>, kind: &str) -> bool {
    let is_number = kind == "integer" && kinds.contains("number");
    kinds.contains(kind) || kinds.contains(ANY) || is_number
}

/// What a value of this schema may be. Alternatives are taken apart, and those that list values of one
/// type are put together.
fn shapes(root: &Value, schema: &Value) -> Vec<Shape> {
    let mut shapes: Vec<Shape> = Vec::new();
    for shape in alternatives(root, schema, 0) {
        let same = shapes.iter_mut().find(|other| other.kind == shape.kind);
        match (same, shape.values.clone()) {
            (Some(Shape { values: Some(all), .. }), Some(more)) => all.extend(more),
            (Some(_) | None, _) => shapes.push(shape),
        }
    }
    shapes
}

fn alternatives(root: &Value, schema: &Value, depth: usize) -> Vec<Shape> {
    let Some(keywords) = schema.as_object() else {
        // `true`.
        return vec![Shape { kind: ANY.to_owned(), values: None, keywords: Map::new() }];
    };
    if depth > DEPTH_MAX {
        return Vec::new();
    }
    if let Some(target) = keywords.get("$ref").and_then(Value::as_str) {
        let found = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        return alternatives(root, found.unwrap_or(&Value::Null), depth + 1);
    }
    for keyword in ["anyOf", "oneOf"] {
        if let Some(all) = keywords.get(keyword).and_then(Value::as_array) {
            return all.iter().flat_map(|one| alternatives(root, one, depth + 1)).collect();
        }
    }
    let kinds: Vec<String> = match keywords.get("type") {
        Some(Value::String(kind)) => vec![kind.clone()],
        Some(Value::Array(kinds)) => {
            kinds.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        }
        _ => vec![ANY.to_owned()],
    };
    let listed = keywords.get("enum").and_then(Value::as_array).cloned();
    let listed = listed.or_else(|| keywords.get("const").map(|value| vec![value.clone()]));
    let shape = |kind: String| {
        let fits = |value: &&Value| value.is_null() == (kind == "null");
        let values = listed.as_ref().filter(|_| kind != "null");
        let values = values.map(|all| all.iter().filter(fits).map(Value::to_string).collect());
        Shape { values, keywords: keywords.clone(), kind }
    };
    kinds.into_iter().map(shape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(before: &Value, now: &Value, printed: usize, read: usize) {
        let found = |direction| breaks(before, now, direction);
        let (out, into) = (found(Direction::Printed), found(Direction::Read));
        assert_eq!((out.len(), into.len()), (printed, read), "printed: {out:?}; read: {into:?}");
    }

    fn object(properties: &Value, required: &[&str]) -> Value {
        json!({ "type": "object", "properties": properties, "required": required })
    }

    #[test]
    fn a_schema_keeps_its_own_promises() {
        let schema = json!({
            "type": "array",
            "items": { "$ref": "#/$defs/Item" },
            "$defs": { "Item": object(
                &json!({ "a": { "type": ["string", "null"], "enum": ["x", null] }, "b": true }),
                &["a"],
            ) },
        });
        check(&schema, &schema, 0, 0);
    }

    #[test]
    fn properties_may_come_and_none_may_go() {
        let one = object(&json!({ "a": { "type": "string" } }), &["a"]);
        let two = object(&json!({ "a": { "type": "string" }, "b": { "type": "string" } }), &["a"]);
        check(&one, &two, 0, 0);
        check(&two, &one, 1, 1);
    }

    #[test]
    fn what_is_always_printed_stays_so_and_what_may_be_left_out_may_be() {
        let properties = json!({ "a": { "type": "string" } });
        let (always, at_times) = (object(&properties, &["a"]), object(&properties, &[]));
        check(&always, &at_times, 1, 0);
        check(&at_times, &always, 0, 1);
        assert_eq!(
            breaks(&always, &at_times, Direction::Printed),
            ["the document.a may be missing"]
        );
    }

    #[test]
    fn types_stay_and_what_is_read_may_take_more() {
        let text = json!({ "type": "string" });
        let text_or_null = json!({ "type": ["string", "null"] });
        check(&text, &text_or_null, 1, 0);
        check(&text_or_null, &text, 1, 1);
        check(&json!({ "type": "integer" }), &json!({ "type": "number" }), 1, 0);
        check(&json!({ "type": "number" }), &json!({ "type": "integer" }), 1, 1);
        check(&text, &json!(true), 1, 0);
        check(&json!(true), &text, 1, 1);
    }

    #[test]
    fn the_ways_to_write_one_type_are_one() {
        let text_or_null = json!({ "type": ["string", "null"] });
        let apart = json!({ "anyOf": [{ "type": "null" }, { "type": "string" }] });
        check(&text_or_null, &apart, 0, 0);
        let together = json!({ "type": "string", "enum": ["a", "b"] });
        let apart = json!({ "oneOf": [
            { "type": "string", "const": "b" }, { "type": "string", "const": "a" },
        ] });
        check(&together, &apart, 0, 0);
        check(&apart, &together, 0, 0);
    }

    #[test]
    fn values_may_come_and_none_may_go() {
        let values = |all: &[&str]| json!({ "type": "string", "enum": all });
        check(&values(&["a"]), &values(&["a", "b"]), 0, 0);
        check(&values(&["a", "b"]), &values(&["b"]), 1, 1);
        check(&values(&["a"]), &json!({ "type": "string" }), 1, 0);
        check(&json!({ "type": "string" }), &values(&["a"]), 1, 1);
        let nullable = |all: &[Option<&str>]| json!({ "type": ["string", "null"], "enum": all });
        check(&nullable(&[Some("a"), None]), &nullable(&[Some("b"), None]), 1, 1);
    }

    #[test]
    fn formats_and_bounds_stay_and_what_is_read_may_have_looser_ones() {
        let from = |minimum: i32| json!({ "type": "integer", "minimum": minimum });
        check(&from(0), &from(1), 1, 1);
        check(&from(1), &from(0), 1, 0);
        let plain = json!({ "type": "string" });
        let time = json!({ "type": "string", "format": "date-time" });
        check(&time, &plain, 1, 0);
        check(&plain, &time, 1, 1);
        check(&plain, &json!({ "type": "string", "pattern": "^a" }), 1, 1);
        let most = |count: u32| json!({ "type": "array", "maxItems": count });
        check(&most(3), &most(2), 1, 1);
        check(&most(2), &most(3), 1, 0);
    }

    #[test]
    fn what_is_inside_of_lists_and_tables_is_compared() {
        let list = |items: Value| json!({ "type": "array", "items": items });
        let table = |of: Value| json!({ "type": "object", "additionalProperties": of });
        let (text, number) = (json!({ "type": "string" }), json!({ "type": "integer" }));
        check(&list(text.clone()), &list(number.clone()), 1, 1);
        check(&table(text.clone()), &table(number), 1, 1);
        check(&table(text.clone()), &table(json!(false)), 1, 1);
        check(&table(json!(false)), &table(text.clone()), 0, 0);
        let open = json!({ "type": "object" });
        check(&open, &table(json!(false)), 0, 1);
        check(&table(json!(false)), &open, 0, 0);
        let place = breaks(&list(text), &list(json!({ "type": "null" })), Direction::Printed);
        assert!(place[0].starts_with("the document[] was"), "{place:?}");
    }

    #[test]
    fn each_alternative_finds_one_that_keeps_it() {
        let data = object(&json!({ "data": { "type": "string" } }), &["data"]);
        let skipped = object(&json!({ "skipped": { "type": "integer" } }), &["skipped"]);
        let both = json!({ "anyOf": [data, skipped] });
        check(&both, &json!({ "anyOf": [skipped, data] }), 0, 0);
        check(&both, &json!({ "anyOf": [data, skipped, object(&json!({}), &[])] }), 0, 0);
        check(&both, &data, 1, 2);
    }

    #[test]
    fn schemas_that_refer_to_themselves_are_reported_and_do_not_hang() {
        let knot = json!({
            "$ref": "#/$defs/Node",
            "$defs": { "Node": object(&json!({ "next": { "$ref": "#/$defs/Node" } }), &[]) },
        });
        assert_eq!(breaks(&knot, &knot, Direction::Printed).len(), 1);
    }
}
