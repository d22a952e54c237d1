//! `audit`: who changed what, whether the record is whole, and what of it is kept elsewhere.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, Subcommand};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::context::Context;
use super::document::{Time, parts};
use super::failure::{Exit, Failure};
use super::text::{counted, one_line, time};
use crate::configuration::audit::head::{HeadError, PublicKey, SignedHead, SigningKey};
use crate::configuration::audit::{self, Known, Verdict, export};
use crate::hex::{hex, unhex};
use crate::records::audit::AuditRecord;

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
    /// Print all entries, a JSON document on each line, which `verify --export` checks without the ledger.
    Export,
    /// Make a key that signs heads, in a new file, and print its public key.
    CreateKey(CreateKeyOptions),
    /// Print the newest entry's number and digest, signed, to be kept elsewhere.
    SignHead(SignHeadOptions),
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
    /// A head of earlier: NUMBER:DIGEST, as an earlier `audit verify` printed it, or the file of a signed head;
    /// finds entries that were removed at the end. May be given several times.
    #[arg(long, value_name = "HEAD")]
    pub against: Vec<Against>,
    /// The public key of signed heads; their signatures are checked.
    #[arg(long, value_name = "FILE", requires = "against")]
    pub public_key: Option<PathBuf>,
    /// Check this export in place of the ledger.
    #[arg(long, value_name = "FILE")]
    pub export: Option<PathBuf>,
}

/// The options of `audit create-key`.
#[derive(Clone, Debug, Args)]
pub struct CreateKeyOptions {
    /// The new file, for its owner alone.
    pub file: PathBuf,
}

/// The options of `audit sign-head`.
#[derive(Clone, Debug, Args)]
pub struct SignHeadOptions {
    /// File with the key, PEM.
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
}

/// A head of the audit record, as it was printed. It is also read from requests, so it is never a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head(Known);

/// A head of the audit record on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Against {
    /// As it was printed.
    Printed(Head),
    /// Signed, in a file.
    File(PathBuf),
}

/// An entry of the audit record.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
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

/// A line of an export.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ExportedJson {
    /// SHA-256 of the entry, which the next one has as `previous`.
    pub digest: String,
    /// What the entry says.
    #[serde(flatten)]
    pub entry: EntryJson,
    /// Digest of the entry before; empty for the first.
    pub previous: String,
    /// The entry as the ledger has it, in Base64: what the digest is of.
    pub record: String,
}

/// A key that was made.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AuditKeyJson {
    /// By what signed heads name it.
    pub key: String,
    /// The public key, PEM.
    pub public_key: String,
}

/// A change of one record.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
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
        Some(Verb::Export) => export(context).await,
        Some(Verb::CreateKey(options)) => create_key(options, context),
        Some(Verb::SignHead(options)) => sign_head(options, context).await,
    }
}

/// Some entries of the audit record.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct EntriesJson {
    /// The newest first.
    pub entries: Vec<EntryJson>,
}

/// The newest entries.
///
/// # Errors
/// The audit record cannot be read.
pub(crate) async fn newest(
    options: &ListOptions,
    context: &Context<'_>,
) -> Result<EntriesJson, Failure> {
    page(options, None, context).await
}

/// The newest entries before a number.
///
/// # Errors
/// The audit record cannot be read.
pub(crate) async fn page(
    options: &ListOptions,
    before: Option<u64>,
    context: &Context<'_>,
) -> Result<EntriesJson, Failure> {
    let entries = audit::page(context.ledger, before, options.limit.into()).await?;
    Ok(EntriesJson { entries: entries.iter().map(EntryJson::from).collect() })
}

/// Whether the record is whole.
///
/// # Errors
/// The audit record cannot be read.
pub(crate) async fn check(against: &[Head], context: &Context<'_>) -> Result<VerdictJson, Failure> {
    let known: Vec<Known> = against.iter().map(|head| head.0.clone()).collect();
    Ok(VerdictJson::from(audit::verify(context.ledger, &known).await?))
}

async fn list(options: &ListOptions, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let found = newest(options, context).await?;
    tell(&found, context)
}

/// Prints entries.
///
/// # Errors
/// They cannot be printed.
pub(crate) fn tell(found: &EntriesJson, context: &mut Context<'_>) -> Result<Exit, Failure> {
    for entry in &found.entries {
        context.say(format_args!("{}", entry.head()))?;
        for change in &entry.changes {
            context.say(format_args!("    {}", change.line()))?;
        }
        context.line(entry)?;
    }
    Ok(Exit::Done)
}

async fn verify(options: &VerifyOptions, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let known = known(options, context)?;
    let verdict = match &options.export {
        None => audit::verify(context.ledger, &known).await?,
        Some(path) => verify_export(path, &known)?,
    };
    let older = verdict.older.clone();
    tell_verdict(VerdictJson::from(verdict), &older, options, context)
}

/// Prints whether the record is whole; with the numbers of heads that are too old to be compared with.
///
/// # Errors
/// It is not whole, or it cannot be printed.
pub(crate) fn tell_verdict(
    document: VerdictJson,
    older: &[u64],
    options: &VerifyOptions,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    context.document(&document)?;
    for number in older {
        context.remark(format_args!(
            "the head of entry {number} is older than every entry that is kept: nothing was compared with it"
        ))?;
    }
    if document.problems.is_empty() {
        let entries = match document.checked {
            1 => "1 entry".to_owned(),
            count => format!("{count} entries"),
        };
        context.say(format_args!("{entries} checked, head {}", document.head))?;
        return Ok(Exit::Done);
    }
    let count = counted(document.problems.len(), "problem");
    let hint = match options.export {
        None => "compare with a backup: somebody wrote to the ledger beside this program",
        Some(_) => {
            "export again: somebody changed the file, or wrote to the ledger beside this program"
        }
    };
    let mut failure = Failure::failed(format_args!("the audit record has {count}")).hint(hint);
    failure.causes = document.problems;
    Err(failure)
}

/// The heads that were given. Where there is a public key, it has to have signed those in files.
///
/// # Errors
/// A file cannot be read, or another key signed it.
pub(crate) fn known(
    options: &VerifyOptions,
    context: &mut Context<'_>,
) -> Result<Vec<Known>, Failure> {
    let key = options.public_key.as_deref().map(PublicKey::read).transpose()?;
    let mut known = Vec::new();
    for head in &options.against {
        match head {
            Against::Printed(head) => known.push(head.0.clone()),
            Against::File(path) => {
                let signed = SignedHead::read(path)?;
                match &key {
                    Some(key) => signed.check(key)?,
                    None => context.remark(format_args!(
                        "nobody checked who signed {}: add --public-key",
                        path.display()
                    ))?,
                }
                known.extend(signed.known());
            }
        }
    }
    Ok(known)
}

fn verify_export(path: &Path, known: &[Known]) -> Result<Verdict, Failure> {
    let failed = |error: std::io::Error| {
        let mut failure = Failure::failed(format_args!("cannot read `{}`", path.display()));
        failure.causes.push(error.to_string());
        failure
    };
    let mut lines = BufReader::new(File::open(path).map_err(failed)?);
    let words = |record: &AuditRecord, bytes: &[u8]| {
        serde_json::to_value(ExportedJson::of(record, bytes)).expect("plain values")
    };
    export::verify(&mut lines, known, words).map_err(failed)
}

async fn export(context: &mut Context<'_>) -> Result<Exit, Failure> {
    let out = &mut *context.out;
    export::export(context.ledger, |record, bytes| {
        let line = serde_json::to_string(&ExportedJson::of(record, bytes)).expect("plain values");
        writeln!(out, "{line}").map_err(Failure::from)
    })
    .await?;
    Ok(Exit::Done)
}

fn create_key(options: &CreateKeyOptions, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let public = SigningKey::create(&options.file)?;
    let document = AuditKeyJson { key: public.id(), public_key: public.pem() };
    context.say(format_args!("{}", document.public_key.trim_end()))?;
    context.document(&document)?;
    Ok(Exit::Done)
}

async fn sign_head(options: &SignHeadOptions, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let key = SigningKey::read(&options.key)?;
    let head = audit::read_head(context.ledger).await?;
    let signed = key.sign(head.number, &head.digest, context.now);
    // The file of a head is JSON.
    let text = serde_json::to_string_pretty(&signed).expect("plain values");
    writeln!(context.out, "{text}")?;
    Ok(Exit::Done)
}

// === impl Options ===

impl Options {
    /// Whether no ledger is needed.
    #[must_use]
    pub fn is_offline(&self) -> bool {
        match &self.verb {
            Some(Verb::Verify(options)) => options.export.is_some(),
            Some(Verb::CreateKey(_)) => true,
            None | Some(Verb::List(_) | Verb::Export | Verb::SignHead(_)) => false,
        }
    }
}

// === impl ExportedJson ===

impl ExportedJson {
    fn of(record: &AuditRecord, bytes: &[u8]) -> Self {
        let export::Line { record: text, .. } = export::line(record.number, bytes);
        Self {
            digest: export::digest(bytes),
            entry: EntryJson::from(record),
            previous: hex(&record.previous),
            record: text,
        }
    }
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

// === impl VerdictJson ===

impl From<Verdict> for VerdictJson {
    fn from(verdict: Verdict) -> Self {
        Self {
            checked: verdict.checked,
            head: format!("{}:{}", verdict.newest, hex(&verdict.digest)),
            problems: verdict.problems,
        }
    }
}

// === impl Head ===

impl FromStr for Head {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (number, digest) = text.split_once(':')?;
            Some(Known { number: number.parse().ok()?, digest: unhex(digest)? })
        };
        read()
            .map(Self)
            .ok_or_else(|| "write NUMBER:DIGEST, as `audit verify` prints it".to_owned())
    }
}

// === impl Against ===

impl FromStr for Against {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let looks_printed = text
            .split_once(':')
            .is_some_and(|(number, _)| number.bytes().all(|byte| byte.is_ascii_digit()));
        if looks_printed {
            return text.parse().map(Self::Printed);
        }
        Ok(Self::File(text.into()))
    }
}

impl From<HeadError> for Failure {
    fn from(error: HeadError) -> Self {
        Self::of(Exit::Failed, &error)
    }
}
