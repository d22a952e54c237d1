//! `diff`: what files declare beside what the ledger has.

use std::path::PathBuf;

use clap::Args;
use guest_fleet_server::configuration::Configuration;
use guest_fleet_server::declarations::difference::Undeclared;
use guest_fleet_server::rollouts::apart::apart;
use guest_fleet_server::rollouts::begin::Manner;

use super::context::Context;
use super::document::{ApartJson, ChangeJson, EditJson};
use super::failure::{Exit, Failure};
use super::text::one_line;
use super::{apply, sources};

/// The options of `diff`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// A file, a directory of .toml, .yaml and .yml files, or `-` for standard input.
    #[arg(short, long, value_name = "PATH")]
    pub file: PathBuf,
}

/// Runs the verb. It ends with [`Exit::Failed`] when something differs.
///
/// # Errors
/// The declarations have problems, or the ledger cannot be read.
pub async fn run(options: &Options, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let (declared, notes) = sources::read(context, &options.file)?;
    let ledger = Configuration::load(context.ledger).await?;
    let (keep, manner) = (Undeclared::Keep, Manner::default());
    let found = match apply::compared(context, &declared, &ledger, keep, manner).await? {
        Ok(found) => found,
        Err(problems) => return sources::refused(context, problems),
    };
    let apart = apart(&declared, ledger.view(), &found.edits);
    let changes: Vec<EditJson> = found.edits.iter().map(EditJson::from).collect();
    let undeclared: Vec<EditJson> = found.undeclared.iter().map(EditJson::from).collect();
    for change in &changes {
        context.say(format_args!("{}", change.line()))?;
    }
    for record in &undeclared {
        context.say(format_args!("{} (no file declares it)", record.line()))?;
    }
    for name in &found.kept {
        context.say(format_args!("  hold {name} was set by hand and stays"))?;
    }
    for apart in &apart {
        context.say(format_args!("  {}", one_line(&apart.text)))?;
    }
    context.document(&ChangeJson {
        apart: apart.iter().map(ApartJson::from).collect(),
        audit: None,
        changes,
        dry_run: true,
        file: None,
        kept: found.kept.clone(),
        notes,
        undeclared,
        unchanged: found.unchanged,
    })?;
    Ok(if found.is_none() { Exit::Done } else { Exit::Failed })
}
