//! `support-bundle`: one archive with what somebody else needs to find out what is wrong here.
//!
//! ```text
//!  agent: status, doctor, explain, events, audit, logs ─┐
//!  configuration, as it is in effect                    ├─► Scrub ─► tar.gz
//!  machine: kernel, memory, disk, units, OOM            │  secrets, and with --redact names
//!  of a silent agent: process, logs, files of the store ┘
//! ```
//!
//! Everything passes through the one filter in `scrub.rs`. What cannot be had is named in `INDEX`, and
//! in `manifest.json` for programs, with the reason: the bundle of a machine whose agent does not answer is worth as much.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use super::context::Context;
use super::failure::Failure;
use super::format::bytes;

mod archive;
mod collect;
mod machine;
pub(super) mod manifest;
mod scrub;
mod without;

use collect::Collected;
use manifest::Made;
use scrub::Scrub;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent support-bundle
  guest-agent support-bundle -o /tmp/for-support.tar.gz --redact")]
pub(super) struct Flags {
    /// The archive to write [default: guest-agent-support-TIME.tar.gz]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the names of the host, the instance and the plugins as well
    #[arg(long)]
    redact: bool,
}

/// What was written, as scripts see it; field names never change.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Written<'a> {
    /// The size of the archive.
    bytes: u64,
    /// The archive.
    file: &'a Path,
    /// The files in it; `manifest.json` says what is missing.
    files: Vec<&'a str>,
}

pub(super) async fn run(flags: Flags, mut context: Context<'_, '_>) -> Result<(), Failure> {
    let now = (context.console.now)();
    let output = flags.output.unwrap_or_else(|| {
        PathBuf::from(format!("guest-agent-support-{}.tar.gz", now.strftime("%Y%m%dT%H%M%SZ")))
    });
    let mut collected = Collected::default();
    let mut known = collect::agent(&mut context, &mut collected).await;
    if known.silent.is_some() {
        without::collect(&mut known, &mut collected);
    }
    machine::collect(&mut collected, &known).await;
    let scrub = Scrub::new(&known, flags.redact);
    let files = collected.finish(&scrub, Made { at: now, redacted: flags.redact });
    let packed = archive::write(&output, &files, now).await;
    let size = packed.map_err(|error| {
        Failure::failed(format_args!("failed to write {}", output.display())).because(&error)
    })?;
    let console = context.console;
    let names: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    if context.global.json() {
        console.document(&Written { bytes: size, file: &output, files: names })?;
    } else {
        console.line(&format!("{}: {} files, {}", output.display(), names.len(), bytes(size)))?;
        console.line(
            "known secrets are masked; look through it before you give it to somebody, because a \
             secret that a plugin printed under a harmless name is not known",
        )?;
    }
    match &known.silent {
        None => Ok(()),
        Some(why) => Err(Failure::failed(
            "the bundle is written without the answers of the agent: its status, events, audit and \
             explanations",
        )
        .cause(why)),
    }
}
