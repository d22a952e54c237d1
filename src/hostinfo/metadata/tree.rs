//! The whole tree of attributes, as the rules of plugins refer to it. Pure.
//!
//! The server answers with JSON, whose names are in camel case but for those of attributes; a rule
//! names an attribute by its path below `instance/`, in which names have dashes. So a value whose
//! JSON name has capitals is found under both.

use std::collections::BTreeMap;
use std::sync::Arc;

use guest_agent_actors::model::facts::{Attributes, Number, Value};
use serde_json::Value as Json;

/// Marks one state of the tree, so that a client can wait for a change of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Etag(String);

/// A tree, and how to wait for the next one.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The attributes.
    pub tree: Tree,
    /// `None` where the server gives no mark; then a client cannot wait for changes.
    pub etag: Option<Etag>,
}

/// Most values of one scope.
const VALUES_MAX: usize = 20_000;

/// Deepest nesting; deeper values are left out.
const DEPTH_MAX: usize = 16;

/// Longest path, in bytes; a longer one is left out.
const PATH_MAX: usize = 512;

/// The largest number that a double can tell from its neighbours.
const EXACT_MAX: u64 = 1 << 53;

/// The attributes from the metadata server. The values may be secrets; `Debug` shows only names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    instance: Attributes,
    custom: Attributes,
    instance_id: Option<String>,
}

/// Why an answer is not a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// The answer is not JSON, or it is nested too deeply.
    #[error("they are not JSON")]
    NotJson,
    /// It is JSON, but not an object.
    #[error("they are not a JSON object with an object `instance` in it")]
    NotTree,
}

// === impl Tree ===

impl Tree {
    /// Reads the answer to a recursive request.
    ///
    /// # Errors
    /// The answer is not JSON, or has no instance.
    pub fn parse(text: &[u8]) -> Result<Self, TreeError> {
        let root: Json = serde_json::from_slice(text).map_err(|_| TreeError::NotJson)?;
        let instance = root.get("instance").and_then(Json::as_object);
        let instance = instance.ok_or(TreeError::NotTree)?;
        let mut paths = Paths::default();
        for (name, value) in instance {
            paths.add(&[], name, value);
        }
        // An instance's own attributes take precedence over its project's.
        let mut custom = BTreeMap::new();
        for owner in [root.get("project"), root.get("instance")].into_iter().flatten() {
            let all = owner.get("attributes").and_then(Json::as_object).into_iter().flatten();
            custom.extend(all.take(VALUES_MAX).map(|(key, json)| (key.clone(), value(json, 0))));
        }
        let instance_id = instance.get("id").and_then(|id| match id {
            Json::String(text) => Some(text.clone()),
            Json::Number(number) => Some(number.to_string()),
            _ => None,
        });
        Ok(Self {
            instance: Attributes::Known(paths.found),
            custom: Attributes::Known(custom),
            instance_id,
        })
    }

    /// Attributes of the instance, by their paths below `instance/`.
    #[must_use]
    pub fn instance(&self) -> &Attributes {
        &self.instance
    }

    /// Custom attributes: those of the project, and over them those of the instance.
    #[must_use]
    pub fn custom(&self) -> &Attributes {
        &self.custom
    }

    /// The instance's id, where there is one.
    #[must_use]
    pub fn instance_id(&self) -> Option<&str> {
        self.instance_id.as_deref()
    }
}

/// Values by path.
#[derive(Default)]
struct Paths {
    found: BTreeMap<String, Value>,
}

// === impl Paths ===

impl Paths {
    /// Adds a value below each of these paths (the spellings of its parent; the root has none), and
    /// all that is in it.
    fn add(&mut self, parents: &[String], name: &str, json: &Json) {
        let depth = parents.first().map_or(0, |path| path.matches('/').count() + 1);
        if depth >= DEPTH_MAX || self.found.len() >= VALUES_MAX || name.is_empty() {
            return;
        }
        let verbatim = parents.first().is_some_and(|path| path == "attributes");
        let dashed = if verbatim { name.to_owned() } else { with_dashes(name) };
        let join = |parent: Option<&String>, name: &str| match parent {
            Some(parent) => format!("{parent}/{name}"),
            None => name.to_owned(),
        };
        // First all names with dashes, as in the server's own paths; then as the JSON writes them.
        let mut paths = vec![join(parents.first(), &dashed), join(parents.last(), name)];
        paths.dedup();
        if paths.iter().any(|path| path.len() > PATH_MAX) {
            return;
        }
        match json {
            Json::Object(fields) => {
                for (name, inside) in fields {
                    self.add(&paths, name, inside);
                }
            }
            Json::Array(members) => {
                for (index, inside) in members.iter().enumerate().take(VALUES_MAX) {
                    self.add(&paths, &index.to_string(), inside);
                }
                if members.iter().all(|member| !member.is_object() && !member.is_array()) {
                    self.insert(paths, value(json, 0));
                }
            }
            scalar => self.insert(paths, value(scalar, 0)),
        }
    }

    fn insert(&mut self, paths: Vec<String>, value: Value) {
        for path in paths {
            self.found.insert(path, value.clone());
        }
    }
}

fn value(json: &Json, depth: usize) -> Value {
    if depth >= DEPTH_MAX {
        return Value::Null;
    }
    match json {
        Json::Null => Value::Null,
        Json::Bool(yes) => Value::Bool(*yes),
        // An id beyond what a double holds is compared digit by digit.
        Json::Number(number) if number.as_u64().is_some_and(|number| number > EXACT_MAX) => {
            Value::text(&number.to_string())
        }
        Json::Number(number) => {
            number.as_f64().and_then(Number::new).map_or(Value::Null, Value::Number)
        }
        Json::String(text) => Value::text(text),
        Json::Array(members) => {
            Value::List(members.iter().map(|member| value(member, depth + 1)).collect())
        }
        Json::Object(fields) => {
            let field = |(name, inside): (&String, &Json)| {
                (Arc::from(name.as_str()), value(inside, depth + 1))
            };
            Value::Struct(fields.iter().map(field).collect())
        }
    }
}

/// `machineType` as `machine-type`.
fn with_dashes(name: &str) -> String {
    let mut dashed = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !dashed.is_empty() {
            dashed.push('-');
        }
        dashed.push(letter.to_ascii_lowercase());
    }
    dashed
}

// === impl Etag ===

impl Etag {
    /// The mark as the server gave it.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// It goes into a URL, so only letters and digits are accepted; real marks have no others.
    pub(crate) fn new(text: &str) -> Option<Self> {
        let text = text.trim_matches('"');
        let plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        (plain && (1..=64).contains(&text.len())).then(|| Self(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn known(attributes: &Attributes) -> &BTreeMap<String, Value> {
        let Attributes::Known(all) = attributes else { panic!("{attributes:?}") };
        all
    }

    #[test]
    fn values_are_found_under_their_path_and_under_their_json_name() {
        let text = br#"{"instance": {"machineType": "projects/1/machineTypes/e2",
            "id": 4242424242424242424, "preemptible": "FALSE", "tags": ["a", "b"],
            "networkInterfaces": [{"accessConfigs": [{"externalIp": "10.0.0.1"}]}],
            "attributes": {"camelKey": "v"}}}"#;
        let tree = Tree::parse(text).expect("a tree");
        let all = known(tree.instance());
        for (path, text) in [
            ("machine-type", "projects/1/machineTypes/e2"),
            ("machineType", "projects/1/machineTypes/e2"),
            ("id", "4242424242424242424"),
            ("network-interfaces/0/access-configs/0/external-ip", "10.0.0.1"),
            ("networkInterfaces/0/accessConfigs/0/externalIp", "10.0.0.1"),
            ("tags/1", "b"),
            ("attributes/camelKey", "v"),
        ] {
            assert_eq!(all.get(path), Some(&Value::text(text)), "{path}");
        }
        assert_eq!(all.get("tags"), Some(&Value::List(vec![Value::text("a"), Value::text("b")])));
        assert!(!all.contains_key("attributes/camel-key"), "{all:?}");
        assert_eq!(tree.instance_id(), Some("4242424242424242424"));
    }

    #[test]
    fn attributes_of_the_instance_win_over_those_of_the_project() {
        let text = br#"{"instance": {"attributes": {"role": "web"}},
            "project": {"attributes": {"role": "none", "team": "a"}}}"#;
        let tree = Tree::parse(text).expect("a tree");
        let all = known(tree.custom());
        assert_eq!(all.get("role"), Some(&Value::text("web")));
        assert_eq!(all.get("team"), Some(&Value::text("a")));
    }

    #[test]
    fn what_is_no_tree_is_refused() {
        for (text, error) in [
            ("", TreeError::NotJson),
            ("<html>", TreeError::NotJson),
            ("[]", TreeError::NotTree),
            ("{}", TreeError::NotTree),
            (r#"{"instance": 7}"#, TreeError::NotTree),
        ] {
            assert_eq!(Tree::parse(text.as_bytes()), Err(error), "{text}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(Tree::parse(deep.as_bytes()), Err(TreeError::NotJson));
    }

    #[test]
    fn a_tree_without_bounds_is_cut() {
        let many = format!(r#"{{"instance": {{"a": [{}1]}}}}"#, "1,".repeat(50_000));
        let tree = Tree::parse(many.as_bytes()).expect("a tree");
        assert!(known(tree.instance()).len() <= 2 * VALUES_MAX + 2);
        let deep = format!(r#"{{"instance": {}1{}}}"#, r#"{"aB":"#.repeat(90), "}".repeat(90));
        let tree = Tree::parse(deep.as_bytes()).expect("a tree");
        assert!(known(tree.instance()).is_empty());
    }

    #[test]
    fn printed_trees_show_no_value() {
        let text = br#"{"instance": {"attributes": {"password": "secret"}}}"#;
        let tree = Tree::parse(text).expect("a tree");
        assert!(!format!("{tree:?}").contains("secret"), "{tree:?}");
    }

    proptest! {
        #[test]
        fn law_hostile_answers_never_panic(text in any::<Vec<u8>>()) {
            drop(Tree::parse(&text));
        }

        #[test]
        fn law_hostile_json_never_panics_and_is_bounded(
            json in json(), name in "[a-zA-Z/.-]{0,10}",
        ) {
            let text = serde_json::json!({ "instance": { name: json.clone(), "attributes": json } });
            if let Ok(tree) = Tree::parse(text.to_string().as_bytes()) {
                prop_assert!(known(tree.instance()).len() <= 2 * VALUES_MAX + 2);
                prop_assert!(known(tree.instance()).keys().all(|path| path.len() <= PATH_MAX));
            }
        }
    }

    fn json() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<bool>().prop_map(Json::from),
            any::<f64>().prop_map(Json::from),
            any::<u64>().prop_map(Json::from),
            ".{0,20}".prop_map(Json::from),
        ];
        leaf.prop_recursive(6, 60, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Json::from),
                prop::collection::btree_map("[a-zA-Z/.-]{0,10}", inner, 0..6)
                    .prop_map(|fields| Json::Object(fields.into_iter().collect())),
            ]
        })
    }
}
