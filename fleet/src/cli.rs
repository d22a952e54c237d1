//! The verbs of `guest-fleet` that act on a ledger or an authority, without opening either: the
//! program does that.
//!
//! Every verb prints for people, or with `--json` one document for programs.

pub mod agent;
pub mod ca;
mod duration;
pub mod token;

use std::io;

use jiff::Timestamp;
use serde::Serialize;

/// Prints one document, indented.
fn print_json(out: &mut dyn io::Write, document: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, document)?;
    writeln!(out)
}

/// A time as people and programs read it, in UTC and whole seconds.
fn moment(time: Option<prost_types::Timestamp>) -> Option<String> {
    let time = Timestamp::from_second(time?.seconds).ok()?;
    Some(time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// Who runs the program, for records of what people did.
fn operator() -> String {
    let name = ["SUDO_USER", "USER"].iter().find_map(|name| std::env::var(name).ok());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}
