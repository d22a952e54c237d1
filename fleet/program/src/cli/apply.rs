//! `apply`: makes the ledger say what files declare.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use guest_fleet_core::fold::Row;
use guest_fleet_server::configuration::Configuration;
use guest_fleet_server::configuration::change::{self, ChangeError, Changed, Edit};
use guest_fleet_server::declarations::difference::{Difference, Undeclared};
use guest_fleet_server::declarations::problem::Problems;
use guest_fleet_server::declarations::set::Declarations;
use guest_fleet_server::rollouts::apart::{Apart, apart};
use guest_fleet_server::rollouts::begin::Manner;
use guest_fleet_server::rollouts::declared::{CompareError, Comparison};
use guest_fleet_server::rollouts::rows::Rows;

use super::context::Context;
use super::document::{ApartJson, ChangeJson, EditJson};
use super::failure::{Exit, Failure};
use super::sources;
use super::text::{counted, one_line};

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
    /// Change all agents together, and not wave by wave as the assignments' rollouts say; say why with
    /// --reason.
    #[arg(long, requires = "reason")]
    pub at_once: bool,
    /// Also with releases that halted a rollout; REASON says why that is right.
    #[arg(long, value_name = "REASON")]
    pub again: Option<String>,
    /// Why, for the audit record.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
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
    let why = why(options)?;
    let manner = Manner { at_once: options.at_once, again: options.again.is_some() };
    if options.dry_run || (options.prune && !options.yes) {
        let ledger = Configuration::load(context.ledger).await?;
        let found = match compared(context, &declared, &ledger, mode, manner).await? {
            Ok(found) => found,
            Err(problems) => return sources::refused(context, problems),
        };
        let deletes = mode == Undeclared::Delete && !found.undeclared.is_empty();
        if options.dry_run || deletes {
            let refused = unconfirmed(&found);
            let apart = apart(&declared, ledger.view(), &found.edits);
            print(context, &(found, apart), mode, notes, None, true)?;
            return if options.dry_run { Ok(Exit::Done) } else { Err(refused) };
        }
    }
    let mut rows = None;
    loop {
        match write(context, &declared, mode, manner, &why, rows.as_ref()).await {
            Ok(Changed { entry, answer, .. }) => {
                print(context, &answer, mode, notes, entry, false)?;
                return Ok(Exit::Done);
            }
            Err(ChangeError::Refused(CompareError::NeedsRows)) if rows.is_none() => {
                rows = Some(Rows::load(context.ledger).await?);
            }
            Err(ChangeError::Refused(CompareError::Problems(problems))) => {
                return sources::refused(context, problems);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The reason for the audit record.
fn why(options: &Options) -> Result<String, Failure> {
    let given = |text: &Option<String>| text.clone().unwrap_or_default();
    let (reason, again) = (given(&options.reason), given(&options.again));
    if options.again.is_some() && again.trim().is_empty() {
        return Err(
            Failure::usage("--again: it says nothing").hint("say why the release may go on")
        );
    }
    check_at_once(options.at_once, &reason)?;
    let parts = [reason, again].into_iter().filter(|part| !part.is_empty());
    Ok(parts.collect::<Vec<_>>().join("; again: "))
}

/// Refuses a change of all agents together without a reason.
pub(super) fn check_at_once(at_once: bool, reason: &str) -> Result<(), Failure> {
    if at_once && reason.trim().is_empty() {
        return Err(Failure::usage("--at-once: --reason says nothing")
            .hint("say why all agents change together"));
    }
    Ok(())
}

/// The difference between files and the ledger, with the rollouts that a change begins.
pub(super) async fn compared(
    context: &Context<'_>,
    declared: &Declarations,
    ledger: &Configuration,
    undeclared: Undeclared,
    manner: Manner,
) -> Result<Result<Difference, Problems>, Failure> {
    let decision = &context.decision("diff", "");
    let (now, zones) = (context.seconds(), context.zones);
    let comparison = Comparison { declared, decision, undeclared, manner, now, zones };
    let mut found = comparison.with(ledger, None);
    if matches!(found, Err(CompareError::NeedsRows)) {
        found = comparison.with(ledger, Some(&Rows::load(context.ledger).await?));
    }
    match found {
        Ok(found) => Ok(Ok(found)),
        Err(CompareError::Problems(problems)) => Ok(Err(problems)),
        Err(error @ CompareError::NeedsRows) => Err(Failure::failed(error)),
    }
}

async fn write(
    context: &Context<'_>,
    declared: &Declarations,
    undeclared: Undeclared,
    manner: Manner,
    why: &str,
    rows: Option<&BTreeMap<String, Row>>,
) -> Result<Changed<(Difference, Vec<Apart>)>, ChangeError<CompareError>> {
    let decision = &context.decision("apply", why);
    let (now, zones) = (context.seconds(), context.zones);
    let comparison = Comparison { declared, decision, undeclared, manner, now, zones };
    change::change(context.ledger, decision, |ledger| {
        let found = comparison.with(ledger, rows)?;
        let apart = apart(declared, ledger.view(), &found.edits);
        let mut edits: Vec<Edit> = found.edits.clone();
        if undeclared == Undeclared::Delete {
            edits.extend(found.undeclared.iter().cloned());
        }
        Ok((edits, (found, apart)))
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
    (found, apart): &(Difference, Vec<Apart>),
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
    for apart in apart {
        context.say(format_args!("{}", one_line(&apart.text)))?;
    }
    context.document(&ChangeJson {
        apart: apart.iter().map(ApartJson::from).collect(),
        audit: entry,
        changes,
        dry_run,
        file: None,
        kept: found.kept.clone(),
        notes,
        undeclared,
        unchanged: found.unchanged,
    })
}
