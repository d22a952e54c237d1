//! `audit`: who changed what, and whether the record is whole.

use std::str::FromStr;

use clap::{Args, Subcommand};
use data_encoding::HEXLOWER;
use guest_fleet_ledger::records::audit::AuditRecord;
use guest_fleet_server::configuration::audit::{self, Known};
use schemars::JsonSchema;
use serde::Serialize;

use super::context::Context;
use super::document::{Time, parts};
use super::failure::{Exit, Failure};
use super::text::{counted, one_line, time};

/// The options of `audit`.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Options {
    /// What to do; without it, list.
    #[command(subcommand)]
    pub verb: Option<Verb>,
    /// How to list.
    #[command(flatten)]
    pub list: ListOptions,
}

/// What to do with the audit record.
#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// List the newest entries, the newest first.
    List(ListOptions),
    /// Check that no entry was changed, removed or inserted.
    Verify(VerifyOptions),
}

/// The options of `audit list`.
#[derive(Clone, Debug, Args)]
pub struct ListOptions {
    /// At most so many.
    #[arg(long, value_name = "NUMBER", default_value_t = 20,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
}

/// The options of `audit verify`.
#[derive(Clone, Debug, Args)]
pub struct VerifyOptions {
    /// A head that an earlier `audit verify` printed, as NUMBER:DIGEST: finds entries that were
    /// removed at the end.
    #[arg(long, value_name = "HEAD")]
    pub against: Option<Head>,
}

/// A head of the audit record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head(Known);

/// An entry of the audit record.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EntryJson {
    /// When.
    #[schemars(with = "Option<Time>")]
    pub at: Option<String>,
    /// What was changed.
    pub changes: Vec<EntryChangeJson>,
    /// The program, and the machine that it ran on.
    pub from: String,
    /// Number of the entry.
    pub number: u64,
    /// What was asked, such as `apply`.
    pub what: String,
    /// Who.
    pub who: String,
    /// Why, in the person's own words; may be empty.
    pub why: String,
}

/// A change of one record.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EntryChangeJson {
    /// What it was since, in words; null where it was deleted.
    pub after: Option<String>,
    /// What it was before, in words; null where it was not there.
    pub before: Option<String>,
    /// What kind of record it is.
    pub kind: String,
    /// Its name; of a release, plugin and revision.
    pub name: String,
}

/// Whether the audit record is whole.
#[derive(Debug, Serialize, JsonSchema)]
pub struct VerdictJson {
    /// How many entries were checked; older ones are not kept.
    pub checked: u64,
    /// The newest entry as NUMBER:DIGEST, for a later check.
    pub head: String,
    /// What is wrong: a sentence each.
    pub problems: Vec<String>,
}

/// Runs the verb.
///
/// # Errors
/// The audit record cannot be read, or is not whole.
pub async fn run(options: &Options, context: &mut Context<'_>) -> Result<Exit, Failure> {
    match &options.verb {
        None => list(&options.list, context).await,
        Some(Verb::List(options)) => list(options, context).await,
        Some(Verb::Verify(options)) => verify(options, context).await,
    }
}

async fn list(options: &ListOptions, context: &mut Context<'_>) -> Result<Exit, Failure> {
    for entry in audit::newest(context.ledger, options.limit.into()).await? {
        let entry = EntryJson::from(&entry);
        context.say(format_args!("{}", entry.head()))?;
        for change in &entry.changes {
            context.say(format_args!("    {}", change.line()))?;
        }
        context.line(&entry)?;
    }
    Ok(Exit::Done)
}

async fn verify(options: &VerifyOptions, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let known = options.against.as_ref().map(|head| &head.0);
    let verdict = audit::verify(context.ledger, known).await?;
    let document = VerdictJson {
        checked: verdict.checked,
        head: format!("{}:{}", verdict.newest, HEXLOWER.encode(&verdict.digest)),
        problems: verdict.problems,
    };
    context.document(&document)?;
    if document.problems.is_empty() {
        let entries = match document.checked {
            1 => "1 entry".to_owned(),
            count => format!("{count} entries"),
        };
        context.say(format_args!("{entries} checked, head {}", document.head))?;
        return Ok(Exit::Done);
    }
    let count = counted(document.problems.len(), "problem");
    let mut failure = Failure::failed(format_args!("the audit record has {count}"))
        .hint("compare with a backup: somebody wrote to the ledger beside this program");
    failure.causes = document.problems;
    Err(failure)
}

// === impl EntryJson ===

impl From<&AuditRecord> for EntryJson {
    fn from(entry: &AuditRecord) -> Self {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Self {
            at: time(entry.at.as_ref()),
            changes: entry
                .changes
                .iter()
                .map(|change| {
                    let (kind, name) = parts(&change.key);
                    let (after, before) = (text(&change.after), text(&change.before));
                    EntryChangeJson { after, before, kind, name }
                })
                .collect(),
            from: entry.from.clone(),
            number: entry.number,
            what: entry.what.clone(),
            who: entry.who.clone(),
            why: entry.why.clone(),
        }
    }
}

impl EntryJson {
    pub(crate) fn head(&self) -> String {
        let Self { number, who, what, why, .. } = self;
        let at = self.at.as_deref().unwrap_or("-");
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        one_line(&format!("{number}  {at}  {who}  {what}{why}"))
    }
}

// === impl EntryChangeJson ===

impl EntryChangeJson {
    fn line(&self) -> String {
        let Self { kind, name, .. } = self;
        one_line(&match (&self.before, &self.after) {
            (None, after) => format!("+ {kind} {name}: {}", after.as_deref().unwrap_or_default()),
            (Some(before), None) => format!("- {kind} {name}: {before}"),
            (Some(before), Some(after)) => format!("~ {kind} {name}: {before} -> {after}"),
        })
    }
}

// === impl Head ===

impl FromStr for Head {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (number, digest) = text.split_once(':')?;
            let bytes = (0..digest.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(digest.get(at..at + 2)?, 16).ok());
            let digest: Vec<u8> = bytes.collect::<Option<_>>()?;
            Some(Known { number: number.parse().ok()?, digest })
        };
        read()
            .map(Self)
            .ok_or_else(|| "write NUMBER:DIGEST, as `audit verify` prints it".to_owned())
    }
}
