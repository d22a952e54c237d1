//! What several JSON documents have in common.

use std::borrow::Cow;

use guest_fleet_core::target::Target;
use guest_fleet_server::configuration::change::{Becomes, Edit};
use guest_fleet_server::declarations::problem::Problem;
use guest_fleet_server::rollouts::apart::Apart;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

use super::context::Context;
use super::failure::Failure;

/// A time, as RFC 3339 writes it in UTC. Stands for the text in schemas.
pub(crate) struct Time;

/// What a verb changed, or would change.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ChangeJson {
    /// Declared assignments that the fleet does not follow, though to apply the files changes nothing there.
    pub apart: Vec<ApartJson>,
    /// Number of the audit entry; null where nothing was written.
    pub audit: Option<u64>,
    /// What was changed, or would be.
    pub changes: Vec<EditJson>,
    /// Whether nothing was written because only a look was asked for.
    pub dry_run: bool,
    /// The declaration of an assignment that was taken elsewhere by hand, for its file; null for other changes.
    pub file: Option<String>,
    /// Holds that were set by hand and that no file declares; they stay.
    pub kept: Vec<String>,
    /// Files and declarations that were passed over: a sentence each.
    pub notes: Vec<String>,
    /// Records that no file declares, and that stay: with `--prune` they would be deleted.
    pub undeclared: Vec<EditJson>,
    /// How many declarations were in the ledger as they are.
    pub unchanged: usize,
}

/// An assignment that the fleet does not follow as its file says.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ApartJson {
    /// Name of the assignment.
    pub assignment: String,
    /// The revision in the files; null where the plugin should be absent.
    pub declared: Option<String>,
    /// Name of the rollout of the assignment; null where it has none.
    pub rollout: Option<String>,
    /// The state of the rollout.
    pub state: Option<String>,
    /// Sentences: the difference, and the ways to end it.
    pub text: String,
    /// The revision that the ledger has for the assignment; null where the plugin should be absent.
    pub wanted: Option<String>,
}

/// A change of one record.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EditJson {
    /// What it will be, in words; null where it is deleted.
    pub after: Option<String>,
    /// What it was, in words; null where it was not there.
    pub before: Option<String>,
    /// What becomes of it.
    pub change: ChangeKind,
    /// What kind of record it is.
    pub kind: String,
    /// Its name; of a release, plugin and revision.
    pub name: String,
}

/// What becomes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It is new.
    Created,
    /// It was there, and is another.
    Replaced,
    /// It is there no more.
    Deleted,
}

/// What is wrong with declarations.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProblemsJson {
    /// All problems.
    pub problems: Vec<ProblemJson>,
}

/// A problem of a declaration.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProblemJson {
    /// Column in characters, from 1; null for a file as a whole.
    pub column: Option<usize>,
    /// The file.
    pub file: String,
    /// What puts it right.
    pub fix: String,
    /// The key; empty for a file as a whole.
    pub key: String,
    /// Line, from 1; null for a file as a whole.
    pub line: Option<usize>,
    /// What is wrong.
    pub reason: String,
}

/// Kind and name of a record, from its key.
pub(crate) fn parts(key: &str) -> (String, String) {
    let (kind, name) = key.split_once('/').unwrap_or(("", key));
    (kind.to_owned(), if kind == "release" { name.replacen('/', " ", 1) } else { name.to_owned() })
}

// === impl Time ===

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

// === impl EditJson ===

impl From<&Edit> for EditJson {
    fn from(edit: &Edit) -> Self {
        let (kind, name) = parts(&edit.key);
        let change = match (&edit.record, &edit.before) {
            (Becomes::Deleted, _) => ChangeKind::Deleted,
            (_, Some(_)) => ChangeKind::Replaced,
            (_, None) => ChangeKind::Created,
        };
        Self { after: edit.after.clone(), before: edit.before.clone(), change, kind, name }
    }
}

impl EditJson {
    /// The change as a line for people.
    pub(crate) fn line(&self) -> String {
        let Self { kind, name, .. } = self;
        let after = self.after.as_deref().unwrap_or_default();
        let before = self.before.as_deref().unwrap_or_default();
        let text = match self.change {
            ChangeKind::Created => format!("+ {kind} {name}: {after}"),
            ChangeKind::Replaced => format!("~ {kind} {name}: {before} -> {after}"),
            ChangeKind::Deleted => format!("- {kind} {name}: {before}"),
        };
        super::text::one_line(&text)
    }
}

// === impl ProblemJson ===

impl From<&Problem> for ProblemJson {
    fn from(problem: &Problem) -> Self {
        Self {
            column: problem.place.map(|place| place.column),
            file: problem.file.clone(),
            fix: problem.fix.clone(),
            key: problem.key.clone(),
            line: problem.place.map(|place| place.line),
            reason: problem.reason.clone(),
        }
    }
}

// === impl ApartJson ===

impl From<&Apart> for ApartJson {
    fn from(apart: &Apart) -> Self {
        let Apart { assignment, declared, wanted, rollout, text } = apart;
        let revision = |target: &Target| target.revision().map(str::to_owned);
        Self {
            assignment: assignment.clone(),
            declared: revision(declared),
            rollout: rollout.as_ref().map(|(name, _)| name.clone()),
            state: rollout.as_ref().map(|(_, state)| (*state).to_owned()),
            text: text.clone(),
            wanted: revision(wanted),
        }
    }
}

// === impl ChangeJson ===

impl ChangeJson {
    /// What a verb about single records changed.
    pub(crate) fn of(audit: Option<u64>, edits: &[Edit]) -> Self {
        Self {
            apart: Vec::new(),
            audit,
            changes: edits.iter().map(EditJson::from).collect(),
            dry_run: false,
            file: None,
            kept: Vec::new(),
            notes: Vec::new(),
            undeclared: Vec::new(),
            unchanged: usize::from(edits.is_empty()),
        }
    }

    /// Prints it as text or as a document.
    pub(crate) fn print(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        for change in &self.changes {
            context.say(format_args!("{}", change.line()))?;
        }
        match self.audit {
            Some(entry) => context.say(format_args!("done (audit {entry})"))?,
            None => context.say(format_args!("nothing to change"))?,
        }
        if let Some(file) = &self.file {
            context.say(format_args!(
                "write this into the files of the fleet:\n\n{}",
                file.trim_end()
            ))?;
        }
        context.document(self)
    }
}
