//! `config`: checks or shows the configuration. Needs no running agent.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::console::Console;
use super::context::Context;
use super::failure::Failure;
use crate::config::{self, ConfigError, Entry, Problem};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent config check
  guest-agent config show
  guest-agent config show --effective --set plugins.probation=1m")]
pub(super) struct Flags {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Say whether the configuration is valid, and list all of its mistakes
    Check,
    /// Print what is set, and where
    Show {
        /// Print every key, also those at their defaults
        #[arg(long)]
        effective: bool,
    },
}

/// One key, as scripts see it; field names never change.
#[derive(Serialize, JsonSchema)]
pub(super) struct EntryJson<'a> {
    /// `section.key`.
    key: &'a str,
    /// The value, without secrets.
    value: &'a Value,
    /// The file, variable or flag that set it; null for a default.
    origin: Option<&'a str>,
}

/// What `config check` found, as scripts see it; field names never change.
#[derive(Serialize, JsonSchema)]
pub(super) struct Checked<'a> {
    /// What is wrong; empty where the configuration is good.
    problems: Vec<ProblemJson<'a>>,
}

/// Something that is wrong with the configuration.
#[derive(Serialize, JsonSchema)]
struct ProblemJson<'a> {
    /// `section.key`; null where it is not about one key.
    key: Option<&'a str>,
    /// The file, variable or flag that set the key; null where it is not about one key.
    origin: Option<&'a str>,
    /// What is wrong, and the fix.
    reason: &'a str,
}

pub(super) fn run(flags: Flags, mut context: Context<'_, '_>) -> Result<(), Failure> {
    match flags.action {
        Action::Check => {
            let checked = check(&context);
            if context.global.json() {
                report(checked.as_ref().err(), context.console)?;
            } else if checked.is_ok() {
                context.console.line("the configuration is good")?;
            }
            checked.map_err(Mistakes::into_failure)
        }
        Action::Show { effective } => show(effective, &mut context),
    }
}

/// Why a configuration is not good.
enum Mistakes {
    /// It cannot be read, or breaks rules.
    Config(ConfigError),
    /// The service would not start with it.
    Service(Failure),
}

fn check(context: &Context<'_, '_>) -> Result<(), Mistakes> {
    let loaded = config::load(context.environment, &context.sources()).map_err(Mistakes::Config)?;
    let checked = (context.services.check)(&loaded.config);
    checked.map_err(|error| Mistakes::Service(Failure::of(&*error)))
}

/// Prints what is wrong as a document.
fn report(mistakes: Option<&Mistakes>, console: &mut Console<'_>) -> std::io::Result<()> {
    let failure = match mistakes {
        None => return console.document(&Checked { problems: Vec::new() }),
        Some(Mistakes::Config(ConfigError::Problems(problems))) => {
            let problems = problems.iter().map(ProblemJson::from).collect();
            return console.document(&Checked { problems });
        }
        Some(Mistakes::Config(error)) => Failure::of(error),
        Some(Mistakes::Service(failure)) => failure.clone(),
    };
    let reason = [&[failure.reason][..], &failure.causes].concat().join(": ");
    let problems = vec![ProblemJson { key: None, origin: None, reason: &reason }];
    console.document(&Checked { problems })
}

fn show(effective: bool, context: &mut Context<'_, '_>) -> Result<(), Failure> {
    let loaded = context.load()?;
    let json = context.global.json();
    let console = &mut context.console;
    let mut entries = config::entries(&loaded);
    entries.retain(|entry| effective || entry.origin.is_some());
    if json {
        let entries: Vec<_> = entries.iter().map(EntryJson::from).collect();
        console.document(&entries)?;
    } else {
        console.text(&as_toml(&entries))?;
    }
    Ok(())
}

/// Every key with its value and its place.
pub(super) fn effective_toml(loaded: &config::Loaded) -> String {
    as_toml(&config::entries(loaded))
}

/// TOML that could be a configuration file, with the places as comments.
fn as_toml(entries: &[Entry]) -> String {
    let mut text = String::new();
    let mut current = "";
    for entry in entries {
        let (section, key) = entry.key.split_once('.').expect("keys have a section");
        if section != current {
            let gap = if current.is_empty() { "" } else { "\n" };
            text.push_str(&[gap, "[", section, "]\n"].concat());
            current = section;
        }
        let origin = entry.origin.as_deref().unwrap_or("default");
        text.push_str(&[key, " = ", &entry.value, "  # ", origin, "\n"].concat());
    }
    text
}

// === impl Mistakes ===

impl Mistakes {
    fn into_failure(self) -> Failure {
        match self {
            Self::Config(error) => error.into(),
            Self::Service(failure) => failure,
        }
    }
}

impl<'a> From<&'a Entry> for EntryJson<'a> {
    fn from(entry: &'a Entry) -> Self {
        Self { key: &entry.key, value: &entry.json, origin: entry.origin.as_deref() }
    }
}

impl<'a> From<&'a Problem> for ProblemJson<'a> {
    fn from(problem: &'a Problem) -> Self {
        Self { key: Some(&problem.key), origin: Some(&problem.origin), reason: &problem.reason }
    }
}
