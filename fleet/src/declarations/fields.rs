//! Reads the keys of a table, and collects what is wrong with them.

use super::problem::{Collector, Place, Problem};
use super::tree::{Entry, Node, Value};

/// How much of a foreign text an error repeats, in characters.
const SHOWN: usize = 80;

/// What is known while a file is read.
pub(crate) struct Context<'a> {
    /// The file as it is named in problems.
    pub(crate) file: &'a str,
    pub(crate) problems: &'a mut Collector,
}

/// A table whose keys are known.
pub(crate) struct Fields<'a> {
    /// Its own key, such as `release.archives`.
    path: String,
    place: Place,
    entries: &'a [Entry],
}

/// A text as an error may repeat it: short, in quotes and without control characters.
pub(crate) fn shown(text: &str) -> String {
    if text.chars().count() <= SHOWN {
        return format!("{text:?}");
    }
    let beginning: String = text.chars().take(SHOWN).collect();
    format!("{beginning:?}…")
}

/// `did you mean …, or else what is allowed`.
pub(crate) fn suggestion(found: &str, allowed: &[&str]) -> String {
    let nearest = allowed
        .iter()
        .map(|name| (strsim::damerau_levenshtein(&found.to_lowercase(), name), *name))
        .min()
        .filter(|(distance, name)| *distance <= 1 + name.len() / 4);
    let list = allowed.join("`, `");
    match nearest {
        Some((_, name)) => format!("did you mean `{name}`? Allowed are `{list}`"),
        None => format!("allowed are `{list}`"),
    }
}

// === impl Context ===

impl Context<'_> {
    /// Adds a problem.
    pub(crate) fn problem(
        &mut self,
        place: Place,
        key: &str,
        reason: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.problems.add(Problem {
            file: self.file.to_owned(),
            place: Some(place),
            key: key.to_owned(),
            reason: reason.into(),
            fix: fix.into(),
        });
    }

    fn wrong_kind(&mut self, node: &Node, key: &str, wanted: &str) {
        let fix = match (&node.value, wanted) {
            (Value::Integer(_) | Value::Float(_) | Value::Bool(_) | Value::Date(_), "a text") => {
                "put it in double quotes".to_owned()
            }
            _ => format!("write {wanted}"),
        };
        self.problem(node.place, key, format!("it is {}, not {wanted}", node.value.kind()), fix);
    }

    /// The text of a value.
    pub(crate) fn text<'n>(&mut self, node: &'n Node, key: &str) -> Option<&'n str> {
        match &node.value {
            Value::Text(text) => Some(text),
            _ => {
                self.wrong_kind(node, key, "a text");
                None
            }
        }
    }

    /// The items of a list.
    pub(crate) fn list<'n>(&mut self, node: &'n Node, key: &str) -> Option<&'n [Node]> {
        match &node.value {
            Value::List(items) => Some(items),
            _ => {
                self.wrong_kind(node, key, "a list");
                None
            }
        }
    }

    /// The entries of a table.
    pub(crate) fn table<'n>(&mut self, node: &'n Node, key: &str) -> Option<&'n [Entry]> {
        match &node.value {
            Value::Table(entries) => Some(entries),
            _ => {
                self.wrong_kind(node, key, "a table");
                None
            }
        }
    }
}

// === impl Fields ===

impl<'a> Fields<'a> {
    /// The keys of a table. Those that are not allowed are problems; `hints` say more of some.
    pub(crate) fn new(
        context: &mut Context<'_>,
        node: &'a Node,
        path: impl Into<String>,
        allowed: &[&str],
        hints: &[(&str, &str)],
    ) -> Option<Self> {
        let path = path.into();
        let entries = context.table(node, &path)?;
        for entry in entries {
            let key = entry.key.as_str();
            if allowed.contains(&key) {
                continue;
            }
            let hint = hints.iter().find(|(name, _)| *name == key);
            let fix = hint.map_or_else(|| suggestion(key, allowed), |(_, fix)| (*fix).to_owned());
            let reason = format!("the key {} is not known", shown(key));
            context.problem(entry.place, &path, reason, fix);
        }
        Some(Self { path, place: node.place, entries })
    }

    /// The whole key of one of its keys.
    pub(crate) fn key(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Where the table begins.
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// The value of a key.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Node> {
        self.entries.iter().find(|entry| entry.key == name).map(|entry| &entry.node)
    }

    /// The value of a key that must be there.
    pub(crate) fn required(&self, context: &mut Context<'_>, name: &str) -> Option<&'a Node> {
        let found = self.get(name);
        if found.is_none() {
            let reason = format!("the key `{name}` is missing");
            context.problem(self.place, &self.path, reason, format!("add `{name}`"));
        }
        found
    }

    /// A text that must be there.
    pub(crate) fn required_text(
        &self,
        context: &mut Context<'_>,
        name: &str,
    ) -> Option<(&'a str, Place)> {
        let node = self.required(context, name)?;
        Some((context.text(node, &self.key(name))?, node.place))
    }

    /// A text.
    pub(crate) fn text(&self, context: &mut Context<'_>, name: &str) -> Option<(&'a str, Place)> {
        let node = self.get(name)?;
        Some((context.text(node, &self.key(name))?, node.place))
    }

    /// `true` or `false`; `false` where the key is not there.
    pub(crate) fn flag(&self, context: &mut Context<'_>, name: &str) -> bool {
        match self.get(name) {
            None => false,
            Some(Node { value: Value::Bool(is_so), .. }) => *is_so,
            Some(node) => {
                context.wrong_kind(node, &self.key(name), "true or false");
                false
            }
        }
    }

    /// A whole number.
    pub(crate) fn integer(&self, context: &mut Context<'_>, name: &str) -> Option<(i64, Place)> {
        match self.get(name)? {
            Node { value: Value::Integer(number), place } => Some((*number, *place)),
            node => {
                context.wrong_kind(node, &self.key(name), "a whole number");
                None
            }
        }
    }

    /// A list of texts; empty where the key is not there.
    pub(crate) fn texts(&self, context: &mut Context<'_>, name: &str) -> Vec<(&'a str, Place)> {
        let key = self.key(name);
        let items = self.get(name).and_then(|node| context.list(node, &key)).unwrap_or_default();
        items.iter().filter_map(|item| Some((context.text(item, &key)?, item.place))).collect()
    }
}
