//! `new`: the sources of a plugin, to begin with.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

use super::context::Context;
use super::failure::{Exit, Failure};
use crate::scaffold::{self, Language, ScaffoldError};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent new metrics --lang go
  guest-agent new metrics --lang python --sdk ~/guest-agent/sdk")]
pub(super) struct Flags {
    /// Name of the plugin, and of the folder that is made
    name: String,
    /// The language
    #[arg(long, value_enum, value_name = "LANGUAGE")]
    lang: Language,
    /// The folder `sdk` of a checkout, to use its SDK instead of the published one
    #[arg(long, value_name = "DIR")]
    sdk: Option<PathBuf>,
}

/// A project that was made.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ProjectJson<'a> {
    /// Its folder. Absolute.
    folder: PathBuf,
    /// The plugin.
    name: &'a str,
    /// Its files. Absolute.
    files: Vec<PathBuf>,
}

pub(super) fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let name = flags.name.rsplit('/').next().unwrap_or_default();
    let failed = |error: std::io::Error| {
        Failure::failed(format_args!("failed to find {}", flags.name)).because(&error)
    };
    let folder = std::path::absolute(&flags.name).map_err(failed)?;
    let files = scaffold::make(&folder, name, flags.lang, flags.sdk.as_deref())?;
    let console = context.console;
    if context.global.json() {
        return Ok(console.document(&ProjectJson { folder, name, files })?);
    }
    console.line(&format!("{}: {name}, {} files", flags.name, files.len()))?;
    console.line("README.md in it says how it is tested, packed and run")?;
    Ok(())
}

// === impl Failure ===

impl From<ScaffoldError> for Failure {
    fn from(error: ScaffoldError) -> Self {
        let failure = Self::of(&error);
        match error {
            ScaffoldError::Name(_) => Self { exit: Exit::Usage, ..failure }
                .hint("use lower-case letters, digits and hyphens, with a letter first"),
            ScaffoldError::Exists(_) => failure.hint("choose another name, or move it away"),
            ScaffoldError::Sdk { .. } => {
                failure.hint("give --sdk a folder with rust, go and python")
            }
            ScaffoldError::Write { .. } => failure,
        }
    }
}
