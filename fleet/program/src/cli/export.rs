//! `export`: the ledger as declarations.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use guest_agent_serve_kit::replace::{Access, replace_file};
use guest_fleet_server::configuration::Configuration;
use guest_fleet_server::declarations::export;
use schemars::JsonSchema;
use serde::Serialize;

use super::context::{Context, Output};
use super::failure::{Exit, Failure};

/// The options of `export`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Write releases.toml, assignments.toml, holds.toml and windows.toml into this directory.
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// What was exported.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ExportJson {
    /// The files: their names, and their content where no directory was given.
    pub files: Vec<FileJson>,
    /// Records that cannot be read and are not in the files: a sentence each.
    pub unreadable: Vec<String>,
}

/// A file of an export.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FileJson {
    /// Its content; null where it was written to a directory.
    pub content: Option<String>,
    /// Its name, or its path where it was written to a directory.
    pub name: String,
}

/// Runs the verb.
///
/// # Errors
/// The ledger cannot be read, or a file cannot be written.
pub async fn run(options: &Options, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let ledger = Configuration::load(context.ledger).await?;
    let unreadable: Vec<String> = ledger.problems().map(|(_, error)| error.to_string()).collect();
    let failed = |error| Failure::of(Exit::Failed, &error);
    let mut files = Vec::new();
    match (&options.output, context.output) {
        (Some(directory), _) => {
            fs::create_dir_all(directory).map_err(|error| unwritten(directory, &error))?;
            for (name, text) in export::files(&ledger).map_err(failed)? {
                let path = directory.join(name);
                // A configuration may hold secrets, so others cannot read it.
                replace_file(&path, text.as_bytes(), Access::PRIVATE)
                    .map_err(|error| unwritten(&path, &error))?;
                context.say(format_args!("{}", path.display()))?;
                files.push(FileJson { content: None, name: path.display().to_string() });
            }
        }
        (None, Output::Text) => {
            let text = export::text(&ledger).map_err(failed)?;
            context.out.write_all(text.as_bytes())?;
        }
        (None, Output::Json) => {
            for (name, text) in export::files(&ledger).map_err(failed)? {
                files.push(FileJson { content: Some(text), name: name.to_owned() });
            }
        }
    }
    for error in &unreadable {
        context.remark(format_args!("left out: {error}"))?;
    }
    let is_whole = unreadable.is_empty();
    context.document(&ExportJson { files, unreadable })?;
    Ok(if is_whole { Exit::Done } else { Exit::Failed })
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    let mut failure = Failure::failed(format_args!("failed to write `{}`", path.display()));
    failure.causes.push(error.to_string());
    failure.hint("name a directory that this user may write to")
}
