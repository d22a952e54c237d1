//! All declarations of one reading, each with its place.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;

use guest_fleet_core::rollout::Strategy;
use guest_fleet_core::view::{Assignment, Hold, Release, ReleaseName, Window};

use super::fields::{Context, Fields};
use super::files::{ConfigFiles, Format, Source, Sources};
use super::problem::{Collector, Place, Problem, Problems};
use super::tree::{Node, Value};
use super::{assignment, from_toml, from_yaml, hold, release, strategy, window};

/// Most declarations of one reading.
pub const OBJECTS: usize = 10_000;

/// The keys of a file.
const KINDS: [&str; 5] = ["release", "assignment", "hold", "window", "defaults"];
const HINTS: [(&str, &str); 6] = [
    ("default", "write `[defaults.rollout]`"),
    ("policy", "a policy is the server's own: `guest-fleet serve --policies FILE`"),
    ("releases", "write `release`: `[[release]]` in TOML, a list in YAML"),
    ("assignments", "write `assignment`: `[[assignment]]` in TOML, a list in YAML"),
    ("holds", "write `hold`: `[[hold]]` in TOML, a list in YAML"),
    ("windows", "write `window`: `[[window]]` in TOML, a list in YAML"),
];

/// A declaration with its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Declared<T> {
    /// What is declared.
    pub value: T,
    /// The file.
    pub file: String,
    /// Where in the file.
    pub place: Place,
}

/// What files declare.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Declarations {
    /// Releases by plugin and revision.
    pub releases: BTreeMap<ReleaseName, Declared<Release>>,
    /// Assignments by name.
    pub assignments: BTreeMap<String, Declared<Assignment>>,
    /// Holds by name.
    pub holds: BTreeMap<String, Declared<Hold>>,
    /// Windows by name.
    pub windows: BTreeMap<String, Declared<Window>>,
    /// How changes go where their assignment says nothing.
    pub defaults: Option<Declared<Strategy>>,
}

// === impl Declared ===

impl<T> Declared<T> {
    /// A problem of this declaration.
    #[must_use]
    pub fn problem(&self, key: &str, reason: impl Into<String>, fix: impl Into<String>) -> Problem {
        Problem {
            file: self.file.clone(),
            place: Some(self.place),
            key: key.to_owned(),
            reason: reason.into(),
            fix: fix.into(),
        }
    }
}

// === impl Declarations ===

impl Declarations {
    /// Reads files.
    ///
    /// # Errors
    /// All problems of all files. Nothing of them is used then.
    pub fn parse(sources: &Sources) -> Result<Self, Problems> {
        let mut problems = Collector::default();
        let mut declarations = Self::default();
        let mut files = ConfigFiles::new(sources.root.clone());
        for source in &sources.files {
            let mut context = Context { file: &source.name, problems: &mut problems };
            match documents(source) {
                Ok(documents) => documents.iter().for_each(|document| {
                    declarations.document(&mut context, document, &mut files);
                }),
                Err(problem) => problems.add(problem),
            }
        }
        problems.finish(declarations)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        let named = self.assignments.len() + self.holds.len() + self.windows.len();
        self.releases.len() + named + usize::from(self.defaults.is_some())
    }

    /// Whether nothing is declared.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn document(&mut self, context: &mut Context<'_>, node: &Node, files: &mut ConfigFiles) {
        let Some(fields) = Fields::new(context, node, "", &KINDS, &HINTS) else { return };
        for kind in KINDS {
            let Some(found) = fields.get(kind) else { continue };
            let nodes = match &found.value {
                Value::Table(_) => std::slice::from_ref(found),
                Value::Null => continue,
                _ => context.list(found, kind).unwrap_or_default(),
            };
            for node in nodes {
                if self.len() >= OBJECTS {
                    let reason = format!("up to here there are {OBJECTS} declarations");
                    let fix = "apply a part of the files at a time";
                    return context.problem(node.place, kind, reason, fix);
                }
                self.object(context, kind, node, files);
            }
        }
    }

    fn object(
        &mut self,
        context: &mut Context<'_>,
        kind: &str,
        node: &Node,
        files: &mut ConfigFiles,
    ) {
        match kind {
            "release" => {
                let read = release::read(context, node, files);
                let name = |name: &ReleaseName| format!("{} {}", name.plugin, name.revision);
                add(context, &mut self.releases, read, node, (kind, name));
            }
            "assignment" => {
                let read = assignment::read(context, node);
                add(context, &mut self.assignments, read, node, (kind, String::clone));
            }
            "hold" => {
                let read = hold::read(context, node);
                add(context, &mut self.holds, read, node, (kind, String::clone));
            }
            "window" => {
                let read = window::read(context, node);
                add(context, &mut self.windows, read, node, (kind, String::clone));
            }
            _ => self.defaults(context, node),
        }
    }

    fn defaults(&mut self, context: &mut Context<'_>, node: &Node) {
        let Some(fields) = Fields::new(context, node, "defaults", &["rollout"], &[]) else {
            return;
        };
        let Some(found) = fields.get("rollout") else { return };
        let Some(value) = strategy::read(context, found, "defaults.rollout") else { return };
        let place = found.place;
        if let Some(first) = &self.defaults {
            let Place { line, column } = first.place;
            let reason =
                format!("the defaults are declared in {}:{line}:{column} already", first.file);
            return context.problem(place, "defaults.rollout", reason, "remove one of them");
        }
        self.defaults = Some(Declared { value, file: context.file.to_owned(), place });
    }
}

fn add<K: Ord, T>(
    context: &mut Context<'_>,
    all: &mut BTreeMap<K, Declared<T>>,
    read: Option<(K, T)>,
    node: &Node,
    (kind, name): (&str, impl Fn(&K) -> String),
) {
    let Some((key, value)) = read else { return };
    let place = node.place;
    match all.entry(key) {
        MapEntry::Vacant(free) => {
            free.insert(Declared { value, file: context.file.to_owned(), place });
        }
        MapEntry::Occupied(taken) => {
            let first = taken.get();
            let Place { line, column } = first.place;
            let reason = format!(
                "the {kind} {} is declared in {}:{line}:{column} already",
                name(taken.key()),
                first.file
            );
            context.problem(place, kind, reason, "remove one of them, or rename it");
        }
    }
}

fn documents(source: &Source) -> Result<Vec<Node>, Problem> {
    let problem = |place, reason: String, fix: String| Problem {
        file: source.name.clone(),
        place,
        key: String::new(),
        reason,
        fix,
    };
    let text = std::str::from_utf8(&source.text).map_err(|error| {
        let reason = format!("it is not UTF-8 from byte {} on", error.valid_up_to());
        problem(None, reason, "save it as UTF-8".to_owned())
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match source.format {
        Format::Toml => from_toml::read(text).map(|document| vec![document]),
        Format::Yaml => from_yaml::read(text),
    }
    .map_err(|error| problem(error.place, error.reason, error.fix))
}
