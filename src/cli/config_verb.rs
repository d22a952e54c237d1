//! `config`: checks or shows the configuration. Needs no running agent.

use serde::Serialize;

use super::context::Context;
use super::failure::Failure;
use crate::config::{self, Entry};

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

/// One key as JSON.
#[derive(Serialize)]
struct EntryJson<'a> {
    key: &'a str,
    value: &'a str,
    origin: Option<&'a str>,
}

pub(super) fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let loaded = context.load()?;
    if matches!(flags.action, Action::Check) {
        (context.services.check)(&loaded.config).map_err(|error| Failure::of(&*error))?;
    }
    let console = context.console;
    match flags.action {
        Action::Check if context.global.json() => {
            console.document(&serde_json::json!({ "problems": [] }))?;
        }
        Action::Check => console.line("the configuration is good")?,
        Action::Show { effective } => {
            let mut entries = config::entries(&loaded);
            entries.retain(|entry| effective || entry.origin.is_some());
            if context.global.json() {
                let entries: Vec<_> = entries
                    .iter()
                    .map(|entry| EntryJson {
                        key: &entry.key,
                        value: &entry.value,
                        origin: entry.origin.as_deref(),
                    })
                    .collect();
                console.document(&entries)?;
            } else {
                console.text(&as_toml(&entries))?;
            }
        }
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
