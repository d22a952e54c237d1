//! `keygen`: a pair of keys to sign archives with.

use std::path::PathBuf;

use serde_json::json;

use super::context::Context;
use super::failure::Failure;
use crate::install::trust::sign;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent keygen -o release.key")]
pub(super) struct Flags {
    /// Where the secret key is written, unencrypted and readable by its owner alone; the public one
    /// is written beside it as FILE.pub
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub(super) fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let (public, key) = sign::make_key(&flags.output)
        .map_err(|error| Failure::failed("failed to make a key").because(&error))?;
    let console = context.console;
    if context.global.json() {
        return Ok(console.document(&json!({
            "secret_key": flags.output,
            "public_key": public,
            "key": key,
        }))?);
    }
    console.line(&format!(
        "{}: keep it secret, sign with it; it is NOT encrypted: every reader of the file can sign",
        flags.output.display()
    ))?;
    console.line(&format!("{}: for every machine that installs", public.display()))?;
    console.line("agents trust it with this in their configuration:")?;
    console.line("[trust]")?;
    console.line(&format!("keys = [\"{key}\"]"))?;
    Ok(())
}
