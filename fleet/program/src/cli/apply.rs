//! `apply`: makes the ledger say what files declare.

use std::path::PathBuf;

use clap::Args;
use guest_fleet_server::configuration::Configuration;
use guest_fleet_server::configuration::change::{self, ChangeError, Changed, Edit};
use guest_fleet_server::declarations::difference::{Difference, Undeclared, difference};
use guest_fleet_server::declarations::problem::Problems;
use guest_fleet_server::declarations::set::Declarations;

use super::context::Context;
use super::document::{ChangeJson, EditJson};
use super::failure::{Exit, Failure};
use super::sources;
use super::text::counted;

/// The options of `apply`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// A file, a directory of .toml, .yaml and .yml files, or `-` for standard input.
    #[arg(short, long, value_name = "PATH")]
    pub file: PathBuf,
    /// Delete what no file declares. Without --yes it only shows what that is.
    #[arg(long)]
    pub prune: bool,
    /// Delete without asking.
    #[arg(long, requires = "prune")]
    pub yes: bool,
    /// Show what would change, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Why, for the audit record.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub reason: String,
}

/// Runs the verb.
///
/// # Errors
/// The declarations have problems, the ledger did not take them, or something would be deleted
/// without `--yes`.
pub async fn run(options: &Options, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let (declared, notes) = sources::read(context, &options.file)?;
    if options.prune && declared.is_empty() {
        return Err(Failure::failed(
            "the files declare nothing, so --prune would delete everything",
        )
        .hint("check the path; to delete everything, delete it in several steps"));
    }
    let mode = if options.prune { Undeclared::Delete } else { Undeclared::Keep };
    if options.dry_run || (options.prune && !options.yes) {
        let ledger = Configuration::load(context.ledger).await?;
        let found = match difference(&declared, &ledger, &context.caller.who, mode) {
            Ok(found) => found,
            Err(problems) => return sources::refused(context, problems),
        };
        let deletes = mode == Undeclared::Delete && !found.undeclared.is_empty();
        if options.dry_run || deletes {
            print(context, &found, mode, notes, None, true)?;
            return if options.dry_run { Ok(Exit::Done) } else { Err(unconfirmed(&found)) };
        }
    }
    let changed = write(context, &declared, mode, &options.reason).await;
    match changed {
        Ok(Changed { entry, answer, .. }) => {
            print(context, &answer, mode, notes, entry, false)?;
            Ok(Exit::Done)
        }
        Err(ChangeError::Refused(problems)) => sources::refused(context, problems),
        Err(error) => Err(error.into()),
    }
}

async fn write(
    context: &Context<'_>,
    declared: &Declarations,
    mode: Undeclared,
    reason: &str,
) -> Result<Changed<Difference>, ChangeError<Problems>> {
    let decision = context.decision("apply", reason);
    change::change(context.ledger, &decision, |ledger| {
        let found = difference(declared, ledger, &decision.who, mode)?;
        let mut edits: Vec<Edit> = found.edits.clone();
        if mode == Undeclared::Delete {
            edits.extend(found.undeclared.iter().cloned());
        }
        Ok((edits, found))
    })
    .await
}

fn unconfirmed(found: &Difference) -> Failure {
    let mut counts = std::collections::BTreeMap::<String, usize>::new();
    for edit in &found.undeclared {
        *counts.entry(EditJson::from(edit).kind).or_default() += 1;
    }
    let counts = counts.into_iter().map(|(kind, count)| counted(count, &kind));
    let counts = counts.collect::<Vec<_>>().join(", ");
    Failure::failed(format_args!("--prune would delete {counts}; nothing was changed"))
        .hint("add --yes to delete them, or leave --prune out to keep them")
}

fn print(
    context: &mut Context<'_>,
    found: &Difference,
    mode: Undeclared,
    notes: Vec<String>,
    entry: Option<u64>,
    dry_run: bool,
) -> Result<(), Failure> {
    let edits = found.edits.iter().map(EditJson::from);
    let undeclared = found.undeclared.iter().map(EditJson::from).collect::<Vec<_>>();
    let (changes, undeclared) = match mode {
        Undeclared::Delete => (edits.chain(undeclared).collect::<Vec<_>>(), Vec::new()),
        Undeclared::Keep => (edits.collect(), undeclared),
    };
    for change in &changes {
        context.say(format_args!("{}", change.line()))?;
    }
    let would = if dry_run { "would be " } else { "" };
    let audit = entry.map_or_else(String::new, |entry| format!(" (audit {entry})"));
    context.say(format_args!(
        "{would}{}, {} unchanged{audit}",
        counted(changes.len(), "change"),
        found.unchanged
    ))?;
    if !undeclared.is_empty() {
        context.say(format_args!(
            "{} in the ledger that no file declares; `diff` lists them, --prune deletes them",
            counted(undeclared.len(), "record")
        ))?;
    }
    context.document(&ChangeJson {
        audit: entry,
        changes,
        dry_run,
        kept: found.kept.clone(),
        notes,
        undeclared,
        unchanged: found.unchanged,
    })
}
